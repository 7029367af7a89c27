"""Ops of recurrences of papers and of other libraries, that the compiler wrote; each is a name of `chunkform.generated`."""

__path__: list[str] = []  # a module has one name, chunkform.generated.<name>
