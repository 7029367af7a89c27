"""Python's collector of cycles: it waits while a declaration is compiled or printed, and looks seldom in commands."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (1_000_000, 20, 100)  # some 200 MB of new objects before a look at these

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


@contextmanager
def seldom_collected() -> Iterator[None]:
    """With a collector that looks seldom, for what may take minutes, where cycles would add up."""
    usual = gc.get_threshold()
    if usual[0]:  # else none is wanted at all
        gc.set_threshold(max(usual[0], SELDOM[0]), *SELDOM[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
