"""What the functions of Triton do with the values of programs, as `run_kernel.py` has them: arrays whose first axis is that of
programs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from .apart import Exact, Pointer, Rows

Value: TypeAlias = Any
Launch: TypeAlias = Any  # the `_Launch` of run_kernel.py
FLOATS = ("tl.float32", "tl.float64", "tl.float16", "tl.bfloat16")
OPERATIONS: dict[str, Callable[[Value, Value], Value]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b,
}  # fmt: skip


def lined_up(*values: Value) -> list[np.ndarray]:
    """Arrays that broadcast: new axes come behind that of programs."""
    if len(values) == 2:  # mostly two that do so as they are
        a, b = values
        if type(a) is type(b) is np.ndarray and a.ndim == b.ndim > 0:
            return [a, b]
    arrays = [x if isinstance(x, np.ndarray) and x.ndim else np.atleast_1d(np.asarray(x)) for x in values]
    rank = max([x.ndim for x in arrays])
    return [x if x.ndim == rank else x.reshape(len(x), *(1,) * (rank - x.ndim), *x.shape[1:]) for x in arrays]


def _tile_at(x: Rows, begin: tuple[Value, ...]) -> tuple[Pointer, np.ndarray]:
    """The places of a tile, and which of it there is."""
    rank = len(x.tile)
    places, there = lined_up(x.pointer.places, np.ones((1,) * (rank + 1), dtype=bool))
    for n, (start, size, stride, width) in enumerate(zip(begin, x.sizes, x.strides, x.tile, strict=True)):
        steps = np.arange(width).reshape(1, *(-1 if m == n else 1 for m in range(rank)))
        own, most, apart = lined_up(start, size, stride)
        own, most, apart = (y.reshape(len(y), *(1,) * rank) for y in (own, most, apart))
        own = own + steps
        places, there = places + own * apart, there & (own >= 0) & (own < most)
    return Pointer(x.pointer.memory, places), there


def _shape(p: Launch, sizes: Value) -> tuple[int, ...]:
    return tuple(p.whole(n) for n in sizes)


def _axis(x: np.ndarray, axis: int | None) -> int | tuple[int, ...]:
    """An axis of a tile, as one of its values; all of them if none is said."""
    if axis is None:
        return tuple(range(1, x.ndim))
    return axis + 1 if axis >= 0 else x.ndim + axis


def _full(p: Launch, sizes: Value, value: Value, dtype: str) -> Value:
    shape = _shape(p, sizes)
    made = p.number_of(value) if dtype in FLOATS else np.atleast_1d(np.asarray(value))
    made = made.reshape(len(made), *(1,) * len(shape))
    made = np.broadcast_to(made, (len(made), *shape)).copy()
    return Exact(made) if dtype in FLOATS else made.astype(bool) if dtype == "tl.int1" else made


def _zeros_like(p: Launch, x: Value) -> Value:
    if not isinstance(x, Exact):
        return np.zeros_like(x)
    return Exact(p.entries.binary("*", x.entries, p.entries.of(0)))


def _where(p: Launch, condition: Value, a: Value, b: Value) -> Value:
    if isinstance(a, Exact) or isinstance(b, Exact):
        return Exact(np.where(*lined_up(condition, p.number_of(a), p.number_of(b))))
    return np.where(*lined_up(condition, a, b))


def _extreme(p: Launch, a: Value, b: Value, most: bool) -> Value:
    if isinstance(a, Exact) or isinstance(b, Exact):
        return Exact(p.entries.extreme(*lined_up(p.number_of(a), p.number_of(b)), most))
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b) if most else min(a, b)
    return (np.maximum if most else np.minimum)(*lined_up(a, b))


def _sum(p: Launch, x: Value, axis: int | None = None) -> Value:
    if isinstance(x, Exact):
        return Exact(p.entries.total(x.entries, _axis(x.entries, axis)))
    return np.sum(x, axis=_axis(x, axis))


def _most(p: Launch, x: Value, axis: int | None, most: bool) -> Value:
    if isinstance(x, Exact):
        return Exact(p.entries.most(x.entries, _axis(x.entries, axis), most))
    return (np.max if most else np.min)(x, axis=_axis(x, axis))


def _cumulative(p: Launch, x: Value, axis: int, reverse: bool = False) -> Exact:
    entries = p.number_of(x)
    along = _axis(entries, axis)
    entries = np.flip(entries, along) if reverse else entries
    sums = p.entries.cumulative(entries, along)
    return Exact(np.flip(sums, along) if reverse else sums)


def _dot(p: Launch, a: Value, b: Value, onto: Value = None, **_: Value) -> Exact:
    made = p.entries.dot(*lined_up(p.number_of(a), p.number_of(b)))
    return Exact(made if onto is None else p.entries.binary("+", *lined_up(made, p.number_of(onto))))


def _scan(p: Launch, values: tuple[Exact, ...], axis: int, function: Callable[..., object]) -> tuple[Exact, ...]:
    along = axis + 1
    rows = [np.moveaxis(v.entries, along, 0) for v in values]
    kept = [tuple(Exact(r[0]) for r in rows)]
    for n in range(1, rows[0].shape[0]):
        kept.append(p.called(function, [*kept[-1], *(Exact(r[n]) for r in rows)]))
    found = (np.broadcast_arrays(*(k[m].entries for k in kept)) for m in range(len(values)))
    return tuple(Exact(np.moveaxis(np.stack(x), 0, along)) for x in found)


def _reduce(p: Launch, x: Exact, axis: int, function: Callable[..., object]) -> Exact:
    rows = np.moveaxis(x.entries, axis + 1, 0)
    made = Exact(rows[0])
    for row in rows[1:]:
        made = p.called(function, [made, Exact(row)])
    return made


def _load_tile(p: Launch, x: Rows | Exact, begin: tuple[Value, ...] = ()) -> Value:
    if isinstance(x, Exact):  # what lies in shared memory is that
        return x
    pointer, there = _tile_at(x, begin)
    return p.load(pointer, there, 0)


def _store_tile(p: Launch, x: Rows, begin: tuple[Value, ...], value: Value) -> None:
    pointer, there = _tile_at(x, begin)
    p.store(pointer, value, there)


def _shape_of(p: Launch, x: Value) -> tuple[int, ...]:
    found: tuple[int, ...] = (x.entries if isinstance(x, Exact) else np.atleast_1d(np.asarray(x))).shape
    return found[1:]


def _absolute(p: Launch, x: Value) -> Value:
    return Exact(p.entries.absolute(x.entries)) if isinstance(x, Exact) else abs(x)


def _tile(p: Launch, x: Value, sizes: Value) -> Value:
    shape = _shape(p, sizes)
    return p.reshaped(x, lambda a: a.reshape(len(a), *shape))


def _broadcast(p: Launch, x: Value, sizes: Value) -> Value:
    shape = _shape(p, sizes)

    def of(a: np.ndarray) -> np.ndarray:
        a = a.reshape(len(a), *(1,) * (len(shape) + 1 - a.ndim), *a.shape[1:])
        return np.broadcast_to(a, (len(a), *shape))

    return p.reshaped(x, of)


def _permuted(p: Launch, x: Value, order: Value) -> Value:
    axes = [n + 1 for n in _shape(p, order)]
    return p.reshaped(x, lambda a: a.transpose(0, *axes))


def _transposed(p: Launch, x: Value) -> Value:
    return p.reshaped(x, lambda a: a.transpose(0, *range(a.ndim - 1, 0, -1)))


BUILT_IN: dict[str, Callable[..., Any]] = {
    "tl.program_id": lambda p, axis: p.active // p.count if axis else p.active % p.count,
    "tl.num_programs": lambda p, axis: p.count,
    "tl.arange": lambda p, a, b: np.arange(p.whole(a), p.whole(b))[None],
    "tl.zeros": lambda p, sizes, dtype: _full(p, sizes, 0, dtype),
    "tl.full": _full,
    "tl.zeros_like": _zeros_like,
    "tl.where": _where,
    "tl.sum": _sum,
    "tl.max": lambda p, x, axis=None: _most(p, x, axis, True),
    "tl.min": lambda p, x, axis=None: _most(p, x, axis, False),
    "tl.cumsum": _cumulative,
    "tl.dot": _dot,
    "tl.reshape": _tile,
    "tl.broadcast_to": _broadcast,
    "tl.exp2": lambda p, x: Exact(p.entries.function("exp2", p.number_of(x))),
    "tl.sqrt": lambda p, x: Exact(p.entries.power(p.number_of(x), Fraction(1, 2))),
    "triton.next_power_of_2": lambda p, n: 1 << (p.whole(n) - 1).bit_length(),
    "tl.log2": lambda p, x: Exact(p.entries.function("log2", p.number_of(x))),
    "tl.make_tensor_descriptor": lambda p, *given: Rows(*given),
    "tl.trans": _transposed,
    "tl.permute": _permuted,
    "tl.cdiv": lambda p, a, b: -p.of_integers("//", -a, b),
    "tl.minimum": lambda p, a, b, propagate_nan="": _extreme(p, a, b, False),
    "tl.maximum": lambda p, a, b, propagate_nan="": _extreme(p, a, b, True),
    # log(exp(a) + exp(b)) has no exact value; scans need that it is associative, and that + distributes over it, as over max
    "log_of_sum": lambda p, a, b: _extreme(p, a, b, True),
    "less_turns": lambda p, x: x,  # for cos and sin it is the same
    "tl.abs": _absolute,
    "tl.cast": lambda p, x, dtype: p.cast(x, dtype),
    "tl.multiple_of": lambda p, x, _: x,
    "tl.associative_scan": _scan,
    "tl.reduce": _reduce,
    "float": lambda p, text: Exact(p.entries.of(float(text))),
}  # fmt: skip
METHODS: dict[str, Callable[..., Any]] = {  # of a value, and what it has of these names
    "dtype": lambda p, x: "tl.float32" if isinstance(x, Exact | Rows | Pointer) else "tl.int32",
    "element_ty": lambda p, dtype: dtype,
    "shape": _shape_of,
    "to": lambda p, x, dtype: p.cast(x, dtype),
    "load": _load_tile,
    "store": _store_tile,
}
