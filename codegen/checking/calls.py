"""`chunkform check`: each pair of choices of how an op is called, compared with its definition, and what failures share."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from chunkform.errors import SpecError

from .accuracy import Judged
from .covering import Row, covering, pairs_of
from .culprits import Cause, Search, Tried, causes

SECONDS = {"cpu": 60.0, "cuda": 600.0}  # a check takes no longer, and says where it stopped
SEARCH = 20.0  # seconds in which failures are simplified


class Subject(Protocol):
    """An op, what may differ between two calls of it, and what one call gets wrong."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def factors(self) -> Mapping[str, Sequence[Any]]: ...
    @property
    def together(self) -> Sequence[tuple[str, ...]]: ...
    def allowed(self, row: Row) -> bool: ...
    def tried(self, row: Row) -> Mapping[str, Judged]: ...


@dataclass(frozen=True)
class Report:
    """Calls of one op. `pairs` of `of` pairs of choices were in one."""

    name: str
    calls: tuple[Tried, ...]
    rows: int
    pairs: int
    of: int
    causes: tuple[Cause, ...]

    @property
    def ok(self) -> bool:
        return all(t.ok for t in self.calls)

    @property
    def whole(self) -> bool:
        return len(self.calls) == self.rows


def rows_of(subject: Subject) -> tuple[Row, ...]:
    """The calls that are made: every pair of choices of two factors is in one of them, and what the subject wants together."""
    return covering(subject.factors, subject.allowed, subject.together)


def check_calls(
    subject: Subject,
    seconds: float | None = None,
    done: Callable[[int, int], None] = lambda n, of: None,
    rows: Sequence[Row] | None = None,
) -> Report:
    """Make the calls, or `rows` of them, for so many seconds; then find out what those that failed have in common."""
    rows = rows_of(subject) if rows is None else rows
    clock = time.process_time if subject.device == "cpu" else time.monotonic  # others may use the same processors
    end = clock() + seconds if seconds else float("inf")
    tried: list[Tried] = []
    with one_thread(subject.device == "cpu"):
        for n, row in enumerate(rows):
            if clock() > end:
                break
            tried.append(call(subject, row))
            done(n + 1, len(rows))
            if lost(tried[-1]):
                break
        search = Search(subject.factors, subject.allowed, lambda row: call(subject, row), clock() + SEARCH, clock)
        if tried and lost(tried[-1]):  # no other call can be made in this process
            row = tried[-1].row
            words = "ends in an error after which the GPU can't be used; of the calls before, none was made simpler"
            found = [Cause(tried[-1], {n: frozenset([x]) for n, x in row.items()}, words)]
        else:
            found = causes(search, tried)
    coverable = {p for row in rows for p in itertools.combinations(row.items(), 2)} & set(pairs_of(subject.factors))
    seen = {p for t in tried for p in itertools.combinations(t.row.items(), 2)}
    return Report(subject.name, tuple(tried), len(rows), len(coverable & seen), len(coverable), tuple(found))


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Small tensors are faster in one thread than in several that wait for each other."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def lost(t: Tried) -> bool:
    """Did a call end in an error of the GPU, which each later call of this process ends in as well?"""
    return "CUDA error" in t.raised or t.raised.startswith("AcceleratorError")


def call(subject: Subject, row: Row) -> Tried:
    """One call. Whatever an op raises is a failure of it."""
    try:
        return Tried(row, subject.tried(row))
    except SpecError:
        raise
    except Exception as error:
        return Tried(row, {}, f"{type(error).__name__}: {error}".splitlines()[0][:300])


def reproduction(cause: Cause, factors: Mapping[str, Sequence[object]], spec: str, name: str, device: str) -> str:
    """A few lines of Python that make the smallest call that fails, and print what is wrong."""
    row = cause.smallest.row
    choices = {n: row[n] for n, some in factors.items() if row[n] != some[0]}
    where = "" if device == "cpu" else f", device={device!r}"
    return (
        "from chunkform.codegen.commands.check import again\n\n"
        f"for line in again({spec!r}, {name!r}, {choices!r}{where}):\n"
        "    print(line)"
    )
