"""What the generated maps of an attention are written with: joined features, products of matrices, sums of weighted features.

Values are [B, H, positions, ..]; `low` is the dtype of what products on tensor cores take.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor

from .products import Product

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def has_kernels(x: Tensor) -> bool:
    """Do kernels of Triton run where x is?"""
    return x.is_cuda or INTERPRETED


def joined(parts: list[Tensor], own: list[int]) -> Tensor:
    """Features one after the other; each has `own` axes of its own, which are flattened."""
    flat = [x.unsqueeze(-1) if n == 0 else x.flatten(-n) if n > 1 else x for x, n in zip(parts, own, strict=True)]
    if len(flat) == 1:
        return flat[0]
    rows = max(x.shape[-2] for x in flat)
    heads = math.lcm(*(x.shape[-3] for x in flat if x.ndim > 2))
    lead = max((x.shape[:-3] for x in flat), key=len)
    spread = [x.repeat_interleave(heads // x.shape[-3], -3) if x.ndim > 2 and x.shape[-3] != heads else x for x in flat]
    return torch.cat([x.expand(*lead, heads, rows, x.shape[-1]) for x in spread], -1)


def parted(x: Tensor, widths: list[tuple[int, ...]]) -> list[Tensor]:
    """The reverse of `joined`: parts with these axes of their own."""
    sizes = [math.prod(w) for w in widths]
    return [p.unflatten(-1, w) if w else p.squeeze(-1) for p, w in zip(x.split(sizes, -1), widths, strict=True)]


def later(letters: str, a: Tensor, b: Tensor, low: torch.dtype) -> Product:
    return Product(letters, a, b, low)


def combine(low: torch.dtype, *terms: tuple[Tensor | None, Tensor]) -> Tensor:
    """The sum of terms in `low`: x [B, H, T, X], or a vector [H, X], times a number of each position [B, H, T], or None for 1."""
    wide = next(x for _, x in terms if x.ndim == 4)
    if has_kernels(wide) and low != torch.float64:
        from .launch import one_pass

        B, H, T, X = wide.shape
        return one_pass(list(terms), wide.new_empty((), dtype=low).expand(B, T, H, X)).transpose(1, 2)
    dtype = torch.promote_types(torch.float32, low)
    total: Any = 0
    for c, x in terms:
        x = x.to(dtype) if x.ndim == 4 else x.to(dtype)[..., None, :]
        total = total + (x if c is None else c.to(dtype)[..., None] * x)
    return total.to(low)


def half_turn(x: Tensor, axis: int) -> Tensor:
    """(-second half, first half) along an axis."""
    first, second = x.chunk(2, axis)
    return torch.cat((-second, first), axis)


def inner(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the last axis of a times b, in `dtype`."""
    if has_kernels(a) and a.ndim == b.ndim == 4 and dtype == torch.float32:
        from .launch import row_products

        return row_products(a, b)
    return (a.to(dtype) * b.to(dtype)).sum(-1)


def added(terms: list[Tensor]) -> Tensor:
    """The sum, in float32 or wider."""
    if len(terms) == 1:
        return terms[0]
    dtype = torch.promote_types(torch.float32, max((x.dtype for x in terms), key=lambda d: d.itemsize))
    total = terms[0].to(dtype)
    for x in terms[1:]:
        total = total + x
    return total
