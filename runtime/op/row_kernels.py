"""Rows of a pool read and written by one kernel each: small numbers are widened on the way, and rounded on the way back.

A pool is seen as [P, H, N, E]: N rows of E entries of a head, which lie side by side. Scales are [P, H, N].
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..chunk_kernels.small_numbers import store_small, uniform
from ..launch.launch import cdiv, launch

ENTRIES = 4096  # of a program
WIDEST = 8192  # entries of a row that a program holds
FLOAT8 = (8, 9)  # the first GPUs that know float8
SMALL = (torch.int8, torch.float8_e4m3fn)


@triton.jit
def read_kernel(
    pool_p, pool_b, pool_h,
    scales_p,
    rows_p,
    found_p,
    H, N, E,
    LINES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Some lines of one row; zeros for padding."""
    entry = tl.program_id(1).to(tl.int64)
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    e = tl.arange(0, WIDTH)
    row = tl.load(rows_p + entry).to(tl.int64)
    inside = (line < H * N)[:, None] & (e < E)[None, :]
    real = inside & (row >= 0)
    at = row * pool_b + (line // N).to(tl.int64) * pool_h + (line % N).to(tl.int64) * E
    x = tl.load(pool_p + at[:, None] + e[None, :], mask=real, other=0.0)
    if scales_p is not None:
        scale = tl.load(scales_p + row * H * N + line, mask=(line < H * N) & (row >= 0), other=0.0)
        x = x.to(tl.float32) * scale[:, None]
    tl.store(found_p + (entry * H * N + line)[:, None] * E + e[None, :], x.to(found_p.dtype.element_ty), mask=inside)


@triton.jit
def write_kernel(
    state_p,
    pool_p, pool_b, pool_h,
    scales_p,
    rows_p,
    seed_p,
    H, N, E,
    LINES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Some lines of one row, unless it is padding. With a seed they are rounded at random."""
    entry = tl.program_id(1).to(tl.int64)
    row = tl.load(rows_p + entry).to(tl.int64)
    if row >= 0:
        line = tl.program_id(0) * LINES + tl.arange(0, LINES)
        e = tl.arange(0, WIDTH)
        known = (line < H * N)[:, None]
        inside = known & (e < E)[None, :]
        own = line[:, None] * E + e[None, :]  # within the row
        x = tl.load(state_p + entry * H * N * E + own, mask=inside, other=0.0)
        seed = 0
        if seed_p is not None:
            seed = (tl.load(seed_p) + entry * 0x9E3779B1).to(tl.int32)
        if scales_p is not None:  # its rows lie side by side
            scales_at = scales_p + row * H * N + line[:, None]
            store_small(pool_p + row * pool_b, own, x.to(tl.float32), inside, scales_at, known, seed_p, seed, 1)
        else:
            at = row * pool_b + (line // N).to(tl.int64)[:, None] * pool_h + (line % N)[:, None] * E + e[None, :]
            if seed_p is not None:
                x = at_random(x.to(tl.float32), own, seed)
            tl.store(pool_p + at, x.to(pool_p.dtype.element_ty), mask=inside)


@triton.jit
def at_random(x, offsets, seed):
    """x with sixteen bits behind those that bfloat16 keeps, which are zero, and the kept ones up by one as often as x lies up."""
    noise = ((uniform(offsets, seed) + 0.5) * 65536.0).to(tl.int32)
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + noise) & -65536).to(tl.float32, bitcast=True)
    return tl.where((bits & 0x7F800000) == 0x7F800000, x, rounded)


def read(pool: Tensor, scales: Tensor | None, rows: Tensor, dtype: torch.dtype) -> Tensor | None:
    """[B, H, ..] in this dtype, zero for padding; None where the kernel doesn't take it."""
    if not _taken(pool, scales, rows):
        return None
    found = torch.empty((rows.shape[0], *pool.shape[1:]), dtype=dtype, device=pool.device)
    sizes, grid, how = _cut(pool, rows)
    launch(read_kernel, grid, pool, *pool.stride()[:2], scales, rows, found, *sizes, **how)
    return found


def write(pool: Tensor, scales: Tensor | None, state: Tensor, rows: Tensor, at_random: bool) -> bool:
    """The state into its rows, rounded. Whether the kernel takes it: else nothing is written."""
    if not _taken(pool, scales, rows) or type(state) is not Tensor or state.device != pool.device:
        return False
    if scales is not None and not pool.is_contiguous():
        return False
    sizes, grid, how = _cut(pool, rows)
    seed = torch.randint(0, 1 << 31, (1,), dtype=torch.int32, device=pool.device) if at_random else None
    launch(write_kernel, grid, state.contiguous(), pool, *pool.stride()[:2], scales, rows, seed, *sizes, **how)
    return True


def _cut(pool: Tensor, rows: Tensor) -> tuple[tuple[int, int, int], tuple[int, int], dict[str, int]]:
    """(H, N, E), the grid, and how much a program has."""
    entries = pool.shape[-1] if pool.dim() > 2 else 1
    count = math.prod(pool.shape[2:-1]) if pool.dim() > 2 else 1
    width = triton.next_power_of_2(max(1, entries))
    lines = max(1, ENTRIES // width)
    sizes = pool.shape[1], count, entries
    return sizes, (cdiv(sizes[0] * count, lines), rows.shape[0]), {"LINES": lines, "WIDTH": width, "num_warps": 4}


def _taken(pool: Tensor, scales: Tensor | None, rows: Tensor) -> bool:
    """Do the kernels take these?"""
    given = [x for x in (pool, scales, rows) if x is not None]
    if any(type(x) is not Tensor or x.device != pool.device for x in given) or not on_kernels(pool):
        return False
    inner = pool.dim() < 3 or pool[:1, :1].is_contiguous()
    wide = pool.shape[-1] if pool.dim() > 2 else 1
    return inner and rows.is_contiguous() and wide <= WIDEST and (scales is None or scales.is_contiguous())


def on_kernels(pool: Tensor) -> bool:
    """On a GPU, where nothing traces; a compiler of torch's fuses the torch form itself."""
    if not pool.is_cuda or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return pool.dtype != torch.float8_e4m3fn or torch.cuda.get_device_capability(pool.device) >= FLOAT8
