"""What kernels over chunks are tried on: sequences of how many steps, cut into what, with which arguments missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

CHUNK = 2
SEVERAL = 4  # steps of a chunk in which some step is neither the first nor the last, nor beside these
PACKED = 0, SEVERAL + 1, 1, 0  # steps of packed sequences: none, a chunk and a tail, less than a chunk, none
SIZES = (3, 2), (2, 3), (3, 3)  # of a dim, in turn, and where dims are `turned`: any two differ in one of these cases


@dataclass(frozen=True)
class Case:
    """`large_range`: decays of the second chunk are far below what two factors can be split into, and those of one head leave
    nothing there. `exact`: cumulative sums lie in
    two parts, high and rest. `even`: there is no tail after whole chunks. `lengths`: those of sequences that are packed, each
    steps. `segments`: into so many each sequence is cut. `turned`: dims have other sizes. `groups`: some inputs have
    one head for two, each of them with 0 or with 1, and of three in turn any two apart."""

    chunk: int = CHUNK
    large_range: bool = False
    exact: bool = False
    even: bool = False
    lengths: tuple[int, ...] = ()
    segments: int = 1
    warps: int = 2
    turned: bool = False
    groups: int | None = None

    def size(self, n: int) -> int:
        """Of the n-th dim."""
        return SIZES[n % len(SIZES)][self.turned]

    def packed(self) -> Iterator[OneSequence]:
        """The sequences that are packed."""
        begins = (0, *accumulate(self.lengths))
        for n, (begin, stop) in enumerate(pairwise(begins)):
            yield OneSequence(0, begin, stop, begin // self.chunk + n, n)


@dataclass(frozen=True)
class OneSequence:
    """Steps of a batch entry: from `begin` up to `stop`. `first`: the place of its first chunk; `before`: so many packed
    sequences come before it."""

    b: int
    begin: int
    stop: int
    first: int = 0
    before: int = 0

    def chunks(self, chunk: int) -> Iterator[tuple[int, int, int]]:
        """Of each chunk its place, its first step, and how many it has."""
        for n, t in enumerate(range(self.begin, self.stop, chunk)):
            yield self.first + n, t, min(chunk, self.stop - t)


@dataclass(frozen=True, eq=False)
class Chunks:
    """Chunks of as many steps each, for which what is expected is evaluated together: their sequences, heads, numbers, [n], and
    steps, [n, count]."""

    b: np.ndarray
    h: np.ndarray
    c: np.ndarray
    steps: np.ndarray

    @classmethod
    def at(cls, places: Iterable[tuple[int, int, int]], starts: Iterable[int], count: int) -> Chunks:
        """Those of (sequence, head, chunk), with `count` steps from the start of each on."""
        b, h, c = np.array(list(places), dtype=np.int64).T
        return cls(b, h, c, np.array(list(starts), dtype=np.int64)[:, None] + np.arange(count))

    def among(self, which: np.ndarray) -> Chunks:
        return Chunks(self.b[which], self.h[which], self.c[which], self.steps[which])

    @property
    def count(self) -> int:
        """How many steps each has."""
        return int(self.steps.shape[1])

    @property
    def step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The place of each step: sequence, step, head, [n, count]."""
        return self.b[:, None], self.steps, self.h[:, None]

    def __len__(self) -> int:
        return len(self.b)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return zip(self.b.tolist(), self.h.tolist(), self.c.tolist(), strict=True)


def some_missing(names: Sequence[str], known: Sequence[str] = ()) -> list[frozenset[str]]:
    """Arguments that launches do without: of any two of these names there is a launch that has one and not the other, and each is
    missing in some. Where one is used for another, that launch shows it: what is asked for isn't made, or nothing is loaded.
    `known`: those that a launch does without which has the others."""
    numbers = [*enumerate(names, 1), *enumerate(known)]
    launches = max((n.bit_length() for n, _ in numbers), default=0)
    return [frozenset(x for n, x in numbers if n >> launch & 1) for launch in range(launches)]
