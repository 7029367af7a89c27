"""Numbers of each step, laid out so that kernels which sweep over the steps of one head load them at once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..launch.launch import cdiv, launch, strides

STEPS = 128  # that a program takes
HEADS = 16  # at most


@triton.jit(do_not_specialize=["T"])
def by_head_kernel(x, x_b, x_t, x_h, x_g, out, T, H, STEPS: tl.constexpr, HEADS: tl.constexpr):
    """out [B, H, T] = x [B, T, H / g]."""
    blocks = tl.cdiv(T, STEPS)
    groups = tl.cdiv(H, HEADS)
    b = (tl.program_id(0) // (blocks * groups)).to(tl.int64)
    t = (tl.program_id(0) // groups % blocks).to(tl.int64) * STEPS + tl.arange(0, STEPS)
    h = tl.program_id(0) % groups * HEADS + tl.arange(0, HEADS)
    ok = (t < T)[:, None] & (h < H)[None, :]
    tile = tl.load(x + b * x_b + t[:, None] * x_t + (h // x_g)[None, :] * x_h, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + (b * H + h)[None, :] * T + t[:, None], tile, mask=ok)


def by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """x [B, T, H or fewer] as [B, H, T], contiguous, in float32."""
    B, T = x.shape[:2]
    out = x.new_empty((B, heads, T), dtype=torch.float32)
    some = min(HEADS, triton.next_power_of_2(heads))
    launch(
        by_head_kernel, (B * cdiv(T, STEPS) * cdiv(heads, some),), x, *strides(x, heads), out, T, heads,
        STEPS=STEPS, HEADS=some, num_warps=4,
    )  # fmt: skip
    return out
