"""Papers: documents with formulas in LaTeX, read and judged. `reader.py` finds the rows, `parser.py` reads them."""
