"""Decays over chunks of steps: their cumulative sums, and products and sums over the steps of a chunk that they are factors of.

Decays are cumulative log2 decays within a chunk, `a`. A log2 decay is taken to be at least LEAST_LOG2, which is as good as zero,
so that none gives a NaN. That suffices for operands of two bytes. With EXACT, for float32, sums are of multiples of 1 / 64, which
float32 holds as they are, and beside them stands what these leave, `n`: so a large sum costs the decays of other steps nothing.
"""

import torch
import triton
import triton.language as tl

from ..launch.launch import launch, steps, strides
from .chunk_layout import ChunkLayout
from .indexing import chunk_of, grouped, place_of, some_heads
from .split_precision import rounded_and_rest

LOG2E = tl.constexpr(1.4426950408889634)
Cumulated = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]  # what `cumulate` returns
Decay = tuple[torch.Tensor, torch.Tensor | None]  # the first two of these
Decays = Decay | tuple[Decay, Decay]  # one, or one of the rows and one of the columns
LEAST_LOG2 = tl.constexpr(-160.0)  # 2^LEAST_LOG2 is zero in float32


@triton.jit
def lasting(sums, rests, stride, x, x_ok, begin, stop, count, C: tl.constexpr, FORWARD: tl.constexpr):
    """How many chunks at the end of a sweep of `count` have written what is not zero by then, in any of the channels x.

    `sums` and `rests` are as `cumulate` makes them, `stride` numbers a step.
    """
    at_once: tl.constexpr = 32 if x.shape[0] > 1 else 128  # chunks whose decays are loaded at once
    reached = tl.full([], 0, tl.int32)
    after = tl.zeros_like(x).to(tl.float32)  # log2 of what the chunks behind a chunk keep of it
    for n in range(0, count, at_once):
        back = n + tl.arange(0, at_once)
        step = tl.minimum(begin + ((count - 1 - back if FORWARD else back) + 1) * C, stop) - 1
        there = (back < count)[:, None] & x_ok[None, :]
        place = step[:, None] * stride + x[None, :]
        kept = tl.load(sums + place, mask=there, other=0.0)
        if rests is not None:
            kept += tl.load(rests + place, mask=there, other=0.0)
        seen = there & ~(after[None, :] + tl.cumsum(kept, 0) - kept <= LEAST_LOG2)  # NaN is seen
        reached = tl.maximum(reached, tl.max(tl.where(seen, back[:, None] + 1, 0)))
        after += tl.sum(kept, 0)
    return reached


@triton.jit
def span(high, n_high, low, n_low):
    """The decays of the steps between two cumulative sums: 2^(high - low), with what these sums leave."""
    return tl.exp2((high - low) + (n_high - n_low))


@triton.jit
def power(exponent, visible):
    """2^exponent where `visible`, and 0 elsewhere. The exponent is masked before it is raised."""
    return tl.exp2(tl.where(visible, exponent, float("-inf")))


@triton.jit
def log2_of(log):
    """A decay as log2, from its natural logarithm."""
    return tl.maximum(log.to(tl.float32) * LOG2E, LEAST_LOG2)


@triton.jit
def sums_of(log2, C: tl.constexpr):
    """Cumulative log2 decays within a chunk: products on tensor cores with ones, of what a log2 is rounded to in 11 bits, and of
    what that leaves. A scan of a tile takes twice as many instructions."""
    i = tl.arange(0, C)
    ones = tl.where(i[:, None] >= i[None, :], 1.0, 0.0).to(tl.float16)
    high = log2.to(tl.float16)
    return tl.dot(ones, (log2 - high.to(tl.float32)).to(tl.float16), tl.dot(ones, high))


@triton.jit
def last_of(sums, C: tl.constexpr):
    """The last row."""
    return tl.sum(tl.where(tl.arange(0, C)[:, None] == C - 1, sums, 0.0), axis=0)


@triton.jit
def over_block(sums, a, row, x, ok, last, stride, C: tl.constexpr, CHUNK: tl.constexpr):
    """Sums of decays, or of what these leave, within chunks of CHUNK steps, at these rows and channels, as sums within the block
    of C steps that the chunks make up; those of the block lie at `a`, a `stride` from step to step."""
    for start in tl.static_range(CHUNK, C, CHUNK):
        before = tl.load(a + (start - 1) * stride + x, mask=ok & (start <= last), other=0)
        sums += tl.where(row >= start, before, 0).to(sums.dtype)
    return sums


