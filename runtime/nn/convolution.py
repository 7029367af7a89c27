"""A short causal convolution over time, one filter a channel: what lets a recurrence's step see a few steps before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chunkform.errors import ArgumentError

from ..op.naming import named


class ShortConvolution(nn.Module):
    """y_t = sum_j weight_j x_{t-j}, j = 0 .. taps - 1, for each channel on its own; weight is [taps, channels].

    What lies before the first step is zero, or the `tail` that an earlier call returned: the last taps - 1 steps of a
    sequence.
    """

    @named
    def __init__(
        self,
        channels: int,
        taps: int = 4,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(taps, bool) or not isinstance(taps, int) or taps < 1:
            raise ArgumentError(f"ShortConvolution: taps must be a whole number of at least 1, got {taps!r}")
        self.channels, self.taps = channels, taps
        self.weight = nn.Parameter(torch.empty(taps, channels, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """First values: uniform between the inverse root of the taps and its negative."""
        nn.init.uniform_(self.weight, -(self.taps**-0.5), self.taps**-0.5)

    @named
    def forward(self, x: Tensor, tail: Tensor | None = None, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(y, new tail), x and y [B, T, channels], tails [B, taps - 1, channels].

        With `cu_seqlens` [N + 1], x is [1, T, channels], a tail is [N, taps - 1, channels], and no sequence sees
        another.
        """
        if x.dim() != 3 or x.shape[-1] != self.channels:
            raise ArgumentError(f"ShortConvolution: x must be [B, T, {self.channels}], got {list(x.shape)}")
        count = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        shape = (count, self.taps - 1, self.channels)
        if tail is None:
            tail = x.new_zeros(shape)
        elif tail.shape != shape:
            raise ArgumentError(f"ShortConvolution: tail must be {list(shape)}, got {list(tail.shape)}")
        weight = self.weight.to(x.dtype)
        if cu_seqlens is not None:
            return self._packed(x, tail.to(x.dtype), cu_seqlens, weight)
        whole = torch.cat([tail.to(x.dtype), x], 1)
        steps, before = x.shape[1], self.taps - 1
        y = weight[0] * x
        for j in range(1, self.taps):
            y = y + weight[j] * whole[:, before - j : before - j + steps]
        return y, whole[:, steps:]

    def _packed(self, x: Tensor, tail: Tensor, starts: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Steps and tails in one list of rows, from which each tap gathers its own; nothing waits for the device."""
        steps, before = x.shape[1], self.taps - 1
        count = starts.shape[0] - 1
        rows = torch.cat([tail.flatten(0, 1), x[0]])
        time = torch.arange(steps, device=x.device)
        which = torch.searchsorted(starts[1:].contiguous(), time, right=True)
        inside = time - starts[which]

        def row(sequence: Tensor, place: Tensor, first: Tensor) -> Tensor:
            """The row of a sequence's step `place`, counted from its start: below zero in the tail."""
            return torch.where(place >= 0, count * before + first + place, sequence * before + before + place)

        y = weight[0] * x[0]
        for j in range(1, self.taps):
            y = y + weight[j] * rows[row(which, inside - j, starts[which])]
        each = torch.arange(count, device=x.device).unsqueeze(1)
        last = (starts[1:] - starts[:-1]).unsqueeze(1) - before + torch.arange(before, device=x.device)
        return y.unsqueeze(0), rows[row(each, last, starts[:-1].unsqueeze(1))]

    def extra_repr(self) -> str:
        return f"channels={self.channels}, taps={self.taps}"
