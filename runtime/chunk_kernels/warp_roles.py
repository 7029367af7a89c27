"""Kernels whose warps have roles: when they take the place of others, and what they share.

They are written in Gluon, Triton's lower language, for GPUs of compute capability 9.0. A call has them where a table of measured
configurations says so (`Config.roles`), or where CHUNKFORM_ROLES is 1, and where they can do all that it asks for; otherwise it
has the kernels without roles, which are always there.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import triton

from ..launch.fixed_split import fixed
from ..launch.launch import Config, cdiv, launch, padded, roles_assumed
from ..launch.narrowing import level
from ..launch.recorder import KernelArgument, KernelOption
from ..launch.varlen import INTERVAL
from .fused_backward import movable

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        mma_v2,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )

    THERE = True
except (
    ImportError,
    AttributeError,
):  # no Triton, or one without Gluon, or with another: kernels with roles are never launched
    THERE = False

    class _Missing:
        """In the place of what isn't there: kernels are named, and never compiled."""

        def jit(self, function: object = None, **_: object) -> object:
            return function if function is not None else (lambda f: f)

        def constexpr_function(self, function: object) -> object:
            return function

    gluon = gl = mbarrier = mma_v2 = tma = fence_async_shared = warpgroup_mma = warpgroup_mma_wait = _Missing()

__all__ = [
    "accumulator",
    "barriers",
    "begun",
    "fence_async_shared",
    "gl",
    "gluon",
    "joined_config",
    "launch_fused_with_roles",
    "launch_joined",
    "launch_joined_heavy",
    "launch_joined_light",
    "launch_joined_slight",
    "launch_loaded_with_roles",
    "launch_with_roles",
    "may_join",
    "mbarrier",
    "mma_v2",
    "ring_of_numbers",
    "ring_of_tiles",
    "room",
    "swizzled",
    "tma",
    "warpgroup_mma",
    "warpgroup_mma_wait",
    "with_roles",
]

STEPS = INTERVAL  # of a chunk: as many as there are between checkpoints of states
WIDEST = (
    128  # channels of a state's axis that a program has whole. Tables name roles for no fewer: 64 by 64 weren't faster
)
TESTED = ("3.6",)  # versions of Triton whose Gluon these kernels were run with
FORCED = os.environ.get("CHUNKFORM_ROLES", "") not in ("", "0")
FUSED = True  # does what asks for roles mean the fused backward too? Comparisons put False here
JOINED = True  # and sweeps that are joined with their prologues?
FUSED_WARPS, FUSED_STAGES = 8, 2  # those of its consumer, and chunks under way at once
JOINED_STEPS, TOGETHER = 32, 2  # steps of a chunk where there is a preparer, and chunks of a stage, which has 64
JOINED_STAGES, PREPARER, JOINED_LOADER = 3, 136, 40  # its stages, registers of a thread of these roles,
HEAVY_PREPARER, HEAVY_LOADER = 152, 24  # where the preparer leaves something in memory as well,
LIGHT_PREPARER, LIGHT_LOADER = 112, 24  # where it inverts nothing,
SLIGHT_PREPARER = 96  # and where it makes one product; these load so many tiles
MANY_TILES = 2  # that there is room for these stages,
LOADED = True  # do sweeps of such a pass that have no prologue take a loader too?
LOADED_STAGES, LOADED_CHUNKS = 2, 2  # with so many stages, of so many chunks,
LOADED_LOADER = 40  # and registers of a thread of the loader
JOINED_MOST = {4: 168, 8: 128}  # and those that such a program begins with
STAGES = 3  # chunks under way at once, where nothing else was measured
LOADER = 24  # registers of a thread of the loader
MOST = {
    4: 128,
    8: 168,
}  # registers of a thread that a program begins with, by the consumer's warps: it gets what loaders leave


