"""Products of a vector of each step and a matrix of each head, and sums of outer products: over all steps of a head at once."""

from __future__ import annotations

import torch

from ..launch.launch import steps

STEPS = 4096  # steps whose outer products are summed at once


def by_matrix(letters: str, x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """x [B, T, H, i] and matrix [H, i, j] or [H, j, i], multiplied as einsum's `letters` say: [B, T, H, j], float32, as more
    products may follow before anything is rounded."""
    return steps(torch.einsum(letters, x.float(), matrix.float()))


def outer_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum over sequences and steps of x y^T, of [B, T, H, i] and [B, T, H, j]: [H, i, j], float32."""
    total = x.new_zeros((x.shape[2], x.shape[3], y.shape[3]), dtype=torch.float32)
    left, right = x.flatten(0, 1), y.flatten(0, 1)  # of which products take some steps as they lie
    for n in range(0, left.shape[0], STEPS):
        total += torch.einsum("thi,thj->hij", left[n : n + STEPS].float(), right[n : n + STEPS].float())
    return total
