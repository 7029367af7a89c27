"""What enters each segment of a sequence: a scan over the maps, S to kept * S + local or linear @ S + local, of those before."""

import functools
from collections.abc import Iterable
from math import prod

import torch
import triton
import triton.language as tl

from ..launch.launch import cdiv, launch, padded
from .chunk_layout import ChunkLayout
from .decays import Decays
from .indexing import segment_of

WIDEST = 128  # rows of a matrix that kernels multiply states by: more don't fit into shared memory, and torch does it
MAPS_AT_ONCE = tl.constexpr(8)  # segments whose maps are loaded at once


@triton.jit(do_not_specialize=["T", "segments", "length"])
def kept_kernel(
    a, n, kept, T, H, segments, length,
    X: tl.constexpr, C: tl.constexpr, BX: tl.constexpr, STEPS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The decays of each segment of the sequences, [B * segments, H, X]."""
    sh = tl.program_id(0).to(tl.int64)
    b, _, begin, stop, _ = segment_of(sh // H, T, None, segments, length, C)
    bh = b * H + sh % H
    c = tl.arange(0, 16)
    x = tl.arange(0, BX)
    sums = tl.zeros([BX], tl.float32)
    for base in range(0, tl.cdiv(tl.maximum(stop - begin, 0), C).to(tl.int32), 16):
        t = tl.minimum(begin + (base + c + 1) * C, stop) - 1
        ok = (begin + (base + c) * C < stop)[:, None] & (x < X)[None, :]
        row = bh * T + t if STEPS else (b * T + t) * H + sh % H
        at = row[:, None] * X + x[None, :]
        sums += tl.sum(tl.load(a + at, mask=ok, other=0.0), axis=0)
        if EXACT:
            sums += tl.sum(tl.load(n + at, mask=ok, other=0.0), axis=0)
    tl.store(kept + sh * X + x, tl.exp2(sums), mask=x < X)


@triton.jit
def decays_of(kept, i, ok, COLS: tl.constexpr, ALONG: tl.constexpr):
    """What is kept of entry i of a state of COLS columns: one number (ALONG = 1), or one for each row (2) or column."""
    if ALONG == 1:
        k = tl.load(kept)
    else:
        k = tl.load(kept + (i // COLS if ALONG == 2 else i % COLS), mask=ok, other=0.0)
    return k


@triton.jit
def place_in(sh, m, H, segments, FORWARD: tl.constexpr):
    """Where the m-th segment that is swept, of a batch entry and head, lies in [N * segments, H]."""
    m = tl.minimum(m, segments - 1)
    return ((sh // H) * segments + (m if FORWARD else segments - 1 - m)) * H + sh % H


@triton.jit
def map_of(
    sh, m, local, kept, i, ok, H, segments,
    SIZE: tl.constexpr, COLS: tl.constexpr, LINEARS: tl.constexpr, ALONG: tl.constexpr, FORWARD: tl.constexpr,
):  # fmt: skip
    """(k, x) of the m-th segment that is swept: it takes entry i of S to k S + x. Nothing changes beyond the last segment."""
    at, there = place_in(sh, m, H, segments, FORWARD), m < segments
    x = tl.load(local + at * SIZE + i, mask=ok & there, other=0.0)
    if ALONG == 0:
        k = 1.0
    else:
        k = tl.where(there, decays_of(kept + at * LINEARS, i, ok, COLS, ALONG), 1.0)
    return k, x


@triton.jit(do_not_specialize=["ranks", "rank_step", "segments"])
def chain_kernel(
    first, rows, ranks, rank_step, local, kept, out, H, segments,
    ROWS: tl.constexpr, COLS: tl.constexpr, LINEARS: tl.constexpr, ALONG: tl.constexpr, FORWARD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out_p = what enters segment p: S, then kept * S + local for the next; local and out are [N * segments, H, ROWS, COLS].

    S begins as `first` [N, H, ROWS, COLS], or as what `rows` of the GPUs before this one make of zero: for each the LINEARS
    numbers that it keeps of S, and what it adds. Some segments are loaded together, since a load takes longer than the rest.
    """
    sh = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size: tl.constexpr = ROWS * COLS
    ok = i < size
    S = tl.zeros([BLOCK], tl.float32)
    if first is not None:
        S += tl.load(first + sh * size + i, mask=ok, other=0.0)
    if rows is not None:
        for m in range(ranks):
            rank = tl.cast(m if FORWARD else ranks - 1 - m, tl.int64)
            row = rows + rank * rank_step + sh * (LINEARS + size)
            if ALONG > 0:
                S *= decays_of(row, i, ok, COLS, ALONG)
            S += tl.load(row + LINEARS + i, mask=ok, other=0.0)
    for m in range(0, segments, MAPS_AT_ONCE):
        maps = ()
        for j in tl.static_range(MAPS_AT_ONCE):
            maps = maps + (map_of(sh, m + j, local, kept, i, ok, H, segments, size, COLS, LINEARS, ALONG, FORWARD),)
        for j in tl.static_range(MAPS_AT_ONCE):
            tl.store(out + place_in(sh, m + j, H, segments, FORWARD) * size + i, S, mask=ok & (m + j < segments))
            S = maps[j][0] * S + maps[j][1]


@triton.jit(do_not_specialize=["ranks", "rank_step", "segments", "groups", "group_size"])
def chain_matrix_kernel(
    first, rows, ranks, rank_step, local, local_step, linear, linear_step, across, down, out, H, segments, groups, group_size,
    row_stride, column_stride,
    ROWS: tl.constexpr, COLS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, FORWARD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As `chain_kernel`, where a segment takes S to linear @ S + local; linear is [N * segments, H, ROWS, ROWS], of these
    strides. Groups of segments begin by themselves, where `first` [N * groups, H, ..] has what enters each."""
    sh = tl.program_id(0).to(tl.int64) // groups
    group = tl.program_id(0) % groups
    low, high = group * group_size, tl.minimum((group + 1) * group_size, segments)
    r = tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    square = (r < ROWS)[:, None] & (r < ROWS)[None, :]
    ok = (r < ROWS)[:, None] & (c < COLS)[None, :]
    place = r[:, None] * row_stride + c[None, :] * column_stride
    S = tl.zeros([BR, BC], tl.float32)
    if first is not None:
        S += tl.load(first + place_in(sh, group, H, groups, FORWARD) * ROWS * COLS + place, mask=ok, other=0.0)
    if rows is not None:
        for m in range(ranks):
            rank = tl.cast(m if FORWARD else ranks - 1 - m, tl.int64)
            row = rows + rank * rank_step + sh * (ROWS * ROWS + ROWS * COLS)
            A = tl.load(row + r[:, None] * ROWS + r[None, :], mask=square, other=0.0)
            S = tl.dot(A, S, tl.load(row + ROWS * ROWS + place, mask=ok, other=0.0), input_precision="tf32x3")
    zeros = 1 if first is None and rows is None else 0  # segments that zeros enter, which need no product
    if zeros:
        at = place_in(sh, low, H, segments, FORWARD)
        tl.store(out + at * ROWS * COLS + place, S, mask=ok)
        S = tl.load(local + at * local_step + place, mask=ok, other=0.0)
    for m in tl.range(low + zeros, high - 1, num_stages=STAGES):
        at = place_in(sh, m, H, segments, FORWARD)
        tl.store(out + at * ROWS * COLS + place, S, mask=ok)
        A = tl.load(linear + at * linear_step + r[:, None] * across + r[None, :] * down, mask=square, other=0.0)
        S = tl.dot(A, S, tl.load(local + at * local_step + place, mask=ok, other=0.0), input_precision="tf32x3")
    if high > low + zeros:
        tl.store(out + place_in(sh, high - 1, H, segments, FORWARD) * ROWS * COLS + place, S, mask=ok)


def chained(
    first: torch.Tensor | None,
    local: torch.Tensor,
    p: ChunkLayout,
    segments: int,
    forward: bool,
    decay: Decays | None = None,
    along: int | None = None,
    exact: bool = False,
) -> torch.Tensor:
    """What enters each segment of the sequences: states [N * segments, H, ...], from those that enter the first (or last) one.

    `local` is what each segment makes of zero states. `decay` are cumulative sums and what they leave, as `cumulate` has
    them, which run `along` an axis of the state, or none.
    """
    kept = None if decay is None else kept_of(decay, local, p, segments, exact)
    return chained_decays(first, None, local, kept, along, p, segments, forward)


def chained_decays(
    first: torch.Tensor | None,
    rows: torch.Tensor | None,
    local: torch.Tensor,
    kept: torch.Tensor | None,
    along: int | None,
    p: ChunkLayout,
    segments: int,
    forward: bool,
) -> torch.Tensor:
    """As `chained`, from all decays of each segment, [N * segments, H, X] or None; and from `rows` of the GPUs before, or
    None."""
    sizes, block = state_sizes(local, kept, along)
    before = (0, 0) if rows is None else (rows.shape[0], rows.stride(0))
    out = torch.empty_like(local)
    launch(
        chain_kernel, (p.sequences * p.heads, cdiv(sizes["ROWS"] * sizes["COLS"], block)), first, rows, *before, local, kept,
        out, p.heads, segments, **sizes, FORWARD=forward, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


def state_sizes(local: torch.Tensor, kept: torch.Tensor | None, along: int | None) -> tuple[dict[str, int], int]:
    """What kernels need to know of states [N, H, ...] and their decays, and how much of a state a program has."""
    rows, columns = (*local.shape[2:], 1, 1)[:2]
    if kept is not None and along is None and kept.shape[2] > 1:  # one for each entry, as if these were rows
        rows, columns, along = rows * columns, 1, 0
    how = 0 if kept is None else 1 if along is None else 2 + along
    block = min(1024, triton.next_power_of_2(rows * columns))
    return {"ROWS": rows, "COLS": columns, "LINEARS": 0 if kept is None else prod(kept.shape[2:]), "ALONG": how}, block


def kept_of(decay: Decays, local: torch.Tensor, p: ChunkLayout, segments: int, exact: bool) -> torch.Tensor:
    """All decays of each segment, [N * segments, H, X]; X is 1 for one decay a step, all entries where rows and columns decay."""
    if not isinstance(decay[0], torch.Tensor):
        rows, columns = (kept_of(x, local, p, segments, exact) for x in decay)  # type: ignore[arg-type]
        return (rows[..., :, None] * columns[..., None, :]).flatten(2)
    a, n = decay
    X = a.shape[3] if a.ndim == 4 else 1
    kept = local.new_empty((*local.shape[:2], X))
    launch(
        kept_kernel, (local.shape[0] * p.heads,), a, n, kept, p.steps, p.heads, segments, p.length(segments),
        X=X, C=p.chunk, BX=triton.next_power_of_2(X), STEPS=a.ndim == 3, EXACT=exact, num_warps=1,
    )  # fmt: skip
    return kept


def chained_matrix(
    first: torch.Tensor | None,
    local: torch.Tensor,
    linear: torch.Tensor,
    p: ChunkLayout,
    segments: int,
    forward: bool,
    along: int,
    before: torch.Tensor | None = None,
    group_size: int | None = None,
) -> torch.Tensor:
    """As `chained`, where a segment multiplies the axis `along` of the state by a matrix, `linear` [N * segments, H, row, row],
    which may be a transposed view.

    `before` are the rows of the GPUs before this one, or None. Where groups of `group_size` segments begin by themselves,
    `first` [N * groups, H, ...] has what enters each.
    """
    rows, columns = local.shape[2 + along], local.shape[3 - along]
    if rows > WIDEST:
        order = range(segments) if forward else reversed(range(segments))
        own = local.unflatten(0, (p.sequences, segments))
        S = torch.zeros_like(own[:, 0]) if first is None else first
        entered = swept(S, linear.unflatten(0, (p.sequences, segments)), own, order, along)[0]
        return torch.stack([entered[n] for n in range(segments)], 1).flatten(0, 1)
    strides_of = local.stride()[2 + along], local.stride()[3 - along]
    ranks = (0, 0) if before is None else (before.shape[0], before.stride(0))
    group_size = group_size or segments
    groups = cdiv(segments, group_size)
    out = local.new_empty(local.shape)
    launch(
        chain_matrix_kernel, (p.sequences * p.heads * groups, cdiv(columns, 16)), first, before, *ranks,
        local, local.stride(0) // p.heads, linear, linear.stride(0) // p.heads, *linear.stride()[2:], out, p.heads,
        segments, groups, group_size,
        *strides_of, ROWS=rows, COLS=columns, BR=padded(rows), BC=16, FORWARD=forward,
        STAGES=3 if shared_memory(local.device) >= 160 * 1024 else 1, num_warps=8,
    )  # fmt: skip
    return out


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have on this device, as Triton knows it; 0 where there is no GPU."""
    if device.type != "cuda":
        return 0
    return triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]


def swept(
    S: torch.Tensor, linear: torch.Tensor, local: torch.Tensor | None, order: Iterable[int], along: int
) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
    """What enters each segment, and what leaves the last in `order`; segments are axis 1 of the matrices and of `local`."""
    entered = {}
    for n in order:
        entered[n], A = S, linear[:, n]
        S = A @ S if along == 0 else (A @ S.mT).mT
        S = S if local is None else S + local[:, n]
    return entered, S
