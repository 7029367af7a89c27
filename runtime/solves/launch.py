"""What generated kernels of solves share: a step of conjugate gradients, configurations, whether the interpreter runs them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..chunk_kernels.split_precision import widened
from ..launch.launch import padded

CONVERGED = tl.constexpr(
    1e-18
)  # the square of a residual, over that of the right side, that is less than float32 rounds off


@dataclass(frozen=True)
class SolveConfig:
    """Steps per chunk, width of the tile of the sweep that keeps states, and how the kernel of the solves is launched."""

    chunk: int
    tile: int
    warps: int
    stages: int


def solve_config(dtype: torch.dtype, size: int) -> SolveConfig:
    """The configuration for a shape class. Never keyed on T."""
    block = padded(size)
    if block <= 64:
        return SolveConfig(chunk=64, tile=block, warps=4, stages=1)
    if block <= 128:
        return SolveConfig(chunk=64, tile=64, warps=4, stages=1)
    return SolveConfig(chunk=32, tile=32, warps=8, stages=1)


def strides3(x: torch.Tensor) -> tuple[int, int, int]:
    """Strides of the batch, time and head axes of [B, T, H, ...]."""
    return x.stride(0), x.stride(1), x.stride(2)


@triton.jit
def over_root(r, square):
    """The rows of r over the square roots of `square`, such as those of their own sums of squares; 0 where that is 0."""
    return r * tl.where(square > 0.0, tl.rsqrt(square), 0.0)[:, None]


@triton.jit
def conjugate_step(x, r, p, hp, delta, rest):
    """(x, r, next p in float32, delta) after one step of conjugate gradients for the rows of x, each a solve of its own.

    r is what is left of the right side, delta = <r, r>, hp the matrix times p, and p the direction over the norm of r, rounded:
    it keeps its size while r becomes smaller than float16 goes. A row whose delta is at most `rest` stays as it is, as does one
    along whose direction the matrix isn't positive.
    """
    curvature = tl.sum(widened(p) * hp, axis=1)
    active = (delta > rest) & (curvature > 0.0)
    alpha = tl.where(active, tl.sqrt(delta) / tl.where(active, curvature, 1.0), 0.0)
    r -= alpha[:, None] * hp
    new = tl.where(active, tl.sum(r * r, axis=1), delta)
    turned = tl.where(active, new * tl.rsqrt(tl.where(active, delta, 1.0)), 0.0)
    along = widened(p)
    x += alpha[:, None] * along
    return x, r, over_root(r + turned[:, None] * along, new), new


@triton.jit
def relative(delta, size):
    """The norm of what is left over that of the right side, from their squares; 0 for a right side of 0."""
    return tl.sqrt(delta / tl.where(size > 0.0, size, 1.0))
