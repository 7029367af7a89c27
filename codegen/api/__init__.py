"""What Python asks of the compiler, and gets as objects: explanations, verdicts, errors, the catalogue.

Each object has its facts as fields, reads as text (`str`), shows itself typeset in a notebook, and gives LaTeX and JSON.
"""

from ..commands.listing import Listed, catalogue
from ..exact.same import Same, same
from .checked import Check, check
from .explained import Derivation, Explanation, explain
from .judged import Verdicts, verify

__all__ = [
    "Check",
    "Derivation",
    "Explanation",
    "Listed",
    "Same",
    "Verdicts",
    "catalogue",
    "check",
    "explain",
    "same",
    "verify",
]
