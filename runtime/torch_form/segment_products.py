"""How a segment's map A S + b multiplies: entry by entry, or each column of the states by one matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

LEAD = 2  # axes before a state's own: segments, heads
Tensors = dict[str, Tensor]


class Products(Protocol):
    """`units` are first states of which the last ones are parts of A; `gathered` joins these parts."""

    dear: bool  # does A cost as much as many steps?

    def times(self, a: Tensor, x: Tensor) -> Tensor: ...
    def transposed(self, a: Tensor) -> Tensor: ...
    def lined(self, x: Tensors) -> Tensors: ...
    def stored(self, x: Tensors) -> Tensors: ...
    def units(self, name: str, like: Tensor) -> Iterator[tuple[int, Tensor]]: ...
    def gathered(self, name: str, parts: list[tuple[int, Tensor]]) -> Tensor: ...
    def unit(self, a: Tensor) -> Tensor: ...  # of which the product with x is x


class ByEntry:
    """A has a number for each entry of a state."""

    dear = False
    times = staticmethod(torch.mul)

    def transposed(self, a: Tensor) -> Tensor:
        return a

    def lined(self, x: Tensors) -> Tensors:
        return x

    stored = lined

    def units(self, name: str, like: Tensor) -> Iterator[tuple[int, Tensor]]:
        yield 1, torch.ones_like(like)

    def gathered(self, name: str, parts: list[tuple[int, Tensor]]) -> Tensor:
        ((_, whole),) = parts
        return whole

    def unit(self, a: Tensor) -> Tensor:
        return torch.ones_like(a)


@dataclass(frozen=True)
class ByColumn:
    """A is a matrix over the rows of two states. `columns` has for each state the place of the axis that counts its columns, None
    where a vector or a number is one column, and how many axes it has."""

    columns: Mapping[str, tuple[int | None, int]]
    dear = True

    def times(self, a: Tensor, x: Tensor) -> Tensor:
        """In float64, so that nothing is rounded to fewer digits than a step has, whatever float32 products are allowed to do."""
        return torch.matmul(a.double(), x.double()).to(x.dtype)

    def transposed(self, a: Tensor) -> Tensor:
        return a.mT

    def lined(self, x: Tensors) -> Tensors:
        """States as [.., rows, columns]."""
        return {n: self._lined(n, y) for n, y in x.items()}

    def stored(self, x: Tensors) -> Tensors:
        """The reverse."""
        return {n: self._stored(n, y) for n, y in x.items()}

    def units(self, name: str, like: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Of rows, as many at a time as there are columns, how many they are and the states that are 1 there."""
        lines = self._lined(name, like)
        rows, width = lines.shape[-2:]
        for first in range(0, rows, width):
            count = min(width, rows - first)
            unit = torch.zeros_like(lines)
            unit[..., first : first + count, :count] = torch.eye(count, dtype=unit.dtype, device=unit.device)
            yield count, self._stored(name, unit).contiguous()

    def gathered(self, name: str, parts: list[tuple[int, Tensor]]) -> Tensor:
        """A, [.., rows after, rows before], of the last states `name`."""
        return torch.cat([self._lined(name, x)[..., :count] for count, x in parts], -1)

    def unit(self, a: Tensor) -> Tensor:
        return torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)

    def _lined(self, name: str, x: Tensor) -> Tensor:
        place, axes = self.columns[name]
        if place is None:
            return x[..., None] if axes else x[..., None, None]
        own = x.movedim(LEAD + place, -1)
        return own if axes > 1 else own.unsqueeze(-2)

    def _stored(self, name: str, x: Tensor) -> Tensor:
        place, axes = self.columns[name]
        if place is None:
            return x[..., 0] if axes else x[..., 0, 0]
        return x.movedim(-1, LEAD + place) if axes > 1 else x.squeeze(-2)
