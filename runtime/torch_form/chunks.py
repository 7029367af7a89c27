"""What the generated torch forms share: sequences as chunks, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from .chunk_length import CHANNEL_CHUNK as CHANNEL_CHUNK
from .chunk_length import CHUNK as CHUNK

SEGMENT = 4096  # steps that are worked on at once


def steps_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, T, H, ...] -> [B, H, T, ...] in the dtype of the computation."""
    return x.transpose(1, 2).to(dtype)


def call_of(given: dict[str, Tensor], per_step: str) -> tuple[torch.dtype, torch.device, tuple[int, int, int]]:
    """(dtype of the computation, device, (B, H, T)) of a call; `per_step` names an argument that each step has."""
    x = given[per_step]
    return dtype_of(given), x.device, (x.shape[0], x.shape[2], x.shape[1])


def or_zeros(x: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """x, or zeros where there is none."""
    return torch.zeros(shape, dtype=dtype, device=device) if x is None else x.to(dtype)


def steps_or_zeros(x: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[B, T, H, ...] as [B, H, T, ...], or zeros of this shape where there is none."""
    return torch.zeros(shape, dtype=dtype, device=device) if x is None else steps_first(x, dtype)


def per_head(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter [H, ...] as [1, H, 1, ...]."""
    return x.to(dtype)[None, :, None]


def to_chunks(x: Tensor, lead: tuple[int, int, int], size: int, axes: int, fill: float = 0.0) -> Tensor:
    """[B, H, T, ...] (any of the three may be 1) -> [B, H, N, size, ...], with `fill` beyond the end; `axes` counts the rest."""
    batch, heads, steps = lead
    x = x.expand(batch, heads, steps, *x.shape[x.dim() - axes :])
    count = max(1, -(-steps // size))
    if count * size != steps:
        x = torch.nn.functional.pad(x, (0, 0) * axes + (0, count * size - steps), value=fill)
    return x.reshape(batch, heads, count, size, *x.shape[x.dim() - axes :])


def chunks_of(lead: tuple[int, int, int], size: int, *streams: Tensor) -> list[Tensor]:
    """Each of these, [B, H, T, ...], as chunks."""
    return [to_chunks(x, lead, size, x.dim() - 3) for x in streams]


def from_chunks(x: Tensor, lead: tuple[int, int, int], axes: int) -> Tensor:
    """[B, H, N, C, ...] -> [B, H, T, ...]; B, H and N may be 1."""
    batch, heads, steps = lead
    return x.expand(batch, heads, *x.shape[2:]).flatten(2, 3)[:, :, :steps]


def dtype_of(given: dict[str, Tensor]) -> torch.dtype:
    """float64 where an input is, else float32."""
    return torch.float64 if any(x.dtype == torch.float64 for x in given.values()) else torch.float32


def expanded(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x with its trailing axes expanded to `shape` (-1: as they are)."""
    return x.expand(*x.shape[: x.dim() - len(shape)], *shape)


def from_steps(x: Tensor, lead: tuple[int, int, int], axes: int, dtype: torch.dtype) -> Tensor:
    """[B, H, T, ...] (any of the three may be 1) -> [B, T, H, ...]."""
    return x.expand(*lead, *x.shape[x.dim() - axes :]).transpose(1, 2).to(dtype).contiguous()


def from_heads(x: Tensor, lead: tuple[int, int, int], axes: int, dtype: torch.dtype) -> Tensor:
    """The gradient of a parameter: the sum over batch and steps of [B, H, T, ...], as [H, ...]."""
    return x.expand(*lead, *x.shape[x.dim() - axes :]).sum((0, 2)).to(dtype)


def in_segments(
    sweep: Callable[..., Any],
    streams: tuple[Tensor, ...],
    states: tuple[Tensor, ...],
    lead: tuple[int, int, int],
    direction: int,
    *rest: object,
) -> Any:
    """Run a sweep over segments of the sequence, so that memory beside its results doesn't grow with the length."""
    steps = lead[2]
    if steps <= SEGMENT:
        return sweep(*streams, *states, lead, *rest)
    starts = range(0, steps, SEGMENT)
    results: list[Any] = []
    for start in starts if direction > 0 else reversed(starts):
        size = min(SEGMENT, steps - start)
        parts = [x.narrow(2, start, size) if x.shape[2] == steps else x for x in streams]
        found = sweep(*parts, *states, (*lead[:2], size), *rest)
        found = found if isinstance(found, tuple) else (found,)
        states = found[len(found) - len(states) :]
        results.append(found[: len(found) - len(states)])
    outputs = [torch.cat(x if direction > 0 else x[::-1], 2) for x in zip(*results, strict=True)]
    return (*outputs, *states) if len(outputs) + len(states) > 1 else states[0]


Found = TypeVar("Found", bound="Tensor | tuple[Tensor, ...]")


def in_float64(of_chunks: Callable[..., Found]) -> Callable[..., Found]:
    """A function over chunks that computes in float64 what it is given in float32, and rounds what it makes."""

    def computed(*given: object) -> Found:
        if any(isinstance(x, Tensor) and x.device.type == "mps" for x in given):  # which has no float64
            return of_chunks(*given)
        found = of_chunks(*(_cast(x, torch.float32, torch.float64) for x in given))
        if torch.float32 not in given and not any(isinstance(x, Tensor) and x.dtype == torch.float32 for x in given):
            return found
        rounded = tuple(
            _cast(x, torch.float64, torch.float32) for x in (found if isinstance(found, tuple) else (found,))
        )
        return cast(Found, rounded if isinstance(found, tuple) else rounded[0])

    return computed


def _cast(x: object, of: torch.dtype, to: torch.dtype) -> object:
    """A tensor of one dtype in another, or that dtype."""
    if isinstance(x, Tensor):
        return x.to(to) if x.dtype == of else x
    return to if x is of else x


def from_boundaries(
    unroll: Callable[..., tuple[Tensor, ...]],
    streams: tuple[Tensor, ...],
    edges: tuple[Tensor, ...],
    lead: tuple[int, int, int],
    size: int,
    *rest: object,
) -> tuple[Tensor, ...]:
    """Like `in_segments` for what has the states at chunk boundaries, [B, H, N, ...], and so needs no sweep."""
    steps = lead[2]
    if steps <= SEGMENT:
        return unroll(*streams, *edges, lead, size, *rest)
    results = []
    for start in range(0, steps, SEGMENT):
        count = min(SEGMENT, steps - start)
        parts = [x.narrow(2, start, count) if x.shape[2] == steps else x for x in streams]
        boundaries = [x[:, :, start // size : -(-(start + count) // size)] for x in edges]
        results.append(unroll(*parts, *boundaries, (*lead[:2], count), size, *rest))
    return tuple(torch.cat(x, 2) for x in zip(*results, strict=True))
