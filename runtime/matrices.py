"""Products of a vector of each step and a matrix of each head, and sums of outer products: over all steps of a head at once."""

from __future__ import annotations

import torch

from .launch import steps

PIECE = 4096  # steps whose outer products are summed before they are rounded


def by_matrix(letters: str, x: torch.Tensor, matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x [B, T, H, i] and matrix [H, i, j] or [H, j, i], multiplied as einsum's `letters` say: [B, T, H, j] in `dtype`, in which
    operands are rounded as those of other products are."""
    return steps(torch.einsum(letters, x.to(dtype), matrix.to(dtype)))


def outer_sum(x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sum over sequences and steps of x y^T, of [B, T, H, i] and [B, T, H, j]: [H, i, j], float32, of operands in `dtype`."""
    total = x.new_zeros((x.shape[2], x.shape[3], y.shape[3]), dtype=torch.float32)
    left, right = (z.flatten(0, 1).to(dtype) for z in (x, y))  # of which products take some steps as they lie
    for n in range(0, left.shape[0], PIECE):
        total += torch.einsum("thi,thj->hij", left[n : n + PIECE], right[n : n + PIECE]).float()
    return total
