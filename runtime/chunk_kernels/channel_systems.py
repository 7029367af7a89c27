"""Triangular systems of which each channel has its own, as where every channel of a value is written with a strength of its own.

    w_i = right_i + scale_i . sum_{j before i} t_ij w_j        i, j steps of a chunk; scale_i has a number for each channel

An inverse would be a matrix for each channel. Here all channels take one step after the other, with one matrix t, whose rows
are loaded where they are needed: to cut them out of a tile would take longer than the step itself. Few steps at a time, so that
a step's sum is one over few numbers; what they leave to the steps behind them is a product of matrices.

Where what is written decays, each channel at a rate of its own, t_ij is times the decays between both steps: what is left of
each write is held, and decays at each step, so that nothing is divided by decays.
"""

import triton
import triton.language as tl


@triton.jit
def halves_of(x):
    """Both halves of the steps of x [X, C]."""
    half: tl.constexpr = x.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(x, [x.shape[0], 2, half]), [0, 2, 1]))


@triton.jit
def of_halves(x, y):
    """The steps of x [X, C / 2], and then those of y."""
    return tl.reshape(tl.permute(tl.join(x, y), [0, 2, 1]), [x.shape[0], 2 * x.shape[1]])


@triton.jit
def system_of_each(right, scale, t, FORWARD: tl.constexpr, C: tl.constexpr, STRIDE: tl.constexpr, FEW: tl.constexpr):
    """`channel_solve` of C steps whose rows of t are STRIDE apart: of one half, then of the other with what the first half leaves
    to it; FEW steps one after the other."""
    if C <= FEW:
        i = tl.arange(0, C)
        at_once: tl.constexpr = C if C < 4 else 4  # rows that are loaded at once
        for start in range(0, C, at_once):
            for n in tl.static_range(at_once):
                step = start + n if FORWARD else C - 1 - start - n
                row = tl.load(t + step * STRIDE + i).to(tl.float32)  # so few numbers that each thread loads its own
                known = tl.sum(right * row[None, :], axis=1)
                right += tl.where(i[None, :] == step, scale * known[:, None], 0.0)
    else:
        half: tl.constexpr = C // 2
        i = tl.arange(0, half)
        first, second = halves_of(right)
        scale_first, scale_second = halves_of(scale)
        t_second = t + half * STRIDE + half
        transposed = i[None, :] * STRIDE + i[:, None]
        if FORWARD:
            first = system_of_each(first, scale_first, t, FORWARD, half, STRIDE, FEW)
            between = tl.load(t + half * STRIDE + transposed).to(tl.float32)
            second += scale_second * tl.dot(first, between, input_precision="tf32x3")
            second = system_of_each(second, scale_second, t_second, FORWARD, half, STRIDE, FEW)
        else:
            second = system_of_each(second, scale_second, t_second, FORWARD, half, STRIDE, FEW)
            between = tl.load(t + half + transposed).to(tl.float32)
            first += scale_first * tl.dot(second, between, input_precision="tf32x3")
            first = system_of_each(first, scale_first, t, FORWARD, half, STRIDE, FEW)
        right = of_halves(first, second)
    return right


@triton.jit
def channel_solve(right, scale, t, FORWARD: tl.constexpr, C: tl.constexpr):
    """w [X, C] of right and scale [X, C] and a strictly triangular matrix in memory at t, [C, C]: lower where steps go FORWARD,
    else upper."""
    return system_of_each(right, scale, t, FORWARD, C, C, 16)


@triton.jit
def decayed_channel_solve(
    right, scale, t, decay, FORWARD: tl.constexpr, LATE: tl.constexpr, WRITE_LATE: tl.constexpr, C: tl.constexpr
):
    """The same, with the decays of each step, [X, C]: those of a read's own step lie before it where it is LATE, those of a
    write's before that where it is WRITE_LATE."""
    i = tl.arange(0, C)
    held = tl.zeros_like(right)
    row = tl.zeros([C], tl.float32)  # of the first step, which nothing is before
    for n in range(C):
        step = n if FORWARD else C - 1 - n
        behind = (tl.minimum(n + 1, C - 1) if FORWARD else tl.maximum(C - 2 - n, 0)) * C
        row_behind = tl.load(t + behind + i).to(tl.float32)
        here = i[None, :] == step
        left = tl.sum(tl.where(here, decay, 0.0), axis=1)
        if LATE:
            held *= left[:, None]
        known = tl.sum(held * row[None, :], axis=1)
        right += tl.where(here, scale * known[:, None], 0.0)
        if not LATE:
            held *= left[:, None]
        if WRITE_LATE:
            held = tl.where(here, right, held)
        else:
            held = tl.where(here, right * left[:, None], held)
        row = row_behind
    return right
