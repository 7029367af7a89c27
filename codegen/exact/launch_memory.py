"""Memory of a launch, and what its programs may do there: which of them has stored where, and loaded, since which barrier."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from chunkform.errors import GateError

from .entries import Entries
from .meanings import UNDEFINED

Rounds: TypeAlias = (
    "tuple[tuple[str, int], ...]"  # of the loops around a statement: their names, and the rounds they are in
)
NOBODY, SEVERAL = -1, -2


@dataclass
class Tensor:
    """Memory, in one row. `alike`: several programs may store one number in one place."""

    name: str
    cells: np.ndarray
    alike: bool = False

    @classmethod
    def room(cls, name: str, size: int) -> Tensor:
        """Memory that nothing is stored in."""
        return cls(name, np.full(size, UNDEFINED, dtype=object))

    def emptied(self) -> Tensor:
        """Memory as this is, that nothing is stored in."""
        return replace(self, cells=np.full(self.cells.size, UNDEFINED, dtype=object))


class Memory:
    """A tensor while a launch runs. Of each place: the program that has stored there, that has loaded, after how many barriers,
    and in which rounds of loops."""

    def __init__(self, tensor: Tensor, entries: Entries) -> None:
        self.tensor, self.entries = tensor, entries
        cells = tensor.cells
        self.whole = cells.size > 0 and all(type(x) is int for x in cells.tolist())  # whole numbers, such as a table's
        self.cells = cells.astype(np.int64) if self.whole else entries.given(cells)
        size = len(cells)
        self.owner = np.full(size, NOBODY, dtype=np.int64)
        self.stored_at = np.zeros(size, dtype=np.int64)
        self.reader, self.read_at, self.read_in = (np.full(size, NOBODY, dtype=np.int64) for _ in range(3))

    def hold_numbers(self) -> None:
        if self.whole:
            self.whole, self.cells = False, self.entries.of_whole(self.cells)

    def commit(self) -> None:
        """Leave what was stored in the tensor."""
        own = self.owner != NOBODY
        if own.any():
            self.tensor.cells[own] = self.entries.left(self.cells[own])


@dataclass
class Traffic:
    """What the programs of a launch load and store. `programs` are those that do, `barriers` how many each has passed."""

    name: str
    count: int
    memories: dict[int, Memory] = field(default_factory=dict)
    known: dict[Rounds, int] = field(default_factory=dict)  # numbers of rounds
    rounds: Rounds = ()

    def __post_init__(self) -> None:
        self.barriers = np.zeros(self.count, dtype=np.int64)

    def load(self, m: Memory, places: np.ndarray, mask: np.ndarray, programs: np.ndarray) -> np.ndarray:
        """What lies at places, [1 or programs, ..]; nothing where the mask doesn't hold."""
        if places.shape != mask.shape:
            places, mask = np.broadcast_arrays(places, mask)
        there = places[mask]
        self.inside(m, there, "loads")
        alone = len(places) == len(programs)  # else the same places are loaded by all
        own = np.broadcast_to(_lead(programs, places), places.shape)[mask] if alone else np.array(SEVERAL)
        owner = m.owner[there]
        if ((owner != NOBODY) & (owner != own)).any():
            raise GateError(f"{self.name}: a program loads what another one stores, in {m.tensor.name}")
        if not alone:
            m.reader[there] = SEVERAL
        else:
            if ((owner == own) & (m.stored_at[there] == self.barriers[own])).any():
                raise GateError(f"{self.name}: no barrier is between a store to {m.tensor.name} and a load of it")
            unread = m.reader[there] == NOBODY
            m.reader[there[unread]] = own[unread]
            m.reader[there[m.reader[there] != own]] = SEVERAL
            m.read_at[there] = self.barriers[own]
            m.read_in[there] = self.known.setdefault(self.rounds, len(self.known))
        if m.whole:
            out = np.zeros(places.shape, dtype=np.int64)
        else:
            out = m.entries.empty(places.shape)
        out[mask] = m.cells[there]
        return out

    def store(self, m: Memory, places: np.ndarray, mask: np.ndarray, value: np.ndarray, programs: np.ndarray) -> None:
        shape = np.broadcast_shapes(places.shape, mask.shape, value.shape, _lead(programs, places).shape)
        places, mask, value = (np.broadcast_to(x, shape) for x in (places, mask, value))
        there, entries = places[mask], value[mask]
        own = np.broadcast_to(_lead(programs, places), shape)[mask]
        self.inside(m, there, "stores")
        free = m.owner[there] == NOBODY
        m.owner[there[free]] = own[free]
        mine = m.owner[there] == own
        several = GateError(f"{self.name}: two stores go to one place of {m.tensor.name}")
        if not mine.all() and not m.tensor.alike:
            raise several
        last = np.empty(len(m.cells), dtype=np.int64)
        last[there] = np.arange(len(there))
        if mine.all():
            if (last[there] != np.arange(len(there))).any():
                raise several
        else:
            last[there[mine]] = np.flatnonzero(mine)
            if (last[there[mine]] != np.flatnonzero(mine)).any():
                raise several
        reader = m.reader[there]
        if ((reader != NOBODY) & (reader != own)).any():
            raise GateError(f"{self.name}: a program loads what another one stores, in {m.tensor.name}")
        since = (reader == own) & (m.read_at[there] == self.barriers[own])
        rounds = list(self.known)
        for n in set(m.read_in[there[since]].tolist()):
            if _earlier(rounds[n], self.rounds):
                raise GateError(f"{self.name}: no barrier is between a load of {m.tensor.name} and a store to it")
        m.hold_numbers()
        m.cells[there[mine]] = entries[mine]
        m.stored_at[there[mine]] = self.barriers[own[mine]]
        if not mine.all() and not m.entries.compared("==", m.cells[there], entries).all():
            raise several

    def inside(self, m: Memory, places: np.ndarray, what: str) -> None:
        if places.size and not (places.min() >= 0 and places.max() < len(m.cells)):
            raise GateError(f"{self.name}: it {what} beyond {m.tensor.name}")


def _lead(programs: np.ndarray, like: np.ndarray) -> np.ndarray:
    return programs.reshape(-1, *(1,) * (like.ndim - 1))


def _earlier(a: Rounds, b: Rounds) -> bool:
    """Are these different rounds of one loop?"""
    different = next(((x, y) for x, y in zip(a, b, strict=False) if x != y), None)
    return different is not None and different[0][0] == different[1][0]
