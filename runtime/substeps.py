"""Several substeps for each step: `count` for each, one after the other, so that their tensors are [B, count * T, H, ...]."""

from __future__ import annotations

from torch import Tensor

from .packed import Packed


def of_substep(x: Tensor | None, n: int, count: int) -> Tensor | None:
    """The values of the substep n of each step, from 0 on, [B, T, H, ...]: a view."""
    return None if x is None else x[:, n::count]


def after_step(x: Tensor, count: int) -> Tensor:
    """The values after each step's last substep, [B, T, H, ...]."""
    return x[:, count - 1 :: count].contiguous()


def at_last(x: Tensor | None, count: int) -> Tensor | None:
    """The incoming gradients of substeps, [B, count * T, H, ...], from those of steps: of each step's last, and zeros."""
    if x is None:
        return None
    found = x.new_zeros((x.shape[0], count * x.shape[1], *x.shape[2:]))
    found[:, count - 1 :: count] = x
    return found


def packed_in(packed: Packed | None, count: int) -> Packed | None:
    """Where sequences start, counted in substeps."""
    return None if packed is None else Packed(count * packed.starts, packed.count, count * packed.longest)
