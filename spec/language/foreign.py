"""What Python, numpy and torch make of terms of a spec, and what isn't a term where one is needed: what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import sympy

from chunkform.errors import DimensionError, SpecError

from .source import caller, wrote


class Named(sympy.Symbol):
    """A scalar that SymPy takes for a symbol, and that tells what a spec has in the place of Python's own operators."""

    __slots__ = ()
    _iterable = False  # as SymPy asks, which else would take the next for a sequence's

    def __getitem__(self, index: object) -> NoReturn:
        raise SpecError(f"{self} is a scalar, which has no entries", caller())

    def _compared(self, other: object, how: str) -> object:
        if wrote(2):  # SymPy compares as well
            raise SpecError(
                f"{self} is compared with {other}: a spec has no branches; write Max, Min, relu or sigmoid", caller()
            )
        return getattr(sympy.Symbol, how)(self, other)

    def __bool__(self) -> bool:
        if wrote(1):  # SymPy asks as well
            raise SpecError(
                f"{self} has no truth value: a spec has no branches; write Max, Min, relu or sigmoid", caller()
            )
        return True

    def __lt__(self, other: object) -> object:
        return self._compared(other, "__lt__")

    def __le__(self, other: object) -> object:
        return self._compared(other, "__le__")

    def __gt__(self, other: object) -> object:
        return self._compared(other, "__gt__")

    def __ge__(self, other: object) -> object:
        return self._compared(other, "__ge__")

    def __array_ufunc__(self, ufunc: Callable[..., object], method: str, *given: object, **options: object) -> object:
        return of_numpy(self, ufunc.__name__, *given)

    @classmethod
    def __torch_function__(cls, function: object, *_: object) -> NoReturn:
        of_torch(function)

    def __float__(self) -> float:
        if wrote(1):
            raise SpecError(
                f"{self} has no value: use the functions of chunkform.spec.language, not those of math", caller()
            )
        return super().__float__()


def foreign(m: object, other: object) -> Any:
    """The result of an operator on something that isn't a term: what is ours may answer for itself, the rest is refused."""
    if _ours(other):
        return NotImplemented
    raise SpecError(
        f"can't combine {m} with {str(other)[:60]!r}, a {type(other).__name__}: a spec has symbols, numbers, and the "
        f"functions of chunkform.spec.language{together(other)}",
        caller(),
    )


def together(x: object) -> str:
    """What to do with quantities that were declared in one line, where one is needed."""
    if not isinstance(x, tuple | list) or not x or not all(map(_ours, x)):
        return ""
    return f"; {', '.join(map(str, x))} were declared together: give each a name, as in `a, b = ...`"


def called(x: object) -> str:
    """The name of a function that was given in the place of what it makes of a term; empty for anything else."""
    return str(getattr(x, "__name__", "")) if callable(x) and not isinstance(x, type) else ""


def check_function(function: Any, args: tuple[object, ...]) -> None:
    """Raises where something can't be applied to the entries of so many vectors; a function without a signature may be."""
    if not args or _ours(function) or not callable(function):
        raise DimensionError("apply takes a function and one or more vectors, as in apply(lambda x: x**3, k)", caller())
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args)
    except TypeError:
        many = "s" * (len(args) != 1)
        raise DimensionError(
            f"the function given to apply takes {signature}, got {len(args)} vector{many}", caller()
        ) from None


def of_another_step(term: object) -> NoReturn:
    raise SpecError(
        f"{term} is a term of the step at hand: what a step before had is a state, as in r.update(last, {term})",
        caller(),
    )


def _ours(x: object) -> bool:
    return type(x).__module__.startswith("chunkform.")


_OPERATORS = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "truediv",
    "power": "pow",
}  # by numpy's names


def of_numpy(own: object, name: str, *given: object) -> object:
    """What numpy's function makes of a term: of a single number what Python's operator makes, else nothing."""
    single = [x.item() if getattr(x, "shape", None) == () else x for x in given]  # type: ignore[attr-defined]
    if name in _OPERATORS and len(single) == 2:
        mine = 0 if single[0] is own else 1
        return getattr(own, f"__{'r' * mine}{_OPERATORS[name]}__")(single[1 - mine])
    raise SpecError(f"numpy's {name} takes numbers, and a spec is symbolic: use {_own(name)}", caller())


def of_torch(function: object) -> NoReturn:
    name = getattr(function, "__name__", str(function)).strip("_")
    raise SpecError(f"torch's {name} takes tensors, and a spec is symbolic: use {_own(name)}", caller())


_OWN = "exp log sqrt sin cos tanh erf sigmoid logsigmoid softplus relu silu softmax norm normalize".split()
_OTHERS = {"abs": "absolute", "fabs": "absolute", "maximum": "Max", "minimum": "Min", "max": "Max", "min": "Min"}
_OTHERS |= {
    "fmax": "Max",
    "fmin": "Min",
    "sum": "total",
    "matmul": "*",
    "eye": "eye",
    "outer": "`a * b.T`",
    "inner": "dot",
}


def _own(name: str) -> str:
    """What the language has in the place of a function of another library."""
    if name in ("matmul", "outer"):
        return f"{_OTHERS[name]}"
    mine = name if name in _OWN else _OTHERS.get(name, "")
    return f"{mine} of chunkform.spec.language" if mine else "the functions of chunkform.spec.language"
