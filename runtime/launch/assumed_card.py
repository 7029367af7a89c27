"""A GPU that launches are chosen for without being there: for whoever compiles what a call would launch, and launches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """Its compute capability, and the bytes of shared memory that a program may have."""

    capability: tuple[int, int]
    shared: int


_card: Card | None = None


def card() -> Card | None:
    """The one that is assumed; None where calls are launched."""
    return _card


@contextmanager
def assuming_card(assumed: Card) -> Iterator[None]:
    """Launches are chosen as for this GPU meanwhile."""
    global _card
    before, _card = _card, assumed
    try:
        yield
    finally:
        _card = before
