"""Triangular systems of which each channel has its own, as where every channel of a value is written with a strength of its own.

    w_i = right_i + scale_i . sum_{j before i} t_ij w_j        i, j steps of a chunk; scale_i has a number for each channel

An inverse would be a matrix for each channel. Here all channels take one step after the other, with one matrix t.
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
