"""Several substeps for each step: `count` for each, one after the other, so that their tensors are [B, count * T, H, ...]."""

from __future__ import annotations

from torch import Tensor

from ..launch.varlen import Packed


def of_substep(x: Tensor | None, n: int, count: int) -> Tensor | None:
    """The values of the substep n of each step, from 0 on, [B, T, H, ...]: a view."""
    return None if x is None else x[:, n::count]


def packed_in(packed: Packed | None, count: int) -> Packed | None:
    """Where sequences start, counted in substeps."""
    return None if packed is None else Packed(count * packed.starts, packed.count, count * packed.longest)
