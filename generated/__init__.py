"""The ops that the compiler wrote, one file per spec; never edited by hand."""
