"""Sums that put together what several programs, or several kernels, have found."""

from __future__ import annotations

from math import prod

import torch
import triton
import triton.language as tl

from .launch import cdiv, launch

TERMS = 3  # at most


@triton.jit
def term(p, i, ok, N: tl.constexpr):
    """The sums of N neighbours each, at i; zeros where there is no p."""
    if p is None:
        x = tl.zeros_like(i).to(tl.float32)
    elif N == 1:
        x = tl.load(p + i, mask=ok, other=0.0).to(tl.float32)
    else:
        n = tl.arange(0, triton.next_power_of_2(N))
        all_of = tl.load(p + i[:, None] * N + n[None, :], mask=ok[:, None] & (n < N)[None, :], other=0.0)
        x = tl.sum(all_of.to(tl.float32), axis=1)
    return x


@triton.jit(do_not_specialize=["size"])
def total_kernel(
    a, b, c, out, size, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """out = a + b + c, [size] each; [size, A] and so on for terms that are summed themselves."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < size
    tl.store(out + i, term(a, i, ok, A) + term(b, i, ok, B) + term(c, i, ok, C), mask=ok)


def total(shape: tuple[int, ...], dtype: torch.dtype, *terms: torch.Tensor) -> torch.Tensor:
    """The sum of contiguous tensors of a shape, each perhaps with one more axis, which is summed over. Sums are float32."""
    out = terms[0].new_empty(shape, dtype=dtype)
    counts = [x.shape[-1] if x.ndim > len(shape) else 1 for x in terms]
    missing = TERMS - len(terms)
    block = 1024 if max(counts) == 1 else 256
    launch(
        total_kernel, (cdiv(out.numel(), block),), *terms, *[None] * missing, out, out.numel(),
        **dict(zip("ABC", [*counts, *[1] * missing], strict=True)), BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


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
