"""Passes in order: how a kind's list of them is run, and how what each made can be looked at.

The list is in each kind's `pipeline.py`; `CHUNKFORM_DUMP=DIR` writes what each pass made to a file, and `recorded` hands it to
`chunkform explain --after` and `--passes`. The page "Looking inside the compiler" says how they are used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from chunkform.runtime.launch.files import folder_made, write_whole

from ..exact.random_points import GateResult
from ..ir.data_text import Writer
from ..ir.expr import Node

VARIABLE = "CHUNKFORM_DUMP"
K = TypeVar("K")


def _no_gates(known: object) -> Iterable[GateResult]:
    return ()


@dataclass(frozen=True)
class Pass(Generic[K]):
    """One pass. `run` adds `made`, an attribute, to what is known, and `gates` compare that with what it means.

    An error that a pass `refuses` with is no fault: the passes that follow aren't run.
    """

    name: str
    what: str
    made: str
    run: Callable[[K], None]
    gates: Callable[[K], Iterable[GateResult]] = _no_gates
    refuses: tuple[type[Exception], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What the gates of passes found, and the refusal that ended them early."""

    gates: tuple[GateResult, ...]
    refusal: Exception | None = None


@dataclass
class Record:
    """A pass that was run, or begun: `text` is what it made, where that is asked for, and `failed` its error. `place` are the
    declarations that it was run for, from the outermost."""

    place: tuple[str, ...]
    number: int
    name: str
    what: str
    text: str = ""
    seconds: float = 0.0
    gates: list[GateResult] = field(default_factory=list)
    failed: Exception | None = None

    @property
    def path(self) -> str:
        """Its name, after that of the part of a declaration that it was run for."""
        return "/".join((*self.place[1:], self.name))


_place: ContextVar[tuple[str, ...]] = ContextVar("_place", default=())
_records: ContextVar[list[Record] | None] = ContextVar("_records", default=None)
_texts: ContextVar[bool] = ContextVar("_texts", default=False)
_told: ContextVar[bool] = ContextVar("_told", default=True)


@contextmanager
def recorded(texts: bool = False) -> Iterator[list[Record]]:
    """The passes that are run meanwhile, in the order in which they begin; with `texts`, with what each made."""
    records: list[Record] = []
    tokens = _records.set(records), _texts.set(texts)
    try:
        yield records
    finally:
        _records.reset(tokens[0])
        _texts.reset(tokens[1])


@contextmanager
def untold() -> Iterator[None]:
    """Passes that are run meanwhile are neither recorded nor written: trials, and what was told already."""
    token = _told.set(False)
    try:
        yield
    finally:
        _told.reset(token)


def is_watched() -> bool:
    """Is what passes make recorded, or written to files?"""
    return _told.get() and (_records.get() is not None or bool(os.environ.get(VARIABLE)))


def tell(name: str, number: int, pass_name: str, what: str, text: str, seconds: float) -> None:
    """Record a pass that was run elsewhere for the declaration `name`, the `number`-th, and write what it made."""
    record = Record((*_place.get(), name), number, pass_name, what, text, seconds)
    records, root = _records.get(), os.environ.get(VARIABLE)
    if records is not None:
        records.append(record)
    if root:
        folder = Path(root, *record.place)
        folder_made(folder)
        _write(folder, record)


def run_passes(
    passes: Sequence[Pass[K]],
    known: K,
    name: str,
    *,
    start: int = 0,
    prove: bool = True,
    show: Callable[[Node], str] | None = None,
) -> Outcome:
    """Run the passes from `start` on for the declaration `name`, each with its gates if `prove`.

    `show` writes an expression, where it isn't to be written as `Writer` does.
    """
    token = _place.set((*_place.get(), name))
    try:
        folder = _folder_for(passes, start)
        gates: list[GateResult] = []
        writer = Writer(show)
        for number, p in enumerate(passes[start:], start + 1):
            record = _begun(p, number)
            try:
                _run(p, known, record, folder)
            except p.refuses as why:
                return Outcome(tuple(gates), why)
            if folder is not None or (_texts.get() and _told.get()):
                record.text = writer.text(p.name, p.made, getattr(known, p.made))
            _write(folder, record)
            for gate in p.gates(known) if prove else ():
                record.gates.append(gate)
            gates += record.gates
        return Outcome(tuple(gates))
    finally:
        _place.reset(token)


def _run(p: Pass[K], known: K, record: Record, folder: Path | None) -> None:
    begun = time.perf_counter()
    try:
        p.run(known)
    except Exception as why:
        record.failed = why
        record.text = f"{type(why).__name__}: {why}\n"
        _write(folder, record)
        raise
    finally:
        record.seconds = time.perf_counter() - begun


def _begun(p: Pass[K], number: int) -> Record:
    record = Record(_place.get(), number, p.name, p.what)
    records = _records.get()
    if records is not None and _told.get():
        records.append(record)
    return record


def _folder_for(passes: Sequence[Pass[K]], start: int) -> Path | None:
    """Where to write, without the files of an earlier run; None where nothing is to be written."""
    root = os.environ.get(VARIABLE)
    if not root or not _told.get():
        return None
    folder = Path(root, *_place.get())
    folder_made(folder)
    for number in range(start, len(passes)):
        _file(folder, number + 1, passes[number].name).unlink(missing_ok=True)
    return folder


def _file(folder: Path, number: int, name: str) -> Path:
    return folder / f"{number:02}_{name}.txt"


def _write(folder: Path | None, record: Record) -> None:
    if folder is not None:
        head = f"{'/'.join(record.place)} after {record.name}: {record.what}"
        write_whole(_file(folder, record.number, record.name), f"{head}\n\n{record.text}")
