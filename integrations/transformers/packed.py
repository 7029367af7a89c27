"""Packed sequences as models of transformers are given them: where each starts, and a short convolution that keeps them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from chunkform.errors import ArgumentError

TELLING = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")  # what a call may tell of packed sequences


# --- where sequences start, by whatever tells of it -------------------------------------------------------------------


@dataclass(frozen=True)
class Sequences:
    """Packed sequences, which stand one after the other in the rows of a batch.

    `starts` [B, T] is True where one starts, as it does at each row's first step. What a call has given as `cu_seqlens` is
    kept, for a graph can't look where sequences start.
    """

    starts: Tensor
    given: Tensor | None = None

    @property
    def cu_seqlens(self) -> Tensor:
        """[N + 1], of all rows one after the other, in int32."""
        if self.given is not None:
            return self.given
        inner = self.starts.flatten().nonzero().squeeze(1)
        return F.pad(inner, (0, 1), value=self.starts.numel()).int()

    @property
    def seq_idx(self) -> Tensor:
        """[B, T], the number of each step's sequence in its row, in int32."""
        return self.starts.cumsum(1).int() - 1

    @property
    def positions(self) -> Tensor:
        """[B, T], how many steps of its own sequence lie before each step."""
        return since(self.starts)


def sequences_of(
    given: Mapping[str, object], position_ids: Tensor | None, mask: Tensor | None, x: Tensor, looking: bool
) -> Sequences | None:
    """The sequences that a call's arguments tell of, by a name of `TELLING`, or by positions that start anew; None for one a row.

    Padded steps beside them are sequences of their own, so that no mask is needed. What isn't looked at may be one sequence, too.

    Args:
        given: a call's arguments, by name.
        position_ids: [B or 1, T], where nothing else tells.
        mask: [B, T], 0 where padded.
        x: what the sequences are of, [B, T] or [B, T, ..].
        looking: whether values may be looked at; not where a graph is made.

    Raises:
        chunkform.errors.ArgumentError: boundaries that fit no row of T steps, or that contradict each other; a sequence that is
            padded in its middle.
    """
    rows, steps = x.shape[:2]
    told = {n: torch.as_tensor(given[n], device=x.device) for n in TELLING if given.get(n) is not None}
    found = {n: _starts(n, told[n], rows, steps, looking) for n in told}
    if found:
        starts = next(iter(found.values()))
    elif position_ids is not None and steps > 1:
        starts = restarts(position_ids, mask, rows)
    else:
        return None
    kept = next((told[n].int() for n in told if n != "seq_idx"), None)
    if not looking:
        if mask is not None and told:
            raise ArgumentError("attention_mask: under torch.compile packed sequences go without one")
        if mask is not None:
            torch._assert_async(
                ~starts[:, 1:].any(), "position_ids start anew beside an attention_mask: leave that out"
            )
            return None
        return Sequences(starts, kept)
    for name, others in found.items():
        if not torch.equal(others, starts):
            raise ArgumentError(f"{next(iter(found))} and {name} tell of different sequences")
    if not bool(starts[:, 1:].any()):
        return None
    if mask is None or bool(mask.all()):
        return Sequences(starts, kept)
    return Sequences(_padding_apart(starts, mask.bool()))


def restarts(position_ids: Tensor, mask: Tensor | None, rows: int) -> Tensor:
    """[B, T], True where positions don't go on from those of the step before that isn't padded: by one, or by what is padded."""
    position_ids = position_ids.expand(rows, -1)
    time = torch.arange(position_ids.shape[1], device=position_ids.device).expand_as(position_ids)
    real = torch.ones_like(time, dtype=torch.bool) if mask is None else mask.bool()
    last = F.pad(torch.where(real, time, -1).cummax(1).values[:, :-1], (1, 0), value=-1)
    by = position_ids - position_ids.gather(1, last.clamp(min=0))
    return (real & (last >= 0) & (by != 1) & (by != time - last)) | (time == 0)


def _starts(name: str, x: Tensor, rows: int, steps: int, looking: bool) -> Tensor:
    """[B, T], of boundaries [N + 1] in one row, or of numbers [B, T]."""
    if name == "seq_idx":
        if x.shape != (rows, steps):
            raise ArgumentError(f"seq_idx must be [B, T] = {[rows, steps]}, got {list(x.shape)}")
        return F.pad(x[:, 1:] != x[:, :-1], (1, 0), value=True)
    if rows != 1:
        raise ArgumentError(
            f"{name}: packed sequences lie one after the other in one row, got a batch of {rows} rows; seq_idx [B, T] takes more"
        )
    if x.dim() != 1 or x.shape[0] < 2:
        raise ArgumentError(f"{name} must be [N + 1], where sequences start and the last ends, got {list(x.shape)}")
    if looking and (int(x[0]) != 0 or int(x[-1]) != steps or bool((x.diff() < 0).any())):
        raise ArgumentError(f"{name} must rise from 0 to T = {steps}, got {x.tolist()}")
    return torch.zeros(1, steps + 1, dtype=torch.bool, device=x.device).index_fill(1, x[:-1].long(), True)[:, :-1]


def _padding_apart(starts: Tensor, real: Tensor) -> Tensor:
    """[B, T] with starts where padding begins and ends, too."""
    turns = F.pad(real[:, 1:] != real[:, :-1], (1, 0), value=True)
    number = starts.cumsum(1)
    stretches = torch.zeros_like(number).scatter_add(1, number - 1, (real & (starts | turns)).to(number.dtype))
    if bool((stretches > 1).any()):
        raise ArgumentError("attention_mask: a packed sequence is padded in its middle")
    return starts | turns


# --- of steps ---------------------------------------------------------------------------------------------------------


def starts_of(seq_idx: Tensor) -> Tensor:
    """[B, T], True where a sequence starts that isn't the first: where the number of the sequence changes."""
    return F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=False)


def since(starts: Tensor) -> Tensor:
    """[B, T], how many steps lie between each step and the last start before it, or the row's first step."""
    time = torch.arange(starts.shape[1], device=starts.device).expand_as(starts)
    return time - torch.where(starts, time, 0).cummax(1).values


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
        return since(starts)
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
