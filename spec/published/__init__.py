"""The second shelf of the catalogue: recurrences of papers and of other libraries, by the names that people look for.

Their files are in `generated/published`. The first shelf, whose kernels are verified on GPUs, is `spec/` itself.
"""
