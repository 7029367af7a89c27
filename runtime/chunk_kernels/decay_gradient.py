"""The gradient of log decays: state-adjoint products at each step from what sweeps have summed, and sums over later steps."""

import torch
import triton
import triton.language as tl

from ..launch.launch import cdiv, launch
from .chunk_layout import ChunkLayout
from .indexing import grouped, place_of, segment_of, some_heads


@triton.jit(do_not_specialize=["T", "chunks", "segments", "length"])
def suffix_sum_kernel(
    late, early, start, out, T, H, chunks, starts, segments, length, X: tl.constexpr, C: tl.constexpr, BX: tl.constexpr
):
    """out_t = start + sum of late from t on + sum of early after t; late, early, out [B, T, H, X], start [N * segments, H, X]."""
    x = tl.program_id(0) % tl.cdiv(X, BX) * BX + tl.arange(0, BX)
    sh = (tl.program_id(0) // tl.cdiv(X, BX)).to(tl.int64)
    h = sh % H
    b, _, begin, stop, _ = segment_of(sh // H, T, starts, segments, length, C)
    base = (b * T * H + h) * X
    i = tl.arange(0, C)
    total = tl.zeros([BX], tl.float32)
    if start is not None:
        total += tl.load(start + sh * X + x, mask=x < X, other=0.0)
    count = tl.cdiv(stop - begin, C).to(tl.int32)
    for n in range(count):
        c = count - 1 - n
        t = begin + tl.cast(c, tl.int64) * C + i
        ok = (t < stop)[:, None] & (x < X)[None, :]
        at = base + t[:, None] * H * X + x[None, :]
        sums = tl.load(late + at, mask=ok, other=0.0)
        after = tl.zeros([C, BX], tl.float32)
        if early is not None:
            after = tl.load(early + at, mask=ok, other=0.0)
        both = sums + after
        tl.store(out + at, total[None, :] + tl.cumsum(both, axis=0, reverse=True) - after, mask=ok)
        total += tl.sum(both, axis=0)


@triton.jit(do_not_specialize=["T", "chunks", "segments", "length"])
def chunk_ends_kernel(
    start, inside, outside, ends, T, H, chunks, starts, segments, length, X: tl.constexpr, C: tl.constexpr, BX: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """ends_c = start + the sum of inside + outside over the chunks after c; all [B, H, chunks, X], start [N * segments, H, X]."""
    x = tl.program_id(0) % tl.cdiv(X, BX) * BX + tl.arange(0, BX)
    sh = (tl.program_id(0) // tl.cdiv(X, BX)).to(tl.int64)
    b, _, begin, stop, first = segment_of(sh // H, T, starts, segments, length, C)
    total = tl.zeros([BX], tl.float32)
    if start is not None:
        total += tl.load(start + sh * X + x, mask=x < X, other=0.0)
    count = tl.cdiv(stop - begin, C).to(tl.int32)
    n = tl.arange(0, BLOCK)
    for base in range(0, count, BLOCK):
        c = count - 1 - base - n  # the last one first
        ok = (c >= 0)[:, None] & (x < X)[None, :]
        at = ((b * H + sh % H) * chunks + first + c)[:, None] * X + x[None, :]
        sums = tl.load(inside + at, mask=ok, other=0.0) + tl.load(outside + at, mask=ok, other=0.0)
        tl.store(ends + at, total[None, :] + tl.cumsum(sums, axis=0) - sums, mask=ok)
        total += tl.sum(sums, axis=0)


@triton.jit(do_not_specialize=["T", "chunks"])
def block_sums_kernel(
    late, early, ends, out, T, H, chunks, begins, stops, X: tl.constexpr, C: tl.constexpr, BX: tl.constexpr
):
    """out_t = end of t's block + sum of late at t and after + sum of early after t, inside it; ends [B, H, chunks, X]."""
    x = tl.program_id(0) % tl.cdiv(X, BX) * BX + tl.arange(0, BX)
    place = tl.program_id(0) // tl.cdiv(X, BX)
    bh = (place // chunks).to(tl.int64)
    t0, last = place_of(place % chunks, T, begins, stops, C)
    if last < 0:
        return
    i = tl.arange(0, C)
    ok = (i <= last)[:, None] & (x < X)[None, :]
    at = (((bh // H) * T + t0 + i) * H + bh % H)[:, None] * X + x[None, :]
    both = tl.load(late + at, mask=ok, other=0.0)
    after = tl.zeros([C, BX], tl.float32)
    if early is not None:
        after = tl.load(early + at, mask=ok, other=0.0)
        both += after
    end = tl.load(ends + tl.cast(place, tl.int64) * X + x, mask=x < X, other=0.0)
    tl.store(out + at, end[None, :] + tl.cumsum(both, axis=0, reverse=True) - after, mask=ok)


@triton.jit
def slot(p, bh, t, ok, T, N: tl.constexpr):
    """One of the sums of `boundary_sums`, over the tiles of the sweep that made it: of [B, H, N, T], for some heads and the
    steps t of a chunk; `ok` [HEADS, C] are those that there are."""
    total = tl.zeros(ok.shape, tl.float32)
    if p is not None:
        for n in tl.static_range(N):
            total += tl.load(p + ((bh * N + n) * T)[:, None] + t[None, :], mask=ok, other=0.0)
    return total


@triton.jit
def between(
    in_late, in_early, out_late, out_early, own_late, own_early, bh, t, i, last, ok, T,
    N: tl.constexpr, N_LATE: tl.constexpr, N_EARLY: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """What the steps i of a chunk add to the state-adjoint product at each of them: reads (`in`, `own`) at the step or after it,
    less writes (`out`, negative) before it. A sum without the step's own begins at its neighbour: what is added and then
    subtracted again leaves its rounding, and where a step forgets nearly all, nothing else is as large."""
    before, after = ok & (i > 0)[None, :], ok & (i < last)[None, :]
    wrote = slot(out_late, bh, t - 1, before, T, N)
    if AT_ONCE:
        wrote += slot(out_early, bh, t - 1, before, T, N)
        read = slot(in_early, bh, t, ok, T, N) + slot(own_early, bh, t, ok, T, N_EARLY)
    else:
        wrote += slot(out_early, bh, t, ok, T, N)
        read = slot(in_early, bh, t + 1, after, T, N) + slot(own_early, bh, t + 1, after, T, N_EARLY)
    read += slot(in_late, bh, t, ok, T, N) + slot(own_late, bh, t, ok, T, N_LATE)
    return tl.cumsum(read, axis=1, reverse=True) - tl.cumsum(wrote, axis=1)


@triton.jit
def passes(a, n, at, LEAST: tl.constexpr, EXACT: tl.constexpr):
    """1 where the decays of a chunk, whose last step is `at`, leave something, else 0."""
    kept = tl.load(a + at)
    if EXACT:
        kept += tl.load(n + at)
    return (kept > LEAST).to(tl.float32)


@triton.jit
def as_one(p, total, bh, t, ok, T, N: tl.constexpr):
    """`slot`, stored as one sum where there is a place for it, [B, H, T]."""
    found = slot(p, bh, t, ok, T, N)
    if total is not None:
        tl.store(total + (bh * T)[:, None] + t[None, :], found, mask=ok)
    return found


@triton.jit(do_not_specialize=["T", "chunks"])
def boundary_totals_kernel(
    a, n, in_late, in_early, out_late, out_early, all_in_late, all_in_early, all_out_late, all_out_early, kept, total,
    T, H, chunks, begins, stops, HEADS: tl.constexpr, N_IN: tl.constexpr, N_OUT: tl.constexpr, C: tl.constexpr,
    LEAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """For each chunk, <S, dS> at its start as kept * (<S, dS> at its end) + total; both [B, H, chunks]. And of what each sweep
    has summed in tiles the whole sums."""
    b, c, h, there = some_heads(H, chunks, HEADS)
    t0, last = place_of(c, T, begins, stops, C)
    if last < 0:
        return
    t0 = tl.minimum(
        t0, t0 + last
    )  # t0, of which the compiler knows no multiple, packed or not: the order of sums follows
    i, bh = tl.arange(0, C), b * H + h
    t, ok = t0 + i, there[:, None] & (i <= last)[None, :]
    inside = as_one(in_late, all_in_late, bh, t, ok, T, N_IN) + as_one(in_early, all_in_early, bh, t, ok, T, N_IN)
    outside = as_one(out_late, all_out_late, bh, t, ok, T, N_OUT)
    outside += as_one(out_early, all_out_early, bh, t, ok, T, N_OUT)
    keeps = passes(a, n, bh * T + t0 + last, LEAST, EXACT)
    tl.store(kept + bh * chunks + c, keeps, mask=there)
    tl.store(total + bh * chunks + c, tl.sum(inside, axis=1) + keeps * tl.sum(outside, axis=1), mask=there)


@triton.jit(do_not_specialize=["T", "chunks", "segments", "length"])
def boundary_sums_kernel(
    a, n, start, in_late, in_early, out_late, out_early, own_late, own_early, kept, total, out, T, H, chunks, begins, stops,
    owners, ends, segments, length, HEADS: tl.constexpr, N_LATE: tl.constexpr, N_EARLY: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr, LEAST: tl.constexpr, EXACT: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The state-adjoint product at each step of a chunk, [B, T, H]; see `boundary_sums`."""
    b, c, h, there = some_heads(H, chunks, HEADS)
    t0, last = place_of(c, T, begins, stops, C)
    if last < 0:
        return
    if owners is None:
        segment = t0 // length
        end = tl.minimum(tl.cdiv((segment + 1) * length, C), chunks).to(tl.int32)
        sequence = b * segments + segment
    else:
        end = tl.load(ends + c).to(tl.int32)
        sequence = tl.load(owners + c)
    t0 = tl.minimum(t0, t0 + last)  # as in `boundary_totals_kernel`
    m, i, bh = tl.arange(0, BLOCK), tl.arange(0, C), b * H + h
    # <S, dS> at the chunk's end: what later chunks add, up to the first that lets nothing pass
    value = tl.zeros([HEADS], tl.float32)
    still = tl.full([HEADS], 1.0, tl.float32)
    for base in range(c + 1, end, BLOCK):
        after = (base + m)[None, :]
        where = (bh * chunks)[:, None] + after
        keeps = tl.load(kept + where, mask=after < end, other=1.0)
        first = tl.min(tl.where(keeps == 0.0, after, end), axis=1)
        adds = tl.load(total + where, mask=(after < end) & (after <= first[:, None]), other=0.0)
        value += still * tl.sum(adds, axis=1)
        still = tl.where(first < end, 0.0, still)
    if start is not None:
        value += still * tl.load(start + sequence * H + h)
    t, ok = t0 + i, there[:, None] & (i <= last)[None, :]
    late, early = slot(out_late, bh, t, ok, T, 1), slot(out_early, bh, t, ok, T, 1)
    at_boundary = value + tl.sum(late + early, axis=1)
    state_adjoint = (at_boundary * passes(a, n, bh * T + t0 + last, LEAST, EXACT))[:, None]
    state_adjoint += between(
        in_late, in_early, out_late, out_early, own_late, own_early, bh, t, i, last, ok, T, 1, N_LATE, N_EARLY, AT_ONCE
    )
    tl.store(out + (b * T + t)[None, :] * H + h[:, None], state_adjoint, mask=ok)


def boundary_sums(
    a: torch.Tensor,
    n: torch.Tensor | None,
    start: torch.Tensor | None,
    p: ChunkLayout,
    segments: int,
    exact: bool,
    in_late: torch.Tensor | None = None,
    in_early: torch.Tensor | None = None,
    out_late: torch.Tensor | None = None,
    out_early: torch.Tensor | None = None,
    own_late: torch.Tensor | None = None,
    own_early: torch.Tensor | None = None,
    at_once: bool = False,
) -> torch.Tensor:
    """A decay's state-adjoint product [B, T, H], float32, from what sweeps have summed for each step: [B, H, tiles, T], or None
    for nothing.

    `own` are pairs inside a chunk, `in` reads of the state before it, `out` (negative) reads of the gradient after it;
    `start` [N * segments, H] is <S, dS> after the last step of each segment: the states that entered the segments were rounded
    otherwise than what the sweeps have there. `at_once`: early terms count for their own step as well. `a`, `n` are the
    cumulative decays and what these leave, of `cumulate`. What the decays of a whole chunk make smaller than rounding counts as
    nothing there, so that nothing beyond such a chunk is in the sum.
    """
    kept, total = (a.new_empty((p.batch, p.heads, p.chunks)) for _ in range(2))
    out = a.new_empty((p.batch, p.steps, p.heads))
    tiles_in, tiles_out, tiles_late, tiles_early = (
        next((x.shape[2] for x in sums if x is not None), 1)
        for sums in ((in_late, in_early), (out_late, out_early), (own_late,), (own_early,))
    )
    sums = (in_late, in_early, out_late, out_early)
    whole = [None if x is None or x.shape[2] == 1 else a.new_empty((p.batch, p.heads, 1, p.steps)) for x in sums]
    least = -22.0 if exact else -16.0  # far below the rounding of one pair
    programs, heads = grouped(p, 4)
    launch(
        boundary_totals_kernel, (programs,), a, n, *sums, *whole, kept, total, *p.at_once,
        HEADS=heads, N_IN=tiles_in, N_OUT=tiles_out, C=p.chunk, LEAST=least, EXACT=exact, num_warps=1,
    )  # fmt: skip
    sums = tuple(x if y is None else y for x, y in zip(sums, whole, strict=True))
    launch(
        boundary_sums_kernel, (programs,), a, n, None if start is None else start.contiguous(), *sums, own_late, own_early,
        kept, total, out, *p.at_once, p.owners, p.ends, segments, p.length(segments), HEADS=heads, N_LATE=tiles_late,
        N_EARLY=tiles_early, C=p.chunk, BLOCK=128, LEAST=least, EXACT=exact, AT_ONCE=at_once, num_warps=1,
    )  # fmt: skip
    return out


def suffix_sum(
    late: torch.Tensor,
    early: torch.Tensor | None,
    start: torch.Tensor | None,
    p: ChunkLayout,
    segments: int = 1,
    inside: torch.Tensor | None = None,
    outside: torch.Tensor | None = None,
) -> torch.Tensor:
    """out_t = start + sum_{s >= t} late_s + sum_{s > t} early_s, over axis 1 of [B, T, H, (X)] float32, for each segment of the
    sequences; start [N * segments, H, (X)].

    `inside` and `outside` [B, H, chunks, X] are together what the terms of each chunk sum to, without the rounding of what
    cancels in that sum; they are taken instead of it.
    """
    X = late.shape[3] if late.ndim == 4 else 1
    block = min(triton.next_power_of_2(X), 32)
    grid = (p.sequences * segments * p.heads * cdiv(X, block),)
    start = None if start is None else start.contiguous()
    if inside is not None:
        ends = torch.empty_like(inside)
        launch(
            chunk_ends_kernel, grid, start, inside, outside, ends, *p.swept, segments, p.length(segments),
            X=X, C=p.chunk, BX=block, BLOCK=16, num_warps=1,
        )  # fmt: skip
        return block_sums(late, early, ends, p)
    late = late.contiguous()
    out = torch.empty_like(late)
    early = None if early is None else early.contiguous()
    launch(
        suffix_sum_kernel, grid, late, early, start, out, *p.swept, segments, p.length(segments),
        X=X, C=64 if X > 1 else 512, BX=block, num_warps=4,
    )  # fmt: skip
    return out


def block_sums(late: torch.Tensor, early: torch.Tensor | None, ends: torch.Tensor, p: ChunkLayout) -> torch.Tensor:
    """out_t = end of t's block + sum_{s >= t} late_s + sum_{s > t} early_s inside it, over axis 1 of [B, T, H, X] float32; ends
    [B, H, chunks, X], of blocks."""
    X = late.shape[3]
    late = late.contiguous()
    out = torch.empty_like(late)
    block = min(triton.next_power_of_2(X), 32)
    early = None if early is None else early.contiguous()
    launch(
        block_sums_kernel, (p.programs * cdiv(X, block),), late, early, ends, out, *p.at_once,
        X=X, C=p.chunk, BX=block, num_warps=4,
    )  # fmt: skip
    return out
