"""Two operations that attention adds to the graph: the half turn of rotary positions, and their frequencies.

    half_turn(x, axis)       (-second half, first half) of x along an axis of even size; its transpose is its negative
    frequencies(axis)        base^(-2 n / d), n = 0 .. d/2 - 1, twice

Each has its row in the tables of derivatives and of exact meanings.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from ..adjoint import DERIVATIVES
from ..evaluate import CHUNK_OPERATIONS
from ..ir import Node, dim_of, make, mul


def half_turn(x: Node, axis: str) -> Node:
    # The axis stands in a tuple, so that `ir.rename` renames it.
    return make("half_turn", (x,), ((axis,),), x.axes)


def frequencies(axis: str, base: Fraction) -> Node:
    return make("frequencies", (), ((axis,), base), (axis,))


def _half_turn_rule(x: Node, g: Node) -> list[Node]:
    ((axis,),) = x.attrs
    return [mul(-1, half_turn(g, axis))] if axis in g.axes else [g]


DERIVATIVES["half_turn"] = _half_turn_rule
DERIVATIVES["frequencies"] = lambda x, g: []


def _turned(x: Node, args: list[Any], m: Any, sizes: dict[str, int]) -> Any:
    from ..evaluate import Pair

    ((axis,),) = x.attrs
    position = x.axes.index(axis) - len(x.axes)
    (value,) = args
    if isinstance(value, Pair):
        # A zero tangent may lack axes: it stays what it is.
        tangent = value.tangent
        if np.ndim(tangent) >= len(x.axes):
            tangent = turned(tangent, position, m.base)
        return Pair(turned(value.value, position, m.base), tangent)
    return turned(value, position, m)


def turned(value: Any, position: int, m: Any) -> Any:
    """(-second half, first half) along an axis."""
    if not isinstance(value, np.ndarray):  # torch
        first, second = value.chunk(2, position)
        return value.new_tensor(0.0) + _cat(-second, first, position)
    half = value.shape[position] // 2
    first, second = np.split(value, [half], axis=position)
    return np.concatenate([m.mul(second, m.const(Fraction(-1))), first], axis=position)


def _cat(a: Any, b: Any, position: int) -> Any:
    import torch

    return torch.cat((a, b), position)


def _frequencies(x: Node, args: list[Any], m: Any, sizes: dict[str, int]) -> Any:
    (axis,), base = x.attrs
    return frequency_values(sizes[dim_of(axis)], base, m)


def frequency_values(size: int, base: Fraction, m: Any) -> Any:
    from ..evaluate import Pair

    half = max(size // 2, 1)
    one = m.const(Fraction(1))
    if isinstance(one, Pair):
        inner = frequency_values(size, base, m.base)
        return Pair(inner, m.zero)
    values = [m.number(f"({base})**({Fraction(-2 * (n % half), size)})") for n in range(size)]
    if isinstance(one, np.ndarray):
        return np.array([np.asarray(v, dtype=object).item() for v in values] + [None], dtype=object)[:-1]
    import torch

    return torch.stack(values)


CHUNK_OPERATIONS["half_turn"] = _turned
CHUNK_OPERATIONS["frequencies"] = _frequencies
