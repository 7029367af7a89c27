"""What kernels in Gluon call whose tiles are copied to shared memory ahead of time: copies, products, and sums with decays for
each channel over the steps of a chunk, as `decays.py` has them for a small decay range and operands of two bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..launch.fixed_split import fixed
from ..launch.launch import Config, launch, roles_assumed
from ..launch.narrowing import level
from ..launch.recorder import KernelArgument, KernelOption
from . import decays, indexing, split_precision, warp_roles
from .fused_backward import movable
from .warp_roles import (
    accumulator,
    available,
    fence_async_shared,
    gl,
    gluon,
    room,
    warpgroup_mma,
    warpgroup_mma_wait,
)

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

try:
    from triton.experimental.gluon.language.nvidia.ampere import async_copy
except (ImportError, AttributeError):
    async_copy = gl

__all__ = [
    "added_sum_gluon",
    "chunk_of_gluon",
    "copied_layout",
    "copies_awaited",
    "copy_begun",
    "diagonal_gluon",
    "from_start_gluon",
    "from_state_gluon",
    "later_sums_gluon",
    "launch_placed",
    "over_block_gluon",
    "place_of_gluon",
    "product_awaited",
    "stored_layout",
    "to_start_gluon",
]

PLACED = True  # may kernels take the place of others whose tiles are copied ahead of time? Comparisons put False here
TILE, WHOLE = 64, (64, 128)  # channels of a tile, and of an axis that a program has whole, that they were run with
PLACED_WARPS = 4


def launch_placed(
    config: Config,
    kernel: JITFunction,
    placed: JITFunction,
    words: tuple[str, ...],
    grid: tuple[int],
    *args: KernelArgument,
    **options: KernelOption,
) -> None:
    """Launch the kernel `placed`, whose tiles are copied ahead of time, where the configuration names kernels in Gluon, or else
    the one that this is the launch of. `words`: what the sizes and the blocks of the axes are called, of that in tiles last; then
    the tensors of which tiles are copied."""
    by_name = dict(zip(placed.arg_names, args, strict=False))
    if not _placed(config, (options[words[1]], options[words[3]]), [by_name[n] for n in words[4:]]):
        launch(kernel, grid, *args, **options)
        return
    options = {n: x for n, x in options.items() if n not in ("num_stages", "maxnreg")}
    launch(placed, grid, *args, **options | {"WARPS": PLACED_WARPS, "num_warps": PLACED_WARPS})


def _placed(config: Config, blocks: tuple[KernelOption, KernelOption], tiles: list[KernelArgument]) -> bool:
    """Is such a kernel asked for, and can it do this: of tiles as wide as those it was run with, of tensors of one dtype of two
    bytes, whose rows are copied 16 bytes at once?"""
    asked = PLACED and (warp_roles.FORCED or config.roles is not None)
    if not (asked or roles_assumed()) or config.exact or fixed() or level():
        return False
    if blocks[0] not in WHOLE or blocks[1] != TILE:
        return False
    tensors = [x for x in tiles if isinstance(x, torch.Tensor)]
    if {x.dtype for x in tensors} not in ({torch.bfloat16}, {torch.float16}):
        return False
    return movable(*tensors) and (roles_assumed() > 0 or available())


def _in_gluon(function):  # type: ignore[no-untyped-def]
    """A function of Triton that says nothing of where tiles lie, for kernels in Gluon."""
    return gluon.jit(getattr(function, "fn", function))


chunk_of_gluon = _in_gluon(indexing.chunk_of)
place_of_gluon = _in_gluon(indexing.place_of)
over_block_gluon = _in_gluon(decays.over_block)
from_start_gluon = _in_gluon(decays.from_start)
to_start_gluon = _in_gluon(decays.to_start)
_rounded_and_rest = _in_gluon(split_precision.rounded_and_rest)


@gluon.constexpr_function
def copied_layout(rows, columns, dtype, warps):  # type: ignore[no-untyped-def]
    """Which entries of a tile in memory each thread copies, or stores: 16 bytes of a row at once."""
    each = 128 // dtype.primitive_bitwidth
    across = min(32, columns // each)
    return gl.BlockedLayout([1, each], [32 // across, across], [warps, 1], [1, 0])


@gluon.constexpr_function
def stored_layout(rows, columns, dtype, warps):  # type: ignore[no-untyped-def]
    """Where a tile lies in registers when it is stored: entries of four bytes as tensor cores leave them, of two as they are
    copied."""
    return (
        accumulator(rows, columns, warps)
        if dtype.primitive_bitwidth == 32
        else copied_layout(rows, columns, dtype, warps)
    )


@gluon.jit
def copy_begun(place, pointers, mask):  # type: ignore[no-untyped-def]
    """A tile comes from memory to its place, zero where the mask doesn't hold."""
    async_copy.async_copy_global_to_shared(place, pointers, mask=mask)
    async_copy.commit_group()


