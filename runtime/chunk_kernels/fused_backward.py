"""What kernels use that make all of a backward pass by the fused backward: tiles that the copy engine of a GPU moves, and sums
over them.

Such a sweep takes checkpoint intervals, INTERVAL steps each. The forward pass has left the state that enters each, so that it
has both <S before it, dS after it>, which everything that crosses its boundaries adds to, and what its own steps add.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..launch.assumed_card import card
from ..launch.launch import Config, launch, padded
from ..launch.narrowing import level
from ..launch.varlen import INTERVAL
from .chunk_layout import ChunkLayout
from .decay_gradient import between
from .indexing import grouped, place_of, some_heads
from .segment_scan import shared_memory
from .split_precision import INTERPRETED

WIDEST = 128  # channels of a state's axis
SHARED = 227 * 1024  # bytes of shared memory of a program
ROOM = 34 * 1024  # bytes of it for matrices over a block's steps, and what changes its layout
BY_PRODUCT = tl.constexpr(not INTERPRETED)


@triton.jit
def rows_of(p, X, stride, stop, R: tl.constexpr, B: tl.constexpr):
    """Tiles [R, B] of the rows from p up to `stop`, each of X numbers: zeros beyond both, where nothing is written either."""
    return tl.make_tensor_descriptor(p, [stop, X], [stride, 1], [R, B])


@triton.jit
def products(x, y):
    """x y in bfloat16, of x in float32, which is rounded, and y in bfloat16: two entries by one instruction."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 a; cvt.rn.bf16x2.f32 a, $2, $1; mul.rn.bf16x2 $0, a, $3; }",
        "=r,r,r,r", [x, y], dtype=tl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def over_rows(x, y, T, DT: tl.constexpr):
    """The sum of x y [R, C] over rows, in each row of [16, C], the least that tensor cores take; y may be None. In bfloat16 by a
    product with ones, of entries that are rounded: its error is that of one rounding, over the root of their number."""
    total = tl.zeros([16, x.shape[1]], tl.float32)
    if tl.bfloat16 == DT and BY_PRODUCT:
        if y is None:
            terms = x.to(DT)
        else:
            terms = products(x, y)
        if T > 0:  # in a region of its own, with a layout of its own
            total = tl.dot(tl.full([16, x.shape[0]], 1.0, DT), terms, total)
    else:
        total += tl.sum(x if y is None else x * y.to(tl.float32), axis=0)[None, :]
    return total


@triton.jit
def store_sums(p, x, ok):
    """Store sums of `over_rows`, of which the first row has them all, at p [C]."""
    row = tl.arange(0, x.shape[0])[:, None]
    tl.store(p[None, :] + 0 * row, x, mask=(row == 0) & ok[None, :])


@triton.jit
def total_of(x, ok):
    """The sum of such sums, of those that are `ok`."""
    row = tl.arange(0, x.shape[0])[:, None]
    return tl.sum(tl.sum(tl.where((row == 0) & ok[None, :], x, 0.0), axis=1), axis=0)


