"""The terms of a spec: SymPy expressions for scalars, and `Matrix` for vectors and matrices over named dims.

Vectors are columns. `k * v.T` is an outer product, `S.T * q` a matrix-vector product, `q.T * k` a scalar. A scalar is an
ordinary SymPy expression, so any SymPy function may be applied to it; the functions of `functions.py` also act on each
entry of a vector.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, NoReturn, Union

import sympy

from chunkform.errors import DimensionError, SpecError

from . import formula as formulas
from .foreign import Named, WithoutValue, check_function, foreign, got
from .source import Source, caller, wrote


@dataclass(frozen=True)
class Dim:
    """A named dimension, such as the key width d or the value width e."""

    name: str

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def _refuse(self, *others: object) -> Any:
        """Whatever is one of the language's own, as a claim's step is, answers for itself."""
        if any(type(x).__module__.startswith("chunkform.") and not isinstance(x, Matrix | Dim) for x in others):
            return NotImplemented
        raise DimensionError(f"the dim {self} is no number: its size is r.size({self}), where r declares it", caller())

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __len__ = __getitem__ = __iter__ = __index__ = __int__ = __float__ = _refuse


ONE = Dim("1")
Scalar = sympy.Expr
Term = Union["Matrix", sympy.Expr]


class NotAScalar(DimensionError, sympy.SympifyError):
    """A matrix or a state was given to SymPy, which knows scalars only."""

    def __str__(self) -> str:
        return str(self.expr)


class Atom(Named):
    """A named scalar of a spec: an input, a parameter, a constant, an auxiliary quantity or a scalar state. `owner`: what
    declares it, if that is known."""

    __slots__ = ("kind", "owner", "ref", "where")

    def __new__(cls, name: str, kind: str, ref: str | None = None, owner: object = None) -> Atom:
        self = sympy.Symbol.__xnew__(cls, name, real=True)
        self.kind = kind
        self.ref = ref or name
        self.owner = owner
        self.where = caller()
        return self

    def __getnewargs_ex__(self) -> Any:
        return (self.name, self.kind, self.ref), {}

    def _hashable_content(self) -> Any:
        return (self.name, self.kind, self.ref)

    @property
    def T(self) -> NoReturn:
        raise DimensionError(f"{self} is a scalar, which has no transpose", caller())

    def __xor__(self, other: object) -> NoReturn:
        raise SpecError(f"{self} ^ {other} is no power in Python: write {self} ** {other}", caller())


class Contraction(Named):
    """A 1 x 1 matrix product, such as `q.T * k`, used as a scalar."""

    __slots__ = ("matrix",)

    def __new__(cls, matrix: Matrix) -> Contraction:
        self = sympy.Symbol.__xnew__(cls, f"({matrix})", real=None if matrix.imaginary else True)
        self.matrix = matrix
        return self

    def __getnewargs_ex__(self) -> Any:
        return (self.matrix,), {}

    def _hashable_content(self) -> Any:
        return ("contraction", self.matrix)

    def _latex(self, printer: object) -> str:
        return latex(self.matrix)


class Matrix(WithoutValue):
    """A matrix- or vector-valued term. `op` says how it is made of `args`; `rows` and `cols` are its dims. `owner`: what declares
    it, of a named quantity."""

    __slots__ = ("_hash", "args", "cols", "imaginary", "op", "owner", "rows", "where")
    _op_priority = 100.0  # SymPy then leaves `scalar * Matrix` to us

    def __init__(
        self, op: str, args: tuple, rows: Dim, cols: Dim, where: Source | None = None, owner: object = None
    ) -> None:
        self.op, self.args, self.rows, self.cols = op, args, rows, cols
        self.where, self.owner = where or caller(), owner
        self._hash = hash((op, args, rows, cols))
        self.imaginary = any(map(_imaginary, args))  # is it written with 1j?

    def __hash__(self) -> int:
        return self._hash

    def _repr_latex_(self) -> str:
        """For notebooks."""
        return rf"$\displaystyle {latex(self)}$"

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Matrix)
            and self._hash == other._hash
            and (self.op, self.rows, self.cols) == (other.op, other.rows, other.cols)
            and self.args == other.args
        )

    def __lt__(self, other: Any) -> bool:
        return self._sorts(other) < other._sorts(self)

    def __gt__(self, other: Any) -> bool:
        return self._sorts(other) > other._sorts(self)

    __le__, __ge__ = __lt__, __gt__

    def _sorts(self, other: object) -> tuple[str, int]:
        """By what SymPy sorts the terms of a sum; a spec's own comparison, as that of max(a, b), would pick one whole term."""
        if wrote(2) or not isinstance(other, Matrix):
            raise SpecError(
                f"{text(self)} is compared: write Max(a, b), Min, relu or absolute, of chunkform.spec.language, which act "
                "on each entry",
                caller(),
            )
        return text(self), self._hash

    @property
    def shape(self) -> tuple[Dim, Dim]:
        return self.rows, self.cols

    @property
    def is_vector(self) -> bool:
        return ONE in self.shape

    @property
    def T(self) -> Matrix:
        if self.op == "transpose":
            return self.args[0]
        return Matrix("transpose", (self,), self.cols, self.rows)

    def __add__(self, other: object) -> Any:
        if isinstance(other, Matrix):
            if other.shape != self.shape:
                hint = "; write .T after one of them" if other.shape == self.shape[::-1] else ""
                raise DimensionError(
                    f"can't add {shape_text(self)} and {shape_text(other)}: both terms must have the same dims{hint}",
                    caller(),
                )
            return Matrix("add", (self, other), self.rows, self.cols)
        value = scalar_of(other)
        if value is None:
            return foreign(self, other)
        if value == 0:
            return self
        if self.is_vector:
            return Matrix("add", (self, Matrix("full", (value,), self.rows, self.cols)), self.rows, self.cols)
        if self.rows != self.cols:  # nothing else can be meant
            return self + scale(value, ones(self.rows, self.cols))
        raise DimensionError(
            f"can't add the scalar {value} to {shape_text(self)}, a square matrix: for a multiple of the identity write "
            f"`eye({self.rows})`, to add it to each entry `ones({self.rows}, {self.cols})`",
            caller(),
        )

    __radd__ = __add__

    def __neg__(self) -> Matrix:
        return scale(sympy.Integer(-1), self)

    def __abs__(self) -> Matrix:
        return apply(sympy.Abs, self)

    def __pos__(self) -> Matrix:
        return self

    def __sub__(self, other: Any) -> Any:
        return foreign(self, other) if scalar_of(other) is None and not isinstance(other, Matrix) else self + (-other)

    def __rsub__(self, other: object) -> Any:
        return (-self) + other

    def __mul__(self, other: object) -> Any:
        if isinstance(other, Matrix):
            return matmul(self, other)
        value = scalar_of(other)
        return foreign(self, other) if value is None else scale(value, self)

    def __rmul__(self, other: object) -> Any:
        value = scalar_of(other)
        return foreign(self, other) if value is None else scale(value, self)

    def __matmul__(self, other: object) -> object:
        return matmul(self, other) if isinstance(other, Matrix) else self._no_scalar(other)

    def _no_scalar(self, other: object) -> object:
        if scalar_of(other) is None:
            return foreign(self, other)
        raise DimensionError(
            f"@ multiplies vectors and matrices, got {shape_text(self)} and the scalar {other}: write *", caller()
        )

    __rmatmul__ = _no_scalar

    def __truediv__(self, other: object) -> Any:
        if isinstance(other, Matrix):
            other._refuse_division()
            if other.shape != self.shape:
                raise DimensionError(
                    f"can't divide {shape_text(self)} by {shape_text(other)}: only a scalar, or a vector of the same dim, "
                    f"may divide (entry by entry){_scaled(other**-1, self) if other.op == 'symbol' else ''}",
                    caller(),
                )
            return hadamard(self, other**-1)
        value = scalar_of(other)
        return foreign(self, other) if value is None else scale(1 / value, self)

    def __rtruediv__(self, other: object) -> Any:
        value = scalar_of(other)
        self._refuse_division()
        return foreign(self, other) if value is None else scale(value, self**-1)

    def _refuse_division(self) -> None:
        if not self.is_vector:
            hint = (
                "for a quotient of entries write apply(lambda x, y: x / y, A, B), and solve for a matrix in a Program"
            )
            raise DimensionError(f"can't divide by {shape_text(self)}: a matrix has no inverse here; {hint}", caller())

    def __pow__(self, exponent: object, modulo: object = None) -> Matrix:
        power = None if modulo is not None else scalar_of(exponent)
        if power is None or not power.is_number:
            hint = ""
            if self.is_vector and power is not None:
                hint = f"; for a power of each entry write `exp({exponent} * log({self}))`"
            elif self.is_vector and isinstance(exponent, Matrix) and exponent.shape == self.shape:
                hint = f"; for a power of each entry write `exp(hadamard({exponent}, log({self})))`"
            raise SpecError(f"the exponent of {self} must be a number, got {got(exponent)}{hint}", caller())
        if not self.is_vector:
            raise SpecError(
                f"** acts on each entry of a vector; {shape_text(self)} is a matrix: write a product of matrices with *, "
                "of entries with hadamard",
                caller(),
            )
        return apply(lambda x: x**power, self)

    def __rpow__(self, base: object) -> Matrix:
        number = scalar_of(base)
        if number is None or not number.is_positive or not self.is_vector:
            raise SpecError(
                f"{shape_text(self)} can't be the exponent of {base}: write `exp({self} * log({base}))`", caller()
            )
        return apply(lambda x: number**x, self)

    def _sympy_(self) -> NoReturn:
        raise NotAScalar(
            f"{shape_text(self)} isn't a scalar, so SymPy's functions can't be applied to it: use those of "
            "chunkform.spec.language, Max and Min among them, which act on each entry",
            caller(),
        )

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__


