"""Launching generated kernels of solves: configurations, and whether the interpreter runs them."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from .launch import padded

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # then float32 goes through the kernels too


@dataclass(frozen=True)
class SolveConfig:
    """Steps per chunk, width of the tile of the walk that keeps states, and how the kernel of the solves is launched."""

    chunk: int
    tile: int
    warps: int
    stages: int


def solve_config(dtype: torch.dtype, size: int) -> SolveConfig:
    """The configuration for a shape class. Never keyed on T."""
    block = padded(size)
    if block <= 64:
        return SolveConfig(chunk=64, tile=block, warps=4, stages=1)
    if block <= 128:
        return SolveConfig(chunk=64, tile=64, warps=4, stages=1)
    return SolveConfig(chunk=32, tile=32, warps=8, stages=1)


def strides3(x: torch.Tensor) -> tuple[int, int, int]:
    """Strides of the batch, time and head axes of [B, T, H, ...]."""
    return x.stride(0), x.stride(1), x.stride(2)
