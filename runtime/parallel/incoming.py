"""What enters a part of a sequence: one collective for the maps of all parts, and their composition up to this one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..segments import Map, Segment, reduced
from .group import Group


class Exchange:
    """`exchange` of the generated functions: maps of this rank's part in, what enters the part out.

    direction: 1 where states go to the next rank, -1 where gradients go to the rank before. `starts`: what the part carries on
    begins inside of it, with the states that its segment has as `entering`; nothing of other ranks reaches the ranks after it.
    `packed`: it may also start in other parts than the first.
    """

    def __init__(self, group: Group, direction: int, starts: bool, packed: bool = False) -> None:
        self.group, self.direction, self.starts, self.packed = group, direction, starts, packed
        self.arrived: dict[str, Tensor] = {}  # what the rank before hands on, by state

    def __call__(self, segments: tuple[Segment, ...]) -> tuple[Map, ...]:
        return self.begin(segments)()

    def begin(self, segments: tuple[Segment, ...]) -> Callable[[], tuple[Map, ...]]:
        """Send the maps; what is returned waits for those of the others. What needs nothing of them can run meanwhile."""
        tensors = [x for s in segments for x in self._sent(s)]
        flags = [tensors[0].new_full((1,), float(self.starts))] if self.packed else []
        flat = torch.cat([*flags, *(x.reshape(-1) for x in tensors)])
        gathering = self.group.gather(flat)
        return lambda: self._composed(segments, gathering.wait())

    def _composed(self, segments: tuple[Segment, ...], everything: Tensor) -> tuple[Map, ...]:
        before = self._before(everything)
        results, at = [], 1 if self.packed else 0
        for s in segments:
            parts = before[:, at : at + sum(x.numel() for x in s.map)].split([x.numel() for x in s.map], 1)
            at += sum(x.numel() for x in s.map)
            states = tuple(torch.zeros_like(x) for x in s.entering)
            if len(before):  # [B, H, ranks before, ...], all composed
                maps = (x.view(-1, *own.shape).movedim(0, 2) for x, own in zip(parts, s.map, strict=True))
                states = reduced(s.law, tuple(maps), 1)[len(s.linear) :]
            self.arrived |= dict(zip(s.states, states, strict=True))
            results.append(s.entering if self.starts else states)
        return tuple(results)

    def _sent(self, s: Segment) -> Map:
        """The map that others see: where the part starts what it carries on, only what leaves it."""
        if not self.starts:
            return s.map
        return (*(torch.zeros_like(x) for x in s.linear), *s.apply(s.map, s.entering))

    def _before(self, everything: Tensor) -> Tensor:
        """What the ranks say whose parts come before this one, first come first.

        Zeros for those before a rank where something starts: nothing of them counts, not even where it isn't finite.
        """
        rank = self.group.rank
        rows = everything[:rank] if self.direction > 0 else everything[rank + 1 :].flip(0)
        if not self.packed:
            return rows
        starts = (rows[:, 0] > 0).to(torch.int32)
        later = starts.flip(0).cumsum(0).flip(0) - starts
        return torch.where(later[:, None] > 0, 0, rows)
