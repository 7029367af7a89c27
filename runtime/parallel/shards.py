"""Which pieces of which sequences lie in the segment of one rank."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError


@dataclass(frozen=True)
class Piece:
    """Steps start..end of this segment, of sequence `sequence`. Does the sequence begin and end here, or go on in other
    segments?"""

    sequence: int
    start: int
    end: int
    begins: bool
    ends: bool


def pieces_of(boundaries: list[int], lengths: list[int], rank: int) -> list[Piece]:
    """The pieces in the segment of a rank, in order: `boundaries` is where the sequences begin and end, `lengths` are the
    segments'.

    A sequence without steps belongs to one rank: the first whose segment goes on after it, or else the last rank.
    """
    low = sum(lengths[:rank])
    high = low + lengths[rank]
    total = sum(lengths)
    out = []
    first = max(0, bisect_right(boundaries, low) - 2)
    while first > 0 and boundaries[first] >= low:  # sequences without steps at the boundary
        first -= 1
    for n in range(first, len(boundaries) - 1):
        start, end = boundaries[n], boundaries[n + 1]
        if start > high:
            break
        if start == end:
            mine = low <= start < high or (start == total and rank == len(lengths) - 1)
        else:
            mine = max(start, low) < min(end, high)
        if mine:
            inside = max(start, low), min(end, high)
            out.append(Piece(n, inside[0] - low, inside[1] - low, start >= low, end <= high))
    return out


_known_boundaries: dict[int, tuple[weakref.ref[Tensor], Any, list[int]]] = {}


def host_boundaries(name: str, cu_seqlens: object, batch: int) -> list[int]:
    """cu_seqlens on the host. On a GPU this waits for it, once for each version of a tensor."""
    what = f"{name}: cu_seqlens"
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        kind = cu_seqlens.dtype if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        raise ArgumentError(f"{what} must be an int32 or int64 tensor [N + 1], got {kind}")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ArgumentError(f"{what} must be [N + 1] for N >= 1 sequences, got the shape {list(cu_seqlens.shape)}")
    if batch != 1:
        raise ArgumentError(f"{what}: packed sequences lie in one batch entry, but the inputs have B = {batch}")
    about = None
    if cu_seqlens.device.type != "cpu" and not cu_seqlens.is_inference():
        about = cu_seqlens._version, cu_seqlens.data_ptr(), cu_seqlens.shape, cu_seqlens.stride()
        known = _known_boundaries.get(id(cu_seqlens))
        if known is not None and known[0]() is cu_seqlens and known[1] == about:
            return known[2]
    boundaries = cu_seqlens.tolist()
    for n, (a, b) in enumerate(pairwise(boundaries)):
        if b < a:
            raise ArgumentError(f"{what} must not fall, got {a} and then {b} at sequence {n}")
    if about is not None:
        if len(_known_boundaries) > 64:
            _known_boundaries.clear()
        _known_boundaries[id(cu_seqlens)] = (weakref.ref(cu_seqlens), about, boundaries)
    return boundaries
