"""What ops whose states lie in a moving frame share: the product of all units of a sequence, which turns its last states, and
gradients of these, where there are any."""

from __future__ import annotations

import torch
from torch import Tensor

from ..launch.varlen import Packed


def last_unit(x: Tensor, packed: Packed | None, first: float) -> Tensor:
    """The value after each sequence's last step, of [B, T, H, ...]; `first` where a sequence has no steps."""
    if packed is None:
        return x[:, -1] if x.shape[1] else x.new_full((x.shape[0], *x.shape[2:]), first)
    ends = packed.starts[1:]
    found = x[0].index_select(0, (ends - 1).clamp(min=0))
    empty = (ends == packed.starts[:-1]).view(-1, *[1] * (found.dim() - 1))
    return torch.where(empty, first, found)


def none_of(cotangents: dict[str, Tensor | None], names: tuple[str, ...]) -> bool:
    """Has none of these a gradient?"""
    return all(cotangents.get(n) is None for n in names)


def like_state(x: Tensor | None, state: Tensor) -> Tensor:
    """A state's gradient, or zeros where it has none."""
    return torch.zeros_like(state) if x is None else x.to(state.dtype)