@triton.jit
def reach(extent, last, C: tl.constexpr, CHUNK: tl.constexpr):
    """How far the sums of log2 decays of the chunks of a block reach together, at most."""
    total = tl.load(extent)
    for start in tl.static_range(CHUNK, C, CHUNK):
        total += tl.load(extent + start, mask=start <= last, other=0.0)
    return total


@triton.jit
def later_sums(x, C: tl.constexpr, PRODUCT: tl.constexpr, DT: tl.constexpr):
    """For each row of x [C, X] the sum of it and of those after it: a product with ones on tensor cores, of x in three parts or
    of as many as tf32 needs; or a scan, which takes 400 shuffles, but fewer registers."""
    i = tl.arange(0, C)
    ones = tl.where(i[:, None] <= i[None, :], 1.0, 0.0)
    if not PRODUCT:
        sums = tl.cumsum(x, axis=0, reverse=True)
    elif tl.bfloat16 == DT:
        high = x.to(DT)
        rest = x - high.to(tl.float32)
        low = rest.to(DT)
        sums = tl.dot(ones.to(DT), low, tl.dot(ones.to(DT), high))
        sums = tl.dot(ones.to(DT), (rest - low.to(tl.float32)).to(DT), sums)
    else:
        sums = tl.dot(ones, x, input_precision="tf32x3")
    return sums


@triton.jit
def summed(x, C: tl.constexpr, FORWARD: tl.constexpr, OWN: tl.constexpr, DT: tl.constexpr):
    """For each row of x [C, X] the sum of the rows before it, or after it, with its OWN or without: products with ones, in which
    rows that don't count leave nothing at all."""
    i = tl.arange(0, C)
    after = i[:, None] - i[None, :] if FORWARD else i[None, :] - i[:, None]
    ones = tl.where(after >= 0 if OWN else after > 0, 1.0, 0.0)
    if tl.float32 == DT:
        sums = tl.dot(ones, x, input_precision="tf32x3")
    else:
        high = x.to(tl.bfloat16)
        rest = x - high.to(tl.float32)
        low = rest.to(tl.bfloat16)
        sums = tl.dot(ones.to(tl.bfloat16), low, tl.dot(ones.to(tl.bfloat16), high))
        sums = tl.dot(ones.to(tl.bfloat16), (rest - low.to(tl.float32)).to(tl.bfloat16), sums)
    return sums


@triton.jit
def sum_of_others(x, C: tl.constexpr, BEFORE: tl.constexpr):
    """For each entry of x [C] the sum of those before it, or after it, without itself: what is added and then subtracted again
    would leave its rounding."""
    i = tl.arange(0, C)
    counts = i[:, None] > i[None, :] if BEFORE else i[:, None] < i[None, :]
    return tl.sum(tl.where(counts, x[None, :], 0.0), axis=1)


@triton.jit
def far(DT: tl.constexpr):
    """So far may log2 decays reach from a chunk's start for two factors of them to fit into DT."""
    reach: tl.constexpr = 12.0 if tl.float16 == DT else 100.0
    return reach


@triton.jit
def has_small_range(extent, DT: tl.constexpr):
    """Do log2 decays that reach so far split into two factors that fit into DT? With some room, as sums are rounded."""
    return extent <= far(DT) - 1.0


