"""The gradient of a decay from sums that two sweeps make on their way.

With a state S and its gradient dS, D_t <S_{t-1}, dS_t> is a sum over pairs of a write j and a read k of S with the step t
between them (`state_adjoint_products.py`: what reads S writes dS). For the steps of one chunk these are

    own     pairs inside the chunk: their weights are a matrix over its steps, summed over rows and over columns
    in      reads of the state before the chunk, for the reads that come after t
    out     reads of the gradient after the chunk, for the writes that come before t
    boundary  the decays of the whole chunk times <S before it, dS after it>: what is left of <S, dS> at the chunk's end without
            `out`, and `in` more is <S, dS> at its start

No weight between t's own reads and writes is part of it, so strong decays leave nothing large to cancel; over weak ones the sum
at the boundaries runs from the sequence's end, over one number a chunk. Beside the sweeps that make reads of S and of dS anyway
this costs one product a chunk (own), and sums over what is in registers (in, out).

Such a sum holds only as far as the sweeps that make its terms round alike: what a chunk writes to S must cancel against its
reads of dS. So both sweeps are of one side, where there is a choice, and the end of S is that of the sweep that sums its reads.

Of a decay for each channel, `in` and `out` are summed over the chunk, for each channel; what is inside a chunk stays a sum of
differences, over that chunk's steps only.

A read or write counts for t itself or only for what comes before or after it: slots `late` and `early`, as
`StateAdjointProduct` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ir.expr import COL, ROW, ZERO, Node, add, factors_of, make, mul, total
from ..normal_form.form import NormalForm, StateForm, Write
from .chunk_program import Builder, chunk_program, to_col
from .plan import ENTERING, LEAVING, Accumulate, BoundarySums, Stage, Sweep


def with_boundary_sums(stages: Sequence[Stage], form: NormalForm, saved: tuple[Node, ...]) -> list[Stage]:
    """The stages, with sums at the boundaries for each state-adjoint product whose decay is one scalar a step, or one for each
    channel.

    For a scalar a sweep of its own makes them where none comes late enough to know all that they need.
    """
    out: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Accumulate):
            s, g = form.state(stage.state_adjoint.state), form.state(f"d{stage.state_adjoint.state}")
            if not stage.by_channel:
                stage = _for_scalars(out, form, saved, s, g, stage)
            elif not any(x.by_products for group in form.groups for x in group) and len(s.decay_axes) == 1:
                stage = _for_channels(out, form, saved, s, g, stage)
        out.append(stage)
    return out


def _for_scalars(
    out: list[Stage], form: NormalForm, saved: tuple[Node, ...], s: StateForm, g: StateForm, stage: Accumulate
) -> Accumulate:
    side = ""
    for state, reads, also in ((s, g.writes, s.writes), (g, s.writes, ())):
        k = _place(out, form, saved, state, reads, also, side)
        if k is None:
            k, group = len(out), next(group for group in form.groups if state in group)
            out.append(Sweep(group, False, "col", (), (), chunk_program(group, (), False, form.reads)))
        side = _attach(out, k, s, g, state is s, False)
    return replace(stage, at_boundaries=True)


def _for_channels(
    out: list[Stage], form: NormalForm, saved: tuple[Node, ...], s: StateForm, g: StateForm, stage: Accumulate
) -> Accumulate:
    """Sweeps that keep the decay's axis have, for each channel, what crosses a chunk boundaries."""
    if not s.writes or not g.writes:  # nothing crosses a boundary
        return stage
    side = "col" if s.decay_axes == (s.row,) else "row"
    of_state = _place(out, form, saved, s, g.writes, (), side, only=True)
    of_adjoint = _place(out, form, saved, g, s.writes, (), side, only=True)
    if of_state is None or of_adjoint is None:
        return stage
    _attach(out, of_state, s, g, True, True)
    _attach(out, of_adjoint, s, g, False, True)
    return replace(stage, at_boundaries=True)


def _attach(out: list[Stage], k: int, s: StateForm, g: StateForm, of_state: bool, totals: bool) -> str:
    """Let sweep k make its sums; the side that its reads contract."""
    sweep = out[k]
    assert isinstance(sweep, Sweep)
    boundary = _reads_of_state(sweep, s, g) if of_state else _reads_of_gradient(sweep, s, g)
    if totals:
        boundary = replace(boundary, own=(), totals=True)
    out[k] = replace(sweep, boundary_sums=(*sweep.boundary_sums, boundary))
    if of_state:
        _keep_end(out, k, s.name)
    return sweep.side


