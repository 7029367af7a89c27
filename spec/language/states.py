"""States: what is carried from step to step, and is read before and after one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from chunkform.errors import AttributeError_, SpecError

from .complex_parts import complex_of
from .domain import Domain
from .expression import ONE, Atom, Dim, Matrix, Term, latex
from .source import Source, caller


@dataclass(frozen=True, eq=False)
class Owner:
    """What declares a quantity."""

    name: str
    where: Source


@dataclass(frozen=True, repr=False)
class State:
    """A state: `prev` is its value before the step, `next` after it."""

    name: str
    dims: tuple[Dim, ...]
    where: Source
    initial: Term | None = None
    owner: Owner | None = field(default=None, compare=False)
    domain: Domain | None = None

    @property
    def prev(self) -> Any:
        return symbol_of(f"{self.name}.prev", "state", self.dims, self.owner)

    @property
    def next(self) -> Any:
        return symbol_of(f"{self.name}.next", "state", self.dims, self.owner)

    def _refuse(self, *_: object) -> NoReturn:
        raise SpecError(f"{self.name} is a state: write {self.name}.prev or {self.name}.next", caller())

    __mul__ = __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __neg__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __getitem__ = __iter__ = _sympy_ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __len__ = __abs__ = __mod__ = __floordiv__ = __int__ = __float__ = _refuse
    __call__ = _refuse
    T = property(_refuse)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # Python and SymPy look for these
            raise AttributeError(name)
        text = f"the state {self.name} has no {name!r}: write {self.name}.prev or {self.name}.next"
        raise AttributeError_(text, caller())

    def _repr_latex_(self) -> str:
        """For notebooks: the state after a step."""
        return rf"$\displaystyle {latex(self.next)}$"

    def __repr__(self) -> str:
        return self.name


def _refuse_to_set(self: State, name: str, *_: object) -> NoReturn:
    text = f"{self.name}.{name} can't be set: write r.update({self.name}, ..), and initial=.. where it is declared"
    raise AttributeError_(text, caller())


State.__setattr__ = State.__delattr__ = _refuse_to_set  # type: ignore[method-assign, assignment]


@dataclass(frozen=True, repr=False)
class ComplexState:
    """A complex state, which is two: `prev` and `next` are complex terms."""

    real: State
    imag: State
    name: str

    @property
    def prev(self) -> Any:
        return complex_of(self.real.prev, self.imag.prev)

    @property
    def next(self) -> Any:
        return complex_of(self.real.next, self.imag.next)

    _refuse = __mul__ = __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __neg__ = __truediv__ = State._refuse
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __getitem__ = __iter__ = _sympy_ = __call__ = State._refuse
    T = property(State._refuse)
    __getattr__ = State.__getattr__

    def __repr__(self) -> str:
        return self.name


def symbol_of(name: str, kind: str, dims: tuple[Dim, ...], owner: Owner | None = None) -> Any:
    if not dims:
        return Atom(name, kind, owner=owner)
    rows, cols = (*dims, ONE)[:2]
    return Matrix("symbol", (name, kind), rows, cols, owner=owner)