@gluon.jit
def copies_awaited(UNDER_WAY: gl.constexpr):  # type: ignore[no-untyped-def]
    """All copies are there but for those that began last."""
    async_copy.wait_group(UNDER_WAY)
    fence_async_shared()


@gluon.jit
def product_awaited(x, UNDER_WAY: gl.constexpr):  # type: ignore[no-untyped-def]
    """A product, once it is there; so many that began after it may go on."""
    return warpgroup_mma_wait(UNDER_WAY, deps=(x,))


@gluon.jit
def hidden_zero(T):  # type: ignore[no-untyped-def]
    """Zero, as there are fewer steps than that, which the assembler doesn't know. That of CUDA 12.8 loses constants in registers
    that several products have as their left operand, such as what order leaves of a matrix over steps: it sets them before the
    last of these products alone."""
    return (T & 0x40000000).to(gl.int32)


@gluon.jit
def from_state_gluon(x, DT: gl.constexpr):  # type: ignore[no-untyped-def]
    """What reads take of the state at a chunk's start, for `added_sum_gluon` to be added to: as `from_state` has it."""
    return x * (0.015625 if gl.float16 == DT else 8.881784197001252e-16)


@gluon.jit
def added_sum_gluon(total, p, writer, T, FORWARD: gl.constexpr, DIAGONAL: gl.constexpr, DT: gl.constexpr):  # type: ignore[no-untyped-def]
    """total + sum_j p_ij writer_jx over the steps j before i, or after it, in parts as `added_product` has them. T is a number of
    steps."""
    of: gl.constexpr = total.type.layout
    C: gl.constexpr = writer.shape[0]
    X: gl.constexpr = writer.shape[1]
    high, low = _rounded_and_rest(writer, DT)
    wide, rest = room(DT, C, X), room(DT, C, X)
    wide.store(high)
    rest.store(low)
    fence_async_shared()
    i = gl.arange(0, C, layout=gl.SliceLayout(1, p.type.layout))[:, None] + hidden_zero(T)
    j = gl.arange(0, C, layout=gl.SliceLayout(0, p.type.layout))[None, :]
    after = i - j if FORWARD else j - i
    high, low = _rounded_and_rest(gl.where(after >= 0 if DIAGONAL else after > 0, p, 0.0), DT)
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of, k_width=2)
    high = gl.convert_layout(high, left)
    low = gl.convert_layout(low, left)
    total = warpgroup_mma(high, wide, total, is_async=True)
    total = warpgroup_mma(high, rest, total, is_async=True)
    total = warpgroup_mma(low, wide, total, is_async=True)
    return warpgroup_mma_wait(0, deps=(total,))


@gluon.jit
def diagonal_gluon(p, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    """What stands on the diagonal of a matrix over the steps of a chunk."""
    i = gl.arange(0, p.shape[0], layout=gl.SliceLayout(1, p.type.layout))
    j = gl.arange(0, p.shape[1], layout=gl.SliceLayout(0, p.type.layout))
    return gl.convert_layout(gl.sum(gl.where(i[:, None] == j[None, :], p, 0.0), axis=1), layout)


@gluon.jit
def later_sums_gluon(x, T):  # type: ignore[no-untyped-def]
    """For each row of x [C, X] the sum of it and of those after it: products with ones, of x in three parts. T is a number of
    steps."""
    of: gl.constexpr = x.type.layout
    C: gl.constexpr = x.shape[0]
    X: gl.constexpr = x.shape[1]
    high, low = _rounded_and_rest(x, gl.bfloat16)
    first, second, third = room(gl.bfloat16, C, X), room(gl.bfloat16, C, X), room(gl.bfloat16, C, X)
    first.store(low)
    second.store(high)
    third.store((x - high.to(gl.float32) - low.to(gl.float32)).to(gl.bfloat16))
    fence_async_shared()
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of, k_width=2)
    i = gl.arange(0, C, layout=gl.SliceLayout(1, left)) + hidden_zero(T)
    j = gl.arange(0, C, layout=gl.SliceLayout(0, left))
    ones = gl.where(i[:, None] <= j[None, :], 1.0, 0.0).to(gl.bfloat16)
    sums = gl.zeros([C, X], gl.float32, layout=of)
    sums = warpgroup_mma(ones, third, sums, is_async=True)
    sums = warpgroup_mma(ones, first, sums, is_async=True)
    sums = warpgroup_mma(ones, second, sums, is_async=True)
    return warpgroup_mma_wait(0, deps=(sums,))