def _keep_end(out: list[Stage], k: int, state: str) -> None:
    """Let sweep k, and no other one, keep the last value of a state."""
    for n, stage in enumerate(out):
        if isinstance(stage, Sweep) and state in stage.states:
            others = tuple(x for x in stage.finals if x != state)
            out[n] = replace(stage, finals=(*others, state) if n == k else others)


def _place(
    stages: Sequence[Stage],
    form: NormalForm,
    saved: tuple[Node, ...],
    s: StateForm,
    reads: tuple[Write, ...],
    also: tuple[Write, ...],
    side: str,
    only: bool = False,
) -> int | None:
    """The sweep over s in which all of `reads` (what is written to the other side) and `also` are known; best where most of the
    reads are made there anyway, then one of the given side, so that both sides round the same factors of what they write; `only`
    of that side, where asked for."""
    known = set(saved)
    best: tuple[int, bool, int] | None = None
    for k, stage in enumerate(stages):
        if not isinstance(stage, Sweep):
            continue
        ready = all(x in known for w in (*reads, *also) for y in (w.left, w.value) for x in form.parts(y))
        if s in stage.group and ready and (stage.side == side or not only):
            vectors = {r.vector for r in stage.reads if r.state == s.name}
            shared = sum((w.left if stage.side == "row" else w.value) in vectors for w in reads)
            here = (shared, stage.side == side, k)
            best = here if best is None else max(best, here)
        known |= set(stage.chunk.outputs)
    return None if best is None else best[2]


def _reads_of_state(sweep: Sweep, s: StateForm, g: StateForm) -> BoundarySums:
    builder = Builder(sweep.group, (), False, {})
    reads = {"late": ZERO, "early": ZERO}
    own: list[tuple[Node, str, str]] = []
    for w in g.writes:
        slot, snapshot = ("early", "prev") if w.late else ("late", "next")
        reads[slot] = add(reads[slot], _taken(builder, sweep.side, s, w, snapshot))
        for v in s.writes:
            weights = mul(_decayed(v, w, s), builder.mask(s, snapshot, v), _overlap(builder, s, w, v))
            own.append((weights, slot, "late" if v.late else "early"))
    return BoundarySums(
        s.name, ENTERING, builder.streams, {n: x for n, x in reads.items() if x is not ZERO}, tuple(own)
    )


def _decayed(v: Write, w: Write, s: StateForm) -> Node:
    """1 where a decay lies between a write and a read, or in what is read with: other pairs are in the sums of rows and in those
    of columns, and where a step forgets nearly all, nothing else is as large as what rounding leaves of them."""
    least = v.late + w.late  # steps from the write to the read
    if least > 1 and not set(s.decays) & {*factors_of(w.left), *factors_of(w.value)}:
        return make("apart_mask", (), (least, s.direction), (ROW, COL))
    return make("order_mask", (), (least == 0, s.direction), (ROW, COL))


def _reads_of_gradient(sweep: Sweep, s: StateForm, g: StateForm) -> BoundarySums:
    builder = Builder(sweep.group, (), False, {})
    reads = {"late": ZERO, "early": ZERO}
    for v in s.writes:
        slot, snapshot = ("late", "prev") if v.late else ("early", "next")
        reads[slot] = add(reads[slot], mul(-1, _taken(builder, sweep.side, g, v, snapshot)))
    return BoundarySums(s.name, LEAVING, builder.streams, {n: x for n, x in reads.items() if x is not ZERO})


def _taken(builder: Builder, side: str, s: StateForm, w: Write, snapshot: str) -> Node:
    """left^T S right with the state before the chunk, not summed over the axis that the sweep keeps."""
    left, right = builder.stream(w.left), builder.stream(w.value)
    if side == "row":
        return mul(right, builder.from_state(s, "row", left, snapshot))
    return mul(left, builder.from_state(s, "col", right, snapshot))


def _overlap(builder: Builder, s: StateForm, w: Write, v: Write) -> Node:
    """<left_i right_i^T of w, left_j right_j^T of v> over (ROW, COL)."""
    parts = []
    for x, y, axis in ((w.left, v.left, s.row), (w.value, v.value, s.col)):
        product = mul(builder.stream(x), to_col(builder.stream(y)))
        parts.append(total(product, axis) if axis is not None else product)
    return mul(*parts)
