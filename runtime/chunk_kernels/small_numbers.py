"""Small numbers with a scale for each row, made of a tile and stored; `runtime/op/small_states.py` says what they are."""

import triton
import triton.language as tl


@triton.jit
def drawn_before(drawn_at):
    """How often this row and head has drawn random numbers; nothing where it draws none."""
    if drawn_at is None:
        drawn = 0
    else:
        drawn = tl.load(drawn_at)
    return drawn


@triton.jit
def uniform(offsets, seed):
    """Numbers between -0.4995 and 0.4995 that follow from a seed and from where they stand, with 23 bits."""
    x = (offsets + seed).to(tl.uint32) * 0x9E3779B1
    x = (x ^ (x >> 15)) * 0x85EBCA77
    return ((x >> 9) | 0x3F800000).to(tl.float32, bitcast=True) * 0.999 - 1.4985


@triton.jit
def seed_of(drawn, number: tl.constexpr):
    """Bits that differ wherever one of these does."""
    x = (drawn * 8 + number).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return (x ^ (x >> 16)).to(tl.int32, bitcast=True)


@triton.jit
def store_small(numbers_at, offsets, value, mask, scales_at, scales_mask, drawn_at, drawn, number: tl.constexpr):
    """Store a tile as small numbers, at these places, and the scales of its rows along the last axis.

    Where `drawn_at` is given a number is rounded up with the probability of how far up it lies: `drawn` tells one step's random
    numbers from another's, and goes on by one; `number` tells one state's from another's. Else it is rounded to the nearest."""
    largest: tl.constexpr = 127.0 if numbers_at.dtype.element_ty == tl.int8 else 448.0
    axis: tl.constexpr = len(value.shape) - 1
    scales = tl.max(tl.where(mask, tl.abs(value), 0.0), axis=axis, keep_dims=axis > 0) / largest
    tl.store(scales_at, scales, mask=scales_mask)
    y = value * (1.0 / tl.where(scales > 0, scales, 1.0))
    if drawn_at is None:
        shift = 0.0
    else:
        shift = uniform(offsets, seed_of(drawn, number))
        if number == 0:
            tl.store(drawn_at, drawn + 1)
    # A number of this size has no digits behind the point: adding it rounds to the nearest, and leaves an integer in the last
    # bits. As `shift` is less than a half, the largest number of a row stays within the grid.
    point: tl.constexpr = 12582912.0
    if numbers_at.dtype.element_ty == tl.int8:
        rounded = ((y + shift) + point).to(tl.int32, bitcast=True)
    else:  # in steps of three bits behind the leading one, or of the smallest that there is
        least: tl.constexpr = 0.015625
        leading = tl.maximum(tl.abs(y), least).to(tl.int32, bitcast=True) & 0x7F800000
        unit = (leading - (3 << 23)).to(tl.float32, bitcast=True)
        each = ((129 << 23) - leading + (128 << 23)).to(tl.float32, bitcast=True)
        rounded = ((y * each + shift) + point - point) * unit
    tl.store(numbers_at + offsets, rounded.to(numbers_at.dtype.element_ty), mask=mask)
