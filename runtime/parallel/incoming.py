"""What enters a segment of a sequence: one collective for the maps of all segments, and their composition up to this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..torch_form.segment_maps import Map
from .group import Group


class SegmentMap(Protocol):
    """What a segment makes of the state that enters it: a `Segment` of the torch form, or a `PartsMap` of kernels."""

    @property
    def states(self) -> Sequence[str]: ...
    @property
    def entering(self) -> Map: ...
    def sent(self, starts: bool) -> Sequence[Tensor]: ...
    def entered(self, rows: Tensor, direction: int) -> Map: ...


Segments = tuple[SegmentMap, ...]


class Exchange:
    """`exchange` of the generated functions: maps of this rank's segment in (`Segment` or `PartsMap`), what enters the
    segment out.

    direction: 1 where states go to the next rank, -1 where gradients go to the rank before. `starts`: what the segment carries on
    begins inside of it, with the states that its segment has as `entering`; nothing of other ranks reaches the ranks after it.
    `packed`: it may also start in other segments than the first.
    """

    def __init__(self, group: Group, direction: int, starts: bool, packed: bool = False) -> None:
        self.group, self.direction, self.starts, self.packed = group, direction, starts, packed
        self.arrived: dict[str, Tensor] = {}  # what the rank before hands on, by state

    def __call__(self, segments: Segments) -> tuple[Map, ...]:
        return self.begin(segments)()

    def begin(self, segments: Segments) -> Callable[[], tuple[Map, ...]]:
        """Send the maps; what is returned waits for those of the others. What needs nothing of them can run meanwhile."""
        sent = [s.sent(self.starts) for s in segments]
        tensors = [x.reshape(-1) for own in sent for x in own]
        sizes = [sum(x.numel() for x in own) for own in sent]
        if self.packed:
            tensors.insert(0, tensors[0].new_full((1,), float(self.starts)))
        gathering = self.group.gather(tensors[0] if len(tensors) == 1 else torch.cat(tensors))
        return lambda: self._composed(segments, sizes, gathering.wait())

    def _composed(self, segments: Segments, sizes: list[int], everything: Tensor) -> tuple[Map, ...]:
        if self.starts and not self.packed:
            return tuple(s.entering for s in segments)
        before = self._before(everything)
        results = []
        for s, rows in zip(segments, before.split(sizes, 1), strict=True):
            states = s.entered(rows, self.direction)
            self.arrived |= dict(zip(s.states, states, strict=False))
            results.append(s.entering if self.starts else states)
        return tuple(results)

    def _before(self, everything: Tensor) -> Tensor:
        """What the ranks say whose segments are swept before this one, in the order of the ranks.

        Zeros for those before a rank where something starts: nothing of them counts, not even where it isn't finite.
        """
        rank = self.group.rank
        rows = everything[:rank] if self.direction > 0 else everything[rank + 1 :]
        if not self.packed:
            return rows
        starts = (rows[:, 0] > 0).to(torch.int32)
        passed = starts.cumsum(0)
        later = passed[-1:] - passed if self.direction > 0 else passed - starts
        return torch.where(later[:, None] > 0, 0, rows[:, 1:])
