"""Products of a row's vector and a matrix of each head, and what is taken as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def contract(letters: str, a: Tensor, b: Tensor, low: torch.dtype, over_batch: bool = False) -> Tensor:
    """An einsum of matrices with leading axes: [B, H, ..], or [H, ..] of parameters. `over_batch` sums over B.

    The host's time shows beside short kernels: the usual cases, which an einsum takes several times as long to recognise, are
    products of matrices here.
    """
    inputs, out = letters.split("->")
    left, right = inputs.split(",")
    a, b = as_dtype(a, low), as_dtype(b, low)
    if a.ndim == b.ndim == 4 and over_batch and left[0] == right[0] and out in (left[1] + right[1], right[1] + left[1]):
        a, b = by_head(a), by_head(b)  # an einsum would copy both: it sums over T before B
        return torch.bmm(a.mT, b) if out == left[1] + right[1] else torch.bmm(b.mT, a)
    if over_batch and a.ndim == 3 and b.ndim == 4 and (left, right) == (right[0], left + out):
        return torch.bmm(by_head(a.unsqueeze(-1)).mT, by_head(b)).squeeze(1)
    if len(left) == 2 and a.ndim == len(right) + 1 and b.ndim == 4:  # a parameter: the other way round
        a, b, left, right = b, a, right, left
    if (
        a.ndim == 4
        and len(left) == 2
        and b.ndim == len(right) + 1
        and out == left.replace(left[1], right.strip(left[1]))
    ):
        if len(right) == 1:
            return projected(a, b.unsqueeze(-1)).squeeze(-1)
        return projected(a, b if right[0] == left[1] else b.mT)
    lead = ["yz"[2 - min(x.ndim - len(own), 2) :] for x, own in ((a, left), (b, right))]
    both = "yz" if "yz" in lead else max(lead, key=len)
    if over_batch:
        both = both.replace("y", "")
    return torch.einsum(f"{lead[0]}{left},{lead[1]}{right}->{both}{out}", a, b)


@dataclass(frozen=True)
class Product:
    """What `contract` would yield, not yet computed: a term of a sum, which may take it up as it is written."""

    letters: str
    a: Tensor
    b: Tensor
    low: torch.dtype

    def tensor(self) -> Tensor:
        return contract(self.letters, self.a, self.b, self.low)

    def factors(self) -> tuple[Tensor, Tensor] | None:
        """x [B, H, T, a] and each head's matrix [H, a, b], where it is x by the matrix."""
        inputs, out = self.letters.split("->")
        (left, right), (a, b) = inputs.split(","), (self.a, self.b)
        if a.ndim == 3 and b.ndim == 4:
            left, right, a, b = right, left, b, a
        if a.ndim != 4 or b.ndim != 3 or len(left) != 2 or a.shape[1] != b.shape[0]:
            return None
        if out != left.replace(left[1], right.strip(left[1])):
            return None
        return as_dtype(a, self.low), b if right[0] == left[1] else b.mT


def projected(x: Tensor, w: Tensor) -> Tensor:
    """x [B, H, T, a] by each head's matrix [H, a, b]."""
    if x.shape[1] != w.shape[0]:
        return torch.einsum("yzta,zab->yztb", x, w)
    B, H, T, _ = x.shape
    return torch.bmm(by_head(x), w).view(H, B, T, w.shape[-1]).transpose(0, 1)


def by_head(x: Tensor) -> Tensor:
    """[B, H, T, a] as [H, B T, a]."""
    return x[0] if x.shape[0] == 1 else x.transpose(0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2], x.shape[3])


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x.to(dtype), without a call where it has it."""
    return x if x.dtype == dtype else x.to(dtype)


def over_batch(x: Tensor, own: int) -> Tensor:
    """A gradient of a parameter with `own` axes, [H, ..], from [B, H, ..]."""
    return x.sum(0) if x.ndim == own + 2 else x
