"""What the segments of a sequence on one GPU, together, make of the state that enters the first: the map that other GPUs need.

A map is a row of float32 numbers for each batch entry and head, the linear part and then the local part. Kernels make the row
from what each segment makes of the state, and find what enters a GPU's segments from the rows of the GPUs before it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import isqrt, prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch.launch import cdiv, launch, padded
from . import segment_scan
from .chunk_layout import ChunkLayout
from .decays import Decays
from .segment_scan import MAPS_AT_ONCE, chained_decays, chained_matrix, kept_of, map_of, place_in, state_sizes, swept

FEW = 15  # segments whose matrices are best multiplied one after the other


@triton.jit(do_not_specialize=["segments"])
def row_kernel(
    first, local, kept, out, H, segments,
    ROWS: tl.constexpr, COLS: tl.constexpr, LINEARS: tl.constexpr, ALONG: tl.constexpr, FORWARD: tl.constexpr,
    STARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The row of all segments: all that is kept, and S, where each segment takes S to kept * S + local.

    Where the sequence STARTS here, S begins as `first`, and nothing of what came before is kept.
    """
    sh = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size: tl.constexpr = ROWS * COLS
    ok = i < size
    S = tl.zeros([BLOCK], tl.float32)
    keeps = tl.zeros([BLOCK], tl.float32) + (0.0 if STARTS else 1.0)
    if first is not None:
        S += tl.load(first + sh * size + i, mask=ok, other=0.0)
    for m in range(0, segments, MAPS_AT_ONCE):
        maps = ()
        for j in tl.static_range(MAPS_AT_ONCE):
            maps = maps + (map_of(sh, m + j, local, kept, i, ok, H, segments, size, COLS, LINEARS, ALONG, FORWARD),)
        for j in tl.static_range(MAPS_AT_ONCE):
            S = maps[j][0] * S + maps[j][1]
            keeps *= maps[j][0]
    row = out + sh * (LINEARS + size)
    tl.store(row + LINEARS + i, S, mask=ok)
    if ALONG > 0:
        owner = i == 0 if ALONG == 1 else i % COLS == 0 if ALONG == 2 else i < COLS
        tl.store(row + (i * 0 if ALONG == 1 else i // COLS if ALONG == 2 else i), keeps, mask=owner & ok)


@triton.jit(do_not_specialize=["segments", "groups", "group_size"])
def matrix_row_kernel(
    first, local, local_step, linear, linear_step, across, down, out, H, segments, groups, group_size, row_stride, column_stride,
    ROWS: tl.constexpr, COLS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, FORWARD: tl.constexpr, STARTS: tl.constexpr,
):  # fmt: skip
    """As `row_kernel`, where a segment takes S to linear @ S + local: a row of each group of segments, [N * groups, H, ..].

    Blocks of columns of the matrix come first, then S's.
    """
    sh = tl.program_id(0).to(tl.int64) // groups
    group = tl.program_id(0) % groups
    block = tl.program_id(1)
    of_matrix = block < tl.cdiv(ROWS, BC)
    r = tl.arange(0, BR)
    c = tl.where(of_matrix, block, block - tl.cdiv(ROWS, BC)) * BC + tl.arange(0, BC)
    square = (r < ROWS)[:, None] & (r < ROWS)[None, :]
    ok = (r < ROWS)[:, None] & (c < COLS)[None, :] & (block >= tl.cdiv(ROWS, BC))
    place = r[:, None] * row_stride + c[None, :] * column_stride
    S = tl.where((r[:, None] == c[None, :]) & of_matrix, 1.0, 0.0)
    if first is not None:
        S += tl.load(first + sh * ROWS * COLS + place, mask=ok, other=0.0)
    for m in range(group * group_size, tl.minimum((group + 1) * group_size, segments)):
        at = place_in(sh, m, H, segments, FORWARD)
        A = tl.load(linear + at * linear_step + r[:, None] * across + r[None, :] * down, mask=square, other=0.0)
        step = tl.load(local + at * local_step + place, mask=ok, other=0.0)
        S = tl.dot(A, S, step, input_precision="tf32x3")
    row = out + place_in(sh, group, H, groups, FORWARD) * (ROWS * ROWS + ROWS * COLS)
    tl.store(row + ROWS * ROWS + place, S, mask=ok)
    keeps = tl.zeros_like(S) if STARTS else S
    tl.store(row + r[:, None] * ROWS + c[None, :], keeps, mask=(r < ROWS)[:, None] & (c < ROWS)[None, :] & of_matrix)


@dataclass(frozen=True)
class SegmentsMap:
    """The map of all segments of the sequences on this GPU, for one state: what an exchange takes, like a `Segment`.

    `local` [B * segments, H, ...] is what each segment makes of a zero state. `linear` is a matrix over the axis `axis` of the
    state, [B * segments, H, row, row], perhaps a transposed view, or all decays of each segment, [B * segments, H, X], of X
    entries where rows and columns decay; None where nothing decays.
    `along`: the state's axis that decays differ along. What enters is given with what enters each segment.
    """

    state: str
    first: Tensor | None
    local: Tensor
    linear: Tensor | None
    layout: ChunkLayout
    segments: int
    forward: bool
    axis: int
    along: int | None

    @property
    def states(self) -> tuple[str, ...]:
        return (self.state,)

    @property
    def entering(self) -> tuple[torch.Tensor | None, torch.Tensor]:
        """What enters were this the first segment, None for zero; and what enters each segment."""
        return self.first, self._starts(self.first, None)

    def sent(self, starts: bool) -> tuple[Tensor, ...]:
        """The row of each batch entry and head, all in one tensor. Where the sequence starts here, only what leaves it counts."""
        p, first = self.layout, self.first if starts else None
        if self.wide:
            return (self._wide_row(starts),)
        if self._matrix:
            maps = self.groups or self
            out = maps._matrix_rows(first, starts, maps.segments).flatten()
        else:
            out = self.local.new_empty((p.batch * p.heads * (self._linears + prod(self.local.shape[2:])),))
            sizes, block = state_sizes(self.local, self.linear, self.along)
            launch(
                row_kernel, (p.batch * p.heads, cdiv(sizes["ROWS"] * sizes["COLS"], block)), first, self.local, self.linear, out,
                p.heads, self.segments, **sizes, FORWARD=self.forward, STARTS=starts, BLOCK=block, num_warps=4,
            )  # fmt: skip
        return (out,)

    def _matrix_rows(self, first: Tensor | None, starts: bool, group_size: int) -> Tensor:
        """The row of each group of segments, [B * groups, H, ...]."""
        assert self.linear is not None
        p, groups, (sizes, strides) = self.layout, cdiv(self.segments, group_size), self._sizes
        block = 16 if groups == 1 else 64
        blocks = cdiv(sizes["COLS"], block) + cdiv(sizes["ROWS"], block)
        out = self.local.new_empty((p.batch * groups, p.heads, self._linears + prod(self.local.shape[2:])))
        launch(
            matrix_row_kernel, (p.batch * p.heads * groups, blocks), first,
            self.local, self.local.stride(0) // p.heads,
            self.linear, self.linear.stride(0) // p.heads, *self.linear.stride()[2:],
            out, p.heads, self.segments, groups, group_size, *strides,
            **sizes, BR=padded(sizes["ROWS"]), BC=block, FORWARD=self.forward, STARTS=starts, num_warps=8,
        )  # fmt: skip
        return out

    @functools.cached_property
    def groups(self) -> SegmentsMap | None:
        """The maps of groups of segments, each of a group as if it were a segment; None where there are few.

        Products of matrices wait for each other. Groups take theirs side by side, so that n segments are as long as 2 sqrt(n).
        """
        if self.segments <= FEW:
            return None
        linear, local = self._matrix_rows(None, False, self._group_size).split(
            [self._linears, prod(self.local.shape[2:])], 2
        )
        return replace(
            self,
            local=local.unflatten(2, self.local.shape[2:]),
            linear=linear.unflatten(2, self.linear.shape[2:]),  # type: ignore[union-attr]
            segments=cdiv(self.segments, self._group_size),
        )

    @property
    def _group_size(self) -> int:
        return isqrt(self.segments - 1) + 1

    def composed(self, later: Tensor, earlier: Tensor) -> Tensor:
        """The row of the steps of two rows, of which one's follow the other's."""
        p, n = self.layout, self._linears
        (A, S), (B, R) = (
            x.view(p.batch * p.heads, -1).split([n, x.shape[0] // (p.batch * p.heads) - n], 1) for x in (later, earlier)
        )
        if n == 0:
            return (S + R).flatten()
        R = R.unflatten(1, self.local.shape[2:])
        if self._matrix:
            A, B = (x.unflatten(1, self.linear.shape[2:]) for x in (A, B))  # type: ignore[union-attr]
            left, keeps = (A @ R if self.axis == 0 else R @ A.mT), (A @ B).flatten(1)
        else:
            shape = [1] * (self.local.ndim - 2)
            if self.along is not None:
                shape[self.along] = n
            elif n > 1:
                shape = list(self.local.shape[2:])
            left, keeps = A.unflatten(1, shape) * R, A * B
        return torch.cat((keeps, left.flatten(1) + S), 1).flatten()

    def entered(self, rows: Tensor, direction: int) -> tuple[Tensor, ...]:
        """What enters, from what the GPUs swept before this one sent: [GPUs, all that each sent], in the sequence's order."""
        starts = self._starts(None, rows)
        return starts.unflatten(0, (self.layout.batch, self.segments))[
            :, 0 if self.forward else self.segments - 1
        ], starts

    def _starts(self, first: Tensor | None, rows: Tensor | None) -> Tensor:
        """What enters each segment: like `local`."""
        p = self.layout
        if self.wide:
            first, rows = (first if rows is None else self._wide_entering(rows)), None
        if self._matrix:
            assert self.linear is not None
            size, sweep = None, (self.forward, self.axis)
            if not self.wide and (groups := self.groups) is not None:
                assert groups.linear is not None
                first = chained_matrix(first, groups.local, groups.linear, p, groups.segments, *sweep, rows)
                rows, size = None, self._group_size
            return chained_matrix(first, self.local, self.linear, p, self.segments, *sweep, rows, size)
        return chained_decays(first, rows, self.local, self.linear, self.along, p, self.segments, self.forward)

    def _wide_row(self, starts: bool) -> Tensor:
        """The row, by torch."""
        assert self.linear is not None
        linear, local = (x.unflatten(0, (self.layout.batch, self.segments)) for x in (self.linear, self.local))
        S = torch.zeros_like(local[:, 0]) if self.first is None or not starts else self.first
        order = list(range(self.segments)) if self.forward else list(reversed(range(self.segments)))
        identity = torch.eye(linear.shape[-1], device=S.device).expand(linear[:, 0].shape)
        keeps = torch.zeros_like(identity) if starts else swept(identity, linear, None, order, 0)[1]
        return torch.cat((keeps.flatten(2), swept(S, linear, local, order, self.axis)[1].flatten(2)), 2).flatten()

    def _wide_entering(self, rows: Tensor) -> Tensor:
        """What enters from other GPUs, by torch."""
        p, shape = self.layout, self.local.shape[1:]
        maps = rows.view(len(rows), p.batch, p.heads, -1).movedim(0, 1)
        linear = maps[..., : self._linears].unflatten(3, self.linear.shape[2:])  # type: ignore[union-attr]
        order = range(len(rows)) if self.forward else reversed(range(len(rows)))
        local = maps[..., self._linears :].unflatten(3, shape[1:])
        return swept(rows.new_zeros((p.batch, *shape)), linear, local, order, self.axis)[1]

    @property
    def wide(self) -> bool:
        return self._matrix and self._sizes[0]["ROWS"] > segment_scan.WIDEST

    @property
    def _matrix(self) -> bool:
        return self.linear is not None and self.linear.ndim == 4

    @property
    def _linears(self) -> int:
        """Numbers of the linear part in a row."""
        return 0 if self.linear is None else prod(self.linear.shape[2:])

    @property
    def _sizes(self) -> tuple[dict[str, int], tuple[int, int]]:
        """Rows and columns of a state that matrices multiply, and their strides."""
        at, other = 2 + self.axis, 3 - self.axis
        shape, strides = self.local.shape, self.local.stride()
        return {"ROWS": shape[at], "COLS": shape[other]}, (strides[at], strides[other])


def map_of_all(
    state: str,
    first: Tensor | None,
    local: Tensor,
    p: ChunkLayout,
    segments: int,
    forward: bool,
    decay: Decays | None = None,
    linear: Tensor | None = None,
    axis: int = 0,
    exact: bool = False,
) -> SegmentsMap:
    """The map of all segments together, from what each makes of zero states, and of the states.

    `linear` is given for matrices over the axis `axis` of the state, and `decay` for decays as `cumulate` has them, along that
    axis where there is one for each channel, or those of rows and those of columns; with neither, the state is kept.
    """
    along = axis if decay is not None and isinstance(decay[0], Tensor) and decay[0].ndim == 4 else None
    if decay is not None:
        linear = kept_of(decay, local, p, segments, exact)
    return SegmentsMap(state, first, local, linear, p, segments, forward, axis, along)
