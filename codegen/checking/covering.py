"""Covering arrays: few rows in which each pair of choices of two factors occurs, where all combinations would be too many."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


def covering(
    factors: Mapping[str, Sequence[object]],
    allowed: Callable[[Row], bool] = lambda row: True,
    together: Sequence[tuple[str, ...]] = (),
) -> tuple[Row, ...]:
    """Rows of one choice for each factor, the same ones at each call. `allowed` says of some of a row's choices whether they go
    together; a pair that no row can have is left out. The first row has each factor's first choice. Of factors that are named
    `together`, more than two, all choices meet as well.

    Greedy: a row starts with the first pair that is missing, and takes what brings the most missing pairs, factor by factor.
    """
    names = list(factors)
    sets = [*itertools.combinations(names, 2), *(s for s in together if set(s) <= set(names))]
    missing = dict.fromkeys(
        choices for s in sets for choices in itertools.product(*([(n, x) for x in factors[n]] for n in s))
    )
    rows: list[Row] = []
    start: Row = {n: choices[0] for n, choices in factors.items()}
    while missing:
        pair = next(iter(missing))
        row = start if not rows and allowed(start) else _completed(dict(pair), sets, factors, allowed, missing)
        if row is None:
            del missing[pair]
            continue
        rows.append({n: row[n] for n in names})
        for s in sets:
            missing.pop(tuple((n, row[n]) for n in s), None)
    return tuple(rows)


def pairs_of(factors: Mapping[str, Sequence[object]]) -> list[Pair]:
    """Each pair of choices of two factors."""
    choices = [[(n, x) for x in some] for n, some in factors.items()]
    return [pair for a, b in itertools.combinations(choices, 2) for pair in itertools.product(a, b)]


def _completed(
    row: Row,
    sets: Sequence[tuple[str, ...]],
    factors: Mapping[str, Sequence[object]],
    allowed: Callable[[Row], bool],
    missing: Mapping[tuple[tuple[str, object], ...], None],
) -> Row | None:
    """A whole row with these choices, or None. Factors with the most choices come first: they are the hardest to cover."""
    if not allowed(row):
        return None
    left = sorted((n for n in factors if n not in row), key=lambda n: -len(factors[n]))
    if not left:
        return row
    name = left[0]

    whole = [s for s in sets if name in s and all(n in row or n == name for n in s)]

    def gain(x: object) -> int:
        new = {**row, name: x}
        return sum(tuple((n, new[n]) for n in s) in missing for s in whole)

    for x in sorted(factors[name], key=gain, reverse=True):
        found = _completed({**row, name: x}, sets, factors, allowed, missing)
        if found is not None:
            return found
    return None
