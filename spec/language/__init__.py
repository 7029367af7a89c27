"""The language of specs: everything that a spec file imports.

It checks what a declaration alone shows. What needs a derivation is refused by the compiler, in `codegen/`.
"""

from .attention import Attention, frequencies, rotate
from .complex_parts import conj, imag, real
from .declaration import Declaration
from .expression import Dim, Matrix, apply, diag, dot, eye, hadamard, latex, ones, text, total
from .functions import (
    Max,
    Min,
    absolute,
    cos,
    erf,
    exp,
    log,
    logsigmoid,
    norm,
    normalize,
    relu,
    sigmoid,
    silu,
    sin,
    softmax,
    softplus,
    sqrt,
    tanh,
)
from .load import catalogue, find, load
from .methods import cg, neumann, sherman_morrison
from .program import Program
from .recurrence import Equation, Recurrence, State, Variable
from .row_map import RowMap

__all__ = [
    "Attention",
    "Declaration",
    "Dim",
    "Equation",
    "Matrix",
    "Max",
    "Min",
    "Program",
    "Recurrence",
    "RowMap",
    "State",
    "Variable",
    "absolute",
    "apply",
    "catalogue",
    "cg",
    "conj",
    "cos",
    "diag",
    "dot",
    "erf",
    "exp",
    "eye",
    "find",
    "frequencies",
    "hadamard",
    "imag",
    "latex",
    "load",
    "log",
    "logsigmoid",
    "neumann",
    "norm",
    "normalize",
    "ones",
    "real",
    "relu",
    "rotate",
    "sherman_morrison",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "tanh",
    "text",
    "total",
]
