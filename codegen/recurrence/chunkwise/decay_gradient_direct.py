"""Products of a state and a gradient at each step of a chunk, from the states at the chunk's boundaries.

<S_{t-1}, dT_t> is what the gradient of a scalar that multiplies S needs. Both sweeps are unrolled over the chunk: the state
before it, and the writes of the chunk so far, each with its weight. Nothing is subtracted, so nothing cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.expr import COL, INNER, ONE, ROW, ZERO, Node, add, factors_of, make, mul, rename, total
from ..normal_form.form import Cross, StateForm, Write
from .chunk_program import Builder, over, to_col
from .coupled_states import factored, gathered, state_in


def unrolled(
    crosses: tuple[Cross, ...], forward: tuple[StateForm, ...], backward: tuple[StateForm, ...]
) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """(streams, products): for each cross its chunk node over ROW, from both sweeps' states as they stand before the decay."""
    forwards, backwards = Builder(forward, (), False, {}), Builder(backward, (), False, {})
    out: dict[Node, Node] = {}
    made: dict[Any, Node] = {}  # many crosses sum the same products, with other weights

    def once(key: object, make: Callable[..., Node], *args: object) -> Node:
        if key not in made:
            made[key] = make(*args)
        return made[key]

    for x in crosses:
        s = next(f for f in forward if f.name == x.state)
        g = next(f for f in backward if f.name == x.gradient)
        parts = []
        for a in forwards.sources(s):
            start = forwards.incoming(s, a, "mid")
            wrote = [(v, forwards.mask(s, "mid", v)) for v in a.writes]
            for b in backwards.sources(g):
                end = backwards.incoming(g, b, "mid")
                seen = [(w, rename(backwards.mask(g, "mid", w), {COL: INNER})) for w in b.writes]
                here = (a.name, b.name)
                both = once(here, _both, a, b)
                parts.append(mul(start, end, both))
                for m, (w, late) in enumerate(seen):
                    read = once(("seen", *here, m), _read, state_in(a), w, backwards, INNER, a)
                    if ZERO not in (start, late):
                        parts.append(mul(start, total(mul(late, read), INNER)))
                    for n, (v, early) in enumerate(wrote):
                        overlap = once((*here, n, m), _overlap, v, w, forwards, backwards, a)
                        if ZERO not in (early, late):
                            parts.append(total(mul(late, total(mul(early, overlap), COL)), INNER))
                for n, (v, early) in enumerate(wrote):
                    read = once(("wrote", *here, n), _read, state_in(b), v, forwards, COL, a)
                    if ZERO not in (end, early):
                        parts.append(mul(end, total(mul(early, read), COL)))
        out[x.leaf] = gathered(factored(add(*parts)))
    return forwards.streams | backwards.streams, out


def crossing(s: StateForm, g: StateForm, kept: str) -> tuple[dict[Node, Node], dict[Node, Node], Node]:
    """(streams, definitions, product): of a state s with a decay for each channel of the axis `kept`, and its gradient g, the
    decay times <S_{t-1}, dS_t> at each step of a chunk, over ROW and these channels.

    It is the sum over pairs of a write and a read that have the step's decay between them. Of a chunk's own pairs these are those
    whose read comes at the step or after it, less those whose write does as well. Pairs that have no decay at all between them,
    such as a read that sees its own step's write, would be in both, and are left out: where a channel forgets fast, nothing else
    is as large.
    """
    forwards, backwards = Builder((s,), (), False, {}), Builder((g,), (), False, {})
    side, other = ("col", s.col) if kept == s.row else ("row", s.row)
    both = mul(state_in(s), state_in(g), forwards.whole(s))
    whole = total(both, other) if other is not None else both
    sums: dict[
        tuple[int, bool], list[Node]
    ] = {}  # what counts for the steps before its own (-1), or after it, and perhaps for it
    for w in g.writes:
        along, own = _sides(forwards, w, side)
        read = mul(own, forwards.from_state(s, side, along, "prev" if w.late else "next"))
        sums.setdefault((-s.direction, not w.late), []).append(read)
    for v in s.writes:
        along, own = _sides(backwards, v, side)
        read = mul(own, backwards.from_state(g, side, along, "prev" if v.late else "next"))
        sums.setdefault((s.direction, not v.late), []).append(read)
        for w in g.writes:
            sums.setdefault((-s.direction, not w.late), []).append(_between(forwards, s, w, v, side))
            sums.setdefault((-s.direction, v.late), []).append(mul(-1, _between(backwards, g, v, w, side)))
    parts = [_summed(forwards, add(*terms), *key) for key, terms in sums.items()]
    return forwards.streams | backwards.streams, forwards.definitions | backwards.definitions, add(whole, *parts)


def _sides(builder: Builder, w: Write, side: str) -> tuple[Node, Node]:
    """What a write is made of along the axis that a read contracts, and along the one that it keeps."""
    left, right = builder.stream(w.left), builder.stream(w.value)
    return (left, right) if side == "row" else (right, left)


