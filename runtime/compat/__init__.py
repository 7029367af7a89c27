"""Functions of other libraries by their names and arguments, on top of generated ops."""
