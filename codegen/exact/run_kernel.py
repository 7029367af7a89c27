"""The interpreter of kernels: runs a launch over exact numbers, program by program, as the data in `codegen/ir/kernel_ir.py` say.

A gate compares what a launch leaves in memory with what it means. On the way these are refused, with a `GateError`:

- a load or a store beyond a tensor, or of an argument that isn't given;
- a name that is read before it is assigned;
- two programs that store to one place, or one that loads what another stores;
- a load of what the program itself has stored, without a barrier between them; or a store to what it has loaded in an earlier
  round of a loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    Function,
    Group,
    Item,
    Items,
    Literal,
    Load,
    Name,
    Negative,
    Not,
    Power,
)
from ..ir.kernel_ir import Barrier, Body, Do, For, If, KernelFunction, Let, Return, Statement, Store, TileFunction
from .jit_source import NoMeaning, helper
from .rationals import UNDEFINED, Rationals, array, mapped, written

NUMBERS = Rationals()
Rounds: TypeAlias = (
    "tuple[tuple[str, int], ...]"  # of the loops around a statement: their names, and the rounds they are in
)
Value: TypeAlias = Any  # a Pointer, an Exact, an array of integers or truth values, a tuple, a function, a name or None
Argument: TypeAlias = "Tensor | Fraction | int | None"  # what a launch gives to a kernel
Called: TypeAlias = "Callable[..., object] | TileFunction"  # what a kernel calls by name
FLOATS = ("tl.float32", "tl.float16", "tl.bfloat16")


@dataclass
class Tensor:
    """Memory, in one row; `stored` says which program has stored where. `alike`: several may store one number in one place."""

    name: str
    cells: np.ndarray
    stored: dict[int, int] = field(default_factory=dict)
    alike: bool = False

    @classmethod
    def room(cls, name: str, size: int) -> Tensor:
        """Memory that nothing is stored in."""
        return cls(name, np.full(size, UNDEFINED, dtype=object))


@dataclass(frozen=True)
class Pointer:
    """Places in a tensor."""

    tensor: Tensor
    places: np.ndarray | np.generic | int = 0


@dataclass(frozen=True)
class Exact:
    """Numbers to compute with; integers and truth values are plain arrays."""

    entries: np.ndarray


@dataclass
class _Returned:
    value: Value


def run(
    k: KernelFunction,
    programs: int,
    arguments: Mapping[str, Argument],
    functions: Callable[[str], Called | None] = lambda _: None,
    rows: int = 1,
) -> None:
    """A launch of `programs` programs, times so many `rows` along the grid's second axis: tensors are `Tensor` (or None), numbers
    are fractions, integers and words are bare. `functions` finds those of the runtime that the kernel calls by name."""
    given = {n: _given(x) for n, x in arguments.items()}
    for program in range(programs * rows):
        _Program(k.name, program, programs, functions).body(k.body, dict(given))


def _given(x: Argument) -> Value:
    if isinstance(x, Tensor):
        return Pointer(x)
    return Exact(array(x)) if isinstance(x, Fraction) else x


class _Program:
    """One program of a launch."""

    def __init__(self, name: str, number: int, count: int, functions: Callable[[str], Called | None]) -> None:
        self.name, self.number, self.count, self.functions = name, number, count, functions
        self.fresh: dict[str, set[int]] = {}  # places that were stored since the last barrier, by tensor
        self.taken: dict[str, dict[int, Rounds]] = {}  # places that were loaded since then, and in which rounds
        self.rounds: Rounds = ()

    # --- statements

    def body(self, body: Body, names: dict[str, Value]) -> _Returned | None:
        for x in body:
            if (found := self.statement(x, names)) is not None:
                return found
        return None

    def statement(self, x: Statement, names: dict[str, Value]) -> _Returned | None:
        match x:
            case Let(names=targets, value=value, sign=sign):
                made = self.value(value, names)
                if sign != "=":
                    made = self.binary(sign[0], self.value(Name(targets[0]), names), made)
                if len(targets) == 1:
                    names[targets[0]] = made
                else:
                    names |= dict(zip(targets, made, strict=True))
            case Store():
                self.store(x, names)
            case If(condition=condition, body=inside, otherwise=otherwise):
                return self.body(inside if truth(self.value(condition, names)) else otherwise, names)
            case For(name=name, over=over, body=inside):
                outside = self.rounds
                for n in self.range_of(over, names):
                    names[name] = n
                    self.rounds = (*outside, (name, n))
                    if (found := self.body(inside, names)) is not None:
                        return found
                self.rounds = outside
            case Do(call=call):
                self.value(call, names)
            case Barrier():
                self.fresh.clear()
                self.taken.clear()
            case Return(value=value):
                return _Returned(None if value is None else self.value(value, names))
        return None

    def range_of(self, over: Code, names: dict[str, Value]) -> range:
        if not isinstance(over, Call) or over.function not in ("range", "tl.range", "tl.static_range"):
            raise NoMeaning(over.text)
        return range(*(int(self.value(x, names)) for x in over.arguments))

    # --- memory

    def load(self, x: Load, names: dict[str, Value]) -> object:
        pointer, mask = self.pointer(x.pointer, names), self.mask(x.mask, names)
        other = UNDEFINED if x.other is None else self.value(x.other, names)
        places, mask = np.broadcast_arrays(np.asarray(pointer.places), mask)
        out = np.empty(places.shape, dtype=object)
        tensor = pointer.tensor
        fresh = self.fresh.get(tensor.name, set())
        taken = self.taken.setdefault(tensor.name, {}) if tensor.stored else {}
        others = np.broadcast_to(other.entries, places.shape).ravel() if isinstance(other, Exact) else None
        for n, (place, there) in enumerate(zip(places.ravel().tolist(), mask.ravel().tolist(), strict=True)):
            if not there:
                out.ravel()[n] = other if others is None else others[n]
                continue
            self.inside(tensor, place, "loads")
            if tensor.stored.get(place, self.number) != self.number:
                raise GateError(f"{self.name}: a program loads what another one stores, in {tensor.name}")
            if place in fresh:
                raise GateError(f"{self.name}: no barrier is between a store to {tensor.name} and a load of it")
            taken[place] = self.rounds
            out.ravel()[n] = tensor.cells[place]
        return Exact(out) if out.size == 0 or not isinstance(out.ravel()[0], int) else out.astype(np.int64)

    def store(self, x: Store, names: dict[str, Value]) -> None:
        pointer, mask = self.pointer(x.pointer, names), self.mask(x.mask, names)
        value = self.number_of(self.value(x.value, names))
        places, mask, entries = np.broadcast_arrays(np.asarray(pointer.places), mask, value)
        tensor = pointer.tensor
        fresh, taken = self.fresh.setdefault(tensor.name, set()), self.taken.get(tensor.name, {})
        now: set[int] = set()
        for place, there, entry in zip(places.ravel().tolist(), mask.ravel().tolist(), entries.ravel(), strict=True):
            if not there:
                continue
            self.inside(tensor, place, "stores")
            again = tensor.stored.setdefault(place, self.number) != self.number
            if (again and not (tensor.alike and tensor.cells[place] == entry)) or place in now:
                raise GateError(f"{self.name}: two stores go to one place of {tensor.name}")
            if place in taken and _earlier(taken[place], self.rounds):
                raise GateError(f"{self.name}: no barrier is between a load of {tensor.name} and a store to it")
            now.add(place)
            tensor.cells[place] = entry
        fresh |= now

    def inside(self, tensor: Tensor, place: int, what: str) -> None:
        if not 0 <= place < len(tensor.cells):
            raise GateError(f"{self.name}: it {what} beyond {tensor.name}")

    def pointer(self, x: Code, names: dict[str, Value]) -> Pointer:
        found = self.value(x, names)
        if not isinstance(found, Pointer):
            raise GateError(f"{self.name}: {x.text} points nowhere")
        return found

    def mask(self, x: Code | None, names: dict[str, Value]) -> np.ndarray:
        found = None if x is None else self.value(x, names)
        return np.asarray(True if found is None else found)

    # --- values

    def value(self, x: Code, names: dict[str, Value]) -> Value:
        match x:
            case Name(id=name):
                return self.named(name, names)
            case Literal():
                return _literal(x)
            case Group(value=value) | CastLike(value=value):  # numbers are exact: nothing is rounded
                return self.value(value, names)
            case Binary(operator="and" | "or" as operator, left=left, right=right):
                first = self.value(left, names)
                return first if truth(first) == (operator == "or") else self.value(right, names)
            case Binary(operator=operator, left=left, right=right):
                return self.binary(operator, self.value(left, names), self.value(right, names))
            case Negative(value=value) | Not(value=value):
                return self.opposite(x, self.value(value, names))
            case Item(value=value, index=index):
                return self.value(value, names)[int(self.value(index, names))]
            case Either(then=then, condition=condition, otherwise=otherwise):
                return self.value(then if truth(self.value(condition, names)) else otherwise, names)
            case Items(values=values):
                return tuple(self.value(y, names) for y in values)
            case Cast(value=value, dtype=dtype):
                return self.cast(self.value(value, names), dtype)
            case Expanded(value=value, own=own):
                return self.reshaped(
                    self.value(value, names), lambda a: a[tuple(slice(None) if y else None for y in own)]
                )
            case Load():
                return self.load(x, names)
            case Function(value=value) | Power(value=value):
                return self.function_of(x, self.number_of(self.value(value, names)))
            case Call() | Attribute():
                return self.call(x, names)
        raise NoMeaning(x.text)

    def opposite(self, x: Negative | Not, value: Value) -> Value:
        if isinstance(x, Not):
            return not truth(value)
        return Exact(array(-value.entries)) if isinstance(value, Exact) else -value

    def function_of(self, x: Function | Power, value: np.ndarray) -> Exact:
        return Exact(NUMBERS.fn(x.name, value) if isinstance(x, Function) else NUMBERS.pow(value, x.exponent))

    def named(self, name: str, names: dict[str, Value]) -> Value:
        if name in names:
            return names[name]
        if name.startswith("tl."):
            return name
        function = self.functions(name)
        if function is None:
            raise GateError(f"{self.name}: {name} is read, and isn't assigned before")
        return function

    def number_of(self, x: object) -> np.ndarray:
        """What a value is as a number to compute with."""
        if isinstance(x, Exact):
            return x.entries
        if x is None or isinstance(x, Pointer | tuple | str):
            raise GateError(f"{self.name}: {x} is no number")
        if isinstance(x, float):
            return array(written(x))
        return mapped(lambda y: y if y is UNDEFINED else Fraction(int(y)), array(x))

    def binary(self, operator: str, a: Value, b: Value) -> Value:
        if operator in ("is", "is not"):
            return (a is b) == (operator == "is")
        if isinstance(a, Pointer) and operator == "+":
            return Pointer(a.tensor, a.places + np.asarray(b))
        if a is None or b is None:
            raise GateError(f"{self.name}: something is None on one side of {operator}")
        if isinstance(a, Exact) or isinstance(b, Exact):
            made = _of_numbers(operator, self.number_of(a), self.number_of(b))
            return made if operator in ("<", "<=", ">", ">=", "==", "!=") else Exact(array(made))
        return OPERATIONS[operator](a, b)

    def cast(self, x: Value, dtype: str) -> Value:
        if dtype in FLOATS or (isinstance(x, Exact) and not dtype.startswith("tl.int")):
            return Exact(self.number_of(x))
        return x

    def reshaped(self, x: Value, change: Callable[[np.ndarray], np.ndarray]) -> Value:
        if isinstance(x, Exact):
            return Exact(array(change(x.entries)))
        if isinstance(x, Pointer):
            return Pointer(x.tensor, change(np.asarray(x.places)))
        return change(np.asarray(x))

    # --- functions

    def call(self, x: Call | Attribute, names: dict[str, Value]) -> Value:
        if isinstance(x, Attribute):
            return self.call(Call(f".{x.name}", (x.value,)), names)
        arguments = [self.value(y, names) for y in x.arguments]
        keywords = {n: self.value(y, names) for n, y in x.keywords}
        if x.function in BUILT_IN:
            return BUILT_IN[x.function](self, *arguments, **keywords)
        function = names.get(x.function) or self.functions(x.function)
        if function is None:
            raise NoMeaning(x.text)
        return self.called(function, arguments)

    def called(self, function: Called, arguments: list[Value]) -> Value:
        """What a function of the runtime makes of arguments: its own source says so. Sums of exponentials in logarithms have no
        exact value; what a kernel does with them it does with maxima, over which sums are distributed as well."""
        if isinstance(function, TileFunction):
            inside = self.inner(self.functions)
            made = inside.body(function.body, dict(zip(function.parameters, arguments, strict=True)))
            return None if made is None else made.value
        if getattr(function, "__name__", "") == "log_of_sum":
            return BUILT_IN["tl.maximum"](self, *arguments)
        found = helper(function)
        inside = self.inner(lambda n: _known(found.known, n))
        values = dict(zip(found.parameters, arguments, strict=False))
        for n, default in _defaults(function).items():
            values.setdefault(n, default)
        returned = inside.body(found.body, values)
        return returned.value if returned is not None else None

    def inner(self, functions: Callable[[str], Called | None]) -> _Program:
        """The same program, inside of a function."""
        found = _Program(self.name, self.number, self.count, functions)
        found.fresh, found.taken, found.rounds = self.fresh, self.taken, self.rounds
        return found


def _earlier(a: Rounds, b: Rounds) -> bool:
    """Are these different rounds of one loop?"""
    different = next(((x, y) for x, y in zip(a, b, strict=False) if x != y), None)
    return different is not None and different[0][0] == different[1][0]


def _literal(x: Literal) -> Value:
    if not isinstance(x.value, float):
        return x.value
    return Exact(array(written(x.value) if x.exact is None else x.exact))


def truth(x: Value) -> bool:
    return bool(x.entries) if isinstance(x, Exact) else bool(x)


def _known(known: Mapping[str, Value], name: str) -> Value:
    found = known.get(name)
    return getattr(found, "value", found) if type(found).__name__ == "constexpr" else found


def _defaults(function: Callable[..., object]) -> dict[str, Value]:
    parameters = inspect.signature(getattr(function, "fn", function)).parameters
    return {n: p.default for n, p in parameters.items() if p.default is not inspect.Parameter.empty}


OPERATIONS: dict[str, Callable[[Value, Value], Value]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b,
}  # fmt: skip


def _of_numbers(operator: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if operator == "/":
        return mapped(_divided, a, b)
    if operator == "*":
        return mapped(_times, a, b)
    made = OPERATIONS[operator](a, b)
    return np.asarray(made, dtype=bool) if operator in ("<", "<=", ">", ">=", "==", "!=") else made


def _divided(a: Value, b: Value) -> Value:
    return UNDEFINED if a is UNDEFINED or b is UNDEFINED or b == 0 else a / b


def _times(a: Value, b: Value) -> Value:
    """A product; of an infinity and zero, nothing is known."""
    made = a * b
    return UNDEFINED if isinstance(made, float) and made != made else made


def _full(p: _Program, sizes: tuple[int, ...], value: Value, dtype: str) -> Value:
    if dtype in FLOATS:
        return Exact(np.broadcast_to(p.number_of(value), sizes).copy())
    return np.full(sizes, value)


def _where(p: _Program, condition: Value, a: Value, b: Value) -> Value:
    if isinstance(a, Exact) or isinstance(b, Exact):
        condition = np.asarray(condition)
        return Exact(mapped(lambda c, x, y: x if c else y, condition, p.number_of(a), p.number_of(b)))
    return np.where(condition, a, b)


def _extreme(p: _Program, a: Value, b: Value, which: Callable[[Value, Value], Value]) -> Value:
    if isinstance(a, Exact) or isinstance(b, Exact):
        return Exact(
            mapped(lambda x, y: UNDEFINED if UNDEFINED in (x, y) else which(x, y), p.number_of(a), p.number_of(b))
        )
    return np.maximum(a, b) if which is max else np.minimum(a, b)


def _sum(p: _Program, x: Value, axis: int) -> Value:
    return Exact(array(x.entries.sum(axis=axis))) if isinstance(x, Exact) else np.sum(x, axis=axis)


def _most(x: Value, which: Callable[..., Value], axis: int | None) -> Value:
    return Exact(array(which(x.entries, axis=axis))) if isinstance(x, Exact) else which(x, axis=axis)


def _cumulative(p: _Program, x: Value, axis: int, reverse: bool) -> Exact:
    entries = p.number_of(x)
    entries = np.flip(entries, axis) if reverse else entries
    sums = np.cumsum(entries, axis=axis)
    return Exact(np.flip(sums, axis) if reverse else sums)


def _dot(p: _Program, a: Value, b: Value, onto: Value) -> Exact:
    product = array(p.number_of(a) @ p.number_of(b))
    return Exact(product if onto is None else array(product + p.number_of(onto)))


def _power_of_two(x: Value) -> Value:
    if x is UNDEFINED or isinstance(x, float):  # of minus infinity
        return UNDEFINED if x is UNDEFINED or x > 0 else Fraction(0)
    return NUMBERS.fn("exp2", array(x)).item()


def _scan(p: _Program, values: tuple[Exact, ...], axis: int, function: Callable[..., object]) -> tuple[Exact, ...]:
    rows = [np.moveaxis(v.entries, axis, 0) for v in values]
    kept = [tuple(Exact(array(r[0])) for r in rows)]
    for n in range(1, rows[0].shape[0]):
        kept.append(p.called(function, [*kept[-1], *(Exact(array(r[n])) for r in rows)]))
    return tuple(Exact(np.moveaxis(np.stack([k[m].entries for k in kept]), 0, axis)) for m in range(len(values)))


def _reduce(p: _Program, x: Exact, axis: int, function: Callable[..., object]) -> Exact:
    rows = np.moveaxis(x.entries, axis, 0)
    made = Exact(array(rows[0]))
    for row in rows[1:]:
        made = p.called(function, [made, Exact(array(row))])
    return made


BUILT_IN: dict[str, Callable[..., object]] = {
    "tl.program_id": lambda p, axis: np.int64(p.number // p.count if axis else p.number % p.count),
    "tl.num_programs": lambda p, axis: np.int64(p.count),
    "tl.arange": lambda p, a, b: np.arange(a, b),
    "tl.zeros": lambda p, sizes, dtype: _full(p, sizes, 0, dtype),
    "tl.full": _full,
    "tl.zeros_like": lambda p, x: Exact(array(x.entries * 0)) if isinstance(x, Exact) else np.zeros_like(x),
    "tl.where": _where,
    "tl.sum": _sum,
    "tl.max": lambda p, x, axis=None: _most(x, np.max, axis),
    "tl.min": lambda p, x, axis=None: _most(x, np.min, axis),
    "tl.cumsum": lambda p, x, axis, reverse=False: _cumulative(p, x, axis, reverse),
    "tl.dot": lambda p, a, b, onto=None, input_precision="": _dot(p, a, b, onto),
    "tl.reshape": lambda p, x, sizes: p.reshaped(x, lambda a: a.reshape(sizes)),
    "tl.broadcast_to": lambda p, x, sizes: p.reshaped(x, lambda a: np.broadcast_to(a, sizes)),
    "tl.exp2": lambda p, x: Exact(mapped(_power_of_two, p.number_of(x))),
    "tl.sqrt": lambda p, x: Exact(NUMBERS.pow(p.number_of(x), Fraction(1, 2))),
    "triton.next_power_of_2": lambda p, n: 1 << (int(n) - 1).bit_length(),
    ".dtype": lambda p, x: "tl.float32" if isinstance(x, Exact | Pointer) else "tl.int32",
    ".element_ty": lambda p, dtype: dtype,
    ".shape": lambda p, x: x.entries.shape,
    "[]": lambda p, x, n: x[int(n)],
    "tl.log2": lambda p, x: Exact(NUMBERS.fn("log2", p.number_of(x))),
    "~": lambda p, x: ~np.asarray(x),
    "tl.trans": lambda p, x: p.reshaped(x, lambda a: a.T),
    "tl.permute": lambda p, x, order: p.reshaped(x, lambda a: a.transpose(order)),
    "tl.cdiv": lambda p, a, b: -(-a // b),
    "tl.minimum": lambda p, a, b: _extreme(p, a, b, min),
    "tl.maximum": lambda p, a, b, propagate_nan="": _extreme(p, a, b, max),
    # log(exp(a) + exp(b)) has no exact value; scans need that it is associative, and that + distributes over it, as over max
    "log_of_sum": lambda p, a, b: _extreme(p, a, b, max),
    "tl.abs": lambda p, x: Exact(array(abs(x.entries))),
    "tl.cast": lambda p, x, dtype: p.cast(x, dtype),
    "tl.multiple_of": lambda p, x, _: x,
    "tl.associative_scan": _scan,
    "tl.reduce": _reduce,
    "float": lambda p, text: Exact(array(float(text))),
    "not": lambda p, x: not truth(x),
}  # fmt: skip
