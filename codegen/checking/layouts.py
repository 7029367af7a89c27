"""Tensors of the same numbers with other strides."""

from __future__ import annotations

import torch
from torch import Tensor

LAYOUTS = ("contiguous", "heads first", "dims first", "every other", "part of a larger one")


def laid_out(x: Tensor, layout: str) -> Tensor:
    """A fresh tensor with these numbers, in a layout; what else lies in its memory is NaN. [B, T, H, ..] has heads."""
    x = x.detach()
    match layout:
        case "heads first" if x.dim() >= 3:
            return x.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
        case "dims first" if x.dim():
            return x.movedim(-1, 0).clone(memory_format=torch.contiguous_format).movedim(0, -1)
        case "every other" if x.dim():
            wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan)
            wide[..., ::2] = x
            return wide[..., ::2]
        case "part of a larger one" if x.dim():
            wide = x.new_full((*(n + 1 for n in x.shape[:-1]), x.shape[-1] + 3), torch.nan)
            part = wide[(*(slice(1, None) for _ in x.shape[:-1]), slice(1, 1 + x.shape[-1]))]
            part.copy_(x)
            return part
    return x.clone(memory_format=torch.contiguous_format)
