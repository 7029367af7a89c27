"""Products of a state and a gradient at each step of a chunk, from the states at the chunk's borders.

<S_{t-1}, dT_t> is what the gradient of a scalar that multiplies S needs. Both walks are unrolled over the chunk: the state before
it, and the writes of the chunk so far, each with its weight. Nothing is subtracted, so nothing cancels.
"""

from __future__ import annotations

from .chunk import Builder
from .ir import COL, INNER, ROW, Node, add, factors_of, mul, rename, total
from .mixing import factored, gathered, state_in
from .read_write import Cross, StateForm, Write


def unrolled(
    crosses: tuple[Cross, ...], forward: tuple[StateForm, ...], backward: tuple[StateForm, ...]
) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """(streams, products): for each cross its chunk node over ROW, from both walks' states as they stand before the decay."""
    ahead, behind = Builder(forward, (), False, {}), Builder(backward, (), False, {})
    out: dict[Node, Node] = {}
    for x in crosses:
        s = next(f for f in forward if f.name == x.state)
        g = next(f for f in backward if f.name == x.gradient)
        parts = []
        for a in ahead.sources(s):
            start = ahead.incoming(s, a, "mid")
            wrote = [(v, ahead.mask(s, "mid", v)) for v in a.writes]
            for b in behind.sources(g):
                end = behind.incoming(g, b, "mid")
                seen = [(w, rename(behind.mask(g, "mid", w), {COL: INNER})) for w in b.writes]
                parts.append(mul(start, end, total(mul(state_in(a), state_in(b)), *a.axes)))
                for w, late in seen:
                    parts.append(mul(start, total(mul(late, _read(state_in(a), w, behind, INNER, a)), INNER)))
                    for v, early in wrote:
                        overlap = _overlap(v, w, ahead, behind, a)
                        parts.append(total(mul(late, total(mul(early, overlap), COL)), INNER))
                for v, early in wrote:
                    parts.append(mul(end, total(mul(early, _read(state_in(b), v, ahead, COL, a)), COL)))
        out[x.leaf] = gathered(factored(add(*parts)))
    return ahead.streams | behind.streams, out


def scaled(product: Node, decay: Node, streams: dict[Node, Node]) -> Node:
    """A product times the decay of its step."""
    builder = Builder((), (), False, {})
    node = mul(builder.stream(decay), product)
    streams |= builder.streams
    return node


def _read(state: Node, w: Write, builder: Builder, axis: str, s: StateForm) -> Node:
    """left^T state right, for each step."""
    (number, left), (other, right) = (_stream(x, builder, axis) for x in (w.left, w.value))
    return mul(number, other, total(mul(left, state, right), *s.axes))


def _overlap(v: Write, w: Write, ahead: Builder, behind: Builder, s: StateForm) -> Node:
    """<left_j right_j^T, left_k right_k^T> over (COL, INNER)."""
    parts = []
    for x, y, axis in ((v.left, w.left, s.row), (v.value, w.value, s.col)):
        (number, left), (other, right) = _stream(x, ahead, COL), _stream(y, behind, INNER)
        product = mul(left, right)
        parts += [number, other, total(product, axis) if axis is not None else product]
    return mul(*parts)


def _stream(x: Node, builder: Builder, axis: str) -> tuple[Node, Node]:
    """What is written along an axis of the state at each step, over `axis`: a number, and what that is times."""
    numbers = [f for f in factors_of(x) if not f.axes]
    parts = mul(*numbers), mul(*(f for f in factors_of(x) if f.axes))
    number, rest = (rename(builder.stream(y), {ROW: axis}) for y in parts)
    return number, rest
