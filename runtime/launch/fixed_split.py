"""Whether what is cut is cut by a sequence's length alone, as `deterministic=True` asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _State(threading.local):
    fixed = False


_state = _State()


def fixed() -> bool:
    """Does this thread run a pass whose split may depend on a sequence's length only?"""
    return _state.fixed


@contextmanager
def split_by_length(on: bool) -> Iterator[None]:
    """Meanwhile, where `on`, what is cut is cut by a sequence's length alone."""
    before, _state.fixed = _state.fixed, on
    try:
        yield
    finally:
        _state.fixed = before
