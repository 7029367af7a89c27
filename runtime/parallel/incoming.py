"""What enters a segment of a sequence: the maps of the segments before it, gathered or written by their GPUs, and composed; or by
a scan over ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from ..torch_form.segment_maps import Map
from . import links
from .group import Group
from .mailboxes import mailboxes_of


class SegmentMap(Protocol):
    """What a segment makes of the state that enters it: a `Segment` of the torch form, or a `SegmentsMap` of kernels."""

    @property
    def states(self) -> Sequence[str]: ...
    @property
    def entering(self) -> Map: ...
    def sent(self, starts: bool) -> Sequence[Tensor]: ...
    def composed(self, later: Tensor, earlier: Tensor) -> Tensor: ...
    def entered(self, rows: Tensor, direction: int) -> Map: ...


Segments = tuple[SegmentMap, ...]


class Exchange:
    """`exchange` of the generated functions: maps of this rank's segment in (`Segment` or `SegmentsMap`), what enters the
    segment out.

    direction: 1 where states go to the next rank, -1 where gradients go to the rank before. `starts`: what the segment carries on
    begins inside of it, with the states that its segment has as `entering`; nothing of other ranks reaches the ranks after it.
    `packed`: it may also start in other segments than the first. `node`: ranks of a node, which decides how maps travel.
    """

    def __init__(
        self, group: Group, direction: int, starts: bool, packed: bool = False, node: int = links.LINKS.per_node
    ) -> None:
        self.group, self.direction, self.starts, self.packed, self.node = group, direction, starts, packed, node
        self.arrived: dict[str, Tensor] = {}  # what the rank before hands on, by state
        self.begun = 0  # exchanges

    def __call__(self, segments: Segments) -> tuple[Map, ...]:
        return self.begin(segments)()

    def begin(self, segments: Segments) -> Callable[[], tuple[Map, ...]]:
        """Send the maps; what is returned waits for those of the others. What needs nothing of them can run meanwhile."""
        sent = [s.sent(self.starts) for s in segments]
        tensors = [x.reshape(-1) for own in sent for x in own]
        sizes = [sum(x.numel() for x in own) for own in sent]
        if self.packed:
            tensors.insert(0, tensors[0].new_full((1,), float(self.starts)))
        row = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        known = replace(links.LINKS, per_node=self.node)
        if links.way(row.nbytes, self.group.size, known) == "scan":
            rows = self._scan(segments, sizes, row)
        else:
            rows = self._all(row)
        return lambda: self._entering(segments, sizes, rows())

    def _entering(self, segments: Segments, sizes: list[int], before: Tensor) -> tuple[Map, ...]:
        """What enters, from the rows of what is swept before this segment."""
        if self.starts and not self.packed:
            return tuple(s.entering for s in segments)
        results = []
        for s, rows in zip(segments, before.split(sizes, 1), strict=True):
            states = s.entered(rows, self.direction)
            self.arrived |= dict(zip(s.states, states, strict=False))
            results.append(s.entering if self.starts else states)
        return tuple(results)

    # --- rows of all ranks ------------------------------------------------------------------------------------------------

    def _all(self, row: Tensor) -> Callable[[], Tensor]:
        """Of those whose segments are swept before this one, in the order of the ranks."""
        group, forward = self.group, self.direction > 0
        boxes = mailboxes_of(group, row.device)
        box = None if boxes is None else boxes.box(group, row, forward, self.begun)
        self.begun += 1
        if box is not None:
            box.send(row)
            return lambda: self._counted(box.receive(row))
        gathering = group.gather(row)
        before = slice(group.rank) if forward else slice(group.rank + 1, None)
        return lambda: self._counted(gathering.wait()[before])

    def _counted(self, rows: Tensor) -> Tensor:
        """Of rows of all before this segment what counts.

        Zeros for those before a rank where something starts: nothing of them counts, not even where it isn't finite.
        """
        if not self.packed:
            return rows
        starts = (rows[:, 0] > 0).to(torch.int32)
        passed = starts.cumsum(0)
        later = passed[-1:] - passed if self.direction > 0 else passed - starts
        return torch.where(later[:, None] > 0, 0, rows[:, 1:])

    # --- a scan: the row of all before this rank --------------------------------------------------------------------------

    def _scan(self, segments: Segments, sizes: list[int], row: Tensor) -> Callable[[], Tensor]:
        """Of a rank's own map, and of 1, 2, 4, .. ranks up to it, each composition goes to the rank that many places on."""
        group = self.group
        at = group.rank if self.direction > 0 else group.size - 1 - group.rank  # in the order of the sweep

        def neighbour(place: int) -> int | None:
            if not 0 <= place < group.size:
                return None
            return place if self.direction > 0 else group.size - 1 - place

        def finished() -> Tensor:
            before: Tensor | None = None
            passing, step = first, 1
            while True:
                found = passing.wait()
                if found is not None:
                    before = found if before is None else self._joined(segments, sizes, before, found)
                step *= 2
                if step >= group.size:
                    break
                to, of = neighbour(at + step), neighbour(at - step)
                both = row
                if to is not None and before is not None:
                    both = self._joined(segments, sizes, row, before)
                passing = group.shift(both, to, of)
            rows = row.new_empty((0, row.shape[0])) if before is None else before[None]
            return rows[:, 1:] if self.packed else rows

        first = group.shift(row, neighbour(at + 1), neighbour(at - 1))
        return finished

    def _joined(self, segments: Segments, sizes: list[int], later: Tensor, earlier: Tensor) -> Tensor:
        """The row of two that follow each other. Where something starts in the later one, nothing of the earlier counts."""
        rows = [x[1:] if self.packed else x for x in (later, earlier)]
        parts = zip(segments, *(x.split(sizes) for x in rows), strict=True)
        joined = [s.composed(x, y) for s, x, y in parts]
        if not self.packed:
            return joined[0] if len(joined) == 1 else torch.cat(joined)
        return torch.where(later[:1] > 0, later, torch.cat((torch.maximum(later[:1], earlier[:1]), *joined)))
