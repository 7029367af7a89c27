"""What failing calls have in common: each is simplified as far as it fails, and what is left is tried for where it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .accuracy import Judged
from .covering import Row

CAUSES = 3  # how many are looked for
ORDERED = ("T",)


@dataclass(frozen=True)
class Tried:
    """One call: its choices, and the worst head of each quantity; or what it raised."""

    row: Row
    found: Mapping[str, Judged]
    raised: str = ""

    @property
    def ok(self) -> bool:
        return not self.raised and all(j.ok for j in self.found.values())

    @property
    def worst(self) -> str:
        """The quantity that is furthest from what is allowed."""
        return max(self.found, key=lambda n: self.found[n].badness, default="")


@dataclass(frozen=True)
class Cause:
    """The simplest call that fails, and for each factor that isn't at its first choice those that fail there as well.

    `words` says it: "fails wherever T > 64 and packed".
    """

    smallest: Tried
    failing: Mapping[str, frozenset[Any]]
    words: str

    def holds(self, row: Row) -> bool:
        return all(row[n] in some for n, some in self.failing.items())


@dataclass
class Search:
    """Calls that were made, so that none is made twice."""

    factors: Mapping[str, Sequence[Any]]
    allowed: Callable[[Row], bool]
    call: Callable[[Row], Tried]
    until: float  # on `clock`
    clock: Callable[[], float] = time.monotonic
    made: dict[Any, Tried] = field(default_factory=dict)

    def tried(self, row: Row) -> Tried | None:
        """A call, or None where it may not be made, or there is no time for it."""
        key = tuple(row.items())
        if key not in self.made:
            if not self.allowed(row) or self.clock() > self.until:
                return None
            self.made[key] = self.call(row)
        return self.made[key]

    def fails(self, row: Row, like: Tried) -> bool:
        """Does it fail as that one does: in the same quantity, or with the same error?"""
        t = self.tried(row)
        if t is None or t.ok:
            return False
        if like.raised or t.raised:
            return bool(like.raised) == bool(t.raised)
        return like.worst in t.found and not t.found[like.worst].ok


def causes(search: Search, tried: Sequence[Tried]) -> list[Cause]:
    """Of the calls that failed, the smallest first; each cause accounts for as many as it can."""
    search.made |= {tuple(t.row.items()): t for t in tried}
    left = sorted((t for t in tried if not t.ok), key=lambda t: _size(search.factors, t.row))
    found: list[Cause] = []
    while left and len(found) < CAUSES:
        found.append(_cause(search, left[0]))
        left = [t for t in left[1:] if not found[-1].holds(t.row)]
    return found


def _size(factors: Mapping[str, Sequence[object]], row: Row) -> tuple[int, int]:
    return sum(row[n] != some[0] for n, some in factors.items()), row.get("T", 0)


def _cause(search: Search, t: Tried) -> Cause:
    row = dict(t.row)
    again = True
    while again:
        again = False
        for n, some in search.factors.items():
            simpler = {**row, n: some[0]}
            if row[n] != some[0] and search.fails(simpler, t):
                row, again = simpler, True
    failing: dict[str, frozenset[Any]] = {}
    words: list[str] = []
    for n, some in search.factors.items():
        if row[n] == some[0]:
            continue
        failing[n] = frozenset(x for x in some if x == row[n] or search.fails({**row, n: x}, t))
        passing = [x for x in some if x not in failing[n] and search.allowed({**row, n: x})]
        if n in ORDERED:
            text, row = _bounds(search, row, n, failing[n], passing, t)
        else:
            text = said(n, failing[n], some)
        words.append(text)
    what = "fails wherever " + " and ".join(words) if words else "fails everywhere, in the simplest call too"
    smallest = search.tried(row) or t
    return Cause(smallest, failing, what)


def _bounds(
    search: Search, row: Row, n: str, failing: frozenset[int], passing: list[int], like: Tried
) -> tuple[str, Row]:
    """Where a number begins to fail, or ends."""
    above, below = [x for x in passing if x > max(failing)], [x for x in passing if x < min(failing)]
    inside = [x for x in passing if min(failing) < x < max(failing)]
    if inside or not passing:
        return f"{n} is {_either(sorted(failing))}", row
    low, high = (max(below), min(failing)) if below else (min(above), max(failing))
    while abs(high - low) > 1:
        middle = (low + high) // 2
        if search.fails({**row, n: middle}, like):
            high = middle
        else:
            low = middle
    row = {**row, n: high}
    if below and above:
        return f"{n} is {_either(sorted(failing))}", row
    return (f"{n} >= {high}" if below else f"{n} <= {high}"), row


def said(n: str, failing: frozenset[Any], some: Sequence[Any]) -> str:
    """The choices of a factor that fail, in words."""
    if n == "widths":
        for words, holds in WIDTHS:
            if failing == {x for x in some if holds(x)}:
                return words
    verb = "are" if n.endswith("s") else "is"
    if len(failing) > 1 and failing == set(some[1:]):
        return f"{n} {verb} other than {_shown(some[0])}"
    return f"{n} {verb} {_either([x for x in some if x in failing])}"


WIDTHS: tuple[tuple[str, Callable[[Sequence[int]], bool]], ...] = (
    ("a width is above 64", lambda x: max(x) > 64),
    ("all dims have the same width", lambda x: len(x) > 1 and len(set(x)) == 1),
    ("a width is 1", lambda x: min(x) == 1),
    ("a width is below 16", lambda x: min(x) < 16),
    ("a width is no multiple of 8", lambda x: any(n % 8 for n in x)),
    ("a width is no power of two", lambda x: any(n & (n - 1) for n in x)),
    ("the last width is above 64", lambda x: x[-1] > 64),
    ("the first width is above 64", lambda x: x[0] > 64),
)


def _either(some: Sequence[object]) -> str:
    *most, last = map(_shown, some)
    return f"{', '.join(most)} or {last}" if most else last


def _shown(x: object) -> str:
    return " x ".join(map(str, x)) if isinstance(x, tuple) else str(x)
