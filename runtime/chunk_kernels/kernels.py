"""What every generated Triton kernel shares: decays over chunks of steps, and the triangular inverse.

Decays are cumulative log2 decays within a chunk, `a`. A log2 decay is taken to be at least LEAST_LOG2, which is as good as zero,
so that none gives a NaN. That suffices for operands of two bytes. With EXACT, for float32, sums are of multiples of 1 / 64, which
float32 holds as they are, and beside them stands what these leave, `n`: so a large sum costs the decays of other steps nothing.
"""

import functools
from collections.abc import Iterable
from math import prod

import torch
import triton
import triton.language as tl

from ..launch.fixed_split import fixed
from ..launch.launch import cdiv, launch, padded, steps, strides
from .chunk_layout import ChunkLayout
from .split_precision import rounded_and_rest

WIDEST = 128  # rows of a matrix that kernels multiply states by: more don't fit into shared memory, and torch does it
LOG2E = tl.constexpr(1.4426950408889634)
MAPS_AT_ONCE = tl.constexpr(8)  # segments whose maps are loaded at once
Cumulated = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]  # what `cumulate` returns
Decay = tuple[torch.Tensor, torch.Tensor | None]  # the first two of these
Decays = Decay | tuple[Decay, Decay]  # one, or one of the rows and one of the columns
LEAST_LOG2 = tl.constexpr(-160.0)  # 2^LEAST_LOG2 is zero in float32


@triton.jit
def place_of(c, T, begins, stops, C: tl.constexpr):
    """(first step, last row) of a chunk's place; the row is negative where no chunk has the place."""
    if begins is None:
        t0 = c.to(tl.int64) * C
        stop = tl.cast(T, tl.int64)
    else:
        t0 = tl.load(begins + c)
        stop = tl.load(stops + c)
    return t0, tl.minimum(stop - t0, C).to(tl.int32) - 1


