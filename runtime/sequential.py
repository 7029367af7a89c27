"""What the generated step-by-step forms share: checkpoints in time, gradients that may be missing, and launches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .torch_form import dtype_of


def computed_in(given: dict[str, Tensor]) -> torch.dtype:
    """The dtype of a step-by-step form's arithmetic: float64 on a CPU, whatever the inputs, elsewhere float32 at least.

    A recurrence that isn't affine may amplify each step's rounding, and on a CPU the wider numbers cost little.
    """
    return torch.float64 if next(iter(given.values())).device.type == "cpu" else dtype_of(given)


def segment_length(steps: int) -> int:
    """Steps between two checkpoints: about the square root, so that checkpoints and one segment's states weigh the same."""
    return max(1, math.isqrt(steps))


def incoming(x: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A gradient that comes in, or zeros that take no memory."""
    return like.new_zeros(()).expand(shape) if x is None else x


def block_of(size: int, smallest: int = 1) -> int:
    """The power of two that holds an axis."""
    return max(smallest, 1 << (size - 1).bit_length())


def tile_of(size: int, others: int, entries: int, smallest: int = 1, most: int = 256) -> int:
    """The width of a tile of an axis, a power of two: `entries` entries or fewer, where there are `others` beside it.

    But not so narrow that there are more than `most` tiles: where each writes a part of a result, parts take memory.
    """
    widest = 1 << max(0, (entries // others).bit_length() - 1)
    return max(smallest, block_of(size) // most, min(block_of(size), widest))


def warps_for(entries: int) -> int:
    """Warps for a tile: some 32 of its entries in each thread, from 1 to 16 warps."""
    return max(1, min(16, entries // 1024))


def strides_of(*tensors: Tensor) -> list[int]:
    """The strides of tensors, one after the other."""
    return [s for x in tensors for s in x.stride()]


def stacked(states: list[Tensor], like: Tensor) -> Tensor:
    """Checkpoints as one tensor, [N, B, H, ...]; N may be 0."""
    return torch.stack(states) if states else like.new_empty((0, *like.shape))
