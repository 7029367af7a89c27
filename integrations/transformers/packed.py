"""Packed sequences as models of transformers are given them: where each starts, and a short convolution that keeps them apart."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def starts_of(seq_idx: Tensor) -> Tensor:
    """[B, T], True where a sequence starts that isn't the first: where the number of the sequence changes."""
    return F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=False)


def forgetting(log_decay: Tensor, seq_idx: Tensor | None) -> Tensor:
    """Log decays [B, T, ...] that forget everything where a sequence starts."""
    if seq_idx is None:
        return log_decay
    starts = starts_of(seq_idx).reshape(*seq_idx.shape, *[1] * (log_decay.dim() - 2))
    return log_decay.masked_fill(starts, float("-inf"))


def places(length: int, cu_seqlens: Tensor | None, seq_idx: Tensor | None) -> Tensor:
    """[B or 1, length]: how many steps of its own sequence lie before each step.

    What a cache puts before the first step belongs to the first sequence.
    """
    if seq_idx is not None:
        before = length - seq_idx.shape[1]
        starts = F.pad(starts_of(seq_idx), (before, 0), value=False)
        time = torch.arange(length, device=starts.device).expand_as(starts)
        return time - torch.where(starts, time, 0).cummax(1).values
    assert cu_seqlens is not None
    time = torch.arange(length, device=cu_seqlens.device) - (length - cu_seqlens[-1])
    which = torch.searchsorted(cu_seqlens[1:-1].contiguous(), time, right=True)
    first = torch.where(which == 0, time[0], cu_seqlens[which])
    return (time - first).unsqueeze(0)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Callable[[Tensor], Tensor] | None,
    cu_seqlens: Tensor | None,
    seq_idx: Tensor | None,
) -> Tensor:
    """A causal convolution for each channel, x [B, channels, T], weight [channels, taps], that sees its own sequence alone."""
    inside = places(x.shape[-1], cu_seqlens, seq_idx).unsqueeze(1)
    wide, taps = x.to(weight.dtype), weight.shape[1]
    y = wide * weight[:, -1:]
    for j in range(1, taps):
        earlier = F.pad(wide, (j, 0))[..., :-j]
        y = y + torch.where(inside >= j, earlier, 0.0) * weight[:, taps - 1 - j : taps - j]
    y = y if bias is None else y + bias.unsqueeze(1)
    return (y if activation is None else activation(y)).to(x.dtype)
