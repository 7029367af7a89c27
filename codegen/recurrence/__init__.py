"""The compiler of recurrences: step -> normal form -> plan over chunks -> text, and its gates.

`pipeline.py` lists the passes in order; `emit.py` writes the file.
"""
