"""A short causal convolution over time, one filter a channel: what lets a recurrence's step see a few steps before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chunkform.errors import ArgumentError

from ..op.naming import named
from .convolve import convolve, packed_by


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
    def forward(
        self,
        x: Tensor,
        tail: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        silu: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """(y, new tail), x and y [B, T, channels], tails [B, taps - 1, channels]; `silu`: y is the SiLU of the sum.

        With `cu_seqlens` [N + 1], x is [1, T, channels], a tail is [N, taps - 1, channels], and no sequence sees
        another.
        """
        if x.dim() != 3 or x.shape[-1] != self.channels:
            raise ArgumentError(f"ShortConvolution: x must be [B, T, {self.channels}], got {list(x.shape)}")
        count = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        shape = (count, self.taps - 1, self.channels)
        if tail is not None and tail.shape != shape:
            raise ArgumentError(f"ShortConvolution: tail must be {list(shape)}, got {list(tail.shape)}")
        tail = None if tail is None else tail.to(x.dtype)
        packed = None if cu_seqlens is None else packed_by(cu_seqlens, x.shape[1])
        y = convolve(x, self.weight, None, silu, tail, packed)
        return y, last_inputs(x, x.new_zeros(shape) if tail is None else tail, cu_seqlens)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, taps={self.taps}"


def last_inputs(x: Tensor, tail: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The tail after x, [sequences, as many steps as before, channels]: what the next call needs."""
    return _last(x, tail) if cu_seqlens is None else _last_of_each(x[0], tail, cu_seqlens)


def _last(x: Tensor, tail: Tensor) -> Tensor:
    """The last rows of tail and x together, as many as the tail has."""
    steps, before = x.shape[1], tail.shape[1]
    return x[:, steps - before :].clone() if steps >= before else torch.cat([tail, x], 1)[:, steps:]


def _last_of_each(x: Tensor, tail: Tensor, starts: Tensor) -> Tensor:
    """The same of packed sequences, x [T, channels]; nothing waits for the device."""
    count, before, channels = tail.shape
    place = (starts[1:] - starts[:-1]).unsqueeze(1) - before + torch.arange(before, device=x.device)
    rows = x if x.shape[0] else x.new_zeros(1, channels)
    own = rows[(starts[:-1].unsqueeze(1) + place).clamp(min=0)]
    each = torch.arange(count, device=x.device).unsqueeze(1) * before
    earlier = tail.flatten(0, 1)[(each + before + place).clamp(max=count * before - 1)] if before else own
    return torch.where((place >= 0).unsqueeze(-1), own, earlier)
