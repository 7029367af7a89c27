"""Sums that put together what several programs, or several kernels, have found."""

from __future__ import annotations

from math import prod

import torch
import triton
import triton.language as tl

from ..launch.launch import cdiv, launch

TERMS = 3  # at most
STEPS = 32  # that a program takes


@triton.jit
def term(p, i, ok):
    """The numbers at i; zeros where there is no p."""
    return tl.zeros_like(i).to(tl.float32) if p is None else tl.load(p + i, mask=ok, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["size"])
def total_kernel(a, b, c, out, size, BLOCK: tl.constexpr):
    """out = a + b + c, [size] each."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < size
    tl.store(out + i, term(a, i, ok) + term(b, i, ok) + term(c, i, ok), mask=ok)


@triton.jit
def term_of_steps(p, N: tl.constexpr, b, h, t, ok, T, H):
    """[HEADS, C] of some heads and steps: the sums of [B, H, N, T], or, where N is 0, numbers [B, T, H], or zeros for no p."""
    if N == 0:
        total = term(p, (b * T + t)[None, :] * H + h[:, None], ok)
    else:
        total = tl.zeros(ok.shape, tl.float32)
        for n in tl.static_range(N):
            total += term(p, (((b * H + h) * N + n) * T)[:, None] + t[None, :], ok)
    return total


@triton.jit(do_not_specialize=["T"])
def total_of_steps_kernel(
    x, y, z, out, T, H, N_X: tl.constexpr, N_Y: tl.constexpr, N_Z: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr
):  # fmt: skip
    """out = x + y + z, [B, T, H], of terms as `term_of_steps` has them."""
    steps, groups = tl.cdiv(T, C), tl.cdiv(H, HEADS)
    place = tl.program_id(0) // groups
    h = tl.program_id(0) % groups * HEADS + tl.arange(0, HEADS)
    b = (place // steps).to(tl.int64)
    t = place % steps * C + tl.arange(0, C)
    ok = (h < H)[:, None] & (t < T)[None, :]
    total = term_of_steps(x, N_X, b, h, t, ok, T, H) + term_of_steps(y, N_Y, b, h, t, ok, T, H)
    tl.store(out + (b * T + t)[None, :] * H + h[:, None], total + term_of_steps(z, N_Z, b, h, t, ok, T, H), mask=ok)


def total(shape: tuple[int, ...], dtype: torch.dtype, *terms: torch.Tensor) -> torch.Tensor:
    """The sum of tensors of a shape; of [B, T, H], also of sums of tiles, [B, H, tiles, T]. Sums are float32."""
    out = terms[0].new_empty(shape, dtype=dtype)
    terms = tuple(map(_by_rows, terms))
    every = [*terms, *[None] * (TERMS - len(terms))]
    if all(x.ndim == len(shape) for x in terms):
        launch(total_kernel, (cdiv(out.numel(), 1024),), *every, out, out.numel(), BLOCK=1024, num_warps=4)
        return out
    B, T, H = shape
    counts = [0 if x is None or x.ndim == 3 else x.shape[2] for x in every]
    heads = min(4, triton.next_power_of_2(H))
    launch(
        total_of_steps_kernel, (B * cdiv(T, STEPS) * cdiv(H, heads),), *every, out, T, H,
        N_X=counts[0], N_Y=counts[1], N_Z=counts[2], C=STEPS, HEADS=heads, num_warps=1,
    )  # fmt: skip
    return out


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    """x contiguous; [B, T, H] whose steps lie side by side as the sums of one tile, [B, H, 1, T]."""
    if x.is_contiguous() or x.ndim != 3:
        return x.contiguous()
    steps = x.transpose(1, 2)
    return steps[:, :, None] if steps.is_contiguous() else x.contiguous()


@triton.jit
def pair_kernel(x, y, out, R: tl.constexpr, INNER: tl.constexpr, BR: tl.constexpr, BI: tl.constexpr):
    """out = the sum of x y over the middle axis of [outer, R, INNER]."""
    blocks: tl.constexpr = (INNER + BI - 1) // BI
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    i = tl.program_id(0) % blocks * BI + tl.arange(0, BI)
    r = tl.arange(0, BR)
    sums = tl.zeros([BR, BI], tl.float32)
    for base in range(0, R, BR):
        at = outer * R * INNER + (base + r)[:, None] * INNER + i[None, :]
        ok = (base + r < R)[:, None] & (i < INNER)[None, :]
        sums += tl.load(x + at, mask=ok, other=0.0) * tl.load(y + at, mask=ok, other=0.0)
    tl.store(out + outer * INNER + i, tl.sum(sums, axis=0), mask=i < INNER)


def pair(x: torch.Tensor, y: torch.Tensor | None, dims: tuple[int, ...]) -> torch.Tensor | None:
    """<x, y> summed over the state's axes `dims` (of -2 and -1), for two states [N, H, ...] in float32; None where y is."""
    if y is None:
        return None
    if not dims:
        return x * y
    last = max(dims)
    R = prod(x.shape[d] for d in dims)
    inner = prod(x.shape[last + 1 :]) if last < -1 else 1
    out = x.new_empty([n for d, n in enumerate(x.shape, -x.ndim) if d not in dims])
    BI = min(32, triton.next_power_of_2(inner))
    BR = min(triton.next_power_of_2(R), 16384 // BI)
    launch(
        pair_kernel, (x.numel() // (R * inner) * cdiv(inner, BI),), x.contiguous(), y.contiguous(), out,
        R=R, INNER=inner, BR=BR, BI=BI, num_warps=max(1, min(16, BR * BI // 1024)),
    )  # fmt: skip
    return out


@triton.jit
def head_sums_kernel(x, out, rows, N, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out = the sums of x, [rows, GROUP, N], over each group, [rows, N]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = (row < rows)[:, None] & (i < N)[None, :]
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for n in tl.static_range(GROUP):
        sums += tl.load(x + (row * GROUP + n)[:, None] * N + i[None, :], mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row[:, None] * N + i[None, :], sums, mask=ok)


def head_sums(x: torch.Tensor, axis: int, heads: int, dtype: torch.dtype) -> torch.Tensor:
    """The sums over the heads of each group, added up in float32: of a contiguous x with groups' heads beside each other on an
    axis, what is left has `heads` there."""
    group, size = x.shape[axis] // heads, prod(x.shape[axis + 1 :])
    out = x.new_empty((*x.shape[:axis], heads, *x.shape[axis + 1 :]), dtype=dtype)
    rows, block = prod(x.shape[:axis]) * heads, min(256, triton.next_power_of_2(size))
    at_once = max(1, 2048 // block)
    grid = (cdiv(rows, at_once), cdiv(size, block))
    launch(head_sums_kernel, grid, x, out, rows, size, GROUP=group, ROWS=at_once, BLOCK=block, num_warps=4)
    return out
