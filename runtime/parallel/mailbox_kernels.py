"""The kernels of a mailbox: one writes this rank's row into the memory of the ranks that need it, one waits for rows of others.

Program b of each sends, or waits for, block b of a row. Calls are counted where the kernels can see it, for each block, so that
launches can be repeated, by a graph as well, with nothing changed on the host. Call k uses slot k modulo SLOTS. A signal, at the
rank that reads, is the last call whose block was written there; an acknowledgement, at the rank that wrote it, the last call
whose block was read. So a rank writes call k once call k - SLOTS was read, and may be that many calls ahead.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

SLOTS = 2
SLOTS_ = tl.constexpr(SLOTS)
TIMED = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")  # by a clock; the interpreter counts how often it looks


@triton.jit
def given_up(late, failed, word):
    """Where it is late: say at `failed`, in memory of the host, what was waited for, and end."""
    return tl.inline_asm_elementwise(
        """{ .reg .pred late;
        setp.ne.s32 late, $1, 0;
        @late st.volatile.s64 [$2], $3;
        @late fence.acq_rel.sys;
        @late trap;
        mov.u32 $0, 0; }""",
        "=r,r,l,l", [late.to(tl.int32), failed.to(tl.int64), word.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def awaited(place, call, failed, word, limit):
    """Wait until there is `call`, or a later one, at a place; at most `limit` nanoseconds."""
    seen = tl.atomic_add(place, 0, sem="acquire", scope="sys")
    if TIMED:
        begun = globaltimer()
        while seen < call:
            seen = tl.atomic_add(place, 0, sem="acquire", scope="sys")
            given_up((globaltimer() - begun > limit) & (seen < call), failed, word)
    else:
        turns = 0
        while (seen < call) & (turns < limit):
            seen = tl.atomic_add(place, 0, sem="acquire", scope="sys")
            turns += 1
        if seen < call:
            tl.store(failed.to(tl.pointer_type(tl.int64)), word)


@triton.jit
def at(address, words):
    """The place so many numbers of 64 bits after an address."""
    return address.to(tl.pointer_type(tl.int64)) + words


@triton.jit
def numbers_at(address, DT: tl.constexpr):
    """The place of numbers at an address, which 16 divides."""
    return tl.multiple_of(address.to(tl.pointer_type(DT)), 16)


@triton.jit(do_not_specialize=["rank"])
def send_kernel(
    row, table, size, stride, counts, rank, failed, limit,
    RANKS: tl.constexpr, PROGRAMS: tl.constexpr, FORWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write `row` [size] to the ranks after this one, where FORWARD, or else before it.

    table: the addresses at which this process has each rank's memory: SLOTS times RANKS - 1 rows, `stride` numbers apart, and
    from `counts` bytes on for each block signals by rank, acknowledgements by rank, calls sent and calls received.
    """
    b = tl.program_id(0)
    own = tl.load(at(table, rank)) + counts
    sent = at(own, 2 * RANKS * PROGRAMS + b)
    call = tl.load(sent) + 1
    first, end = (rank + 1, RANKS) if FORWARD else (0, rank)
    for other in range(first, end):
        word = (call * 2 + 1) * RANKS + other
        awaited(at(own, (RANKS + other) * PROGRAMS + b), call - SLOTS_, failed, word, limit)
    share = tl.cdiv(tl.cdiv(size, PROGRAMS), BLOCK) * BLOCK
    for start in range(b * share, tl.minimum(size, (b + 1) * share), BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(row + i, mask=i < size)
        for other in range(first, end):
            place = (call % SLOTS_) * (RANKS - 1) + (rank if FORWARD else rank - other - 1)
            slot = numbers_at(tl.load(at(table, other)), row.dtype.element_ty) + place * stride
            tl.store(slot + i, x, mask=i < size)
    tl.debug_barrier()
    for other in range(first, end):
        signal = at(tl.load(at(table, other)) + counts, rank * PROGRAMS + b)
        tl.atomic_xchg(signal, call, sem="release", scope="sys")
    tl.store(sent, call)


@triton.jit(do_not_specialize=["rank"])
def receive_kernel(
    out, table, size, stride, counts, rank, failed, limit,
    RANKS: tl.constexpr, PROGRAMS: tl.constexpr, FORWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Wait for the rows of the ranks before this one, where FORWARD, or else after it: `out` [ranks, size]. As `send_kernel`."""
    b = tl.program_id(0)
    memory = tl.load(at(table, rank))
    own = memory + counts
    received = at(own, (2 * RANKS + 1) * PROGRAMS + b)
    call = tl.load(received) + 1
    first, end = (0, rank) if FORWARD else (rank + 1, RANKS)
    share = tl.cdiv(tl.cdiv(size, PROGRAMS), BLOCK) * BLOCK
    for other in range(first, end):
        awaited(at(own, other * PROGRAMS + b), call, failed, call * 2 * RANKS + other, limit)
        place = (call % SLOTS_) * (RANKS - 1) + other - first
        slot = numbers_at(memory, out.dtype.element_ty) + place * stride
        for start in range(b * share, tl.minimum(size, (b + 1) * share), BLOCK):
            i = start + tl.arange(0, BLOCK)
            x = tl.load(slot + i, mask=i < size, cache_modifier=".cg")
            tl.store(out + i, x, mask=i < size)
        out += size
        tl.debug_barrier()
        read = at(tl.load(at(table, other)) + counts, (RANKS + rank) * PROGRAMS + b)
        tl.atomic_xchg(read, call, sem="release", scope="sys")
    tl.store(received, call)
