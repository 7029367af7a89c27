"""Weights between states that are added to each other, in torch: products of small matrices over the steps of a chunk."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor


class TransitionMatrices:
    """S_t = A_t S_{t-1} + writes for n states: how much of one state's past is in another.

    `entries` are ((to, of), values) with values [..., C], or a number. Steps are taken in the order of the sweep.
    """

    def __init__(self, entries: tuple, n: int, direction: int, valid: Tensor) -> None:
        """`valid` [..., C] is one within the sequence and zero beyond its end, where states stay as they are."""
        a = valid.new_zeros((*valid.shape, n, n))
        a.diagonal(dim1=-2, dim2=-1).copy_((1 - valid).unsqueeze(-1))
        for (to, of), value in entries:
            a[..., to, of] = value
        self.a = a if direction > 0 else a.flip(-3)
        self.direction, self.n, self.size = direction, n, valid.shape[-1]

    @cached_property
    def _products(self) -> Tensor:
        """[..., C + 1, C + 1, n, n]: A_i ... A_{j+1} for j <= i, where step 0 is the chunk's start; zero elsewhere."""
        identity = torch.eye(self.n, dtype=self.a.dtype, device=self.a.device)
        rows = [
            torch.zeros_like(self.a[..., :1, :, :]).expand(*self.a.shape[:-3], self.size + 1, self.n, self.n).clone()
        ]
        rows[0][..., 0, :, :] = identity
        for i in range(self.size):
            row = self.a[..., i, None, :, :] @ rows[-1]
            row[..., i + 1, :, :] = identity
            rows.append(row)
        return torch.stack(rows, -4)

    def _in_time(self, x: Tensor, *axes: int) -> Tensor:
        return x if self.direction > 0 else x.flip(axes)

    def mask(self, to: int, of: int, late: bool) -> Tensor:
        """[..., C, C]: how much of step j's write to `of` a read of `to` sees at step i."""
        p = self._products[..., to, of]
        seen = p[..., 1:, 1:] if late else p[..., :-1, 1:]
        return self._in_time(seen, -1, -2)

    def incoming(self, to: int, of: int, late: bool) -> Tensor:
        """[..., C]: how much of the chunk's incoming `of` a read of `to` sees."""
        p = self._products[..., to, of]
        return self._in_time(p[..., 1:, 0] if late else p[..., :-1, 0], -1)

    def outgoing(self, to: int, of: int) -> Tensor:
        """[..., C]: how much of each write to `of` is in the outgoing `to`."""
        return self._in_time(self._products[..., -1, 1:, to, of], -1)

    def all(self, to: int, of: int) -> Tensor:
        """[...]: how much of the incoming `of` is in the outgoing `to`."""
        return self._products[..., -1, 0, to, of]
