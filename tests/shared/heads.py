"""Errors of heads, each for itself; of gradients that are few numbers a head, over several draws of the arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FEW = 8  # numbers of a head; a quantity of fewer is judged over several draws
DRAWS = 128


def worst_head(found: Sequence[Tensor], exact: Sequence[Tensor], axis: int) -> float:
    """The largest relative error of a head, its norm over all axes but `axis` and over draws.

    A gradient of one number a head is a sum over all steps, most of which cancels. In one draw its relative error says how
    much cancels, not how well it is summed. Retention's decays, five heads, chunks of 32 and of 64 steps, bfloat16: both err
    alike, and yet in 14% of draws one is more than 1.15 times as far off. Over 128 draws it wasn't once in 2,400 times; errors
    that are 1.3 times as large are seen in 99.5%, and by one draw in 84%.
    """
    near, far = (
        torch.cat([x.double().movedim(axis, 0).reshape(x.shape[axis], -1) for x in some], 1) for some in (found, exact)
    )
    return float(((near - far).norm(dim=1) / far.norm(dim=1)).max())


def few(x: Tensor, axis: int) -> bool:
    """Has each head so few numbers that one draw says little?"""
    return x.numel() < FEW * x.shape[axis]