@triton.jit
def paired_states(S, dS, PARTIAL_SUMS: tl.constexpr):
    """<S, dS> in partial sums, [PARTIAL_SUMS]: with one for each warp, no warp waits for another."""
    product = tl.reshape(S.to(tl.float32) * dS, [PARTIAL_SUMS, S.shape[0] // PARTIAL_SUMS, S.shape[1]])
    return tl.sum(tl.sum(product, axis=2), axis=1)


@triton.jit
def row_sums(x, WARPS: tl.constexpr):
    """The sums of rows of x [C, C] in partial sums, [N, C], so that no warp waits for another: as many as
    `row_partial_sums` says."""
    C: tl.constexpr = x.shape[0]
    N: tl.constexpr = WARPS // 4
    return tl.trans(tl.sum(tl.reshape(x, [C, N, C // N]), axis=2))


@triton.jit
def column_sums(x, WARPS: tl.constexpr):
    """The sums of its columns likewise: as many as `column_partial_sums` says."""
    C: tl.constexpr = x.shape[0]
    N: tl.constexpr = 4 if WARPS > 4 else 1
    return tl.sum(tl.reshape(x, [N, C // N, C]), axis=1)


@triton.jit
def store_partial_sums(p, rows, columns, bh, t0, T, ok):
    """Store sums of rows [R, C], and of columns [N, C], which are subtracted, in p [B, H, R + N, T]; one of them may be None."""
    R: tl.constexpr = 0 if rows is None else rows.shape[0]
    N: tl.constexpr = 0 if columns is None else columns.shape[0]
    t = t0 + tl.arange(0, ok.shape[0])
    if R > 0:
        at = bh * (R + N) + tl.arange(0, R)
        tl.store(p + at[:, None] * T + t[None, :], rows, mask=ok[None, :])
    if N > 0:
        at = bh * (R + N) + R + tl.arange(0, N)
        tl.store(p + at[:, None] * T + t[None, :], -columns, mask=ok[None, :])


@triton.jit(do_not_specialize=["T", "chunks"])
def block_state_adjoint_kernel(
    spans, in_late, in_early, out_late, out_early, own_late, own_early, out, T, H, chunks, begins, stops,
    HEADS: tl.constexpr, N: tl.constexpr, N_LATE: tl.constexpr, N_EARLY: tl.constexpr, C: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The state-adjoint product at each step of a block, [B, T, H]; see `block_state_adjoint`."""
    b, c, h, there = some_heads(H, chunks, HEADS)
    t0, last = place_of(c, T, begins, stops, C)
    if last < 0:
        return
    m, i, bh = tl.arange(0, N), tl.arange(0, C), b * H + h
    at_boundary = tl.sum(tl.load(spans + (bh * chunks + c)[:, None] * N + m[None, :]), axis=1)
    t0 = tl.minimum(t0, t0 + last)  # as in `boundary_totals_kernel`
    t, ok = t0 + i, there[:, None] & (i <= last)[None, :]
    state_adjoint = at_boundary[:, None] + between(
        in_late, in_early, out_late, out_early, own_late, own_early, bh, t, i, last, ok, T, 1, N_LATE, N_EARLY, AT_ONCE
    )
    tl.store(out + (b * T + t)[None, :] * H + h[:, None], state_adjoint, mask=ok)


def block_state_adjoint(
    spans: torch.Tensor,
    p: ChunkLayout,
    in_late: torch.Tensor | None = None,
    in_early: torch.Tensor | None = None,
    out_late: torch.Tensor | None = None,
    out_early: torch.Tensor | None = None,
    own_late: torch.Tensor | None = None,
    own_early: torch.Tensor | None = None,
    at_once: bool = False,
) -> torch.Tensor:
    """A decay's state-adjoint product [B, T, H], float32, from what a sweep over blocks has summed for each step, [B, H, sums,
    T] or None for
    nothing: `own` are pairs inside a block, `in` reads of the state before it, `out` (negative) reads of the gradient after it.
    `spans` [B, H, blocks, sums] are the decays of each block times <S before it, dS after it>. `at_once`: early terms count for
    their own step as well.
    """
    out = spans.new_empty((p.batch, p.steps, p.heads))
    programs, heads = grouped(p, 4)
    late, early = (1 if x is None else x.shape[2] for x in (own_late, own_early))
    launch(
        block_state_adjoint_kernel, (programs,), spans, in_late, in_early, out_late, out_early, own_late, own_early, out,
        *p.at_once, HEADS=heads, N=spans.shape[-1], N_LATE=late, N_EARLY=early, C=p.chunk, AT_ONCE=at_once, num_warps=1,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["T", "chunks"])
def step_state_adjoint_kernel(
    spans, late, early, out, T, H, chunks, begins, stops, HEADS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The state-adjoint product at each step of a block, out [B, H, T]; see `step_state_adjoint`."""
    b, c, h, there = some_heads(H, chunks, HEADS)
    t0, last = place_of(c, T, begins, stops, C)
    if last < 0:
        return
    i, bh = tl.arange(0, C), b * H + h
    ok = there[:, None] & (i <= last)[None, :]
    at = bh[:, None] * T + (t0 + i)[None, :]
    at_boundary = tl.load(spans + bh * chunks + c)
    both = tl.zeros([HEADS, C], tl.float32)
    if late is not None:  # of the step before: as in `between`
        both += tl.load(late + at - 1, mask=ok & (i > 0)[None, :], other=0.0)
    if early is not None:
        both += tl.load(early + at, mask=ok, other=0.0)
    tl.store(out + at, at_boundary[:, None] - tl.cumsum(both, axis=1), mask=ok)


def step_state_adjoint(
    spans: torch.Tensor, p: ChunkLayout, late: torch.Tensor | None, early: torch.Tensor | None
) -> torch.Tensor:
    """A decay's state-adjoint product [B, T, H], float32, from what a sweep over blocks has added up for each step, in whose
    place it lies: all sums that `block_state_adjoint` takes, by `late` and `early`, each [B, H, T], or None for nothing. Pairs
    inside a block count twice, once less, so that only what crosses its boundaries is in its sum: `spans` [B, H, blocks] are that
    of `in` and the decays of each block times <S before it, dS after it>.
    """
    out = early if late is None else late
    assert out is not None
    programs, heads = grouped(p, 4)
    launch(
        step_state_adjoint_kernel, (programs,), spans, late, early, out, *p.at_once, HEADS=heads, C=p.chunk, num_warps=1,
    )  # fmt: skip
    return out.view(p.batch, p.heads, p.steps).transpose(1, 2)


def may_be_fused(config: Config, sizes: tuple[int, ...], *tensors: torch.Tensor) -> bool:
    """May one sweep over blocks make all of a backward pass: can the copy engine move these tensors [B, T, H, X], and does a
    program hold states of these sizes?"""
    if config.exact or level():
        return False
    return max(map(padded, sizes)) <= WIDEST and _has_engine() and movable(*tensors)


def _has_engine() -> bool:
    """Is the current GPU a Hopper, where this was measured, with all of its shared memory? True where no GPU is in use."""
    if (assumed := card()) is not None:
        return assumed.capability[0] == 9 and assumed.shared >= SHARED
    if not torch.cuda.is_initialized():
        return True
    device = torch.device("cuda", torch.cuda.current_device())
    return torch.cuda.get_device_capability(device)[0] == 9 and shared_memory(device) >= SHARED


def warps_of(sizes: tuple[int, ...]) -> int:
    """Warps of a sweep that holds a state of these sizes whole."""
    return 8 if max(map(padded, sizes)) > 64 else 4


def apart(warps: int) -> bool:
    """Does it leave what a block adds to a decay's gradient in partial sums? On an H200 a sweep of 8 warps takes 1.1 times as
    long otherwise, and one of 4 as long, with a number for each step in the place of four."""
    return warps > 4


def row_partial_sums(warps: int) -> int:
    """How many sums it leaves of each row of pairs inside a block: products over steps have so many warps side by side."""
    return warps // 4


def column_partial_sums(warps: int) -> int:
    """And of each column."""
    return 4 if warps > 4 else 1


def stages_of(loaded: int, state: int) -> int:
    """How many blocks are under way at once, of so many bytes for each step, where a state has so many in two bytes."""
    return 2 if 2 * INTERVAL * loaded + 2 * state + ROOM <= SHARED else 1


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x [B, T, H, X], as the copy engine takes it."""
    return x if movable(x) else x.contiguous()


def movable(*tensors: torch.Tensor) -> bool:
    """Does the copy engine take tiles of these tensors [.., X]: are rows contiguous, and begin at multiples of 16 bytes?"""
    return all(
        x.stride(-1) == 1
        and not any(s * x.element_size() & 15 for s in (x.shape[-1], *x.stride()[:-1]))
        and not x.data_ptr() & 15
        for x in tensors
    )


def in_place(checkpoints: torch.Tensor, p: ChunkLayout) -> list[torch.Tensor]:
    """Tensors [B, T, H, X] in the memory of checkpointed states, [B, blocks * R, H, X], as many as it has room for:
    what they have of a block's steps lies where its state is. Nothing where a block isn't whole."""
    B, rows, H, X = checkpoints.shape
    if not p.whole:
        return []
    count = rows // (p.chunks * p.chunk)
    blocks = checkpoints.view(B, p.steps, count, H, X)
    return [blocks[:, :, n] for n in range(count)]
