"""What enters a part of a sequence: one collective for the maps of all parts, and their composition up to this one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..segments import Map, Segment
from .group import Group


class Exchange:
    """`exchange` of the generated functions: maps of this rank's part in, what enters the part out.

    direction: 1 where states go to the next rank, -1 where gradients go to the rank before. `starts`: what the part carries on
    begins inside of it, with the states that its segment has as `entering`; nothing of other ranks reaches the ranks after it.
    `meanwhile` is done once, while the first collective is on its way.
    """

    def __init__(self, group: Group, direction: int, starts: bool, meanwhile: Callable[[], None] | None = None) -> None:
        self.group, self.direction, self.starts, self.meanwhile = group, direction, starts, meanwhile
        self.arrived: dict[str, Tensor] = {}  # what the rank before hands on, by state
        self.bytes = 0  # what this rank has sent

    def __call__(self, segments: tuple[Segment, ...]) -> tuple[Map, ...]:
        tensors = [x for s in segments for x in self._sent(s)]
        shapes = [x.shape for x in tensors]
        some = tensors[0]
        flag = some.new_full((1,), float(self.starts))
        flat = torch.cat([flag, *(x.reshape(-1) for x in tensors)])
        self.bytes += flat.numel() * flat.element_size()
        gathering = self.group.gather(flat)
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        everything = gathering.wait()
        sizes = [n.numel() for n in shapes]
        results = []
        at = 1
        for s in segments:
            count = len(s.map)
            width = sum(sizes[:count])
            states = tuple(torch.zeros_like(x) for x in s.entering)
            for row in self._before(everything):
                parts = row[at : at + width].split(sizes[:count])
                whole = tuple(x.view(shape) for x, shape in zip(parts, shapes, strict=False))
                passed = s.apply(whole, states)
                begun = row[0] > 0  # nothing that came before counts, not even where it isn't finite
                states = tuple(torch.where(begun, b, x) for b, x in zip(whole[len(s.linear) :], passed, strict=True))
            self.arrived |= dict(zip(s.states, states, strict=True))
            results.append(s.entering if self.starts else states)
            at, sizes, shapes = at + width, sizes[count:], shapes[count:]
        return tuple(results)

    def _sent(self, s: Segment) -> Map:
        """The map that others see: where the part starts what it carries on, only what leaves it."""
        if not self.starts:
            return s.map
        return (*(torch.zeros_like(x) for x in s.linear), *s.apply(s.map, s.entering))

    def _before(self, everything: Tensor) -> Tensor:
        """The rows of the ranks whose parts come before this one, first come first."""
        if self.direction > 0:
            return everything[: self.group.rank]
        return everything[self.group.rank + 1 :].flip(0)
