"""The expression graph: small, immutable, hash-consed tensor expressions over named axes, and what is asked of any of them.

Evaluation, derivatives of scalar functions, degrees, and how an expression is written for people.
"""

from . import expr, notation

expr.Node.written = staticmethod(notation.plain)
