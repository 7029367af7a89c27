"""What every generated Triton kernel shares: decays over chunks of steps, and the triangular inverse.

Decays are cumulative log2 decays within a chunk, `a`, with a count `n` of resets beside them: a step whose decay is below
exp(-50) is taken as an exact reset, so that it neither gives a NaN nor costs the precision of the steps after it.
"""

import torch
import triton
import triton.language as tl

from .launch import launch, strides

LOG2E = tl.constexpr(1.4426950408889634)
RESET = tl.constexpr(-50.0)  # natural log of a decay that counts as zero


@triton.jit
def span(high, n_high, low, n_low):
    """The decays of the steps between two cumulative sums: 2^(high - low), or 0 across a reset."""
    return tl.exp2(tl.where(n_high == n_low, high - low, float("-inf")))


@triton.jit
def weights(high, n_high, low, n_low, seen):
    """`span` where the read sees the write, and 0 elsewhere. The exponent is masked before it is raised."""
    return tl.exp2(tl.where(seen & (n_high == n_low), high - low, float("-inf")))


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
def halves(level, a, n, high, n_high, low, n_low, x, x_ok, last, X: tl.constexpr, C: tl.constexpr):
    """Decays to and from the middle of each block of 2^(level + 1) steps, over [C, X]; and which rows are past the middle.

    Between a row past the middle and one before it lies their product, and neither exponent is above 0.
    """
    i = tl.arange(0, C)
    past = ((i >> level) & 1) == 1
    middle = tl.minimum(((i >> (level + 1)) << (level + 1)) + (1 << level) - 1, last)
    at = middle[:, None] * X + x[None, :]
    a_middle = tl.load(a + at, mask=x_ok[None, :], other=0.0)
    n_middle = tl.load(n + at, mask=x_ok[None, :], other=0)
    up = tl.where(n_high == n_middle, high - a_middle, float("-inf"))
    down = tl.where(n_low == n_middle, a_middle - low, float("-inf"))
    return tl.exp2(tl.where(past[:, None], up, down)), past


@triton.jit
def factors(a, high, low, x, x_ok, last, X: tl.constexpr, FORWARD: tl.constexpr):
    """Decays from the middle of a chunk's range to each read, and from each write to the middle."""
    middle = 0.5 * tl.load(a + last * X + x, mask=x_ok, other=0.0)[None, :]
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
    total, r, w, a, n, extent, high, n_high, low, n_low, x, x_ok, last,
    X: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, FORWARD: tl.constexpr, DIAGONAL: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """total_ij + sum_x r_ix w_jx (decays between write j and read i)_x.

    In two factors where the chunk's `extent` of log2 decays lets neither overflow; else by halves of blocks of 2, 4, ... C
    steps, with no exponent above 0.
    """
    i = tl.arange(0, C)
    if extent <= (12.0 if DT == tl.float16 else 100.0):
        to_read, from_write = factors(a, high, low, x, x_ok, last, X, FORWARD)
        here = tl.dot((r * to_read).to(DT), tl.trans((w * from_write).to(DT)), input_precision="tf32x3")
        total += tl.where(order(C, FORWARD, DIAGONAL), here, 0.0)
    else:
        for level in range(LEVELS):
            decay, past = halves(level, a, n, high, n_high, low, n_low, x, x_ok, last, X, C)
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
    p, w, a, n, extent, high, n_high, low, n_low, x, x_ok, last,
    X: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, FORWARD: tl.constexpr, DIAGONAL: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """sum_j p_ij w_jx (decays between write j and read i)_x: in two factors or by halves, as `decayed_product`."""
    i = tl.arange(0, C)
    total = tl.zeros_like(w)
    if extent <= (12.0 if DT == tl.float16 else 100.0):
        to_read, from_write = factors(a, high, low, x, x_ok, last, X, FORWARD)
        seen = tl.where(order(C, FORWARD, DIAGONAL), p, 0.0)
        total += to_read * tl.dot(seen.to(DT), (w * from_write).to(DT), input_precision="tf32x3")
    else:
        for level in range(LEVELS):
            decay, past = halves(level, a, n, high, n_high, low, n_low, x, x_ok, last, X, C)
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
    log, log_b, log_t, log_h, a, n, extent, T, H, X: tl.constexpr, C: tl.constexpr, BX: tl.constexpr
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
    reset = g < RESET
    sums = tl.cumsum(tl.where(reset, 0.0, g) * LOG2E, axis=0)
    counts = tl.cumsum(reset.to(tl.int32), axis=0)
    out = (bh * T + t)[:, None] * X + x[None, :]
    tl.store(a + out, sums, mask=ok)
    tl.store(n + out, counts.to(n.dtype.element_ty), mask=ok)
    if extent is not None:
        reach = tl.maximum(tl.max(tl.max(sums, axis=1), axis=0), 0.0) - tl.minimum(tl.min(tl.min(sums, axis=1), axis=0), 0.0)
        reach = tl.where(tl.max(tl.max(counts, axis=1), axis=0) > 0, float("inf"), reach)
        tl.store(extent + tl.program_id(0), reach)


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


def cumulate(log: torch.Tensor, chunk: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(cumulative log2 decays within chunks, resets, extent of each chunk) from log decays [B, T, H, (X)].

    The first two are [B, H, T, X], float32 and integer; the extent is [B, H, chunks] float32, None for one decay a step.
    """
    vector = log.ndim == 4
    if not vector:
        log = log.unsqueeze(-1)
    if log.stride(-1) != 1 and log.shape[-1] != 1:
        log = log.contiguous()
    B, T, H, X = log.shape
    chunks = triton.cdiv(T, chunk)
    a = log.new_empty((B, H, T, X), dtype=torch.float32)
    n = log.new_empty((B, H, T, X), dtype=torch.int32 if X == 1 else torch.int8)
    extent = log.new_empty((B, H, chunks), dtype=torch.float32) if vector else None
    width, warps = triton.next_power_of_2(X), 1 if X == 1 else 4 if X <= 64 else 8
    grid = (B * H * chunks,)
    launch(cumulate_kernel, grid, log, *strides(log), a, n, extent, T, H, X=X, C=chunk, BX=width, num_warps=warps)
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