def scalar_of(value: object) -> sympy.Expr | None:
    """`value` as a SymPy scalar, or None when it isn't one."""
    if isinstance(value, sympy.Expr):
        return None if value.is_Matrix else value
    if isinstance(value, numbers.Number) and not isinstance(value, bool):
        made = sympy.sympify(value)
        return sympy.nsimplify(made, rational=True) if isinstance(value, float | complex) else made
    return None


def _imaginary(x: object) -> bool:
    """Is a part of a term written with 1j?"""
    if isinstance(x, Matrix):
        return x.imaginary
    return isinstance(x, sympy.Basic) and (x.has(sympy.I) or any(c.matrix.imaginary for c in x.atoms(Contraction)))


def shape_text(m: Matrix) -> str:
    return f"{m} ({m.rows} x {m.cols})"


def lift(m: Matrix) -> Any:
    """A 1 x 1 product as a scalar, anything else as it is."""
    return Contraction(m) if m.shape == (ONE, ONE) else m


def scale(value: sympy.Expr, m: Matrix) -> Matrix:
    if value == 1:
        return m
    if m.op == "scale":
        return Matrix("scale", (value * m.args[0], m.args[1]), m.rows, m.cols)
    return Matrix("scale", (value, m), m.rows, m.cols)


def matmul(a: Matrix, b: Matrix) -> Any:
    if a.cols != b.rows:
        hint = ""
        if a.shape == b.shape and a.is_vector:
            hint = f"; for a scalar write `{a}.T * {b}`, for the product of entries `hadamard({a}, {b})`"
        elif a.cols is ONE and not b.is_vector and b.rows == a.rows:
            hint = f"; to scale rows write `diag({a}) * {b}`"
        elif a.cols is ONE and not b.is_vector and b.cols == a.rows:
            hint = f"; to scale columns write `{_factor(b)} * diag({a})`"
        elif b.cols is ONE and not a.is_vector and a.rows == b.rows:
            hint = f"; write `{_factor(a, tight=True)}.T * {b}`"
        elif a.is_vector and b.cols is ONE:
            hint = f"; for the outer product write `{a if a.cols is ONE else text(a.T)} * {b}.T`"
        raise DimensionError(
            f"can't multiply {shape_text(a)} by {shape_text(b)}: {a.cols} and {b.rows} must be the same dim{hint}",
            caller(),
        )
    return lift(Matrix("matmul", (a, b), a.rows, b.cols))


