"""Which chunk, segment and heads a program takes, and where their steps begin."""

import triton
import triton.language as tl

from ..launch.fixed_split import fixed
from ..launch.launch import cdiv
from .chunk_layout import ChunkLayout


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
def some_heads(H, chunks, HEADS: tl.constexpr):
    """(batch entry, chunk's place, heads, which of these there are) of a program that takes some heads of a chunk."""
    groups = tl.cdiv(H, HEADS)
    place = tl.program_id(0) // groups
    h = tl.program_id(0) % groups * HEADS + tl.arange(0, HEADS)
    return (place // chunks).to(tl.int64), place % chunks, tl.minimum(h, H - 1), h < H


def grouped(p: ChunkLayout, most: int) -> tuple[int, int]:
    """(programs, heads that each takes) of a kernel over all chunks, whose heads lie beside one another in memory."""
    heads = most if fixed() else min(most, triton.next_power_of_2(p.heads))
    return p.programs // max(1, p.heads) * cdiv(p.heads, heads), heads
