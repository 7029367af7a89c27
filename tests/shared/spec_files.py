"""The tests' own spec files, each read once in a process. After a file has run, all that it may break of a process is else looked
through and put back, which takes as long as a small test: these break nothing, as a test says (`test_kept.py`)."""

from __future__ import annotations

import functools
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Recurrence, load
from chunkform.spec.language import catalogue as read_catalogue

from .passed import instead

SPECS = Path(__file__).resolve().parents[1] / "codegen" / "specs"


@functools.cache
def read(file: Path) -> tuple[Any, ...]:
    """What a file declares, the same to all who ask."""
    with breaking_nothing():
        return tuple(load(file))


def breaking_nothing() -> AbstractContextManager[None]:
    """In here files are read that leave a process as it was."""
    return instead(sys.modules["chunkform.spec.language.load"], Kept=_NothingKept)


class _NothingKept:
    def __init__(self, apart: object) -> None:
        """In the place of `Kept`."""

    def put_back(self) -> list[str]:
        return []


def read_all(folder: Path = SPECS) -> dict[str, Any]:
    """What the files of a folder declare, by name."""
    return {r.name: r for file in sorted(folder.glob("*.py")) for r in read(file)}


@functools.cache
def catalogue() -> tuple[Recurrence, ...]:
    """The recurrences of the catalogue."""
    return tuple(read_catalogue())


@functools.cache
def compiled_once(r: Recurrence) -> Compiled:
    """What the compiler makes of a spec, with its forms, the same to all who ask for this very one."""
    return compile_spec(r)
