"""Formulas: the trees that claims are made of. A formula is what a document displays, symbol by symbol.

A formula is built with Python's operators (`*` is the matrix product, `.T` the transpose) and the functions below,
can be evaluated by the verifier, printed (`notation.py`), and edited by the search for repairs. Trees are immutable and
compare by structure. Shapes are found when a formula is evaluated: a product of shapes that do not fit is a fault of
the formula, to be reported, and not an error of the program."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from chunkform.errors import SpecError

from .notation import RANGED, text
from .source import caller


class Formula:
    """One node: `op` says how it is made of `args`; `attrs` is whatever else the operation needs."""

    __slots__ = ("_hash", "args", "attrs", "op")
    op: str
    args: tuple[Formula, ...]
    attrs: tuple

    def __init__(self, op: str, args: tuple[Formula, ...] = (), attrs: tuple = ()) -> None:
        self.op, self.args, self.attrs = op, args, attrs
        self._hash = hash((op, args, attrs))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Formula)
            and self._hash == other._hash
            and (self.op, self.attrs) == (other.op, other.attrs)
            and self.args == other.args
        )

    def __reduce__(self) -> Any:
        return Formula, (self.op, self.args, self.attrs)

    @property
    def T(self) -> Formula:
        return self.args[0] if self.op == "transpose" else Formula("transpose", (self,))

    def __add__(self, other: object) -> Formula:
        return add(self, formula(other))

    def __radd__(self, other: object) -> Formula:
        return add(formula(other), self)

    def __sub__(self, other: object) -> Formula:
        return add(self, negative(formula(other)))

    def __rsub__(self, other: object) -> Formula:
        return add(formula(other), negative(self))

    def __neg__(self) -> Formula:
        return negative(self)

    def __mul__(self, other: object) -> Formula:
        return product(self, formula(other))

    def __rmul__(self, other: object) -> Formula:
        return product(formula(other), self)

    __matmul__ = __mul__

    def __truediv__(self, other: object) -> Formula:
        return Formula("divide", (self, formula(other)))

    def __rtruediv__(self, other: object) -> Formula:
        return Formula("divide", (formula(other), self))

    def __pow__(self, exponent: object) -> Formula:
        return Formula("power", (self, formula(exponent)))

    def __bool__(self) -> bool:
        raise SpecError(f"{self} has no truth value: state it with claim(...)", caller())

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def _repr_latex_(self) -> str:
        """For notebooks."""
        from .notation import latex

        return rf"$\displaystyle {latex(self)}$"


def formula(x: Any) -> Formula:
    """x as a formula: numbers, dims (their size) and the spec's identity matrix are converted."""
    if isinstance(x, Formula):
        return x
    if isinstance(x, numbers.Rational):
        return Formula("number", (), (Fraction(int(x.numerator), int(x.denominator)),))
    if isinstance(x, float):
        return Formula("number", (), (Fraction(str(x)),))
    if getattr(x, "op", None) == "eye":
        return Formula("eye", (), (str(x.rows),))
    if getattr(x, "is_Rational", False):
        return Formula("number", (), (Fraction(int(x.p), int(x.q)),))
    if type(x).__name__ == "Dim":
        return Formula("size", (), (x.name,))
    kind = type(x).__name__
    if kind == "Quantity":
        raise SpecError(x.unindexed(), caller())
    raise SpecError(
        f"{x!r} ({kind}) can't stand in a formula: index it at a step, as in q(t), after `q, t = r.quantities('q t')`",
        caller(),
    )


def number(x: Formula) -> Fraction | None:
    """The value of a number node, else None."""
    return x.attrs[0] if x.op == "number" else None


# --- operators ------------------------------------------------------------------------------------------------------


def add(*terms: Formula) -> Formula:
    flat: list[Formula] = []
    for x in terms:
        flat.extend(x.args if x.op == "add" else (x,))
    if all(x.op == "number" for x in flat):
        return formula(sum((x.attrs[0] for x in flat), Fraction(0)))
    return Formula("add", tuple(flat)) if len(flat) > 1 else flat[0]


def negative(x: Formula) -> Formula:
    if x.op == "negative":
        return x.args[0]
    if x.op == "number":
        return formula(-x.attrs[0])
    return Formula("negative", (x,))