@triton.jit
def chunk_of(program, H, chunks):
    """(batch entry, chunk's place, head) of a program; heads come first, as what they have of a step lies side by side."""
    return (program // H // chunks).to(tl.int64), program // H % chunks, (program % H).to(tl.int64)


@triton.jit
def segment_of(s, T, starts, segments, length, C: tl.constexpr):
    """(batch entry, segment, first step, step after the last, first place) of segment s of all sequences."""
    if starts is None:
        b = s // segments
        segment = s % segments
        begin = segment * length
        stop = tl.minimum(begin + length, T)
        first = begin // C
    else:
        b = tl.zeros_like(s)
        segment = tl.zeros_like(s)
        begin = tl.load(starts + s)
        stop = tl.load(starts + s + 1)
        first = begin // C + s
    return b, segment, begin, stop, first.to(tl.int32)


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
def inverse(t, C: tl.constexpr, LEVELS: tl.constexpr, DT: tl.constexpr):
    """(I - t)^-1 of a strictly triangular t [C, C], C = 2^LEVELS.

    Blocks are merged pairwise: [[A, 0], [t, B]]^-1 has the corner B^-1 t A^-1. All products are blocks of the inverse itself,
    so nothing cancels, as it would in (I + t)(I + t^2)(I + t^4)...
    """
    i = tl.arange(0, C)
    x = tl.where(i[:, None] == i[None, :], 1.0, tl.where((i // 2)[:, None] == (i // 2)[None, :], t, 0.0))
    for level in tl.static_range(1, LEVELS):
        block = i >> level
        corner = ((block >> 1)[:, None] == (block >> 1)[None, :]) & (block[:, None] != block[None, :])
        left = tl.dot(x.to(DT), t.to(DT), input_precision="tf32x3")
        x += tl.where(corner, tl.dot(left.to(DT), x.to(DT), input_precision="tf32x3"), 0.0)
    return x


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
    i = tl.arange(0, C)
    total = tl.zeros_like(w)
    if SMALL_RANGE:
        seen = tl.where(order(C, FORWARD, DIAGONAL), p, 0.0)
        writer = w * (
            to_start(low, n_low, FORWARD, EXACT, DT) if FORWARD else from_start(high, n_high, FORWARD, EXACT, DT)
        )
        here = split_product(seen, writer, False, EXACT, DT)
        total += here * (
            from_start(high, n_high, FORWARD, EXACT, DT) if FORWARD else to_start(low, n_low, FORWARD, EXACT, DT)
        )
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


@triton.jit
def some_heads(H, chunks, HEADS: tl.constexpr):
    """(batch entry, chunk's place, heads, which of these there are) of a program that takes some heads of a chunk."""
    groups = tl.cdiv(H, HEADS)
    place = tl.program_id(0) // groups
    h = tl.program_id(0) % groups * HEADS + tl.arange(0, HEADS)
    return (place // chunks).to(tl.int64), place % chunks, tl.minimum(h, H - 1), h < H


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


@triton.jit(do_not_specialize=["T", "segments", "length"])
def kept_kernel(
    a, n, kept, T, H, segments, length,
    X: tl.constexpr, C: tl.constexpr, BX: tl.constexpr, STEPS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The decays of each segment of the sequences, [B * segments, H, X]."""
    sh = tl.program_id(0).to(tl.int64)
    b, _, begin, stop, _ = segment_of(sh // H, T, None, segments, length, C)
    bh = b * H + sh % H
    c = tl.arange(0, 16)
    x = tl.arange(0, BX)
    sums = tl.zeros([BX], tl.float32)
    for base in range(0, tl.cdiv(tl.maximum(stop - begin, 0), C).to(tl.int32), 16):
        t = tl.minimum(begin + (base + c + 1) * C, stop) - 1
        ok = (begin + (base + c) * C < stop)[:, None] & (x < X)[None, :]
        row = bh * T + t if STEPS else (b * T + t) * H + sh % H
        at = row[:, None] * X + x[None, :]
        sums += tl.sum(tl.load(a + at, mask=ok, other=0.0), axis=0)
        if EXACT:
            sums += tl.sum(tl.load(n + at, mask=ok, other=0.0), axis=0)
    tl.store(kept + sh * X + x, tl.exp2(sums), mask=x < X)


@triton.jit
def decays_of(kept, i, ok, COLS: tl.constexpr, ALONG: tl.constexpr):
    """What is kept of entry i of a state of COLS columns: one number (ALONG = 1), or one for each row (2) or column."""
    if ALONG == 1:
        k = tl.load(kept)
    else:
        k = tl.load(kept + (i // COLS if ALONG == 2 else i % COLS), mask=ok, other=0.0)
    return k


@triton.jit
def place_in(sh, m, H, segments, FORWARD: tl.constexpr):
    """Where the m-th segment that is swept, of a batch entry and head, lies in [N * segments, H]."""
    m = tl.minimum(m, segments - 1)
    return ((sh // H) * segments + (m if FORWARD else segments - 1 - m)) * H + sh % H


@triton.jit
def map_of(
    sh, m, local, kept, i, ok, H, segments,
    SIZE: tl.constexpr, COLS: tl.constexpr, LINEARS: tl.constexpr, ALONG: tl.constexpr, FORWARD: tl.constexpr,
):  # fmt: skip
    """(k, x) of the m-th segment that is swept: it takes entry i of S to k S + x. Nothing changes beyond the last segment."""
    at, there = place_in(sh, m, H, segments, FORWARD), m < segments
    x = tl.load(local + at * SIZE + i, mask=ok & there, other=0.0)
    if ALONG == 0:
        k = 1.0
    else:
        k = tl.where(there, decays_of(kept + at * LINEARS, i, ok, COLS, ALONG), 1.0)
    return k, x


@triton.jit(do_not_specialize=["ranks", "rank_step", "segments"])
def chain_kernel(
    first, rows, ranks, rank_step, local, kept, out, H, segments,
    ROWS: tl.constexpr, COLS: tl.constexpr, LINEARS: tl.constexpr, ALONG: tl.constexpr, FORWARD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out_p = what enters segment p: S, then kept * S + local for the next; local and out are [N * segments, H, ROWS, COLS].

    S begins as `first` [N, H, ROWS, COLS], or as what `rows` of the GPUs before this one make of zero: for each the LINEARS
    numbers that it keeps of S, and what it adds. Some segments are loaded together, since a load takes longer than the rest.
    """
    sh = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size: tl.constexpr = ROWS * COLS
    ok = i < size
    S = tl.zeros([BLOCK], tl.float32)
    if first is not None:
        S += tl.load(first + sh * size + i, mask=ok, other=0.0)
    if rows is not None:
        for m in range(ranks):
            rank = tl.cast(m if FORWARD else ranks - 1 - m, tl.int64)
            row = rows + rank * rank_step + sh * (LINEARS + size)
            if ALONG > 0:
                S *= decays_of(row, i, ok, COLS, ALONG)
            S += tl.load(row + LINEARS + i, mask=ok, other=0.0)
    for m in range(0, segments, MAPS_AT_ONCE):
        maps = ()
        for j in tl.static_range(MAPS_AT_ONCE):
            maps = maps + (map_of(sh, m + j, local, kept, i, ok, H, segments, size, COLS, LINEARS, ALONG, FORWARD),)
        for j in tl.static_range(MAPS_AT_ONCE):
            tl.store(out + place_in(sh, m + j, H, segments, FORWARD) * size + i, S, mask=ok & (m + j < segments))
            S = maps[j][0] * S + maps[j][1]


@triton.jit(do_not_specialize=["ranks", "rank_step", "segments"])
def chain_matrix_kernel(
    first, rows, ranks, rank_step, local, linear, across, down, out, H, segments, row_stride, column_stride,
    ROWS: tl.constexpr, COLS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, FORWARD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As `chain_kernel`, where a segment takes S to linear @ S + local; linear is [N * segments, H, ROWS, ROWS], of these
    strides."""
    sh = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    square = (r < ROWS)[:, None] & (r < ROWS)[None, :]
    ok = (r < ROWS)[:, None] & (c < COLS)[None, :]
    place = r[:, None] * row_stride + c[None, :] * column_stride
    S = tl.zeros([BR, BC], tl.float32)
    if first is not None:
        S += tl.load(first + sh * ROWS * COLS + place, mask=ok, other=0.0)
    if rows is not None:
        for m in range(ranks):
            rank = tl.cast(m if FORWARD else ranks - 1 - m, tl.int64)
            row = rows + rank * rank_step + sh * (ROWS * ROWS + ROWS * COLS)
            A = tl.load(row + r[:, None] * ROWS + r[None, :], mask=square, other=0.0)
            S = tl.dot(A, S, tl.load(row + ROWS * ROWS + place, mask=ok, other=0.0), input_precision="tf32x3")
    zeros = 1 if first is None and rows is None else 0  # segments that zeros enter, which need no product
    if zeros:
        at = place_in(sh, 0, H, segments, FORWARD)
        tl.store(out + at * ROWS * COLS + place, S, mask=ok)
        S = tl.load(local + at * ROWS * COLS + place, mask=ok, other=0.0)
    for m in tl.range(zeros, segments - 1, num_stages=STAGES):
        at = place_in(sh, m, H, segments, FORWARD)
        tl.store(out + at * ROWS * COLS + place, S, mask=ok)
        A = tl.load(linear + at * ROWS * ROWS + r[:, None] * across + r[None, :] * down, mask=square, other=0.0)
        S = tl.dot(A, S, tl.load(local + at * ROWS * COLS + place, mask=ok, other=0.0), input_precision="tf32x3")
    if segments > zeros:
        tl.store(out + place_in(sh, segments - 1, H, segments, FORWARD) * ROWS * COLS + place, S, mask=ok)


def chained(
    first: torch.Tensor | None,
    local: torch.Tensor,
    p: ChunkLayout,
    segments: int,
    forward: bool,
    decay: Decays | None = None,
    along: int | None = None,
    exact: bool = False,
) -> torch.Tensor:
    """What enters each segment of the sequences: states [N * segments, H, ...], from those that enter the first (or last) one.

    `local` is what each segment makes of zero states. `decay` are cumulative sums and what they leave, as `cumulate` has
    them, which run `along` an axis of the state, or none.
    """
    kept = None if decay is None else kept_of(decay, local, p, segments, exact)
    return chained_decays(first, None, local, kept, along, p, segments, forward)


def chained_decays(
    first: torch.Tensor | None,
    rows: torch.Tensor | None,
    local: torch.Tensor,
    kept: torch.Tensor | None,
    along: int | None,
    p: ChunkLayout,
    segments: int,
    forward: bool,
) -> torch.Tensor:
    """As `chained`, from all decays of each segment, [N * segments, H, X] or None; and from `rows` of the GPUs before, or
    None."""
    sizes, block = state_sizes(local, kept, along)
    before = (0, 0) if rows is None else (rows.shape[0], rows.stride(0))
    out = torch.empty_like(local)
    launch(
        chain_kernel, (p.sequences * p.heads, cdiv(sizes["ROWS"] * sizes["COLS"], block)), first, rows, *before, local, kept,
        out, p.heads, segments, **sizes, FORWARD=forward, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


def state_sizes(local: torch.Tensor, kept: torch.Tensor | None, along: int | None) -> tuple[dict[str, int], int]:
    """What kernels need to know of states [N, H, ...] and their decays, and how much of a state a program has."""
    rows, columns = (*local.shape[2:], 1, 1)[:2]
    if kept is not None and along is None and kept.shape[2] > 1:  # one for each entry, as if these were rows
        rows, columns, along = rows * columns, 1, 0
    how = 0 if kept is None else 1 if along is None else 2 + along
    block = min(1024, triton.next_power_of_2(rows * columns))
    return {"ROWS": rows, "COLS": columns, "LINEARS": 0 if kept is None else prod(kept.shape[2:]), "ALONG": how}, block


def kept_of(decay: Decays, local: torch.Tensor, p: ChunkLayout, segments: int, exact: bool) -> torch.Tensor:
    """All decays of each segment, [N * segments, H, X]; X is 1 for one decay a step, all entries where rows and columns decay."""
    if not isinstance(decay[0], torch.Tensor):
        rows, columns = (kept_of(x, local, p, segments, exact) for x in decay)  # type: ignore[arg-type]
        return (rows[..., :, None] * columns[..., None, :]).flatten(2)
    a, n = decay
    X = a.shape[3] if a.ndim == 4 else 1
    kept = local.new_empty((*local.shape[:2], X))
    launch(
        kept_kernel, (local.shape[0] * p.heads,), a, n, kept, p.steps, p.heads, segments, p.length(segments),
        X=X, C=p.chunk, BX=triton.next_power_of_2(X), STEPS=a.ndim == 3, EXACT=exact, num_warps=1,
    )  # fmt: skip
    return kept


def chained_matrix(
    first: torch.Tensor | None,
    local: torch.Tensor,
    linear: torch.Tensor,
    p: ChunkLayout,
    segments: int,
    forward: bool,
    along: int,
    before: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `chained`, where a segment multiplies the axis `along` of the state by a matrix, `linear` [N * segments, H, row, row],
    which may be a transposed view.

    `before` are the rows of the GPUs before this one, or None.
    """
    rows, columns = local.shape[2 + along], local.shape[3 - along]
    if rows > WIDEST:
        order = range(segments) if forward else reversed(range(segments))
        own = local.unflatten(0, (p.sequences, segments))
        S = torch.zeros_like(own[:, 0]) if first is None else first
        entered = swept(S, linear.unflatten(0, (p.sequences, segments)), own, order, along)[0]
        return torch.stack([entered[n] for n in range(segments)], 1).flatten(0, 1)
    strides_of = local.stride()[2 + along], local.stride()[3 - along]
    ranks = (0, 0) if before is None else (before.shape[0], before.stride(0))
    out = torch.empty_like(local)
    launch(
        chain_matrix_kernel, (p.sequences * p.heads, cdiv(columns, 16)), first, before, *ranks, local, linear,
        *linear.stride()[2:], out, p.heads,
        segments, *strides_of, ROWS=rows, COLS=columns, BR=padded(rows), BC=16, FORWARD=forward,
        STAGES=3 if shared_memory(local.device) >= 160 * 1024 else 1, num_warps=8,
    )  # fmt: skip
    return out


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have on this device, as Triton knows it; 0 where there is no GPU."""
    if device.type != "cuda":
        return 0
    return triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]


def swept(
    S: torch.Tensor, linear: torch.Tensor, local: torch.Tensor | None, order: Iterable[int], along: int
) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
    """What enters each segment, and what leaves the last in `order`; segments are axis 1 of the matrices and of `local`."""
    entered = {}
    for n in order:
        entered[n], A = S, linear[:, n]
        S = A @ S if along == 0 else (A @ S.mT).mT
        S = S if local is None else S + local[:, n]
    return entered, S


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


def grouped(p: ChunkLayout, most: int) -> tuple[int, int]:
    """(programs, heads that each takes) of a kernel over all chunks, whose heads lie beside one another in memory."""
    heads = most if fixed() else min(most, triton.next_power_of_2(p.heads))
    return p.programs // max(1, p.heads) * cdiv(p.heads, heads), heads


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
