"""The inverse of 1 - t for a strictly triangular t, which makes the writes of a chunk that depend on reads."""

import triton
import triton.language as tl


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
