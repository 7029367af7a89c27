"""Kinds of calls whose arguments need no second look: those that differ in the numbers in tensors only."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

REMEMBERED = 256  # kinds of calls of one op


class Told(Protocol):
    """A call, which says of what kind it is; where something isn't as it should be, it may raise an error of Python's."""

    def kind(self) -> Hashable: ...


C = TypeVar("C", bound=Told)
K = TypeVar("K")


def known(kinds: dict[Hashable, K], call: C, find: Callable[[C], K]) -> K:
    """What is known of a call: find(call) where it is the first of its kind, or has none; then find says what is wrong."""
    try:
        kind = call.kind()
        found = kinds.get(kind)
    except (AttributeError, IndexError, TypeError, RuntimeError):
        return find(call)
    if found is None:
        found = find(call)
        remember(kinds, kind, found)
    return found


def remember(kinds: dict[Hashable, K], kind: Hashable, found: K) -> None:
    """Have it known, among the last kinds."""
    if len(kinds) >= REMEMBERED:
        kinds.clear()
    kinds[kind] = found
