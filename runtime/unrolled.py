"""Products of states and their gradients at each step, by torch, from the states that walks leave at the borders of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .places import Places
from .torch_form import from_chunks, to_chunks

ROWS = (
    1 << 18
)  # steps of heads that are taken at once, so that memory beside the results doesn't grow with their number


def to_blocks(x: Tensor, lay: Places, size: int, axes: int, fill: float = 0.0) -> Tensor:
    """[B, H, T, ...] (B and H may be 1) -> [B, H, blocks, size, ...], with `fill` where a block has no step; `axes` counts the
    rest."""
    if lay.begins is None or lay.stops is None:
        return to_chunks(x, (*x.shape[:2], lay.steps), size, axes, fill)
    step = lay.begins[:, None] + torch.arange(size, device=x.device)
    there = step < lay.stops[:, None]
    found = x[:, :, step.clamp(max=lay.steps - 1)]
    return torch.where(there.reshape(*there.shape, *[1] * axes), found, fill)


def from_blocks(x: Tensor, lay: Places, axes: int) -> Tensor:
    """[B, H, blocks, size, ...] -> [B, H, T, ...]."""
    if lay.begins is None or lay.stops is None:
        return from_chunks(x, (*x.shape[:2], lay.steps), axes)
    step = lay.begins[:, None] + torch.arange(x.shape[3], device=x.device)
    step = torch.where(step < lay.stops[:, None], step, lay.steps)  # the others to one place more, which is left out
    out = x.new_zeros((*x.shape[:2], lay.steps + 1, *x.shape[4:]))
    out[:, :, step.flatten()] = x.flatten(2, 3)
    return out[:, :, : lay.steps]


def in_blocks(
    unroll: Callable[..., tuple[Tensor, ...]],
    streams: tuple[Tensor, ...],
    borders: tuple[Tensor, ...],
    lay: Places,
    size: int,
    *rest: Any,
) -> tuple[Tensor, ...]:
    """unroll(streams [B, H, T, ...], borders [B, H, blocks, ...], lay, size, ...), of some heads at once: [B, T, H] each."""
    heads = max(1, ROWS // max(1, lay.steps))
    found = []
    for b in range(lay.batch):
        parts = [
            unroll(*(x[b : b + 1, h : h + heads] for x in (*streams, *borders)), lay, size, *rest)
            for h in range(0, lay.heads, heads)
        ]
        found.append([torch.cat(x, 1) for x in zip(*parts, strict=True)])
    return tuple(torch.cat(x).transpose(1, 2) for x in zip(*found, strict=True))
