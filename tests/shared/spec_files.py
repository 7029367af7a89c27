"""The tests' own spec files, each read once in a process: after a file has run, all that it may break of a process is looked
through and put back, which takes as long as a small test."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from chunkform.spec.language import load

SPECS = Path(__file__).resolve().parents[1] / "codegen" / "specs"


@functools.cache
def read(file: Path) -> tuple[Any, ...]:
    """What a file declares, the same to all who ask."""
    return tuple(load(file))


def read_all(folder: Path = SPECS) -> dict[str, Any]:
    """What the files of a folder declare, by name."""
    return {r.name: r for file in sorted(folder.glob("*.py")) for r in read(file)}
