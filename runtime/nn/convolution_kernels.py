"""Triton kernels of the short convolution with its activation: one forwards, one backwards, one for a step of generation.

y_t = f(b + sum_j w_j x_{t-j}), j = 0 .. TAPS - 1, for each channel; before a sequence's first step stand the rows of its tail,
the last of which is x_{-1}. `place` counts the steps of its own sequence before each step, `which` says which sequence that is.
"""

from __future__ import annotations

import triton
import triton.language as tl

MOST = 4  # taps that the kernel of gradients holds


@triton.jit
def forward_kernel(
    x_p, x_b, x_t, x_d,
    w_p, w_j, w_d,
    bias_p,
    tail_p,
    place_p, place_b, which_p,
    y_p,
    T, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some steps of some channels."""
    entry = tl.program_id(2).to(tl.int64)
    time = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, known = time < T, channel < D
    place, which = time, tl.zeros([ROWS], tl.int64) + entry
    if place_p is not None:
        place = tl.load(place_p + entry * place_b + time, mask=inside, other=0)
    if which_p is not None:
        which = tl.load(which_p + time, mask=inside, other=0).to(tl.int64)
    wide = channel.to(tl.int64)
    ok = inside[:, None] & known[None, :]
    at = x_p + entry * x_b + time.to(tl.int64)[:, None] * x_t + wide[None, :] * x_d
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    if bias_p is not None:
        total += tl.load(bias_p + channel, mask=known, other=0.0).to(tl.float32)[None, :]
    for j in tl.static_range(TAPS):
        weight = tl.load(w_p + j * w_j + wide * w_d, mask=known, other=0.0).to(tl.float32)
        x = tl.load(at - j * x_t, mask=ok & (place >= j)[:, None], other=0.0).to(tl.float32)
        if tail_p is not None:
            row = which * (TAPS - 1) + TAPS - 1 + place - j
            x += tl.load(
                tail_p + row[:, None] * D + wide[None, :], mask=ok & (place < j)[:, None], other=0.0
            ).to(tl.float32)  # fmt: skip
        total += weight[None, :] * x
    if SILU:
        total = total * tl.sigmoid(total)
    tl.store(y_p + (entry * T + time.to(tl.int64))[:, None] * D + wide[None, :], total, mask=ok)


@triton.jit
def weight_at(w_p, w_j, w_d, wide, known, j, TAPS: tl.constexpr):
    """A tap's weights; zeros beyond the last tap."""
    return tl.load(w_p + j * w_j + wide * w_d, mask=known & (j < TAPS), other=0.0).to(tl.float32)


@triton.jit
def row_at(tail_p, place, j, which, wide, D, known, TAPS: tl.constexpr):
    """x_{t-j} where that is before the sequence's first step: a row of its tail."""
    row = which * (TAPS - 1) + TAPS - 1 + place - j
    return tl.load(tail_p + row * D + wide, mask=known & (row >= which * (TAPS - 1)), other=0.0).to(tl.float32)


@triton.jit
def with_tail(u1, u2, u3, tail_p, place, which, wide, D, known, TAPS: tl.constexpr):
    """x_{t-1}, x_{t-2} and x_{t-3}, of which those before the sequence's first step are rows of its tail."""
    if place < TAPS - 1:
        if place < 1:
            u1 = row_at(tail_p, place, 1, which, wide, D, known, TAPS)
        if place < 2:
            u2 = row_at(tail_p, place, 2, which, wide, D, known, TAPS)
        if place < 3:
            u3 = row_at(tail_p, place, 3, which, wide, D, known, TAPS)
    return u1, u2, u3


@triton.jit
def store_tail(row, w1, w2, w3, g, g1, g2, D, known, TAPS: tl.constexpr):
    """The gradients of a tail's rows, by the gradients g of the first steps of its sequence."""
    if TAPS == 2:
        tl.store(row, w1 * g, mask=known)
    if TAPS == 3:
        tl.store(row, w2 * g, mask=known)
        tl.store(row + D, w1 * g + w2 * g1, mask=known)
    if TAPS == 4:
        tl.store(row, w3 * g, mask=known)
        tl.store(row + D, w2 * g + w3 * g1, mask=known)
        tl.store(row + 2 * D, w1 * g + w2 * g1 + w3 * g2, mask=known)


@triton.jit
def steps_before(x_p, x_t, time, known):
    """A step's values; zeros before the first."""
    at = x_p + tl.cast(time, tl.int64) * x_t
    return tl.load(at, mask=known & (time >= 0), other=0.0)


@triton.jit
def backward_kernel(
    x_p, x_b, x_t, x_d,
    w_p, w_j, w_d, bias_p, tail_p,
    place_p, place_b, which_p, dy_p, dy_b, dy_t, dy_d,
    dx_p, dw_p, dbias_p, dtail_p, T, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Backwards through some steps of some channels, with the last taps of x and of the sum's gradient g in registers.

    The steps after its own come first: of them g alone is needed. Gradients of weights are what this program's steps give.
    """
    entry = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < D
    wide = channel.to(tl.int64)
    begin = tl.program_id(0) * ROWS
    end = tl.minimum(begin + ROWS, T)
    last = tl.minimum(end + TAPS - 1, T) - 1
    w0 = weight_at(w_p, w_j, w_d, wide, known, 0, TAPS)
    w1 = weight_at(w_p, w_j, w_d, wide, known, 1, TAPS)
    w2 = weight_at(w_p, w_j, w_d, wide, known, 2, TAPS)
    w3 = weight_at(w_p, w_j, w_d, wide, known, 3, TAPS)
    none = tl.zeros([BLOCK], tl.float32)
    bias = none
    if bias_p is not None:
        bias = tl.load(bias_p + channel, mask=known, other=0.0).to(tl.float32)
    x_p += entry * x_b + wide * x_d
    dy_p += entry * dy_b + wide * dy_d
    dx_p += entry * T * D + wide
    x0 = steps_before(x_p, x_t, last, known).to(tl.float32)
    x1 = steps_before(x_p, x_t, last - 1, known).to(tl.float32)
    x2 = steps_before(x_p, x_t, last - 2, known).to(tl.float32)
    x3 = steps_before(x_p, x_t, last - 3, known).to(tl.float32)
    # What the next two steps need is on its way during this one.
    x_next = steps_before(x_p, x_t, last - 4, known)
    dy_now = steps_before(dy_p, dy_t, last, known)
    dy_next = steps_before(dy_p, dy_t, last - 1, known)
    g1, g2, g3 = none, none, none
    d0, d1, d2, d3, dbias = none, none, none, none, none
    for back in range(last - begin + 1):
        time = tl.cast(last - back, tl.int64)
        g = dy_now.to(tl.float32)
        dy_later = steps_before(dy_p, dy_t, time - 2, known)
        x_later = steps_before(x_p, x_t, time - 5, known)
        place, which = time, entry
        if place_p is not None:
            place = tl.load(place_p + entry * place_b + time).to(tl.int64)
        if which_p is not None:
            which = tl.load(which_p + time).to(tl.int64)
        u1 = tl.where((place >= 1) & (TAPS > 1), x1, 0.0)
        u2 = tl.where((place >= 2) & (TAPS > 2), x2, 0.0)
        u3 = tl.where((place >= 3) & (TAPS > 3), x3, 0.0)
        if tail_p is not None:
            u1, u2, u3 = with_tail(u1, u2, u3, tail_p, place, which, wide, D, known, TAPS)
        if SILU:
            z = bias + w0 * x0 + w1 * u1 + w2 * u2 + w3 * u3
            s = tl.sigmoid(z)
            g = g * s * (1.0 + z * (1.0 - s))
        if time < end:
            tl.store(dx_p + time * D, w0 * g + w1 * g1 + w2 * g2 + w3 * g3, mask=known)
            d0 += g * x0
            d1 += g * u1
            d2 += g * u2
            d3 += g * u3
            dbias += g
        if place == 0:  # what lies after belongs to this sequence, what lies before to another
            if dtail_p is not None:
                row = dtail_p + which * (TAPS - 1) * D + wide
                store_tail(row, w1, w2, w3, g, g1, g2, D, known & (time < end), TAPS)
            g1, g2, g3 = none, none, none
        else:
            g1, g2, g3 = g, g1, g2
        x0, x1, x2, x3, x_next = x1, x2, x3, x_next.to(tl.float32), x_later
        dy_now, dy_next = dy_next, dy_later
    part = (entry * tl.num_programs(0) + tl.program_id(0)) * D
    row = dw_p + part * TAPS + wide
    tl.store(row, d0, mask=known)
    tl.store(row + D, d1, mask=known & (TAPS > 1))
    tl.store(row + 2 * D, d2, mask=known & (TAPS > 2))
    tl.store(row + 3 * D, d3, mask=known & (TAPS > 3))
    if dbias_p is not None:
        tl.store(dbias_p + part + wide, dbias, mask=known)


@triton.jit
def step_kernel(
    x_p, x_b, x_d,
    w_p, w_j, w_d,
    bias_p,
    kept_p, kept_b, kept_d, kept_l,
    y_p,
    D,
    KEPT: tl.constexpr, TAPS: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of some channels, after the last KEPT inputs, of which it drops the first and appends this one."""
    entry = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known, wide = channel < D, channel.to(tl.int64)
    x = tl.load(x_p + entry * x_b + wide * x_d, mask=known, other=0.0)
    total = tl.load(w_p + wide * w_d, mask=known, other=0.0).to(tl.float32) * x.to(tl.float32)
    if bias_p is not None:
        total += tl.load(bias_p + channel, mask=known, other=0.0).to(tl.float32)
    at = kept_p + entry * kept_b + wide * kept_d
    for i in tl.static_range(KEPT):
        before = tl.load(at + i * kept_l, mask=known, other=0.0)
        if KEPT - i < TAPS:
            weight = tl.load(w_p + (KEPT - i) * w_j + wide * w_d, mask=known, other=0.0).to(tl.float32)
            total += weight * before.to(tl.float32)
        if i > 0:
            tl.store(at + (i - 1) * kept_l, before, mask=known)
    tl.store(at + (KEPT - 1) * kept_l, x.to(kept_p.dtype.element_ty), mask=known)
    if SILU:
        total = total * tl.sigmoid(total)
    tl.store(y_p + entry * D + wide, total, mask=known)
