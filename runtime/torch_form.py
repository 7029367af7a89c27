"""What the generated torch forms share: sequences as chunks, and back."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64
CHANNEL_CHUNK = 16  # where each channel has a triangular system of its own


def steps_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, T, H, ...] -> [B, H, T, ...] in the dtype of the computation."""
    return x.transpose(1, 2).to(dtype)


def per_head(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter [H, ...] as [1, H, 1, ...]."""
    return x.to(dtype)[None, :, None]


def to_chunks(x: Tensor, lead: tuple[int, int, int], size: int, axes: int) -> Tensor:
    """[B, H, T, ...] (any of B, H, T may be 1) -> [B, H, N, size, ...], zero beyond the end; `axes` counts the trailing axes."""
    batch, heads, steps = lead
    x = x.expand(batch, heads, steps, *x.shape[x.dim() - axes :])
    count = max(1, -(-steps // size))
    if count * size != steps:
        x = torch.nn.functional.pad(x, (0, 0) * axes + (0, count * size - steps))
    return x.reshape(batch, heads, count, size, *x.shape[x.dim() - axes :])


def from_chunks(x: Tensor, lead: tuple[int, int, int], axes: int) -> Tensor:
    """[B, H, N, C, ...] -> [B, H, T, ...]; B, H and N may be 1."""
    batch, heads, steps = lead
    tail = x.shape[x.dim() - axes :]
    x = x.expand(batch, heads, *x.shape[2:])
    return x.reshape(batch, heads, -1, *tail)[:, :, :steps]


def reverse_sum(late: Tensor, early: Tensor, last: Tensor) -> Tensor:
    """Sum over later steps, [B, H, T, ...]: of `late` from t on, of `early` after t, and of `last`, which holds at the end."""
    both = late + early
    after = both.flip(2).cumsum(2).flip(2)
    return after - early + last.unsqueeze(2)


def dtype_of(given: dict[str, Tensor]) -> torch.dtype:
    """float64 where an input is, else float32."""
    return torch.float64 if any(x.dtype == torch.float64 for x in given.values()) else torch.float32


def expanded(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x with its trailing axes expanded to `shape` (-1: as they are)."""
    return x.expand(*x.shape[: x.dim() - len(shape)], *shape)


def from_steps(x: Tensor, lead: tuple[int, int, int], axes: int, dtype: torch.dtype) -> Tensor:
    """[B, H, T, ...] (any of the three may be 1) -> [B, T, H, ...]."""
    return x.expand(*lead, *x.shape[x.dim() - axes :]).transpose(1, 2).to(dtype).contiguous()


def from_heads(x: Tensor, lead: tuple[int, int, int], axes: int, dtype: torch.dtype) -> Tensor:
    """The gradient of a parameter: the sum over batch and steps of [B, H, T, ...], as [H, ...]."""
    return x.expand(*lead, *x.shape[x.dim() - axes :]).sum((0, 2)).to(dtype)
