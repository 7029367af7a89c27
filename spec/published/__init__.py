"""The second shelf of the catalogue: recurrences of papers and of other libraries, by the names that people look for."""