@triton.jit
def large_ranges(
    extents, group, T, H, chunks, begins, stops, programs,
    GROUP: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """How many of a group of chunks, or blocks of them, are of a large decay range."""
    place = group + tl.arange(0, GROUP)
    b, c, h = chunk_of(tl.minimum(place, programs - 1), H, chunks)
    t0, last = place_of(c, T, begins, stops, C)
    there = (last >= 0) & (place < programs)
    extent = tl.zeros([GROUP], tl.float32)
    for start in tl.static_range(0, C, CHUNK):
        extent += tl.load(extents + (b * H + h) * T + t0 + start, mask=there & (start <= last), other=0.0)
    return tl.sum(tl.where(has_small_range(extent, DT), 0, 1), axis=0)


@triton.jit
def halves(
    level, a, n, high, n_high, low, n_low, x, x_ok, last, stride,
    C: tl.constexpr, CHUNK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Decays to and from the middle of each block of 2^(level + 1) steps, over [C, X]; and which rows are past the middle.

    Between a row past the middle and one before it lies their product, and neither exponent is above 0.
    """
    i = tl.arange(0, C)
    past = ((i >> level) & 1) == 1
    middle = tl.minimum(((i >> (level + 1)) << (level + 1)) + (1 << level) - 1, last)
    at, ok = middle[:, None] * stride + x[None, :], x_ok[None, :]
    a_middle = tl.load(a + at, mask=ok, other=0.0)
    a_middle = over_block(a_middle, a, middle[:, None], x[None, :], ok, last, stride, C, CHUNK)
    up, down = high - a_middle, a_middle - low
    if EXACT:
        n_middle = tl.load(n + at, mask=ok, other=0.0)
        n_middle = over_block(n_middle, n, middle[:, None], x[None, :], ok, last, stride, C, CHUNK)
        up, down = up + (n_high - n_middle), down + (n_middle - n_low)
    return tl.exp2(tl.where(past[:, None], up, down)), past


@triton.jit
def from_start(high, n_high, FORWARD: tl.constexpr, EXACT: tl.constexpr, DT: tl.constexpr):
    """Decays from a chunk's start to the later step of a pair, times a constant, which isn't the same in both directions: else
    the compiler makes these factors but once, and has no registers to keep them in."""
    shift: tl.constexpr = (6.0 if tl.float16 == DT else 50.0) - (0.0 if FORWARD else 1.0)
    if EXACT:  # a power of two, apart, as a sum would be rounded
        decays = tl.exp2(high + n_high) * 1125899906842624.0
    else:
        decays = tl.exp2(high + shift)
    return decays


@triton.jit
def to_start(low, n_low, FORWARD: tl.constexpr, EXACT: tl.constexpr, DT: tl.constexpr):
    """What these are divided by for the decays from the earlier step of a pair on: the constant cancels. Earlier steps than
    those that are of a small decay range don't reach beyond the limit, and it keeps others from overflowing."""
    shift: tl.constexpr = (6.0 if tl.float16 == DT else 50.0) - (0.0 if FORWARD else 1.0)
    if EXACT:
        decays = tl.exp2(tl.minimum(-(low + n_low), far(DT) + 3.0)) * 8.881784197001252e-16
    else:
        decays = tl.exp2(tl.minimum(-shift - low, far(DT) + 3.0 - shift))
    return decays


@triton.jit
def first_large_range(before, high, n_high, x_ok, C: tl.constexpr, DT: tl.constexpr):
    """The first row of a chunk whose decays from the chunk's start reach too far, in any channel; or `before`, if that comes
    first. Rows are taken by halves from there on, and a row's path depends on no later row."""
    i = tl.arange(0, C)
    reaches = high + n_high < -far(DT)
    row = tl.where(reaches & x_ok[None, :], i[:, None], C)
    return tl.minimum(before, tl.min(tl.min(row, axis=1), axis=0))


@triton.jit
def adds_large_range(before, p, w, row, C: tl.constexpr):
    """1 where rows from `row` on write anything to a sweep backwards, which all rows before them read; else `before`. What is
    nothing, as of a loss on earlier steps alone, leaves these as they are."""
    i = tl.arange(0, C)
    some = (tl.max(tl.abs(p), axis=0) > 0.0) & (tl.max(tl.abs(w), axis=1) > 0.0)
    return tl.maximum(before, tl.max(tl.where(some & (i >= row), 1, 0), axis=0))


@triton.jit
def order(C: tl.constexpr, FORWARD: tl.constexpr, DIAGONAL: tl.constexpr):
    """Which read of step i sees which write of step j."""
    i = tl.arange(0, C)
    after = i[:, None] - i[None, :] if FORWARD else i[None, :] - i[:, None]
    return after >= 0 if DIAGONAL else after > 0


@triton.jit
def split_product(p, w, ACROSS: tl.constexpr, EXACT: tl.constexpr, DT: tl.constexpr):
    """p @ w, or p @ w^T, of which both are taken as what they are rounded to and what that leaves: such products are rounded
    again where they are used, and gradients of decays are differences of sums of them."""
    high, p_rest = rounded_and_rest(p, DT)
    wide, w_rest = rounded_and_rest(w, DT)
    here = tl.dot(high, tl.trans(wide) if ACROSS else wide, input_precision="tf32x3")
    if not EXACT:
        here = tl.dot(high, tl.trans(w_rest) if ACROSS else w_rest, here)
        here = tl.dot(p_rest, tl.trans(wide) if ACROSS else wide, here)
    return here


@triton.jit
def added_product(total, p, w, EXACT: tl.constexpr, DT: tl.constexpr):
    """total + p @ w, in the same parts."""
    high, p_rest = rounded_and_rest(p, DT)
    wide, w_rest = rounded_and_rest(w, DT)
    total = tl.dot(high, wide, total, input_precision="tf32x3")
    if not EXACT:
        total = tl.dot(high, w_rest, total)
        total = tl.dot(p_rest, wide, total)
    return total


@triton.jit
def decayed_product(
    total, r, w, a, n, high, n_high, low, n_low, x, x_ok, last, stride,
    C: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr, FORWARD: tl.constexpr, DIAGONAL: tl.constexpr,
    SMALL_RANGE: tl.constexpr, EXACT: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """total_ij + sum_x r_ix w_jx (decays between write j and read i)_x.

    In two factors where SMALL_RANGE: rows whose log2 decays reach so little that neither overflows. Else by halves of blocks of
    2, 4, ... C steps, with no exponent above 0.
    """
    i = tl.arange(0, C)
    if SMALL_RANGE:
        reader = r * (
            from_start(high, n_high, FORWARD, EXACT, DT) if FORWARD else to_start(low, n_low, FORWARD, EXACT, DT)
        )
        writer = w * (
            to_start(low, n_low, FORWARD, EXACT, DT) if FORWARD else from_start(high, n_high, FORWARD, EXACT, DT)
        )
        here = split_product(reader, writer, True, EXACT, DT)
        total += tl.where(order(C, FORWARD, DIAGONAL), here, 0.0)
    else:
        for level in range(LEVELS):
            decay, past = halves(level, a, n, high, n_high, low, n_low, x, x_ok, last, stride, C, CHUNK, EXACT)
            reads = past if FORWARD else ~past
            reader = tl.where(reads[:, None], r * decay, 0.0)
            writer = tl.where(reads[:, None], 0.0, w * decay)
            block = i >> (level + 1)
            here = split_product(reader, writer, True, EXACT, DT)
            total += tl.where(block[:, None] == block[None, :], here, 0.0)
        if DIAGONAL:
            same = tl.sum(r * w * span(high, n_high, low, n_low), axis=1)
            total += tl.where(i[:, None] == i[None, :], same[:, None], 0.0)
    return total


@triton.jit
def decayed_sum(
    p, w, a, n, high, n_high, low, n_low, x, x_ok, last, stride,
    C: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr, FORWARD: tl.constexpr, DIAGONAL: tl.constexpr,
    SMALL_RANGE: tl.constexpr, EXACT: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """sum_j p_ij w_jx (decays between write j and read i)_x: in two factors or by halves, as `decayed_product`."""
    total = added_sum(
        tl.zeros_like(w), p, w, a, n, high, n_high, low, n_low, x, x_ok, last, stride, C, CHUNK, LEVELS, FORWARD, DIAGONAL,
        SMALL_RANGE, EXACT, DT,
    )  # fmt: skip
    return of_reads(total, high, n_high, low, n_low, FORWARD, SMALL_RANGE, EXACT, DT)


@triton.jit
def added_sum(
    total, p, w, a, n, high, n_high, low, n_low, x, x_ok, last, stride,
    C: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr, FORWARD: tl.constexpr, DIAGONAL: tl.constexpr,
    SMALL_RANGE: tl.constexpr, EXACT: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """total + sum_j p_ij w_jx (decays between write j and read i)_x, of reads that have several such sums: where SMALL_RANGE over
    the one of two factors that all have in common, which `of_reads` multiplies by."""
    i = tl.arange(0, C)
    if SMALL_RANGE:
        seen = tl.where(order(C, FORWARD, DIAGONAL), p, 0.0)
        writer = w * (
            to_start(low, n_low, FORWARD, EXACT, DT) if FORWARD else from_start(high, n_high, FORWARD, EXACT, DT)
        )
        total = added_product(total, seen, writer, EXACT, DT)
    else:
        for level in range(LEVELS):
            decay, past = halves(level, a, n, high, n_high, low, n_low, x, x_ok, last, stride, C, CHUNK, EXACT)
            reads = past if FORWARD else ~past
            writer = tl.where(reads[:, None], 0.0, w * decay)
            block = i >> (level + 1)
            here = tl.where(block[:, None] == block[None, :], p, 0.0)
            total += tl.where(reads[:, None], decay, 0.0) * split_product(here, writer, False, EXACT, DT)
        if DIAGONAL:
            total += diagonal(p, C)[:, None] * w * span(high, n_high, low, n_low)
    return total


@triton.jit
def from_state(x, high, n_high, SMALL_RANGE: tl.constexpr, EXACT: tl.constexpr, DT: tl.constexpr):
    """What reads take of the state at a chunk's start, x, with the decays up to them, for `added_sum` to be added to."""
    if SMALL_RANGE:
        if EXACT:
            taken = x * 8.881784197001252e-16
        else:
            taken = x * tl.exp2(tl.full([], -6.0 if tl.float16 == DT else -50.0, tl.float32))
    else:
        taken = x * span(high, n_high, 0.0, 0)
    return taken


@triton.jit
def of_reads(
    total, high, n_high, low, n_low,
    FORWARD: tl.constexpr, SMALL_RANGE: tl.constexpr, EXACT: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """What `added_sum` has added up, times the factor that is left."""
    if SMALL_RANGE:
        total *= from_start(high, n_high, FORWARD, EXACT, DT) if FORWARD else to_start(low, n_low, FORWARD, EXACT, DT)
    return total


@triton.jit
def diagonal(p, C: tl.constexpr):
    """What stands on the diagonal of a matrix over the steps of a chunk."""
    i = tl.arange(0, C)
    return tl.sum(tl.where(i[:, None] == i[None, :], p, 0.0), axis=1)


@triton.jit
def whole_of(log2):
    """A log2 decay down to a multiple of 1 / 64: float32 holds sums of these as they are."""
    return tl.floor(log2 * 64.0) * 0.015625


@triton.jit(do_not_specialize=["T", "chunks"])
def cumulate_kernel(
    log, log_b, log_t, log_h, log_g, a, n, extent, T, H, chunks, begins, stops,
    X: tl.constexpr, C: tl.constexpr, BX: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """a = cumulative log2 decay within each chunk, n = what EXACT sums leave of it; both [B, T, H, X]. extent [B, H, T], at the
    first step of each chunk: how far these reach there.

    An EXACT sum is one of `whole_of` each step; what that leaves is summed apart, and small. So the decays between any two steps
    have the precision of theirs, however much lies before them."""
    b, c, h = chunk_of(tl.program_id(0), H, chunks)
    t0, last = place_of(c, T, begins, stops, C)
    i = tl.arange(0, C)
    x = tl.arange(0, BX)
    ok = (i <= last)[:, None] & (x < X)[None, :]
    at = log + b * log_b + h // log_g * log_h
    g = tl.load(at + (t0 + i)[:, None] * log_t + x[None, :], mask=ok, other=0.0).to(tl.float32)
    out = ((b * T + t0 + i) * H + h)[:, None] * X + x[None, :]
    log2 = tl.maximum(g * LOG2E, LEAST_LOG2)
    whole = whole_of(log2) if EXACT else log2
    sums = tl.cumsum(whole, axis=0)
    tl.store(a + out, sums, mask=ok)
    if EXACT:
        rests = tl.cumsum(log2 - whole, axis=0)
        tl.store(n + out, rests, mask=ok)
        sums += rests
    far = tl.maximum(tl.max(tl.max(sums, axis=1), axis=0), 0.0) - tl.minimum(tl.min(tl.min(sums, axis=1), axis=0), 0.0)
    tl.store(extent + (b * H + h) * T + t0, far, mask=last >= 0)


@triton.jit(do_not_specialize=["T", "chunks"])
def cumulate_steps_kernel(
    log, log_b, log_t, log_h, log_g, x, x_b, x_t, x_h, x_g, a, n, y, T, H, chunks, begins, stops, C: tl.constexpr,
    HEADS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """a = cumulative log2 decay within each chunk, n = what EXACT sums leave of it (as `cumulate_kernel` has it), and y = x; all
    [B, H, T]."""
    b, c, h, there = some_heads(H, chunks, HEADS)
    t0, last = place_of(c, T, begins, stops, C)
    i = tl.arange(0, C)
    ok = (i <= last)[:, None] & there[None, :]
    at = log + b * log_b + (t0 + i)[:, None] * log_t + (h // log_g * log_h)[None, :]
    g = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    log2 = tl.maximum(g * LOG2E, LEAST_LOG2)
    whole = whole_of(log2) if EXACT else log2
    out = (b * H + h)[None, :] * T + (t0 + i)[:, None]
    tl.store(a + out, tl.cumsum(whole, axis=0), mask=ok)
    if EXACT:
        tl.store(n + out, tl.cumsum(log2 - whole, axis=0), mask=ok)
    if x is not None:
        at = x + b * x_b + (t0 + i)[:, None] * x_t + (h // x_g * x_h)[None, :]
        tl.store(y + out, tl.load(at, mask=ok, other=0.0).to(tl.float32), mask=ok)


def cumulate(log: torch.Tensor, p: ChunkLayout, exact: bool, made: bool = False) -> Cumulated:
    """Cumulative log2 decays within chunks, what these sums leave, and the extent of each chunk, from log decays
    [B, T, H or fewer, (X)].

    The first two are [B, H, T] or [B, T, H, X], float32; the extent is [B, H, T] float32, at the first
    step of each chunk. The second is None unless `exact`, and the extent is None for one decay a step. Where `made`, and not
    `exact`, the kernel that comes next makes what is needed of these.
    """
    B, T, H = p.batch, p.steps, p.heads
    if log.ndim == 3:
        a, n, _ = _of_steps(log, None, p, exact)
        return a, n, None
    X = log.shape[3]
    log = steps(log)
    a = log.new_empty((B, T, H, X), dtype=torch.float32)
    n = log.new_empty((B, T, H, X), dtype=torch.float32) if exact else None
    extent = log.new_empty((B, H, T), dtype=torch.float32)
    if made and not exact:
        return a, n, extent
    launch(
        cumulate_kernel, (p.programs,), log, *strides(log, H), a, n, extent, *p.at_once,
        X=X, C=p.chunk, BX=triton.next_power_of_2(X), EXACT=exact, num_warps=4 if X <= 64 else 8,
    )  # fmt: skip
    return a, n, extent


def cumulate_beside(
    log: torch.Tensor, x: torch.Tensor, p: ChunkLayout, exact: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """`cumulate` of one decay a step, and other numbers of each step, x [B, T, H or fewer], as [B, H, T] in float32."""
    a, n, y = _of_steps(log, x, p, exact)
    return a, n, None, y


def _of_steps(log: torch.Tensor, x: torch.Tensor | None, p: ChunkLayout, exact: bool) -> Cumulated:
    shape = (p.batch, p.heads, p.steps)
    a = log.new_empty(shape, dtype=torch.float32)
    n = log.new_empty(shape, dtype=torch.float32) if exact else None
    y = None if x is None else log.new_empty(shape, dtype=torch.float32)
    strides_of = (0, 0, 0, 1) if x is None else strides(x, p.heads)
    programs, heads = grouped(p, 8)
    launch(
        cumulate_steps_kernel, (programs,), log, *strides(log, p.heads), x, *strides_of, a, n, y, *p.at_once,
        C=p.chunk, HEADS=heads, EXACT=exact, num_warps=2,
    )  # fmt: skip
    return a, n, y
