"""Products of a state and its gradient at each step, channel by channel, without the decay of the step itself, which may be zero.

A read i that comes after step t has seen of the state before it

    p_i = (state before the chunk, as read i takes it) . (decays before t) + sum_j write_j . weights_ij . (decays from j to t)

All reads' p are carried from step to step: each step adds what it writes, and multiplies by its decay. So nothing is divided by
decays, and nothing is subtracted.
"""

import triton
import triton.language as tl

from .decays import power


@triton.jit
def row_of(x, at):
    """The row of x [C, X] where `at` is."""
    return tl.sum(tl.where(at[:, None], x, 0.0), axis=0)


@triton.jit
def products_left_out(
    read, write, weights, start, end, both, sums, rests, sums_before, rests_before, sums_end, rests_end,
    READ_LATE: tl.constexpr, WRITE_LATE: tl.constexpr, C: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """<S, dS> [C, X] at each step. read, write, start, end [C, X], weights [C, C], both [X]; cumulative log2 decays of the chunk,
    with each step's own, before it, and at the end, and with EXACT what these sums leave."""
    i = tl.arange(0, C)
    found = tl.zeros_like(read)
    seen, rest = start, both
    for t in range(C):
        at = i == t
        sum_t, sum_before = row_of(sums, at), row_of(sums_before, at)
        wrote, of_end = row_of(write, at), row_of(end, at)
        weight = tl.sum(tl.where(at[None, :], weights, 0.0), axis=1)
        if not WRITE_LATE:
            seen += weight[:, None] * wrote[None, :]
            rest += wrote * of_end
        after = (sums_before if READ_LATE else sums) - sum_t[None, :]
        to_end, step = sums_end - sum_t, sum_t - sum_before
        if EXACT:
            rest_t = row_of(rests, at)
            after += (rests_before if READ_LATE else rests) - rest_t[None, :]
            to_end += rests_end - rest_t
            step += rest_t - row_of(rests_before, at)
        decays = power(after, (i > t if READ_LATE else i >= t)[:, None])
        product = tl.sum(decays * read * seen, axis=0) + tl.exp2(to_end) * rest
        found = tl.where(at[:, None], product[None, :], found)
        decay = tl.exp2(step)
        seen, rest = seen * decay[None, :], rest * decay
        if WRITE_LATE:
            seen += weight[:, None] * wrote[None, :]
            rest += wrote * of_end
    return found
