"""Operations that attention adds to the graph: for rotary positions, and for sums of squares that are multiplied out.

    half_turn(x, axis)       (-second half, first half) of x along an axis of even size; its transpose is its negative
    frequencies(axis)        base^(-2 n / d), n = 0 .. d/2 - 1, twice
    clamped(x)               max(x, 0) of a sum of squares, of which rounding may leave anything near 0 where it is multiplied out
    guarded(x, g)            g where x > 0, and 0 elsewhere, whatever g is there: the derivative of a function of clamped(x)

Each has its row in the tables of derivatives and of exact meanings; in a field the latter two are what they are applied to.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import numpy as np

from ..ir.evaluate import CHUNK_OPERATIONS, Arithmetic, ArrayNumbers, Dual, Entries, Pair, V, aligned, base_of, each
from ..ir.expr import Node, add, dim_of, fn, leaf, make, mul, rebuild, replace, terms_of, walk
from ..recurrence.step.adjoint import DERIVATIVES

if TYPE_CHECKING:
    import torch


def half_turn(x: Node, axis: str) -> Node:
    # The axis stands in a tuple, so that `ir.rename` renames it.
    return make("half_turn", (x,), ((axis,),), x.axes)


def frequencies(axis: str, base: Fraction) -> Node:
    return make("frequencies", (), ((axis,), base), (axis,))


def clamped(x: Node) -> Node:
    return make("clamped", (x,), (), x.axes)


def guarded(x: Node, g: Node) -> Node:
    return make("guarded", (x, g), (), {*x.axes, *g.axes})


def rebuilt(x: Node, args: tuple[Node, ...]) -> Node:
    """x with other arguments, which may have other axes."""
    match x.op:
        case "half_turn":
            return half_turn(args[0], x.attrs[0][0])
        case "clamped":
            return clamped(*args)
        case "guarded":
            return guarded(*args)
    return rebuild(x, args)


EPS = leaf("constant", "eps")  # the distance from 1 to the next number of the arithmetic in which energies are computed


def by_functions(x: Node) -> Node:
    """x with what is clamped and guarded in functions that printers know. What rounding may have left of the terms of a sum is 0.

    A guarded g is finite: in the place of clamped(x), it has 1 where that is 0.
    """
    done: dict[Node, Node] = {}
    for y in walk(x):
        args = tuple(done[a] for a in y.args)
        if y.op not in ("clamped", "guarded"):
            done[y] = rebuild(y, args)
            continue
        left = mul(4, EPS, add(*(fn("abs", t) for t in terms_of(args[0]))))
        inside = _inside(add(args[0], mul(-1, left)))
        value = mul(args[0], inside)
        if y.op == "clamped":
            done[y] = value
        else:
            done[y] = mul(inside, replace(args[1], {value: add(value, _relu(add(1, mul(-1, inside))))}))
    return done[x]


def _inside(x: Node) -> Node:
    """1 where x > 0, and 0 elsewhere, as min(1, 1e30 max(x, 0)): with a choice between numbers (`tl.where`) in derivatives,
    Triton's kernels of float32 and 128 channels spill seven times as much."""
    return add(1, mul(-1, _relu(add(1, mul(-(10**30), _relu(x))))))


def _relu(x: Node) -> Node:
    return fn("relu", x)


def _half_turn_rule(x: Node, g: Node) -> list[Node]:
    ((axis,),) = x.attrs
    return [mul(-1, half_turn(g, axis))] if axis in g.axes else [g]


DERIVATIVES["half_turn"] = _half_turn_rule
DERIVATIVES["frequencies"] = lambda x, g: []
DERIVATIVES["clamped"] = lambda x, g: [guarded(x.args[0], g)]


def _turned(x: Node, args: list[V], m: Arithmetic[V], sizes: dict[str, int]) -> V:
    ((axis,),) = x.attrs
    position = x.axes.index(axis) - len(x.axes)
    (value,) = args
    # A zero tangent may lack axes: it stays what it is.
    return each(value, lambda a: turned(a, position, base_of(m)) if np.ndim(a) >= len(x.axes) else a)


def turned(value: Entries, position: int, m: Arithmetic[np.ndarray]) -> Entries:
    """(-second half, first half) along an axis."""
    if not isinstance(value, np.ndarray):  # torch
        first, second = value.chunk(2, position)
        return value.new_tensor(0.0) + _cat(-second, first, position)
    half = value.shape[position] // 2
    first, second = np.split(value, [half], axis=position)
    return np.concatenate([m.mul(second, m.const(Fraction(-1))), first], axis=position)


def _cat(a: torch.Tensor, b: torch.Tensor, position: int) -> torch.Tensor:
    import torch

    return torch.cat((a, b), position)


def _frequencies(x: Node, args: Sequence[V], m: Arithmetic[V], sizes: dict[str, int]) -> V:
    (axis,), base = x.attrs
    return frequency_values(sizes[dim_of(axis)], base, m)


def frequency_values(size: int, base: Fraction, m: Arithmetic[V]) -> V:
    half = max(size // 2, 1)
    if isinstance(m, Dual):
        return cast(V, Pair(frequency_values(size, base, m.base), m.zero))
    values = [m.number(f"({base})**({Fraction(-2 * (n % half), size)})") for n in range(size)]
    if isinstance(m.const(Fraction(1)), np.ndarray):
        return cast(V, np.array([np.asarray(v, dtype=object).item() for v in values] + [None], dtype=object)[:-1])
    import torch

    return torch.stack(values)


def _clamped(x: Node, args: list[np.ndarray], m: ArrayNumbers, sizes: dict[str, int]) -> np.ndarray:
    return args[0] if m.exact else m.fn("relu", args[0])


def _guarded(x: Node, args: list[np.ndarray], m: ArrayNumbers, sizes: dict[str, int]) -> np.ndarray:
    inside, g = (aligned(value, a.axes, x.axes) for value, a in zip(args, x.args, strict=True))
    return g if m.exact else m.mul(m.fn("step", inside), g)


CHUNK_OPERATIONS["half_turn"] = _turned
CHUNK_OPERATIONS["frequencies"] = _frequencies
CHUNK_OPERATIONS["clamped"] = _clamped
CHUNK_OPERATIONS["guarded"] = _guarded
