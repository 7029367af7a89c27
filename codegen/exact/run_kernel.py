"""The interpreter of kernels: runs a launch over exact numbers, as the data in `codegen/ir/kernel_ir.py` say.

All programs of a launch take each statement together: a value has an axis of programs, of length 1 where it is the same for all.
Where a condition or a loop's bounds differ between programs, each part of them goes its own way (`apart.py`).

A gate compares what a launch leaves in memory with what it means. On the way these are refused, with a `GateError`:

- a load or a store beyond a tensor, or of an argument that isn't given;
- a name that is read before it is assigned;
- two programs that store to one place, or one that loads what another stores;
- a load of what the program itself has stored, without a barrier between them; or a store to what it has loaded in an earlier
  round of a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from chunkform.errors import GateError

from ..ir.code import (
    Attribute,
    Binary,
    Call,
    Cast,
    CastLike,
    Code,
    Either,
    Expanded,
    Group,
    Inverted,
    Item,
    Items,
    Literal,
    Load,
    Method,
    Name,
    Negative,
    Not,
    RoundedLike,
)
from ..ir.kernel_ir import (
    Barrier,
    Body,
    Do,
    For,
    If,
    KernelFunction,
    Let,
    Note,
    Return,
    Store,
    TileFunction,
    assigned,
    reads,
)
from ..ir.spellings import Function, Power
from .apart import Apart, Exact, Pointer, chosen, joined
from .built_in import BUILT_IN, FLOATS, METHODS, OPERATIONS, lined_up
from .entries import COMPARISONS, Entries, Fractions, Residues
from .jit_source import NoMeaning, helper
from .launch_memory import Memory, Tensor, Traffic
from .meanings import NeedsOrder, written
from .rationals import is_in_field, is_over_fractions

__all__ = ["Argument", "Called", "Exact", "Pointer", "Tensor", "Value", "run", "some_programs"]
Value: TypeAlias = (
    Any  # a Pointer, an Exact, an array of integers or truth values, an integer, a tuple, a function, a name or None
)
Names: TypeAlias = dict[str, Value]
Argument: TypeAlias = "Tensor | Fraction | int | None"  # what a launch gives to a kernel
Called: TypeAlias = "Callable[..., object] | TileFunction"  # what a kernel calls by name
Functions: TypeAlias = Callable[[str], "Called | None"]


def run(
    k: KernelFunction,
    programs: int,
    arguments: Mapping[str, Argument],
    functions: Functions = lambda _: None,
    rows: int = 1,
    some: Iterable[int] | None = None,
) -> None:
    """A launch of `programs` programs, times so many `rows` along the grid's second axis, or of `some` of these: tensors are
    `Tensor` (or None), numbers are fractions, integers and words are bare. `functions` finds those of the runtime that the kernel
    calls by name."""
    numbers = np.arange(programs * rows) if some is None else np.array(list(some), dtype=np.int64)
    try:
        _run(k, numbers, programs, rows, arguments, functions)
    except (ValueError, TypeError, IndexError) as why:  # as numpy has it where tiles don't fit
        raise GateError(f"{k.name}: {why}") from why


def _run(
    k: KernelFunction,
    numbers: np.ndarray,
    programs: int,
    rows: int,
    arguments: Mapping[str, Argument],
    functions: Functions,
) -> None:
    if not is_over_fractions():
        try:
            return _Launch(k.name, numbers, programs, rows, Residues(), functions).run(k, arguments)
        except NeedsOrder:
            if is_in_field():
                raise
    _Launch(k.name, numbers, programs, rows, Fractions(), functions).run(k, arguments)


def some_programs(name: str, numbers: np.ndarray, programs: int, entries: Entries, functions: Functions) -> _Launch:
    """These programs of a launch, for an interpreter that decides when their statements are run."""
    return _Launch(name, numbers, programs, 1, entries, functions)


class _Launch:
    """The programs of a launch. `active`: the numbers of those that are at the present statement."""

    def __init__(
        self, name: str, programs: np.ndarray, count: int, rows: int, entries: Entries, functions: Functions
    ) -> None:
        self.name, self.active, self.count, self.entries, self.functions = name, programs, count, entries, functions
        self.traffic = Traffic(name, count * rows)
        self.named_in: dict[tuple[int, ...], tuple[list[str], list[str]]] = {}
        self.returned: list[tuple[np.ndarray, Value]] = []  # of the present function: which programs, and what

    def run(self, k: KernelFunction, arguments: Mapping[str, Argument]) -> None:
        self.body(k.body, {n: self.given(x) for n, x in arguments.items()})
        for m in self.traffic.memories.values():
            m.commit()

    def given(self, x: Argument) -> Value:
        if isinstance(x, Tensor):
            known = self.traffic.memories
            return Pointer(known.setdefault(id(x), Memory(x, self.entries)))
        return Exact(self.entries.of(x)) if isinstance(x, Fraction) else x

    # --- statements

    def body(self, body: Body, names: Names) -> None:
        for x in body:
            if not len(self.active):
                return
            STATEMENTS[type(x)](self, x, names)

    def let(self, x: Let, names: Names) -> None:
        made = self.value(x.value, names)
        if x.sign != "=":
            made = self.binary(x.sign[0], self.named(x.names[0], names), made)
        if len(x.names) == 1:
            names[x.names[0]] = made
        else:
            names |= dict(zip(x.names, made, strict=True))

    def if_(self, x: If, names: Names) -> None:
        self.parted(self.truth(self.value(x.condition, names)), names, x.body, x.otherwise)

    def parted(
        self, where: bool | np.ndarray, names: Names, then: Body, otherwise: Body, first: Names | None = None
    ) -> None:
        """The programs for which a condition holds go one way, where they have `first` as well, the others another; those that
        return go no further."""
        first = first or {}
        if isinstance(where, bool):
            names |= first if where else {}
            self.body(then if where else otherwise, names)
            return
        before, parts = self.active, []
        read, made = self.names_in(then, otherwise)
        for take, way in ((where, then), (~where, otherwise)):
            self.active = before[take]
            own = {n: chosen(names[n], take) for n in read if n in names}
            own |= first if take is where else {}
            self.body(way, own)
            parts.append((self.active, own))
        self.active = np.sort(np.concatenate([a for a, _ in parts]))
        if len(self.active) < len(before):  # some have returned
            kept = np.isin(before, self.active)
            names |= {n: chosen(v, kept) for n, v in names.items() if n not in made}
        for n in {**first, **dict.fromkeys(made)}:
            found = [(a, own[n]) for a, own in parts if n in own and len(a)]
            if found:
                names[n] = joined(self.active, found)

    def names_in(self, *bodies: Body) -> tuple[list[str], list[str]]:
        """The names that statements read or assign, and those that they assign."""
        key = tuple(map(id, bodies))  # of what the kernel holds as long as we run it
        if key not in self.named_in:
            made = frozenset[str]().union(*(assigned(x) for body in bodies for x in body))
            read = made.union(*(reads(x) for body in bodies for x in body))
            self.named_in[key] = sorted(read), sorted(made)
        return self.named_in[key]

    def for_(self, x: For, names: Names) -> None:
        over = x.over
        if not isinstance(over, Call) or over.function not in ("range", "tl.range", "tl.static_range"):
            raise NoMeaning(over.text)
        bounds = [self.value(y, names) for y in over.arguments]
        outside = self.traffic.rounds
        if all(isinstance(b, int) or self.is_one(b) for b in bounds):
            for turn, n in enumerate(range(*(self.whole(b) for b in bounds))):
                if not len(self.active):
                    break
                names[x.name] = n
                self.traffic.rounds = (*outside, (x.name, turn))
                self.body(x.body, names)
            self.traffic.rounds = outside
            return
        self.rounds_apart(x, bounds, names)
        self.traffic.rounds = outside

    def rounds_apart(self, x: For, bounds: list[Value], names: Names) -> None:
        """A loop whose bounds differ between programs."""
        each = [range(*(int(np.ravel(b)[n % np.size(b)]) for b in bounds)) for n in range(len(self.active))]
        of = dict(zip(self.active.tolist(), each, strict=True))
        outside = self.traffic.rounds
        for turn in range(max(map(len, each))):
            active = self.active.tolist()
            go = np.array([turn < len(of[p]) for p in active], dtype=bool)
            if not go.any():
                break
            now = np.array([of[p][turn] for p in active if turn < len(of[p])], dtype=np.int64)
            self.traffic.rounds = (*outside, (x.name, turn))
            self.parted(True if go.all() else go, names, x.body, (), {x.name: now})

    def do(self, x: Do, names: Names) -> None:
        self.value(x.call, names)

    def barrier(self, x: Barrier, names: Names) -> None:
        self.traffic.barriers[self.active] += 1

    def return_(self, x: Return, names: Names) -> None:
        self.returned.append((self.active, None if x.value is None else self.value(x.value, names)))
        self.active = self.active[:0]

    # --- memory

    def store_(self, x: Store, names: Names) -> None:
        self.store(self.value(x.pointer, names), self.value(x.value, names), self.maybe(x.mask, names), x.pointer.text)

    def load_(self, x: Load, names: Names) -> Value:
        other = None if x.other is None else self.value(x.other, names)
        return self.load(self.value(x.pointer, names), self.maybe(x.mask, names), other, x.pointer.text)

    def maybe(self, x: Code | None, names: Names) -> Value:
        return None if x is None else self.value(x, names)

    def load(self, pointer: Value, mask: Value, other: Value, text: str = "") -> Value:
        places, mask = lined_up(self.places(pointer, text), np.asarray([True]) if mask is None else mask)
        m = pointer.memory
        found = self.traffic.load(m, places, mask, self.active)
        if mask.all():
            return found if m.whole else Exact(found)
        if m.whole and not isinstance(other, Exact):
            return np.where(*lined_up(mask, found, 0 if other is None else other))
        if m.whole:
            found = self.entries.of_whole(found)
        if other is not None:
            found = np.where(*lined_up(mask, found, self.number_of(other)))
        return Exact(found)

    def store(self, pointer: Value, value: Value, mask: Value, text: str = "") -> None:
        places, mask, value = lined_up(
            self.places(pointer, text), np.asarray([True]) if mask is None else mask, self.number_of(value)
        )
        self.traffic.store(pointer.memory, places, mask, value, self.active)

    def places(self, pointer: Value, text: str) -> np.ndarray:
        if not isinstance(pointer, Pointer):
            raise GateError(f"{self.name}: {text} points nowhere")
        return np.atleast_1d(np.asarray(pointer.places))

    # --- values

    def value(self, x: Code, names: Names) -> Value:
        kind = type(x)
        if kind is Name:  # every other expression is one
            return self.named(x.id, names)  # type: ignore[attr-defined]
        if kind is Literal and type(x.value) is int:  # type: ignore[attr-defined]
            return x.value  # type: ignore[attr-defined]
        of = VALUES.get(kind)
        if of is None:
            raise NoMeaning(x.text)
        return of(self, x, names)

    def literal(self, x: Literal, names: Names) -> Value:
        if not isinstance(x.value, float):
            return x.value
        return Exact(self.entries.of(written(x.value) if x.exact is None else x.exact))

    def inside(self, x: Group | CastLike | RoundedLike, names: Names) -> Value:  # numbers are exact: nothing is rounded
        return self.value(x.value, names)

    def binary_(self, x: Binary, names: Names) -> Value:
        if x.operator not in ("and", "or"):
            return self.binary(x.operator, self.value(x.left, names), self.value(x.right, names))
        first = self.value(x.left, names)
        where = self.truth(first)
        if isinstance(where, bool):
            return first if where == (x.operator == "or") else self.value(x.right, names)
        return self.one_or_other(where == (x.operator == "or"), names, lambda _: None, x.right, first)

    def either(self, x: Either, names: Names) -> Value:
        where = self.truth(self.value(x.condition, names))
        if isinstance(where, bool):
            return self.value(x.then if where else x.otherwise, names)
        return self.one_or_other(where, names, lambda own: self.value(x.then, own), x.otherwise)

    def one_or_other(
        self, where: np.ndarray, names: Names, then: Callable[[Names], Value], otherwise: Code, first: Value = None
    ) -> Value:
        """A value where a condition holds, and another elsewhere."""
        before, parts = self.active, []
        for take, of in ((where, then), (~where, lambda own: self.value(otherwise, own))):
            self.active = before[take]
            own = {n: chosen(v, take) for n, v in names.items()}
            made = chosen(first, take) if take is where and first is not None else of(own)
            parts.append((self.active, made))
        self.active = before
        return self.whole_of(joined(before, parts), "a value")

    def unary(self, x: Negative | Not, names: Names) -> Value:
        value = self.value(x.value, names)
        if isinstance(x, Not):
            where = self.truth(value)
            return not where if isinstance(where, bool) else ~where
        return Exact(self.entries.negative(value.entries)) if isinstance(value, Exact) else -value

    def inverted(self, x: Inverted, names: Names) -> Value:
        value = self.value(x.value, names)
        return not value if isinstance(value, bool) else ~np.atleast_1d(np.asarray(value))

    def item(self, x: Item, names: Names) -> Value:
        return self.value(x.value, names)[self.whole(self.value(x.index, names))]

    def items(self, x: Items, names: Names) -> Value:
        return tuple(self.value(y, names) for y in x.values)

    def cast_(self, x: Cast, names: Names) -> Value:
        return self.cast(self.value(x.value, names), x.dtype)

    def expanded(self, x: Expanded, names: Names) -> Value:
        index = (slice(None), *(slice(None) if y else None for y in x.own))
        return self.reshaped(self.value(x.value, names), lambda a: a[index])

    def function_(self, x: Function, names: Names) -> Value:
        return Exact(self.entries.function(x.name, self.number_of(self.value(x.value, names))))

    def power(self, x: Power, names: Names) -> Value:
        return Exact(self.entries.power(self.number_of(self.value(x.value, names)), x.exponent))

    def named(self, name: str, names: Names) -> Value:
        if name in names:
            found = names[name]
            return found if type(found) is not Apart else self.whole_of(found, name)
        if name.startswith("tl."):
            return name
        function = self.functions(name)
        if function is None:
            raise GateError(f"{self.name}: {name} is read, and isn't assigned before")
        return function

    def whole_of(self, x: Value, name: str) -> Value:
        """What a name stands for, which some programs have assigned here and others there."""
        if not isinstance(x, Apart):
            return x
        found = joined(self.active, x.among(self.active))
        if isinstance(found, Apart):
            missing = sum(len(a) for a, _ in found.parts) < len(self.active)
            why = "isn't assigned before" if missing else "is of two kinds"
            raise GateError(f"{self.name}: {name} is read, and {why}")
        return found

    def number_of(self, x: object) -> np.ndarray:
        """What a value is as a number to compute with."""
        if isinstance(x, Exact):
            return x.entries
        if x is None or isinstance(x, Pointer | tuple | str):
            raise GateError(f"{self.name}: {x} is no number")
        if isinstance(x, int | float | Fraction):
            return self.entries.of(x)
        return self.entries.of_whole(np.atleast_1d(np.asarray(x)))

    def truth(self, x: Value) -> bool | np.ndarray:
        """Does it hold, for each program if it isn't the same for all?"""
        if isinstance(x, Exact):
            x = self.entries.compared("!=", x.entries, self.entries.of(0))
        if not isinstance(x, np.ndarray):
            return bool(x)
        if x.size != len(x):
            raise GateError(f"{self.name}: a condition is of many numbers")
        flat = x.reshape(-1).astype(bool)
        return bool(flat[0]) if flat.all() or not flat.any() else flat

    def whole(self, x: Value) -> int:
        """An integer that is the same for all programs."""
        if isinstance(x, Exact) or not self.is_one(x):
            raise NoMeaning("a size that isn't known when the kernel is compiled")
        return x if type(x) is int else int(np.ravel(x)[0])

    def is_one(self, x: Value) -> bool:
        if type(x) is int:
            return True
        flat = np.ravel(x)
        return flat.size > 0 and bool((flat == flat[0]).all())

    def binary(self, operator: str, a: Value, b: Value) -> Value:
        if type(a) is type(b) is int and operator in OPERATIONS:
            return OPERATIONS[operator](a, b)
        if operator in ("is", "is not"):
            return (a is b) == (operator == "is")
        if isinstance(a, Pointer) and operator in ("+", "-"):
            return Pointer(a.memory, self.of_integers(operator, a.places, b))
        if a is None or b is None:
            raise GateError(f"{self.name}: something is None on one side of {operator}")
        if isinstance(a, Exact) or isinstance(b, Exact):
            x, y = lined_up(self.number_of(a), self.number_of(b))
            if operator in COMPARISONS:
                return self.entries.compared(operator, x, y)
            return Exact(self.entries.binary(operator, x, y))
        return self.of_integers(operator, a, b)

    def of_integers(self, operator: str, a: Value, b: Value) -> Value:
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.ndim != b.ndim:
            a, b = lined_up(a, b)
        return OPERATIONS[operator](a, b)

    def cast(self, x: Value, dtype: str) -> Value:
        if dtype in FLOATS or (isinstance(x, Exact) and not dtype.startswith("tl.int")):
            return Exact(self.number_of(x))
        return x

    def reshaped(self, x: Value, change: Callable[[np.ndarray], np.ndarray]) -> Value:
        """A value with other axes; the first, of programs, stays."""
        if isinstance(x, Exact):
            return Exact(change(x.entries))
        if isinstance(x, Pointer):
            return Pointer(x.memory, change(np.atleast_1d(np.asarray(x.places))))
        return change(np.atleast_1d(np.asarray(x)))

    # --- functions

    def call(self, x: Call, names: Names) -> Value:
        arguments = [self.value(y, names) for y in x.arguments]
        if x.function in BUILT_IN:
            return BUILT_IN[x.function](self, *arguments, **{n: self.value(y, names) for n, y in x.keywords})
        function = names.get(x.function) or self.functions(x.function)
        if function is None:
            raise NoMeaning(x.text)
        return self.called(function, arguments)

    def method(self, x: Method | Attribute, names: Names) -> Value:
        if x.name not in METHODS:
            raise NoMeaning(x.text)
        arguments, keywords = (x.arguments, x.keywords) if isinstance(x, Method) else ((), ())
        own = [self.value(y, names) for y in (x.value, *arguments)]
        return METHODS[x.name](self, *own, **{n: self.value(y, names) for n, y in keywords})

    def called(self, function: Called, arguments: list[Value]) -> Value:
        """What a function of the runtime makes of arguments: its own source says so. Sums of exponentials in logarithms have no
        exact value; what a kernel does with them it does with maxima, over which sums are distributed as well."""
        if isinstance(function, TileFunction):
            return self.inside_of(function.body, dict(zip(function.parameters, arguments, strict=True)), self.functions)
        if getattr(function, "__name__", "") == "log_of_sum":
            return BUILT_IN["tl.maximum"](self, *arguments)
        found = helper(function)
        names = {**found.defaults, **dict(zip(found.parameters, arguments, strict=False))}
        return self.inside_of(found.body, names, lambda n: _known(found.known, n))

    def inside_of(self, body: Body, names: Names, functions: Functions) -> Value:
        """What a function returns."""
        outside = self.active, self.functions, self.returned
        self.functions, self.returned = functions, []
        self.body(body, names)
        returned = self.returned if not len(self.active) else [*self.returned, (self.active, None)]
        self.active, self.functions, self.returned = outside
        return returned[0][1] if len(returned) == 1 else self.whole_of(joined(self.active, returned), "what it returns")


def _known(known: Mapping[str, Value], name: str) -> Value:
    found = known.get(name)
    return getattr(found, "value", found) if type(found).__name__ == "constexpr" else found


STATEMENTS: dict[type, Callable[..., None]] = {
    Let: _Launch.let, Store: _Launch.store_, If: _Launch.if_, For: _Launch.for_, Do: _Launch.do,
    Barrier: _Launch.barrier, Return: _Launch.return_, Note: lambda *_: None,
}  # fmt: skip
VALUES: dict[type, Callable[..., Value]] = {
    Literal: _Launch.literal, Group: _Launch.inside, CastLike: _Launch.inside,
    RoundedLike: _Launch.inside, Binary: _Launch.binary_, Negative: _Launch.unary, Not: _Launch.unary,
    Inverted: _Launch.inverted,
    Item: _Launch.item, Items: _Launch.items, Either: _Launch.either, Cast: _Launch.cast_,
    Expanded: _Launch.expanded, Load: _Launch.load_, Function: _Launch.function_, Power: _Launch.power, Call: _Launch.call,
    Method: _Launch.method, Attribute: _Launch.method,
}  # fmt: skip