def dot(a: Matrix, b: Matrix) -> sympy.Expr:
    """The inner product of two vectors of one dim, a scalar."""
    return matmul(column(a, "dot").T, column(b, "dot"))


def column(a: object, user: str) -> Matrix:
    """A vector as a column. `user` is what needs one."""
    if isinstance(a, Matrix) and a.is_vector:
        return a if a.cols is ONE else a.T
    if isinstance(a, Matrix):
        raise DimensionError(f"{user} takes a vector, got the matrix {shape_text(a)}", caller())
    if scalar_of(a) is not None:
        raise DimensionError(f"{user} takes a vector, got the scalar {a}", caller())
    raise DimensionError(f"{user} takes a vector, got {got(a)}", caller())


def hadamard(a: Any, b: Any, *more: Any) -> Any:
    """The product of entries of two or more terms with the same dims."""
    if more:
        return hadamard(hadamard(a, b), *more)
    if isinstance(a, formulas.Formula) or isinstance(b, formulas.Formula):
        return formulas.hadamard(a, b)
    for m in (a, b):
        if not isinstance(m, Matrix):
            what = got(m) if scalar_of(m) is None else f"the scalar {m}: use *"
            raise DimensionError(f"hadamard takes two vectors or matrices, got {what}", caller())
    if a.shape != b.shape:
        hint = _scaled(a, b) or _scaled(b, a)
        raise DimensionError(
            f"hadamard of {shape_text(a)} and {shape_text(b)}: the dims must be the same{hint}", caller()
        )
    return Matrix("hadamard", (a, b), a.rows, a.cols)


