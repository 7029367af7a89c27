"""How narrow tiles are to be: a thread tells the launches of a pass that wider ones didn't fit a GPU's shared memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

NARROWEST = 2  # levels below what is chosen at first, which is level 0
FORM = NARROWEST + 1  # the level at which the torch form runs


class _Narrowing(threading.local):
    """The level of this thread's launches, and whether it was told one."""

    level = 0
    told = False


_narrowing = _Narrowing()


def level() -> int:
    """The level of this thread's launches."""
    return _narrowing.level


def is_told() -> bool:
    """Is a pass under way, all of whose launches have one level?"""
    return _narrowing.told


@contextmanager
def narrowed(to: int) -> Iterator[None]:
    """Meanwhile this thread's launches take tiles of this level."""
    before = _narrowing.level, _narrowing.told
    _narrowing.level, _narrowing.told = to, True
    try:
        yield
    finally:
        _narrowing.level, _narrowing.told = before
