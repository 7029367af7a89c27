"""While a spec file runs, it doesn't end the process, and starts nothing that would go on beside it or after it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from chunkform.errors import LoadError

from .kept import is_spec
from .source import caller

_LOCK, _RUN = threading.Lock(), Counter[tuple[int, int]]()  # how many files each thread runs
_ENDINGS = ("_exit", "abort", "execv", "execve")  # other functions of os that end the process call these
_FORKS = ("fork", "forkpty")
REPLACED: tuple[tuple[object, str], ...] = tuple(
    (of, name)
    for of, name in (*((os, x) for x in (*_ENDINGS, *_FORKS)), (threading.Thread, "start"), (atexit, "register"))
    if hasattr(of, name)
)
_REAL: dict[tuple[int, str], Callable[..., object]] = {}


@contextmanager
def alone() -> Iterator[None]:
    """Inside, what would end the process at once, without a word, ends no more than the file that calls it; and threads that the
    process would wait for, forks and a file's own functions for the end are refused. Files may be run in several threads at once,
    and by each other."""
    own = _own()
    with _LOCK:
        if not _RUN:
            _REAL.update({(id(of), name): getattr(of, name) for of, name in REPLACED})
        _RUN[own] += 1
        for of, name in REPLACED:
            setattr(of, name, _in_the_place(of, name))
    try:
        yield
    finally:
        with _LOCK:
            _RUN.subtract([own])
            # Files of a process that this one was forked by are no longer run here.
            for other in [x for x, n in _RUN.items() if n == 0 or x[0] != own[0]]:
                del _RUN[other]
            if not _RUN:
                for of, name in REPLACED:
                    setattr(of, name, _REAL[id(of), name])


def _own() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def _in_the_place(of: object, name: str) -> Callable[..., object]:
    if of is threading.Thread:
        return _started
    return _registered if of is atexit else partial(_forked if name in _FORKS else _ended, name)


def _ended(name: str, *words: object) -> None:
    if _own() in _RUN:
        raise SystemExit(f"os.{name}({', '.join(map(repr, words))})")
    _REAL[id(os), name](*words)  # of another thread, or of a process that it has forked


def _forked(name: str) -> object:
    _refuse_if(_own() in _RUN, "forks the process, and what follows would be done twice")
    return _REAL[id(os), name]()


def _started(self: threading.Thread) -> None:
    _refuse_if(_own() in _RUN and not self.daemon, "starts a thread, for which the process would wait at its end")
    _REAL[id(threading.Thread), "start"](self)


def _registered(*words: object, **named: object) -> object:
    """A library that the file imports may have something to do at the end."""
    by_file = is_spec(str(sys._getframe(1).f_globals.get("__name__")))
    _refuse_if(_own() in _RUN and by_file, "leaves something to be called at the end of the process")
    return _REAL[id(atexit), "register"](*words, **named)


def _refuse_if(so: bool, what: str) -> None:
    if so:
        raise LoadError(f"{what}: a spec declares, and does nothing else", caller())
