"""States that don't read each other back: each group of states is a step program of its own, over what earlier ones hand on.

`split.py` finds them and `joined.py` calls one after the other. The gate is in `gates/`, and each stratum goes through the
usual passes.
"""
