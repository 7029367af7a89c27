"""Where in a spec a term was written: file, line and the line's text."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from types import FrameType

_HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True)
class Source:
    """A line of a spec file."""

    file: str
    line: int

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    @property
    def place(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    def __str__(self) -> str:
        text = self.text
        return f'{self.place} "{text}"' if text else self.place


def again(where: Source, what: str) -> str:
    """What to do about something that is declared twice, where it was written in a notebook: most often a cell was run again."""
    folder, file = os.path.split(where.file)
    if not (file.startswith("<ipython-input") or os.path.basename(folder).startswith("ipykernel")):
        return ""
    return f". Was this cell run before? Run the cell that makes {what} again first, or begin this one with it"


def caller() -> Source:
    """The innermost line outside of this package and of SymPy: the line the user wrote."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno)


def wrote(depth: int) -> bool:
    """Is a function's caller, so many frames up, neither this library nor SymPy?"""
    frame = sys._getframe(depth + 1)
    return not _is_ours(frame) and not frame.f_globals.get("__name__", "").startswith("chunkform.")


def _is_ours(frame: FrameType) -> bool:
    """Is this a line of the language, or of SymPy, which calls the language back?"""
    module = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in ("sympy", "numpy", "functools") or (
        os.path.dirname(os.path.abspath(frame.f_code.co_filename)) == _HERE
    )
