"""What every generated Triton kernel shares: decays over chunks of steps, and the triangular inverse.

Decays are cumulative log2 decays within a chunk, `a`. A log2 decay is taken to be at least FLOOR, which is as good as zero, so
that none gives a NaN. That suffices for operands of two bytes. With EXACT, for float32, a step whose decay is below exp(-50)
counts as a reset instead, which costs the steps after it no precision at all: beside one decay a step stands the last reset
`r` (a step of the chunk, -1 for none), beside a decay for each channel the number of resets `n` up to there.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from .launch import launch, steps, strides

LOG2E = tl.constexpr(1.4426950408889634)
RESET = tl.constexpr(-50.0)  # natural log of a decay that counts as zero
FLOOR = tl.constexpr(-160.0)  # 2^FLOOR is zero in float32


@triton.jit
def span(high, n_high, low, n_low):
    """The decays of the steps between two cumulative sums: 2^(high - low), or 0 across a reset."""
    return tl.exp2(tl.where(n_high == n_low, high - low, float("-inf")))


@triton.jit
def power(exponent, visible):
    """2^exponent where `visible`, and 0 elsewhere. The exponent is masked before it is raised."""
    return tl.exp2(tl.where(visible, exponent, float("-inf")))


@triton.jit
def inverse(t, C: tl.constexpr, LEVELS: tl.constexpr, DT: tl.constexpr):
    """(I - t)^-1 of a strictly triangular t [C, C], C = 2^LEVELS.

    Blocks are merged pairwise: [[A, 0], [t, B]]^-1 has the corner B^-1 t A^-1. All products are blocks of the inverse itself,
    so nothing cancels, as it would in (I + t)(I + t^2)(I + t^4)...
    """
    i = tl.arange(0, C)
    x = tl.where(i[:, None] == i[None, :], 1.0, tl.where((i // 2)[:, None] == (i // 2)[None, :], t, 0.0))
    for level in range(1, LEVELS):
        block = i >> level
        corner = ((block >> 1)[:, None] == (block >> 1)[None, :]) & (block[:, None] != block[None, :])
        left = tl.dot(x.to(DT), tl.where(corner, t, 0.0).to(DT), input_precision="tf32x3")
        x += tl.dot(left.to(DT), x.to(DT), input_precision="tf32x3")
    return x


@triton.jit
def is_flat(extent, DT: tl.constexpr):
    """Do log2 decays that reach so far split into two factors that fit into DT?"""
    return extent <= (12.0 if tl.float16 == DT else 100.0)


@triton.jit
def halves(level, a, n, high, n_high, low, n_low, x, x_ok, last, X: tl.constexpr, C: tl.constexpr, EXACT: tl.constexpr):
    """Decays to and from the middle of each block of 2^(level + 1) steps, over [C, X]; and which rows are past the middle.

    Between a row past the middle and one before it lies their product, and neither exponent is above 0.
    """
    i = tl.arange(0, C)
    past = ((i >> level) & 1) == 1
    middle = tl.minimum(((i >> (level + 1)) << (level + 1)) + (1 << level) - 1, last)
    at = middle[:, None] * X + x[None, :]
    a_middle = tl.load(a + at, mask=x_ok[None, :], other=0.0)
    up, down = high - a_middle, a_middle - low
    if EXACT:
        n_middle = tl.load(n + at, mask=x_ok[None, :], other=0)
        up = tl.where(n_high == n_middle, up, float("-inf"))
        down = tl.where(n_low == n_middle, down, float("-inf"))
    return tl.exp2(tl.where(past[:, None], up, down)), past


@triton.jit
def factors(a, high, low, x, x_ok, last, X: tl.constexpr, C: tl.constexpr, FORWARD: tl.constexpr):
    """Decays from the middle of a chunk's range to each read, and from each write to the middle."""
    end = (tl.zeros([C], tl.int32) + last) * X
    middle = 0.5 * tl.load(a + end[:, None] + x[None, :], mask=x_ok[None, :], other=0.0)
    up, down = tl.exp2(high - middle), tl.exp2(middle - low)
    return (up, down) if FORWARD else (down, up)