def product(*factors: Formula) -> Formula:
    """The product from left to right; a product on the right stays in brackets, as a scalar there has no fitting
    shape."""
    flat: list[Formula] = []
    for i, x in enumerate(factors):
        flat.extend(x.args if x.op == "product" and i == 0 else (x,))
    if flat and flat[0].op == "negative":
        return negative(product(flat[0].args[0], *flat[1:]))
    return Formula("product", tuple(flat)) if len(flat) > 1 else flat[0]


def hadamard(*factors: object) -> Formula:
    """The product of entries; a column vector multiplies each column of a matrix."""
    return Formula("hadamard", tuple(formula(x) for x in factors))


def inverse(x: object) -> Formula:
    return Formula("inverse", (formula(x),))


def tril(x: object, offset: int = 0) -> Formula:
    """The lower triangle: entries (i, j) with j <= i + offset."""
    return Formula("tril", (formula(x),), (offset,))


def diag(x: object) -> Formula:
    return Formula("diag", (formula(x),))


def eye(dim: object) -> Formula:
    return Formula("eye", (), (str(dim),))


def ones(dim: object) -> Formula:
    return Formula("ones", (), (str(dim),))


def sqrt(x: object) -> Formula:
    return Formula("sqrt", (formula(x),))


def exp(x: object) -> Formula:
    return Formula("exp", (formula(x),))


def log(x: object) -> Formula:
    return Formula("log", (formula(x),))


def entrywise(name: str, x: Formula) -> Formula:
    """A scalar function of each entry."""
    return Formula(name, (x,)) if name in ("exp", "log", "sqrt") else Formula("function", (x,), (name,))


def cumsum(x: object) -> Formula:
    """Sums over rows from the first to each row."""
    return Formula("cumsum", (formula(x),))


def revcumsum(x: object) -> Formula:
    """Sums over rows from each row to the last."""
    return Formula("revcumsum", (formula(x),))


def rowsum(x: object) -> Formula:
    """The sum of each row, a column."""
    return Formula("rowsum", (formula(x),))


def colsum(x: object) -> Formula:
    """The sum of each column, a row."""
    return Formula("colsum", (formula(x),))


def inner(a: object, b: object) -> Formula:
    """The sum over all entries of the product, <a, b>."""
    return Formula("inner", (formula(a), formula(b)))


def softmax(x: object) -> Formula:
    """Softmax of a column vector, or of each row of a matrix."""
    return Formula("softmax", (formula(x),))


def differences(x: object, y: object) -> Formula:
    """x[:, None] - y[None, :], the differences of all pairs."""
    return Formula("differences", (formula(x), formula(y)))


def beside(*blocks: object) -> Formula:
    """Matrices side by side, [A, B]."""
    return Formula("beside", tuple(formula(x) for x in blocks))


def sum_over(index: Formula, low: object, high: object, body: object) -> Formula:
    """The sum of `body` over `index` = low..high; `high=None` for an infinite series."""
    top = Formula("infinity") if high is None else formula(high)
    return Formula("sum", (formula(low), top, formula(body)), (_index_name(index),))


def product_over(index: Formula, low: object, high: object, body: object) -> Formula:
    """The product of `body` over `index` = low..high; of matrices in that order, A_low ... A_high. Over nothing it is 1, or the
    identity."""
    return Formula("product over", (formula(low), formula(high), formula(body)), (_index_name(index),))


def product_down(index: Formula, high: object, low: object, body: object) -> Formula:
    """The product over `index` from high down to low: of matrices A_high ... A_low, as a recurrence applies them."""
    return Formula("product down", (formula(low), formula(high), formula(body)), (_index_name(index),))


def hadamard_over(index: Formula, low: object, high: object, body: object) -> Formula:
    """The product of entries over `index` = low..high, such as that of the decays of each channel. Over nothing it is 1 in
    every entry."""
    return Formula("hadamard over", (formula(low), formula(high), formula(body)), (_index_name(index),))


def matrix(i: Formula, j: Formula, rows: object, cols: object, body: object) -> Formula:
    """The matrix over the dims `rows` x `cols` with the entries `body`."""
    return Formula("matrix", (formula(body),), (_index_name(i), _index_name(j), str(rows), str(cols)))


