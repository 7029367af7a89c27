"""What a generated op needs while it runs.

Nothing here knows the compiler or SymPy. What many ops call is here, what one op alone needs is in its generated file.
"""
