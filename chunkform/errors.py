"""Every error that chunkform raises on purpose. Each message says what was got, what was expected, and where."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable

HOST = "https://example.org/chunkform"  # PLACEHOLDER: pyproject.toml has the same, which a test holds


def page_of(name: str) -> str:
    """The address of a page of the documentation, which an installed package doesn't have."""
    return f"{HOST}/blob/main/docs/{name}.md"


class ChunkformError(Exception):
    """Base class: catch this to catch whatever chunkform refuses."""


class SpecError(ChunkformError):
    """A spec says something that has no meaning; the message names its file, line and term."""

    def __init__(self, message: str, where: object = None) -> None:
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


class AttributeError_(SpecError, AttributeError):
    """Something of a spec has no such attribute; the message says what to write."""


class DimensionError(SpecError):
    """Two terms of a spec have shapes that do not fit."""


class NameError_(SpecError):
    """A name is unknown, used twice, or not allowed."""


class CausalityError(SpecError):
    """An update reads something that is not known yet at its step."""


class FunctionError(SpecError):
    """A function that has no derivative or no printed form."""


class LoadError(SpecError):
    """A spec file can't be read, or holds no recurrence."""


class CompilerError(ChunkformError):
    """The compiler itself is at fault, and the spec valid. The message has the smallest spec found that shows it."""

    def __init__(self, message: str, where: object = None) -> None:
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


class ClaimError(SpecError):
    """A claim can't be judged; `expected` says what a claim would be that can."""

    def __init__(self, message: str, where: object = None, expected: str = "a claim that can be judged") -> None:
        self.expected = expected
        super().__init__(message, where)


class GateError(CompilerError):
    """A pass changed the meaning of a program. Nothing is printed from it."""


class BuildError(ChunkformError):
    """A generated file is stale, orphaned, or can't be written."""


class VersionError(BuildError, ImportError):
    """A generated file was written for another version of the runtime."""


class ArgumentError(ChunkformError, ValueError):
    """An op was called with an argument of the wrong shape, type, device or value."""


class BackendError(ChunkformError, RuntimeError):
    """The asked backend can't run here."""


class MissingError(ChunkformError, ImportError):
    """Something that is needed here isn't installed."""


class GroupError(ChunkformError, RuntimeError):
    """An exchange among the processes that share a sequence failed: one of them ended, or was too late."""


class DoubleBackwardError(ChunkformError, RuntimeError):
    """Second derivatives of a generated op are not available."""


class ConditionError(ChunkformError, RuntimeError):
    """A condition that an op needs doesn't hold for these arguments: a solve didn't converge."""


class FallbackWarning(UserWarning):
    """Something slower runs than was asked for, as what was asked for doesn't fit here."""


def nearest(name: str, names: Iterable[str]) -> str:
    """`: did you mean ..?` with what is spelt much alike, or has words that begin with the name; empty where nothing is."""
    known = list(dict.fromkeys(names))
    alike = difflib.get_close_matches(name.lower(), known, 3, 0.6)
    parts = [x for x in known if len(name) > 2 and re.search(rf"(?<![a-z]){re.escape(name.lower())}", x)]
    found = list(dict.fromkeys([*alike[:1], *parts, *alike[1:]]))[:3]
    return f": did you mean {' or '.join(found)}?" if found else ""


def need_triton() -> None:
    """Refuse, in a sentence, to load what is made of Triton kernels where there is no Triton."""
    if importlib.util.find_spec("triton") is None:
        raise MissingError(
            "ops need Triton 3.6 or later, which isn't installed; it is made for Linux: pip install 'triton>=3.6'. Without it "
            "chunkform derives, proves and prints (chunkform explain, verify, build), and runs nothing"
        )