def stack(i: Formula, rows: object, body: object) -> Formula:
    """The matrix whose row i is the vector `body`, i = 1, 2, ..."""
    return Formula("stack", (formula(body),), (_index_name(i), str(rows)))


def columns(i: Formula, cols: object, body: object) -> Formula:
    """The matrix whose column i is the vector `body`."""
    return stack(i, cols, formula(body).T).T


def cases(*pairs: tuple[Formula | None, object]) -> Formula:
    """`cases((i >= j, a), (None, b))`: the first value whose condition is true; None is otherwise."""
    args: list[Formula] = []
    for condition, value in pairs:
        args += [condition if condition is not None else Formula("otherwise"), formula(value)]
    return Formula("cases", tuple(args))


def compare(left: object, relation: str, right: object) -> Formula:
    """A condition on indices, `compare(i, ">=", j)`."""
    return Formula("compare", (formula(left), formula(right)), (relation,))


def unit(dim: object, index: object) -> Formula:
    """The unit vector e_i of a dim."""
    return Formula("unit", (formula(index),), (str(dim),))


def constant(rows: object, cols: object, entries: tuple[tuple[int, ...], ...]) -> Formula:
    """A matrix of numbers."""
    return Formula("constant", (), (str(rows), str(cols), entries))


def row(x: object, index: object) -> Formula:
    """One row of a matrix, 1 x m."""
    return Formula("row", (formula(x), formula(index)))


def named(name: str, body: object, *indices: object) -> Formula:
    """`body`, printed under a name."""
    return Formula("named", (formula(body), *(formula(x) for x in indices)), (name,))


def gradient(of: object, by: Formula, holding: object = ()) -> Formula:
    """The derivative of the scalar `of` by a quantity, in the shape of that quantity; taken by dual numbers. Defined
    quantities in `holding` are held as they are: a partial derivative, past all that goes through them."""
    held = holding if isinstance(holding, tuple | list) else (holding,)
    for x in (by, *held):
        if not isinstance(x, Formula) or (x.op != "at" and x is not by):
            raise SpecError(
                f"a gradient is by a quantity, and holds quantities, such as S or h(t); got {x!r}", caller()
            )
    return Formula("gradient", (formula(of), by, *held))


def jacobian(of: object, by: Formula, along: object) -> Formula:
    """`along` contracted with the derivative of `of` by a quantity: what a chain rule's factor contributes."""
    return Formula("jacobian", (formula(of), by, formula(along)))


def _index_name(index: Formula) -> str:
    if not isinstance(index, Formula) or index.op != "index":
        raise SpecError(f"expected an index such as t or i, got {index}", caller())
    return index.attrs[0]


# --- walking and rewriting ------------------------------------------------------------------------------------------


def walk(x: Formula) -> Iterator[Formula]:
    """Every node, top first."""
    yield x
    for a in x.args:
        yield from walk(a)


def rebuild(x: Formula, args: tuple[Formula, ...]) -> Formula:
    """x with other arguments, flattened as the operators do."""
    if args == x.args:
        return x
    match x.op:
        case "add":
            return add(*args)
        case "product":
            return product(*args)
        case "negative":
            return negative(args[0])
        case "transpose":
            return args[0].T
    return Formula(x.op, args, x.attrs)


def transform(x: Formula, visit: Callable[[Formula], Formula | None]) -> Formula:
    """x with nodes replaced where `visit` returns one; a replaced node is not searched further."""
    new = visit(x)
    if new is not None:
        return new
    return rebuild(x, tuple(transform(a, visit) for a in x.args))


def substitute(x: Formula, mapping: dict[Formula, Formula]) -> Formula:
    return transform(x, mapping.get) if mapping else x


BINDERS = {**dict.fromkeys(RANGED, 1), "matrix": 2, "stack": 1}


def free_indices(x: Formula) -> set[str]:
    """The names of the indices that x depends on."""
    if x.op == "index":
        return {x.attrs[0]}
    if x.op in BINDERS:
        bound = set(x.attrs[: BINDERS[x.op]])
        *bounds, body = x.args
        return {n for b in bounds for n in free_indices(b)} | (free_indices(body) - bound)
    return {n for a in x.args for n in free_indices(a)}
