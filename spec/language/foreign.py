"""What Python, numpy and torch make of terms of a spec, and what isn't a term where one is needed: what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import sympy

from chunkform.errors import AttributeError_, DimensionError, SpecError

from .methods_of_tensors import METHODS
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


class WithoutValue:
    """What Python, numpy and torch would do with a vector or matrix, and a spec doesn't."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[object, object]:
        """The dims of rows and columns."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> NoReturn:
        if name not in METHODS:
            raise AttributeError(f"a term of a spec has no {name!r}")
        raise AttributeError_(f"{self} is a term of a spec, which has no {name!r}: {METHODS[name]}", caller())

    def __getitem__(self, index: object) -> NoReturn:
        raise SpecError(
            f"{self} has no entries in a spec: write it with dot, total, hadamard, diag, and products", caller()
        )

    def __call__(self, *steps: object) -> NoReturn:
        of_another_step(self)

    def __len__(self) -> NoReturn:
        dims = " x ".join(str(x) for x in self.shape if str(x) != "1")
        raise SpecError(f"{self} is one term over {dims}: the size of a dim is r.size(d), where r declares d", caller())

    def _no_operator(self, *_: object) -> NoReturn:
        raise SpecError(
            f"{self} is a term of real numbers: of Python's operators a spec has + - * / ** and unary -, with functions of "
            "chunkform.spec.language for the rest",
            caller(),
        )

    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __divmod__ = __rdivmod__ = _no_operator
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = (
        _no_operator
    )
    __invert__ = __round__ = _no_operator

    def __iter__(self) -> NoReturn:
        raise SpecError(
            f"{self} is one term over {self.shape[0]} x {self.shape[1]}: it can't be unpacked or looped over", caller()
        )

    def __array_ufunc__(self, ufunc: Callable[..., object], method: str, *given: object, **options: object) -> object:
        return of_numpy(self, ufunc.__name__, *given)

    @classmethod
    def __torch_function__(cls, function: object, *_: object) -> NoReturn:
        of_torch(function)

    def __float__(self) -> float:
        raise SpecError(
            f"{self} has no value: use the functions of chunkform.spec.language, not those of math", caller()
        )

    __int__ = __float__

    def __bool__(self) -> bool:
        raise SpecError(f"{self} has no truth value: a spec is symbolic", caller())


def foreign(m: object, other: object) -> Any:
    """The result of an operator on something that isn't a term: what is ours may answer for itself, the rest is refused."""
    if _ours(other):
        return NotImplemented
    raise SpecError(
        f"can't combine {m} with {got(other)}: a spec has symbols, numbers, and the functions of chunkform.spec.language",
        caller(),
    )


def got(x: object) -> str:
    """What was given where a term is needed, in one line, and what to write instead where that is known."""
    if name := called(x):
        return f"the function {name}: write {name}(..)"
    if hasattr(x, "prev"):
        return f"the state {x}: write {x}.prev or {x}.next"
    if _ours(x) and type(x).__name__ == "Dim":
        return f"the dim {x}: its size is r.size({x}), where r declares it"
    if x is None:
        return "None, which is what r.update and r.output give back"
    shown = " ".join(repr(x).split())
    kind = "" if _ours(x) or isinstance(x, sympy.Expr | str) else f", a {type(x).__name__}"
    return f"{shown[:60] + '..' * (len(shown) > 60)}{kind}{together(x)}"


def together(x: object) -> str:
    """What to do with quantities that were declared in one line, where one is needed."""
    if not isinstance(x, tuple) or not x or not all(map(_ours, x)):
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
    raise SpecError(f"numpy's {name} takes numbers, and a spec is symbolic: use {instead_of(name)}", caller())


def of_torch(function: object) -> NoReturn:
    name = getattr(function, "__name__", str(function)).strip("_")
    raise SpecError(f"torch's {name} takes tensors, and a spec is symbolic: use {instead_of(name)}", caller())


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


def instead_of(name: str) -> str:
    """What the language has in the place of a function of another library."""
    if name in ("matmul", "outer"):
        return f"{_OTHERS[name]}"
    mine = name if name in _OWN else _OTHERS.get(name, "")
    return f"{mine} of chunkform.spec.language" if mine else "the functions of chunkform.spec.language"