def _scaled(vector: Matrix, m: Matrix) -> str:
    """How rows or columns of a matrix are scaled, where a vector fits one of these."""
    if not vector.is_vector or m.is_vector:
        return ""
    own, bare = (vector.rows, text(vector)) if vector.cols is ONE else (vector.cols, text(vector.T))
    if own == m.rows and (vector.cols is ONE or own != m.cols):
        return f"; to scale rows write `diag({bare}) * {_factor(m)}`"
    return f"; to scale columns write `{_factor(m)} * diag({bare})`" if own == m.cols else ""


def diag(a: object) -> Any:
    """The diagonal matrix of a vector: `diag(a) * S` scales rows of S, `S * diag(a)` columns."""
    if isinstance(a, formulas.Formula):
        return formulas.diag(a)
    a = column(a, "diag")
    return Matrix("diag", (a,), a.rows, a.rows)


def eye(dim: Dim, *more: object) -> Matrix:
    """The identity matrix over `dim`."""
    if more:
        raise DimensionError(
            f"eye takes one dim, as it is square, got {len(more) + 1}; ones(d, e) is all ones", caller()
        )
    if not isinstance(dim, Dim):
        raise DimensionError(f"eye takes a dim, got {dim!r}", caller())
    return Matrix("eye", (), dim, dim)


def ones(dim: Dim, *columns: Dim) -> Matrix:
    """The vector of ones over `dim`; with two dims, the matrix of ones."""
    for x in (dim, *columns):
        if not isinstance(x, Dim):
            raise DimensionError(f"ones takes one dim or two, got {x!r}", caller())
    if len(columns) > 1:
        raise DimensionError(f"ones takes one dim or two, got {len(columns) + 1}", caller())
    vector = Matrix("full", (sympy.Integer(1),), dim, ONE)
    return vector * ones(columns[0]).T if columns else vector


def _is_ones(m: object) -> bool:
    inner = m.args[0] if isinstance(m, Matrix) and m.op == "transpose" else m
    return isinstance(inner, Matrix) and inner.op == "full" and inner.args[0] == 1


def total(a: Matrix) -> sympy.Expr:
    """The sum of a vector's entries."""
    a = column(a, "total")
    return matmul(ones(a.rows).T, a)


def apply(function: Any, *args: Matrix) -> Matrix:
    """`function`, given as SymPy arithmetic on scalars, applied to each entry of vectors of one shape.

    >>> apply(lambda x, y: x / (1 + y**2), a, b)
    """
    check_function(function, args)
    for m in args:
        if not isinstance(m, Matrix) or m.shape != args[0].shape:
            shown = ", ".join(str(x) if isinstance(x, Matrix) or scalar_of(x) is not None else got(x) for x in args)
            raise DimensionError(f"apply takes vectors of one shape, got {shown}", caller())
    slots = tuple(sympy.Symbol(f"x{i}_", real=True) for i in range(len(args)))
    made = function(*slots)
    body = scalar_of(made)
    if body is None:
        raise SpecError(f"the function given to apply must return a SymPy expression, got {got(made)}", caller())
    return Matrix("map", (body, *args), args[0].rows, args[0].cols)


def entry(i: int) -> sympy.Symbol:
    """The placeholder of the i-th argument in a `map` term's body."""
    return sympy.Symbol(f"x{i}_", real=True)


# --- printing -------------------------------------------------------------------------------------------------------


