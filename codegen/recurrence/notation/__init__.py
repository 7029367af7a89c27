"""What was derived, as formulas for people, in plain text and LaTeX.

The step and its adjoint, the read-write form, and the form over chunks.
"""
