"""Generated ops inside other people's libraries: each is a package of its own, which loads that library only when it is used."""
