"""Functions for specs: on a scalar they are SymPy's, on a vector they act on each entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from chunkform.errors import DimensionError, SpecError

from .expression import Matrix, Term, apply, column, scalar_of, shape_text, total
from .foreign import got
from .formula import Formula, entrywise
from .source import caller


class sigmoid_(sympy.Function):
    """The logistic function 1 / (1 + exp(-x))."""

    nargs = 1

    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        return self * (1 - self)

    def _latex(self, printer: Any) -> str:
        return rf"\sigma\left({printer._print(self.args[0])}\right)"

    def _sympystr(self, printer: Any) -> str:
        return f"sigmoid({printer._print(self.args[0])})"

    def _eval_evalf(self, prec: int) -> sympy.Expr:
        return (1 / (1 + sympy.exp(-self.args[0])))._eval_evalf(prec)


class softplus_(sympy.Function):
    """log(1 + exp(x))."""

    nargs = 1

    def fdiff(self, argindex: int = 1) -> sympy.Expr:
        return sigmoid_(self.args[0])

    def _latex(self, printer: Any) -> str:
        return rf"\mathrm{{softplus}}\left({printer._print(self.args[0])}\right)"

    def _sympystr(self, printer: Any) -> str:
        return f"softplus({printer._print(self.args[0])})"

    def _eval_evalf(self, prec: int) -> sympy.Expr:
        return sympy.log(1 + sympy.exp(self.args[0]))._eval_evalf(prec)


def _entrywise(function: Any, name: str = "") -> Any:
    """`name`: the function's in formulas, where it isn't SymPy's."""
    name = name or function.__name__.strip("_")

    def call(x: Any, *more: object) -> Any:
        if more:
            raise SpecError(
                f"{name} takes one term, got {1 + len(more)}: {', '.join(map(str, (x, *more)))}; of several terms there are "
                "Max, Min, hadamard and apply",
                caller(),
            )
        if isinstance(x, Formula):
            return entrywise(name, x)
        if isinstance(x, Matrix):
            return apply(function, x)
        value = scalar_of(x)
        if value is None:
            raise SpecError(f"{name} takes a term of the spec, got {got(x)}", caller())
        return function(value)

    call.__doc__ = f"{name} of a scalar, or of each entry of a vector."
    call.__name__ = call.__qualname__ = "absolute" if name == "abs" else name
    return call


exp = _entrywise(sympy.exp)
log = _entrywise(sympy.log)
sqrt = _entrywise(sympy.sqrt)
sin = _entrywise(sympy.sin)
cos = _entrywise(sympy.cos)
tanh = _entrywise(sympy.tanh)
erf = _entrywise(sympy.erf)
absolute = _entrywise(sympy.Abs, "abs")
sigmoid = _entrywise(sigmoid_)
softplus = _entrywise(softplus_)
relu = _entrywise(lambda x: sympy.Max(x, 0), "relu")
silu = _entrywise(lambda x: x * sigmoid_(x), "silu")


def _of_several(function: Callable[..., sympy.Expr]) -> Callable[..., Term]:
    """A function of two terms or more; scalars go with each entry of vectors and matrices."""

    def call(*terms: object) -> Term:
        found = [x if isinstance(x, Matrix) else scalar_of(x) for x in terms]
        if len(found) < 2 or any(x is None for x in found):
            shown = ", ".join(got(x) if y is None else str(x) for x, y in zip(terms, found, strict=True)) or "nothing"
            raise SpecError(f"{name} takes two terms of the spec or more, got {shown}", caller())
        entries = [x for x in found if isinstance(x, Matrix)]
        if not entries:
            return function(*found)
        other = next((x for x in entries if x.shape != entries[0].shape), None)
        if other is not None:
            raise DimensionError(
                f"{name} of {shape_text(entries[0])} and {shape_text(other)}: the dims must be the same", caller()
            )
        numbers = [x for x in found if not isinstance(x, Matrix)]
        return apply(lambda *each: function(*each, *numbers), *entries)

    name = function.__name__
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{name} of terms, entry by entry where they are vectors or matrices."
    return call


Max = _of_several(sympy.Max)
Min = _of_several(sympy.Min)


def logsigmoid(x: Any) -> Any:
    """log(sigmoid(x)), of a scalar, or of each entry of a vector: the logarithm of a forget gate."""
    return -softplus(-x)


def norm(a: Matrix) -> sympy.Expr:
    """The Euclidean norm of a vector."""
    return sympy.sqrt(total(column(a, "norm") ** 2))


def normalize(a: Matrix, eps: float = 1e-6) -> Matrix:
    """A vector over its Euclidean norm: a / sqrt(a.a + eps)."""
    column(a, "normalize")
    number = scalar_of(eps)
    if number is None or not number.is_number:
        raise SpecError(f"the eps of normalize must be a number, got {eps!r}", caller())
    return a / sympy.sqrt(total(a**2) + sympy.nsimplify(eps, rational=True))


def softmax(a: Matrix) -> Matrix:
    """exp of each entry over the sum of them."""
    column(a, "softmax")
    weights = exp(a)
    return weights / total(weights)
