"""Sums that put together what several programs, or several kernels, have found."""

from __future__ import annotations

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