def with_roles(config: Config, whole: int, *tensors: torch.Tensor) -> Config:
    """The configuration of a call whose sweep has a kernel with roles: one that names it where the call may have it, or else one
    that doesn't. `whole`: the most channels of a state's axis that a program has whole; `tensors`: of which it loads tiles."""
    stages = roles_assumed() or (STAGES if FORCED else config.roles)
    if stages is None:
        return config
    if config.exact or fixed() or level() or not _fits(whole, tensors):
        return _without(config)
    return _chosen(config, stages)


def _fits(whole: int, tensors: tuple[torch.Tensor, ...]) -> bool:
    """Does a multiprocessor hold a state of this width, is it one of those that were measured to be faster, does the copy engine
    take these tensors, and is it there?"""
    if padded(whole) > WIDEST or (not FORCED and any(padded(x.shape[-1]) < WIDEST for x in tensors)):
        return False
    return _tiles(tensors)


def _tiles(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Does the copy engine take tiles of these tensors, and is it there?"""
    if len({x.dtype for x in tensors}) > 1 or not movable(*tensors):
        return False
    return all(x.shape[0] for x in tensors) and (roles_assumed() > 0 or available())


def available() -> bool:
    """Does the current GPU run kernels with roles, with this version of Triton?"""
    if not THERE or not torch.cuda.is_initialized():
        return False
    return _available(torch.cuda.current_device(), triton.__version__)


@functools.cache
def _available(device: int, version: str) -> bool:
    return version.startswith(TESTED) and torch.cuda.get_device_capability(device) == (9, 0)


@functools.cache
def _without(config: Config) -> Config:
    return replace(config, roles=None)


@functools.cache
def _chosen(config: Config, stages: int) -> Config:
    return replace(config, roles=stages, chunk=STEPS)


def launch_with_roles(
    config: Config,
    kernel: JITFunction,
    roles: JITFunction,
    words: tuple[str, str, str, str],
    grid: tuple[int],
    *args: KernelArgument,
    **options: KernelOption,
) -> None:
    """Launch the kernel `roles` where the configuration says so, or else the one without, which this is the launch of. `words`:
    what the size and the block of a state's axis are called that a program has whole, and those of the axis that it has a
    tile of."""
    if config.roles is None:
        launch(kernel, grid, *args, **options)
        return
    whole, whole_block, tiled, tile = words
    sizes = options[whole], options[tiled], options[tile]
    block, wide, warps = shape_of(sizes[0], sizes[1])  # type: ignore[arg-type]
    programs = grid[0] // cdiv(sizes[1], sizes[2]) * cdiv(sizes[1], wide)  # type: ignore[arg-type, operator]
    options = {n: x for n, x in options.items() if n != "num_stages"}
    options |= {whole_block: block, tile: wide, "STAGES": config.roles, "WARPS": warps, "LOADER_REGISTERS": LOADER}
    launch(roles, (programs,), *args, **options | {"num_warps": warps, "maxnreg": MOST[warps]})


def launch_fused_with_roles(
    config: Config,
    kernel: JITFunction,
    roles: JITFunction,
    words: tuple[str, str, str, str],
    grid: tuple[int],
    *args: KernelArgument,
    **options: KernelOption,
) -> None:
    """Launch the fused backward `roles` where the configuration names roles, or else the one without, which this is the launch
    of. `words`: what the sizes and the blocks of the state's axes are called."""
    if not _fused(config, roles, [options[words[1]], options[words[3]]], args):
        launch(kernel, grid, *args, **options)
        return
    options = {n: x for n, x in options.items() if n != "num_stages"}
    options |= {"STAGES": FUSED_STAGES, "LOADER_REGISTERS": LOADER, "maxnreg": MOST[FUSED_WARPS]}
    launch(roles, grid, *args, **options)


def joined_config(config: Config) -> Config:
    """The configuration of a pass whose sweeps are one kernel with their prologues."""
    return replace(config, roles=JOINED_STAGES if FORCED or config.roles is None else config.roles)


def may_join(config: Config, whole: int, *tensors: torch.Tensor) -> bool:
    """Does a configuration name roles for sweeps that are one kernel with their prologues, and can these do it? `whole`: the most
    channels of an axis that a program has whole; `tensors`: of which it loads tiles. Chunks, and what sums are left in, are
    those of passes that aren't joined."""
    if config.chunk != JOINED_STEPS or config.tile != 16 * config.warps:
        return False
    asked = JOINED and (FORCED or config.roles is not None)
    if not (asked or roles_assumed()) or config.exact or fixed() or level():
        return False
    return _fits(whole, tensors)


def launch_joined(
    config: Config,
    roles: JITFunction,
    words: tuple[str, str, str, str],
    grid: tuple[int],
    *args: KernelArgument,
    **options: KernelOption,
) -> None:
    """Launch the kernel `roles`, which has a preparer. `words`: what the size and the block of a state's axis are called that a
    program has whole, and those of the axis that it has a tile of."""
    _launch_joined(config, roles, words, grid, args, options, PREPARER, JOINED_LOADER, config.roles)


def launch_joined_heavy(
    config: Config,
    roles: JITFunction,
    words: tuple[str, str, str, str],
    grid: tuple[int],
    *args: KernelArgument,
    **options: KernelOption,
) -> None:
    """The same for a kernel whose preparer leaves something in memory as well."""
    _launch_joined(config, roles, words, grid, args, options, HEAVY_PREPARER, HEAVY_LOADER, MANY_TILES)


def launch_joined_light(
    config: Config,
    roles: JITFunction,
    words: tuple[str, str, str, str],
    grid: tuple[int],
    *args: KernelArgument,
    **options: KernelOption,
) -> None:
    """The same for a kernel whose preparer inverts nothing, so that more registers are left for states."""
    _launch_joined(config, roles, words, grid, args, options, LIGHT_PREPARER, LIGHT_LOADER, MANY_TILES)


def launch_joined_slight(
    config: Config,
    roles: JITFunction,
    words: tuple[str, str, str, str],
    grid: tuple[int],
    *args: KernelArgument,
    **options: KernelOption,
) -> None:
    """The same for a kernel whose preparer makes one product, and inverts nothing."""
    _launch_joined(config, roles, words, grid, args, options, SLIGHT_PREPARER, LIGHT_LOADER, MANY_TILES)


def launch_loaded_with_roles(
    config: Config,
    kernel: JITFunction,
    roles: JITFunction,
    words: tuple[str, str, str, str],
    grid: tuple[int],
    *args: KernelArgument,
    **options: KernelOption,
) -> None:
    """Launch the kernel `roles`, which makes all reads of a sweep that has no prologue, or else the one without roles, which this
    is the launch of. `words`: as `launch_joined` has them."""
    if not LOADED or options.get("READ"):
        launch(kernel, grid, *args, **options)
        return
    whole, whole_block, tiled, tile = words
    block, wide, warps = shape_of(options[whole], options[tiled])  # type: ignore[arg-type]
    programs = grid[0] // cdiv(options[tiled], options[tile]) * cdiv(options[tiled], wide)  # type: ignore[arg-type]
    options = {n: x for n, x in options.items() if n != "num_stages"}
    options |= {whole_block: block, tile: wide, "STAGES": LOADED_STAGES, "WARPS": warps, "TOGETHER": LOADED_CHUNKS}
    options |= {"PRODUCTS": False, "LOADER_REGISTERS": LOADED_LOADER, "maxnreg": MOST[warps]}
    launch(roles, (programs,), *args, **options | {"num_warps": warps})


def _launch_joined(
    config: Config,
    roles: JITFunction,
    words: tuple[str, str, str, str],
    grid: tuple[int],
    args: tuple[KernelArgument, ...],
    options: dict[str, KernelOption],
    preparer: int,
    loader: int,
    stages: int | None,
) -> None:
    whole, whole_block, tiled, tile = words
    block, wide, warps = shape_of(options[whole], options[tiled])  # type: ignore[arg-type]
    programs = grid[0] // cdiv(options[tiled], options[tile]) * cdiv(options[tiled], wide)  # type: ignore[arg-type]
    options = {n: x for n, x in options.items() if n != "num_stages"}
    options |= {whole_block: block, tile: wide, "STAGES": stages, "WARPS": warps, "TOGETHER": TOGETHER}
    options |= {"PREPARER_REGISTERS": preparer, "LOADER_REGISTERS": loader, "maxnreg": JOINED_MOST[warps]}
    launch(roles, (programs,), *args, **options | {"num_warps": warps})


def _fused(config: Config, roles: JITFunction, blocks: list[KernelOption], args: tuple[KernelArgument, ...]) -> bool:
    """Is a fused backward with roles asked for, and can it do this: of states as wide as there are registers for, of tensors of
    one dtype of two bytes?"""
    asked = FUSED and (FORCED or config.roles is not None)
    if not (asked or roles_assumed()) or config.exact or fixed() or level() or set(blocks) != {WIDEST}:
        return False
    tiles = [x for n, x in zip(roles.arg_names, args, strict=False) if n.endswith(("_p", "_checkpoints"))]
    same = {x.dtype for x in tiles if isinstance(x, torch.Tensor)}
    return len(same) == 1 and same <= {torch.bfloat16, torch.float16} and (roles_assumed() > 0 or available())


def shape_of(whole: int, tiled: int) -> tuple[int, int, int]:
    """The blocks of a state's axes in a program, and the warps that hold it: tensor cores take 64 rows of four warps."""
    wide = max(64, min(WIDEST, padded(tiled)))
    return max(64, padded(whole)), wide, wide // 16


@gluon.constexpr_function
def accumulator(rows, columns, warps):  # type: ignore[no-untyped-def]
    """Where a product [rows, columns] of so many warps lies in registers: each group of four warps has 64 rows, and where there
    are fewer rows than that for all groups, they share the columns."""
    along = min(warps, rows // 16)
    across = warps // along
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[along, across], instr_shape=[16, columns // across, 16]
    )


@gluon.constexpr_function
def swizzled(columns, dtype):  # type: ignore[no-untyped-def]
    """Where a tile of so many columns lies in shared memory, as tensor cores and the copy engine want it."""
    bits = dtype.primitive_bitwidth
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, columns * bits // 8), element_bitwidth=bits, rank=2)


@gluon.jit
def begun(left, right, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    """A product, which tensor cores begin."""
    ROWS: gl.constexpr = left.shape[0]
    COLUMNS: gl.constexpr = right.shape[1]
    none = gl.zeros([ROWS, COLUMNS], gl.float32, layout=layout)
    return warpgroup_mma(left, right, none, use_acc=False, is_async=True)


@gluon.jit
def room(DTYPE: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Shared memory of a tile."""
    return gl.allocate_shared_memory(DTYPE, [ROWS, COLUMNS], swizzled(COLUMNS, DTYPE))


@gluon.jit
def ring_of_tiles(DTYPE: gl.constexpr, STAGES: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Shared memory of a tile of each stage."""
    return gl.allocate_shared_memory(DTYPE, [STAGES, ROWS, COLUMNS], swizzled(COLUMNS, DTYPE))


@gluon.jit
def ring_of_numbers(STAGES: gl.constexpr, COUNT: gl.constexpr):  # type: ignore[no-untyped-def]
    """Shared memory of so many numbers of each stage."""
    return gl.allocate_shared_memory(gl.float32, [STAGES, COUNT], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def barriers(STAGES: gl.constexpr, ARRIVALS: gl.constexpr, READERS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Of each stage a barrier at which it is ready, once so many have filled it, and one at which it is empty, once so many have
    read it."""
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=ARRIVALS)
        mbarrier.init(empty.index(stage), count=READERS)
    return ready, empty
