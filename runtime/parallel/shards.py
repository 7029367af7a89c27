"""Which pieces of which sequences lie in the part of one rank."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """Steps start..end of this part, of sequence `sequence`. Does the sequence begin and end here, or go on in other parts?"""

    sequence: int
    start: int
    end: int
    begins: bool
    ends: bool


def pieces_of(borders: list[int], lengths: list[int], rank: int) -> list[Piece]:
    """The pieces in the part of a rank, in order: `borders` is where the sequences begin and end, `lengths` are the parts'.

    A sequence without steps belongs to one rank: the first whose part goes on after it, or else the last rank.
    """
    low = sum(lengths[:rank])
    high = low + lengths[rank]
    total = sum(lengths)
    out = []
    first = max(0, bisect_right(borders, low) - 2)
    while first > 0 and borders[first] >= low:  # sequences without steps at the border
        first -= 1
    for n in range(first, len(borders) - 1):
        start, end = borders[n], borders[n + 1]
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
