"""Papers: documents with formulas in LaTeX, read and judged. `reader.py` finds the rows, `parser.py` reads them.

What a row says is typed into a claim or a spec; whether it is true is for `claims/` to judge.
"""
