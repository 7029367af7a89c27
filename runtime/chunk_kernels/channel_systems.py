"""Triangular systems of which each channel has its own, as where every channel of a value is written with a strength of its own.

    w_i = right_i + scale_i . sum_{j before i} t_ij w_j        i, j steps of a chunk; scale_i has a number for each channel

An inverse would be a matrix for each channel. Here all channels take one step after the other, with one matrix t. Where what
is written decays, each channel at a rate of its own, t_ij is times the decays between both steps: what is left of each write is
held, and decays at each step, so that nothing is divided by decays.
"""

import triton
import triton.language as tl


@triton.jit
def channel_solve(right, scale, t, FORWARD: tl.constexpr, C: tl.constexpr):
    """w [X, C] of right and scale [X, C] and a strictly triangular t [C, C]: lower where steps go FORWARD, else upper."""
    i = tl.arange(0, C)
    for n in range(C):
        step = n if FORWARD else C - 1 - n
        row = tl.sum(tl.where(i[:, None] == step, t, 0.0), axis=0)
        known = tl.sum(right * row[None, :], axis=1)
        right += tl.where(i[None, :] == step, scale * known[:, None], 0.0)
    return right


@triton.jit
def decayed_channel_solve(
    right, scale, t, decay, FORWARD: tl.constexpr, LATE: tl.constexpr, WRITE_LATE: tl.constexpr, C: tl.constexpr
):
    """The same, with the decays of each step, [X, C]: those of a read's own step lie before it where it is LATE, those of a
    write's before that where it is WRITE_LATE."""
    i = tl.arange(0, C)
    held = tl.zeros_like(right)
    for n in range(C):
        step = n if FORWARD else C - 1 - n
        here = i[None, :] == step
        left = tl.sum(tl.where(here, decay, 0.0), axis=1)
        if LATE:
            held *= left[:, None]
        row = tl.sum(tl.where(i[:, None] == step, t, 0.0), axis=0)
        known = tl.sum(held * row[None, :], axis=1)
        right += tl.where(here, scale * known[:, None], 0.0)
        if not LATE:
            held *= left[:, None]
        if WRITE_LATE:
            held = tl.where(here, right, held)
        else:
            held = tl.where(here, right * left[:, None], held)
    return right
