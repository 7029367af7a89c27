"""Maps of segments in torch: what the generated functions that make them share.

A map is a tuple of tensors: its linear parts, then its local parts. `law(later, earlier)` composes two of them.
Where kernels make maps there is `chunk_kernels/segment_maps.py` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LONG_CHUNK = 4096  # steps whose chunks' maps are held at once

Map = tuple[Tensor, ...]
Law = Callable[[Map, Map], Map]


@dataclass(frozen=True)
class Segment:
    """The map of one segment of a sequence for one group of `states`, and what would enter were it the first segment."""

    states: tuple[str, ...]
    law: Law
    apply: Callable[[Map, Map], Map]
    linear: Map
    local: Map
    entering: Map

    @property
    def map(self) -> Map:
        return (*self.linear, *self.local)

    def sent(self, starts: bool) -> Map:
        """What other segments need: the map, or where the sequence starts here only what leaves it."""
        if not starts:
            return self.map
        return (*(torch.zeros_like(x) for x in self.linear), *self.apply(self.map, self.entering))

    def composed(self, later: Tensor, earlier: Tensor) -> Tensor:
        """What two segments together send, from all that each sends, in one row."""
        found = self.law(self._map_of(later), self._map_of(earlier))
        return torch.cat([x.expand(own.shape).reshape(-1) for x, own in zip(found, self.map, strict=True)])

    def _map_of(self, row: Tensor) -> Map:
        parts = row.split([x.numel() for x in self.map])
        return tuple(x.view(own.shape) for x, own in zip(parts, self.map, strict=True))

    def entered(self, rows: Tensor, direction: int) -> Map:
        """What enters, from what the segments swept before it sent: [segments, all that each sent], in the sequence's order."""
        if not len(rows):
            return tuple(torch.zeros_like(x) for x in self.entering)
        parts = rows.split([x.numel() for x in self.map], 1)
        maps = (x.view(-1, *own.shape).movedim(0, 2) for x, own in zip(parts, self.map, strict=True))
        return reduced(self.law, tuple(maps), direction)[len(self.linear) :]


def map_of_segment(
    chunks: Callable[..., Map],
    law: Law,
    streams: tuple[Tensor, ...],
    lead: tuple[int, int, int],
    direction: int,
    size: int,
    *rest: object,
) -> Map:
    """The map [B, H, ...] of a whole sequence; `chunks` makes the maps [B, H, N, ...] of its chunks of `size` steps."""
    steps = lead[2]
    size = max(1, min(size, steps))
    whole: Map | None = None
    starts = range(0, max(steps, 1), LONG_CHUNK)
    for start in starts if direction > 0 else reversed(starts):
        count = min(LONG_CHUNK, steps - start)
        parts = [x.narrow(2, start, count) if x.shape[2] == steps else x for x in streams]
        piece = reduced(law, chunks(*parts, (*lead[:2], count), size, *rest), direction)
        whole = piece if whole is None else law(piece, whole)
    assert whole is not None
    return whole


def reduced(law: Law, maps: Map, direction: int) -> Map:
    """All maps along axis 2 composed, in the order of the sweep: neighbours first, so that there are few steps."""
    while (count := maps[0].shape[2]) > 1:
        even = count - count % 2
        left, right = (tuple(x[:, :, n:even:2] for x in maps) for n in (0, 1))
        pairs = law(right, left) if direction > 0 else law(left, right)
        maps = (
            pairs
            if even == count
            else tuple(torch.cat((p, x[:, :, even:]), 2) for p, x in zip(pairs, maps, strict=True))
        )
    return tuple(x[:, :, 0] for x in maps)


def over_chunks(x: Tensor | float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A part of a map for each chunk, also where it is one for all."""
    return torch.as_tensor(x, dtype=dtype, device=device).expand(shape)
