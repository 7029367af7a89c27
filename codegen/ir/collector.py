"""Python's collector of cycles, which waits while a declaration is compiled, printed or explained."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0  # how many threads, or calls within calls, go without it
_was_on = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector, until the last of those who want it so, in any thread, is done.

    The compiler makes nodes and trees by the million, and hardly a cycle; looking at all of them again and again takes a third
    of its time.
    """
    global _inside, _was_on
    with _lock:
        if not _inside:
            _was_on = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _was_on:
                gc.enable()