@triton.jit
def order(C: tl.constexpr, FORWARD: tl.constexpr, DIAGONAL: tl.constexpr):
    """Which read of step i sees which write of step j."""
    i = tl.arange(0, C)
    ahead = i[:, None] - i[None, :] if FORWARD else i[None, :] - i[:, None]
    return ahead >= 0 if DIAGONAL else ahead > 0


@triton.jit
def decayed_product(
    total, r, w, a, n, high, n_high, low, n_low, x, x_ok, last,
    X: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, FORWARD: tl.constexpr, DIAGONAL: tl.constexpr,
    FLAT: tl.constexpr, EXACT: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """total_ij + sum_x r_ix w_jx (decays between write j and read i)_x.

    In two factors where the chunk is FLAT: its log2 decays reach so little that neither factor overflows. Else by halves of
    blocks of 2, 4, ... C steps, with no exponent above 0.
    """
    i = tl.arange(0, C)
    if FLAT:
        to_read, from_write = factors(a, high, low, x, x_ok, last, X, C, FORWARD)
        here = tl.dot((r * to_read).to(DT), tl.trans((w * from_write).to(DT)), input_precision="tf32x3")
        total += tl.where(order(C, FORWARD, DIAGONAL), here, 0.0)
    else:
        for level in range(LEVELS):
            decay, past = halves(level, a, n, high, n_high, low, n_low, x, x_ok, last, X, C, EXACT)
            reads = past if FORWARD else ~past
            reader = tl.where(reads[:, None], r * decay, 0.0).to(DT)
            writer = tl.where(reads[:, None], 0.0, w * decay).to(DT)
            block = i >> (level + 1)
            here = tl.dot(reader, tl.trans(writer), input_precision="tf32x3")
            total += tl.where(block[:, None] == block[None, :], here, 0.0)
        if DIAGONAL:
            same = tl.sum(r * w * span(high, n_high, low, n_low), axis=1)
            total += tl.where(i[:, None] == i[None, :], same[:, None], 0.0)
    return total


@triton.jit
def decayed_sum(
    p, w, a, n, high, n_high, low, n_low, x, x_ok, last,
    X: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, FORWARD: tl.constexpr, DIAGONAL: tl.constexpr,
    FLAT: tl.constexpr, EXACT: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """sum_j p_ij w_jx (decays between write j and read i)_x: in two factors or by halves, as `decayed_product`."""
    i = tl.arange(0, C)
    total = tl.zeros_like(w)
    if FLAT:
        to_read, from_write = factors(a, high, low, x, x_ok, last, X, C, FORWARD)
        seen = tl.where(order(C, FORWARD, DIAGONAL), p, 0.0)
        total += to_read * tl.dot(seen.to(DT), (w * from_write).to(DT), input_precision="tf32x3")
    else:
        for level in range(LEVELS):
            decay, past = halves(level, a, n, high, n_high, low, n_low, x, x_ok, last, X, C, EXACT)
            reads = past if FORWARD else ~past
            writer = tl.where(reads[:, None], 0.0, w * decay).to(DT)
            block = i >> (level + 1)
            here = tl.where(block[:, None] == block[None, :], p, 0.0).to(DT)
            total += tl.where(reads[:, None], decay, 0.0) * tl.dot(here, writer, input_precision="tf32x3")
        if DIAGONAL:
            same = tl.sum(tl.where(i[:, None] == i[None, :], p, 0.0), axis=1)
            total += same[:, None] * w * span(high, n_high, low, n_low)
    return total


@triton.jit(do_not_specialize=["T"])
def cumulate_kernel(
    log, log_b, log_t, log_h, a, n, extent, T, H,
    X: tl.constexpr, C: tl.constexpr, BX: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """a = cumulative log2 decay within each chunk, n = resets up to there; both [B, H, T, X]. extent [B, H, chunks]: how far
    a reaches; infinite where there is a reset."""
    chunks = tl.cdiv(T, C)
    bh = (tl.program_id(0) // chunks).to(tl.int64)
    t = (tl.program_id(0) % chunks) * C + tl.arange(0, C)
    x = tl.arange(0, BX)
    ok = (t < T)[:, None] & (x < X)[None, :]
    at = log + (bh // H) * log_b + (bh % H) * log_h
    g = tl.load(at + tl.cast(t, tl.int64)[:, None] * log_t + x[None, :], mask=ok, other=0.0).to(tl.float32)
    out = (bh * T + t)[:, None] * X + x[None, :]
    reset = g < RESET
    sums = tl.cumsum(tl.where(reset, 0.0, g) * LOG2E if EXACT else tl.maximum(g * LOG2E, FLOOR), axis=0)
    tl.store(a + out, sums, mask=ok)
    if EXACT:
        tl.store(n + out, tl.cumsum(reset.to(tl.int32), axis=0).to(tl.int8), mask=ok)
    reach = tl.maximum(tl.max(tl.max(sums, axis=1), axis=0), 0.0) - tl.minimum(
        tl.min(tl.min(sums, axis=1), axis=0), 0.0
    )
    reach = tl.where(tl.max(tl.max(reset.to(tl.int32), axis=1), axis=0) > 0, float("inf"), reach)
    tl.store(extent + tl.program_id(0), reach)


@triton.jit(do_not_specialize=["T"])
def cumulate_steps_kernel(log, log_b, log_t, log_h, a, r, T, H, C: tl.constexpr, EXACT: tl.constexpr):
    """a = cumulative log2 decay within each chunk, r = the last reset up to there, -1 for none; both [B, H, T]."""
    chunks = tl.cdiv(T, C)
    bh = (tl.program_id(0) // chunks).to(tl.int64)
    i = tl.arange(0, C)
    t = (tl.program_id(0) % chunks) * C + i
    at = log + (bh // H) * log_b + (bh % H) * log_h
    g = tl.load(at + tl.cast(t, tl.int64) * log_t, mask=t < T, other=0.0).to(tl.float32)
    reset = g < RESET
    sums = tl.cumsum(tl.where(reset, 0.0, g) * LOG2E if EXACT else tl.maximum(g * LOG2E, FLOOR), axis=0)
    tl.store(a + bh * T + t, sums, mask=t < T)
    if EXACT:
        place = tl.where(reset, i, -1)
        last = tl.max(tl.where(i[:, None] >= i[None, :], place[None, :], -1), axis=1)
        tl.store(r + bh * T + t, last, mask=t < T)


@triton.jit(do_not_specialize=["T"])
def suffix_sum_kernel(
    late, early, start, out, T, H, X: tl.constexpr, C: tl.constexpr, BX: tl.constexpr
):  # fmt: skip
    """out_t = start + sum of late at t and after + sum of early after t; late, early, out [B, T, H, X], start [B, H, X]."""
    x = tl.program_id(0) % tl.cdiv(X, BX) * BX + tl.arange(0, BX)
    bh = (tl.program_id(0) // tl.cdiv(X, BX)).to(tl.int64)
    base = ((bh // H) * T * H + bh % H) * X
    i = tl.arange(0, C)
    total = tl.zeros([BX], tl.float32)
    if start is not None:
        total += tl.load(start + bh * X + x, mask=x < X, other=0.0)
    for c in range(tl.cdiv(T, C)):
        t = T - (tl.cast(c, tl.int64) + 1) * C + i
        ok = (t >= 0)[:, None] & (x < X)[None, :]
        at = base + t[:, None] * H * X + x[None, :]
        sums = tl.load(late + at, mask=ok, other=0.0)
        after = tl.zeros([C, BX], tl.float32)
        if early is not None:
            after = tl.load(early + at, mask=ok, other=0.0)
        both = sums + after
        tl.store(out + at, total[None, :] + tl.cumsum(both, axis=0, reverse=True) - after, mask=ok)
        total += tl.sum(both, axis=0)


@triton.jit
def slot(p, at, n: tl.constexpr, ok):
    """One of the sums of `border_sums`, over the tiles of the sweep that made it: [B, T, H, n] at [C] places."""
    if p is None:
        total = tl.zeros_like(at).to(tl.float32)
    else:
        k = tl.arange(0, triton.next_power_of_2(n))
        total = tl.sum(
            tl.load(p + at[:, None] * n + k[None, :], mask=ok[:, None] & (k < n)[None, :], other=0.0), axis=1
        )
    return total


@triton.jit
def passes(a, r, bh, T, last, t0, LEAST: tl.constexpr, EXACT: tl.constexpr):
    """1 where the decays of a chunk leave something, else 0."""
    kept = tl.load(a + bh * T + t0 + last) > LEAST
    if EXACT:
        kept = kept & (tl.load(r + bh * T + t0 + last) < 0)
    return kept.to(tl.float32)


@triton.jit(do_not_specialize=["T"])
def border_totals_kernel(
    a, r, in_late, in_early, out_late, out_early, kept, total, T, H,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, C: tl.constexpr, LEAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """For each chunk, <S, dS> at its start as kept * (<S, dS> at its end) + total; both [B, H, chunks]."""
    chunks = tl.cdiv(T, C)
    bh = (tl.program_id(0) // chunks).to(tl.int64)
    t0 = (tl.program_id(0) % chunks).to(tl.int64) * C
    i = tl.arange(0, C)
    ok = t0 + i < T
    at = ((bh // H) * T + t0 + i) * H + bh % H
    inside = slot(in_late, at, N_IN, ok) + slot(in_early, at, N_IN, ok)
    outside = slot(out_late, at, N_OUT, ok) + slot(out_early, at, N_OUT, ok)
    last = tl.minimum(T - t0, C) - 1
    keeps = passes(a, r, bh, T, last, t0, LEAST, EXACT)
    tl.store(kept + tl.program_id(0), keeps)
    tl.store(total + tl.program_id(0), tl.sum(inside, axis=0) + keeps * tl.sum(outside, axis=0))


@triton.jit(do_not_specialize=["T"])
def border_sums_kernel(
    a, r, start, in_late, in_early, out_late, out_early, own_late, own_early, kept, total, out, T, H,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, N_OWN: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    LEAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The pairing at each step of a chunk, [B, T, H]; see `border_sums`."""
    chunks = tl.cdiv(T, C)
    c = tl.program_id(0) % chunks
    bh = (tl.program_id(0) // chunks).to(tl.int64)
    n = tl.arange(0, BLOCK)
    value = 0.0  # <S, dS> at the chunk's end: what later chunks add, up to the first that lets nothing pass
    open_ = 1.0
    for base in range(c + 1, chunks, BLOCK):
        later = base + n
        keeps = tl.load(kept + bh * chunks + later, mask=later < chunks, other=1.0)
        first = tl.min(tl.where(keeps == 0.0, later, chunks), axis=0)
        adds = tl.load(total + bh * chunks + later, mask=(later < chunks) & (later <= first), other=0.0)
        value += open_ * tl.sum(adds, axis=0)
        open_ = tl.where(first < chunks, 0.0, open_)
    if start is not None:
        value += open_ * tl.load(start + bh)
    t0 = c.to(tl.int64) * C
    i = tl.arange(0, C)
    ok = t0 + i < T
    at = ((bh // H) * T + t0 + i) * H + bh % H
    last = tl.minimum(T - t0, C) - 1
    late, early = slot(out_late, at, N_OUT, ok), slot(out_early, at, N_OUT, ok)
    border = value + tl.sum(late + early, axis=0)
    pairing = border * passes(a, r, bh, T, last, t0, LEAST, EXACT)
    pairing -= tl.cumsum(late, axis=0) - late + tl.cumsum(early, axis=0)
    late, early = slot(in_late, at, N_IN, ok), slot(in_early, at, N_IN, ok)
    late += slot(own_late, at, N_OWN, ok)
    early += slot(own_early, at, N_OWN, ok)
    pairing += tl.cumsum(late, axis=0, reverse=True) + tl.cumsum(early, axis=0, reverse=True) - early
    tl.store(out + at, pairing, mask=ok)


def border_sums(
    a: torch.Tensor,
    r: torch.Tensor | None,
    start: torch.Tensor | None,
    chunk: int,
    exact: bool,
    in_late: torch.Tensor | None = None,
    in_early: torch.Tensor | None = None,
    out_late: torch.Tensor | None = None,
    out_early: torch.Tensor | None = None,
    own_late: torch.Tensor | None = None,
    own_early: torch.Tensor | None = None,
) -> torch.Tensor:
    """A decay's pairing [B, T, H], float32, from what sweeps have summed for each step: [B, T, H, tiles], or None for nothing.

    `own` are pairs inside a chunk, `in` reads of the state before it, `out` (negative) reads of the gradient after it; `start`
    [B, H] is <S, dS> after the last step. `a`, `r` are the cumulative decays and resets of `cumulate`. What the decays of a whole
    chunk make smaller than rounding counts as nothing there, so that nothing beyond such a chunk is in the sum.
    """
    some = next(x for x in (in_late, in_early, out_late, out_early) if x is not None)
    B, T, H = some.shape[:3]
    chunks = triton.cdiv(T, chunk)
    kept, total = (some.new_empty((B, H, chunks)) for _ in range(2))
    out = some.new_empty((B, T, H))
    tiles = [
        next((x.shape[3] for x in pair if x is not None), 1)
        for pair in ((in_late, in_early), (out_late, out_early), (own_late, own_early))
    ]
    least = -22.0 if exact else -10.0
    grid = (B * H * chunks,)
    launch(
        border_totals_kernel, grid, a, r, in_late, in_early, out_late, out_early, kept, total, T, H,
        N_IN=tiles[0], N_OUT=tiles[1], C=chunk, LEAST=least, EXACT=exact, num_warps=1,
    )  # fmt: skip
    start = None if start is None else start.contiguous()
    launch(
        border_sums_kernel, grid, a, r, start, in_late, in_early, out_late, out_early, own_late, own_early, kept, total,
        out, T, H, N_IN=tiles[0], N_OUT=tiles[1], N_OWN=tiles[2], C=chunk, BLOCK=256, LEAST=least, EXACT=exact,
        num_warps=1,
    )  # fmt: skip
    return out


def cumulate(log: torch.Tensor, chunk: int, exact: bool) -> tuple[torch.Tensor, Any, Any]:
    """Cumulative log2 decays within chunks, resets, and the extent of each chunk, from log decays [B, T, H, (X)].

    The first two are [B, H, T, (X)], float32 and integer; the extent is [B, H, chunks] float32. Resets are None unless
    `exact`, and the extent is None for one decay a step.
    """
    B, T, H = log.shape[:3]
    grid = (B * H * triton.cdiv(T, chunk),)
    a = log.new_empty((B, H, T, *log.shape[3:]), dtype=torch.float32)
    if log.ndim == 3:
        r = log.new_empty((B, H, T), dtype=torch.int32) if exact else None
        launch(cumulate_steps_kernel, grid, log, *strides(log), a, r, T, H, C=chunk, EXACT=exact, num_warps=1)
        return a, r, None
    X = log.shape[3]
    log = steps(log)
    n = log.new_empty((B, H, T, X), dtype=torch.int8) if exact else None
    extent = log.new_empty((B, H, triton.cdiv(T, chunk)), dtype=torch.float32)
    launch(
        cumulate_kernel, grid, log, *strides(log), a, n, extent, T, H,
        X=X, C=chunk, BX=triton.next_power_of_2(X), EXACT=exact, num_warps=4 if X <= 64 else 8,
    )  # fmt: skip
    return a, n, extent


def suffix_sum(late: torch.Tensor, early: torch.Tensor | None, start: torch.Tensor | None) -> torch.Tensor:
    """out_t = start + sum_{s >= t} late_s + sum_{s > t} early_s, over axis 1 of [B, T, H, (X)] float32; start [B, H, (X)]."""
    B, T, H = late.shape[:3]
    X = late.shape[3] if late.ndim == 4 else 1
    late = late.contiguous()
    out = torch.empty_like(late)
    block = min(triton.next_power_of_2(X), 32)
    launch(
        suffix_sum_kernel,
        (B * H * triton.cdiv(X, block),),
        late,
        None if early is None else early.contiguous(),
        None if start is None else start.contiguous(),
        out, T, H, X=X, C=64 if X > 1 else 512, BX=block, num_warps=4,
    )  # fmt: skip
    return out