def _between(builder: Builder, s: StateForm, w: Write, v: Write, side: str) -> Node:
    """What a write w of the other state reads of the writes v to s of the same chunk, times that write; of pairs of steps that
    have a decay between them."""
    (along, own), (wrote, kept) = _sides(builder, w, side), _sides(builder, v, side)
    axis = s.row if side == "row" else s.col
    masks = factors_of(builder.mask(s, "prev" if w.late else "next", v))
    late, write_late, _, direction = masks[0].attrs
    least = write_late + w.late
    mask = mul(*(make("decay_mask", m.args, (late, write_late, least == 0, direction), m.axes) for m in masks))
    inside, outside = over(mask, axis)
    overlap = mul(along, to_col(wrote), inside)
    apart = make("apart_mask", (), (least, direction), (ROW, COL)) if least > 1 else ONE
    each = mul(outside, apart, total(overlap, axis) if axis is not None else overlap, to_col(kept))
    return mul(own, total(each, COL))


def _summed(builder: Builder, x: Node, direction: int, inclusive: bool) -> Node:
    """The sum of x over the steps before each step, or after it where the direction is -1, with its own where `inclusive`."""
    return total(mul(make("order_mask", (), (inclusive, direction), (ROW, COL)), to_col(builder.define(x))), COL)


def left_out(s: StateForm, g: StateForm, kept: str) -> tuple[dict[Node, Node], Node]:
    """(streams, product): of a state s with a decay for each channel of the axis `kept`, and its gradient g, <S_{t-1}, dS_t> at
    each step of a chunk, over ROW and these channels. The step's own decay isn't part of it, so that it may be zero.

    It is the sum over pairs of a write before a step and a read after it, of the decays before the step and those after it. What
    a pair has in common with the other axis is a matrix over the steps, the same for all channels.
    """
    builder = Builder((s, g), (), False, {})
    (decay,) = map(builder.ending, s.decays)
    other = s.col if kept == s.row else s.row
    by_row = kept == s.row

    def sides(w: Write) -> tuple[Node, Node]:
        """What a write is made of along the axis that is kept, and along the other."""
        own, along = (w.left, w.value) if by_row else (w.value, w.left)
        return builder.ending(own), builder.stream(along)

    def contracted(x: Node) -> Node:
        return total(x, other) if other is not None else x

    wrote, reads = ([(w.late, *sides(w)) for w in x.writes] for x in (s, g))
    none = (False, ZERO, ZERO)
    parts = []
    for m, (read_late, own, along) in enumerate(reads or [none]):
        for n, (late, written, across) in enumerate(wrote or [none]):
            weights = contracted(mul(along, to_col(across)))
            start = contracted(mul(along, state_in(s))) if n == 0 else ZERO
            end = contracted(mul(across, state_in(g))) if m == 0 else ZERO
            both = contracted(mul(state_in(s), state_in(g))) if m == n == 0 else ZERO
            given = (decay, own, written, weights, start, end, both)
            parts.append(make("left_out", given, (read_late, late), (ROW, kept)))
    return builder.streams, add(*parts)


def scaled(product: Node, decay: Node, streams: dict[Node, Node]) -> Node:
    """A product times the decay of its step."""
    builder = Builder((), (), False, {})
    node = mul(builder.stream(decay), product)
    streams |= builder.streams
    return node


def _both(a: StateForm, b: StateForm) -> Node:
    """<a, b> of the states before a chunk."""
    return total(mul(state_in(a), state_in(b)), *a.axes)


def _read(state: Node, w: Write, builder: Builder, axis: str, s: StateForm) -> Node:
    """left^T state right, for each step."""
    (number, left), (other, right) = (_stream(x, builder, axis) for x in (w.left, w.value))
    return mul(number, other, total(mul(left, state, right), *s.axes))


def _overlap(v: Write, w: Write, forwards: Builder, backwards: Builder, s: StateForm) -> Node:
    """<left_j right_j^T, left_k right_k^T> over (COL, INNER)."""
    parts = []
    for x, y, axis in ((v.left, w.left, s.row), (v.value, w.value, s.col)):
        (number, left), (other, right) = _stream(x, forwards, COL), _stream(y, backwards, INNER)
        product = mul(left, right)
        parts += [number, other, total(product, axis) if axis is not None else product]
    return mul(*parts)


def _stream(x: Node, builder: Builder, axis: str) -> tuple[Node, Node]:
    """What is written along an axis of the state at each step, over `axis`: a number, and what that is times."""
    numbers = [f for f in factors_of(x) if not f.axes]
    parts = mul(*numbers), mul(*(f for f in factors_of(x) if f.axes))
    number, rest = (rename(builder.stream(y), {ROW: axis}) for y in parts)
    return number, rest
