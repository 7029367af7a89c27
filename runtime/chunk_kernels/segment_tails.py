"""Segment tails: the map of a segment, S to linear @ S + local, from its last TAIL_STEPS steps and then from its head,
all before them.

Where decays make the tail's matrix zero, nothing of the head is left, and nobody sweeps over it. Otherwise the maps of both are
composed: neither takes a step twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..launch.launch import cdiv, launch, padded

TAIL_STEPS = tl.constexpr(1024)  # steps: log decays of -0.11 each make a float32 state zero


@triton.jit
def is_zero(live, COUNT: tl.constexpr):
    """Are all columns of a tail's matrix zero, by what the program of each of COUNT tiles of them has left?"""
    found = 0
    for m in tl.static_range(COUNT):
        found += tl.load(live + m)
    return found == 0


@triton.jit
def join_kernel(
    local, linear, tail, tail_linear, live, row_stride, column_stride,
    COUNT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some columns of what head and tail make, in the place of what the head does: of the matrix, and then of the state."""
    sh = tl.program_id(0).to(tl.int64)
    if is_zero(live + sh * COUNT, COUNT):
        return
    block = tl.program_id(1)
    of_matrix = block < tl.cdiv(ROWS, BC)
    c = tl.where(of_matrix, block, block - tl.cdiv(ROWS, BC)) * BC + tl.arange(0, BC)
    r = tl.arange(0, BR)
    columns = c < tl.where(of_matrix, ROWS, COLS)
    across, down = tl.where(of_matrix, ROWS, row_stride), tl.where(of_matrix, 1, column_stride)
    head = tl.where(of_matrix, linear + sh * ROWS * ROWS, local + sh * ROWS * COLS)
    S = tl.load(head + r[:, None] * across + c[None, :] * down, mask=(r < ROWS)[:, None] & columns[None, :], other=0.0)
    tl.debug_barrier()  # all of it, before any is replaced
    for start in range(0, ROWS, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = i[:, None] * across + c[None, :] * down
        ok = (i < ROWS)[:, None] & columns[None, :]
        A = tl.load(
            tail_linear + sh * ROWS * ROWS + i[:, None] * ROWS + r[None, :],
            mask=(i < ROWS)[:, None] & (r < ROWS)[None, :],
            other=0.0,
        )
        own = tl.load(tail + sh * ROWS * COLS + place, mask=ok & ~of_matrix, other=0.0)
        tl.store(head + place, tl.dot(A, S, own, input_precision="tf32x3"), mask=ok)


@dataclass(frozen=True)
class Tails:
    """What the tails of segments make, one of each head of the op: of zero states; their matrices; and for each tile of the
    columns of these whether it isn't zero."""

    ends: torch.Tensor
    linear: torch.Tensor
    live: torch.Tensor


def tails_of(ends: torch.Tensor, linear: torch.Tensor, length: int, tile: int) -> Tails | None:
    """Room for what the tails of segments of so many steps make, beside room for what the segments do: `ends`
    [N * segments, H, *state] and `linear` [N * segments, H, row, row], made in tiles of so many columns. None if segments are
    short.
    """
    if length < 2 * TAIL_STEPS.value:
        return None
    tiles = cdiv(linear.shape[3], tile)
    live = linear.new_empty((*linear.shape[:2], tiles), dtype=torch.int32)
    return Tails(torch.empty_like(ends), torch.empty_like(linear), live)


def join_tails(tails: Tails | None, ends: torch.Tensor, linear: torch.Tensor, along: int) -> None:
    """Whole segments' states and matrices, which multiply the axis `along` of a state, in the place of their heads'; where
    these were not swept, they are there already."""
    if tails is None:
        return
    rows, columns = ends.shape[2 + along], ends.shape[3 - along]
    whole, block = padded(rows), 64 if rows <= 128 else 16
    blocks = cdiv(rows, block) + cdiv(columns, block)
    launch(
        join_kernel, (ends.shape[0] * ends.shape[1], blocks), ends, linear, tails.ends, tails.linear, tails.live,
        ends.stride(2 + along), ends.stride(3 - along), COUNT=tails.live.shape[2], ROWS=rows, COLS=columns, BR=whole, BC=block,
        BLOCK=whole if whole <= 128 else 16, num_warps=8,
    )  # fmt: skip
