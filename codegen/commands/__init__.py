"""The command line, and what it does for each kind of declaration.

`kinds.py` describes what a kind offers; `compile.py` and `build.py` write files.
"""
