"""Memory that a later program loads, brought into the L2 cache while this one computes (compute capability 9.0)."""

import triton
import triton.language as tl


@triton.jit
def row_to_prefetch(rows_at, batch, head, heads, prefetch_distance: tl.constexpr):
    """The row and the head of the program that is so many heads further on, where rows are those of a pool or of the batch; the
    row is below 0 where there is none, or where it is padding."""
    later = batch * heads + head + prefetch_distance
    row = later // heads
    there = row < tl.num_programs(1)
    if rows_at is None:
        row = tl.where(there, row, -1)
    else:
        row = tl.cast(tl.load(rows_at + row, mask=there, other=-1), tl.int64)
    return row, later % heads


@triton.jit
def prefetch(at, entries: tl.constexpr, programs: tl.constexpr, row):
    """So many entries from here on, of which each of the programs that share a head asks for its part, in one thread."""
    part: tl.constexpr = entries // programs
    size: tl.constexpr = part * (at.dtype.element_ty.primitive_bitwidth // 8)
    if row >= 0:
        tl.inline_asm_elementwise(
            """{
                .reg .pred first;
                .reg .b32 thread;
                mov.u32 thread, %tid.x;
                setp.eq.u32 first, thread, 0;
                @first cp.async.bulk.prefetch.L2.global [$1], $2;
                mov.u32 $0, 0;
            }""",
            "=r,l,r",
            [tl.cast(at + tl.program_id(0) % programs * part, tl.int64), size],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
