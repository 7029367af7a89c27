"""Products of a state and its gradient at each step, channel by channel, without the decay of the step itself, which may be zero.

A block of steps is given what its reads take of the state before it (`start`), what its writes take of the gradient after it
(`end`), and <S, dS> of these two (`both`). Both halves of the block get theirs from it: the second one's reads also what the
first one writes, the first one's writes also what the second one reads. After the smallest blocks, of one step, `both` is the
state before the step times the gradient after it. Between two steps lie the decays from one to the middle and on to the other, of
which no exponent is above 0. So nothing is divided by decays, and nothing is subtracted.
"""

import triton
import triton.language as tl

from .decays import halves, over_block, span


@triton.jit
def sums_at(sums, row, x, x_ok, last, stride, C: tl.constexpr, CHUNK: tl.constexpr):
    """Cumulative log2 decays, or what these leave, of these rows; nothing before the first one."""
    at = tl.minimum(tl.maximum(row, 0), last)
    there = (row >= 0)[:, None] & x_ok[None, :]
    found = tl.load(sums + at[:, None] * stride + x[None, :], mask=there, other=0)
    return over_block(found, sums, at[:, None], x[None, :], there, last, stride, C, CHUNK)


@triton.jit
def times(a, b, DT: tl.constexpr):
    """a @ b."""
    return tl.dot(a.to(DT), b.to(DT), input_precision="tf32x3")


@triton.jit
def products_left_out(
    read, write, weights, start, end, both, a, n, high, n_high, low, n_low, x, x_ok, last, stride,
    READ_LATE: tl.constexpr, WRITE_LATE: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
    EXACT: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """<S, dS> [C, X] at each step. read, write, start, end [C, X], weights [C, C], both [X]. `a`, `n` are cumulative log2 decays
    in memory and what these leave; `high` are those up to each read, `low` those up to each write."""
    i = tl.arange(0, C)
    seen, seeing = start, end  # of each read, and of each write
    found = tl.zeros_like(read) + both[None, :]
    for n_level in range(LEVELS):
        level = LEVELS - 1 - n_level
        decay, past = halves(level, a, n, high, n_high, low, n_low, x, x_ok, last, stride, C, CHUNK, EXACT)
        block = (i >> (level + 1)) << (level + 1)
        middle = block + (1 << level) - 1
        first, last_row = block - 1, block + (2 << level) - 1
        from_row, to_row = tl.where(past, first, middle), tl.where(past, middle, last_row)
        begin = sums_at(a, from_row, x, x_ok, last, stride, C, CHUNK)
        finish = sums_at(a, to_row, x, x_ok, last, stride, C, CHUNK)
        if EXACT:
            n_begin = sums_at(n, from_row, x, x_ok, last, stride, C, CHUNK)
            n_finish = sums_at(n, to_row, x, x_ok, last, stride, C, CHUNK)
            other = span(finish, n_finish, begin, n_begin)
        else:
            other = tl.exp2(finish - begin)  # the decays of the other half
        reads, writes = tl.where(past[:, None], read * decay, 0.0), tl.where(past[:, None], 0.0, write * decay)
        inside = block[:, None] == block[None, :]
        across = inside & past[:, None] & (past[None, :] == 0)
        seen_after, seeing_before = reads * seen, writes * seeing
        ones = tl.where(inside & (past[:, None] != past[None, :]), 1.0, 0.0)
        found = found * other + times(ones, seen_after + seeing_before, DT)
        pairs = tl.where(across, weights, 0.0)
        seen = tl.where(past[:, None], seen * other + times(pairs, writes, DT), seen)
        seeing = tl.where(past[:, None], seeing, seeing * other + times(tl.trans(pairs), reads, DT))
    if not READ_LATE:
        found += read * seen
    if not WRITE_LATE:
        found += write * seeing
    if not (READ_LATE or WRITE_LATE):
        own = tl.sum(tl.where(i[:, None] == i[None, :], weights, 0.0), axis=1)
        found += own[:, None] * read * write
    return found