def text(m: Term) -> str:
    """A term as plain text."""
    if not isinstance(m, Matrix):
        return str(m)
    match m.op:
        case "symbol":
            return m.args[0]
        case "add":
            left, right = m.args
            other = text(right)
            return f"{text(left)} - {other[1:]}" if other.startswith("-") else f"{text(left)} + {other}"
        case "matmul":
            if ONE not in m.shape and all(map(_is_ones, m.args)):
                return f"ones({m.rows}, {m.cols})"
            return " * ".join(_factor(a) for a in m.args)
        case "scale":
            value, body = m.args
            if value == -1:
                return f"-{_factor(body)}"
            return f"{sympy_factor(value, str)} * {_factor(body)}"
        case "transpose":
            return f"{_factor(m.args[0], tight=True)}.T"
        case "map":
            body, *args = m.args
            return str(body.subs({entry(i): sympy.Symbol(text(a)) for i, a in enumerate(args)}))
        case "eye":
            return f"eye({m.rows})"
        case "full":
            return str(m.args[0])
    return f"{m.op}({', '.join(text(a) for a in m.args)})"


def sympy_factor(value: sympy.Expr, show: Any) -> str:
    shown = show(value)
    return f"({shown})" if value.is_Add else shown


def _factor(m: Any, tight: bool = False) -> str:
    shown = text(m)
    return f"({shown})" if m.op == "add" or (tight and m.op in ("matmul", "scale", "transpose", "map")) else shown


def latex(m: Term) -> str:
    """A term as LaTeX, in the notation of the documents (bold vectors, `_t` for the step)."""
    if not isinstance(m, Matrix):
        return sympy.latex(m, symbol_names={s: _atom_latex(s) for s in m.free_symbols if isinstance(s, Atom)})
    match m.op:
        case "symbol":
            return name_latex(m.args[0], m.args[1])
        case "add":
            left, right = m.args
            other = latex(right)
            return f"{latex(left)} {other}" if other.startswith("-") else f"{latex(left)} + {other}"
        case "matmul":
            return " ".join(_latex_factor(a) for a in m.args)
        case "scale":
            value, body = m.args
            if value == -1:
                return f"- {_latex_factor(body)}"
            shown = latex(value)
            return f"{f'({shown})' if value.is_Add else shown} {_latex_factor(body)}"
        case "transpose":
            return f"{_latex_factor(m.args[0], tight=True)}^\\top"
        case "hadamard":
            return " \\odot ".join(_latex_factor(a) for a in m.args)
        case "diag":
            return f"\\mathrm{{diag}}({latex(m.args[0])})"
        case "map":
            body, *args = m.args
            return sympy.latex(body, symbol_names={entry(i): latex(a) for i, a in enumerate(args)})
        case "eye":
            return f"\\mathbf{{I}}_{{{m.rows}}}"
        case "full":
            return latex(m.args[0])
        case "half_turn":
            return f"\\mathrm{{turn}}({latex(m.args[0])})"
        case "frequencies":
            return r"\boldsymbol{\theta}"
    raise SpecError(f"no LaTeX for {m.op}")


def _latex_factor(m: Any, tight: bool = False) -> str:
    shown = latex(m)
    return f"\\left({shown}\\right)" if m.op == "add" or (tight and m.op in ("matmul", "scale", "transpose")) else shown


TIMELESS = ("parameter", "decay parameter", "temperature", "size")
OF_POSITIONS = ("query", "key", "fixed", "average", "position", "energy gradient")


def name_latex(name: str, kind: str) -> str:
    """`k` -> \\mathbf{k}_t, `S.prev` -> \\mathbf{S}_{t-1}; parameters and constants carry no step."""
    base, _, which = name.partition(".")
    symbol = sympy.latex(sympy.Symbol("lambda" if base == "lam" else base))
    if kind in ("constant", "scalar parameter"):
        return symbol
    bold = symbol if kind.startswith("scalar") else f"\\mathbf{{{symbol}}}"
    if kind.removeprefix("scalar ") in TIMELESS:
        return bold
    if kind.removeprefix("scalar ") in OF_POSITIONS:  # whose names say which
        head, _, sub = symbol.partition("_")
        head = head if kind.startswith("scalar") else f"\\mathbf{{{head}}}"
        return f"{head}_{sub}" if sub else head
    step = "{t-1}" if which == "prev" else "t"
    if "_" in symbol:
        head, _, sub = symbol.partition("_")
        sub = sub.strip("{}")
        bold_head = head if kind.startswith("scalar") else f"\\mathbf{{{head}}}"
        return f"{bold_head}_{{{sub},{step.strip('{}')}}}"
    return f"{bold}_{step}"


def _atom_latex(s: Atom) -> str:
    return name_latex(s.name, s.kind if s.kind == "constant" else f"scalar {s.kind}")
