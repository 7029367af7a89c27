"""Find declarations (recurrences, and the other kinds): in a spec file anywhere on disk, in a module, or in the catalogue."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from chunkform.errors import ChunkformError, LoadError, nearest
from chunkform.supervised import running

from .alone import REPLACED, alone
from .branches import looked_at, names
from .declaration import Declaration
from .kept import Kept
from .recurrence import Recurrence
from .row_map import RowMap
from .said_by_python import in_words, near_name
from .source import Source

CATALOGUE = Path(__file__).resolve().parent.parent
PUBLISHED = CATALOGUE / "published"
Kind = TypeVar("Kind", bound=Declaration)
SLOW = 10.0  # seconds


def load(path: str | os.PathLike) -> list[Any]:
    """The declarations of a spec file, of every kind, in the order in which it makes them."""
    return declared(executed(path), str(Path(path)))


def executed(path: str | os.PathLike, run: Callable[[ModuleType, Path], None] | None = None) -> ModuleType:
    """The module of a spec file; `run` executes it another way than Python does."""
    file = Path(path)
    if file.is_dir():
        raise LoadError(f"{file} is a folder: name a file in it")
    if os.path.lexists(file) and not file.is_file():
        raise LoadError(f"{file} is no file of text: name one that a spec is in")
    if not file.is_file():
        beside = [p.name for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise LoadError(f"there is no spec file {file}{nearest(file.name, beside)}")
    inside = CATALOGUE in file.resolve().parents
    name = f"chunkform.spec.{file.stem}" if inside else f"chunkform_spec_{file.stem}"
    loader = _AsItIs(name, str(file))  # whatever the file's name ends in
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    vars(module).update(names())
    try:
        with running(file), alone(), _told_if_slow(file):
            kept = None if inside else Kept(REPLACED)
            try:
                if run is None:
                    spec.loader.exec_module(module)
                else:
                    run(module, file)
            finally:
                if kept is not None and (changed := kept.put_back()):
                    raise LoadError(_disturbed(changed), file) from None
    except (ChunkformError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit and whatever else a file may raise
        own = file.resolve()  # Python makes a path absolute
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == own]
        if isinstance(error, SyntaxError) and error.filename is not None and Path(error.filename).resolve() == own:
            lines.append(error.lineno)
        place = Source(str(file), lines[-1]) if lines and lines[-1] is not None else file
        if isinstance(error, SyntaxError) and any(x in str(error) for x in ("null bytes", "utf-8", "UTF-8")):
            raise LoadError("isn't text that Python reads: a spec is a file of Python, in UTF-8", place) from error
        try:
            told = in_words(error, str(place)) or (
                f"{type(error).__name__}: {_told(error)}{_beside(error, own.parent) or _hint(error)}"
            )
        except Exception as why:  # of a class of the file's own
            told = f"{type(error).__name__}: which can't be told, as its text ends in {type(why).__name__}"
        raise LoadError(told, place) from error
    return module


def _disturbed(changed: list[str]) -> str:
    shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    return f"changes {shown}: a spec declares, and changes nothing of Python or of a library. All of it was put back"


@contextmanager
def _told_if_slow(file: Path) -> Iterator[None]:
    """A warning, once, where a file takes long to run: it may never end."""
    own, path = threading.get_ident(), os.path.abspath(file)

    def tell() -> None:
        frame = sys._current_frames().get(own)
        while frame is not None and os.path.abspath(frame.f_code.co_filename) != path:
            frame = frame.f_back
        told = f"this has run for {SLOW:g} s: a spec declares, and computes nothing; Ctrl-C ends it"
        warnings.warn_explicit(told, UserWarning, str(file), frame.f_lineno if frame else 1)

    timer = threading.Timer(SLOW, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # so that who forks next has no thread


class _AsItIs(importlib.machinery.SourceFileLoader):
    """Runs a file's text, and no bytecode, which can't be told from that of another text of one length and one second."""

    def get_code(self, fullname: str) -> CodeType:
        text = self.get_data(self.path)
        try:
            return self.source_to_code(looked_at(ast.parse(text, self.path)), self.path)
        except RecursionError:  # terms nested too deep for Python's trees, and not for its compiler
            return self.source_to_code(text, self.path)


def _told(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"{error}: a spec declares, and doesn't end the program"
    return error.msg if isinstance(error, SyntaxError) else str(error)


def _beside(error: BaseException, folder: Path) -> str:
    """Of a file that would import another one: specs go by name."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if name is None or not (folder / f"{name}.py").is_file():
        return ""
    return f': a program applies the spec of a file beside its own by that name, p.apply("{name}", ..)'


def _hint(error: BaseException) -> str:
    """What to write instead, of a name."""
    near = near_name(error)
    if near or not isinstance(error, NameError):
        return near
    return ": declare it with r.inputs, r.parameters, r.decay, ..., or import it from chunkform.spec.language"


def declared(module: object, where: str) -> list[Any]:
    found = [x for x in vars(module).values() if isinstance(x, Declaration)]
    if not found:
        raise LoadError('holds no Recurrence: write `r = Recurrence("name")` at its top level', where)
    unique = list(dict.fromkeys(found))
    names = [x.name for x in unique]
    for name in names:
        if names.count(name) > 1:
            raise LoadError(f"declares two {unique[0].noun}s named {name!r}", where)
    for x in unique:
        x.doc = x.doc or (module.__doc__ or "").strip()
    return [x.validate() for x in unique]


def catalogue_files() -> list[Path]:
    """The catalogue's spec files, sorted by name."""
    return _specs_in(CATALOGUE)


def catalogue(kind: type[Kind] = Recurrence) -> list[Kind]:  # type: ignore[assignment]
    """Every declaration of a kind in the catalogue, recurrences unless asked otherwise; `Declaration` is all of them."""
    return [r for file in catalogue_files() for r in load(file) if isinstance(r, kind)]


def published(kind: type[Kind] = Recurrence) -> list[Kind]:  # type: ignore[assignment]
    """Every declaration of a kind on the catalogue's second shelf: recurrences of papers and of other libraries."""
    return [r for file in _specs_in(PUBLISHED) for r in load(file) if isinstance(r, kind)]


def everything() -> list[Declaration]:
    """Every declaration that has a name in `chunkform.generated`: both shelves of the catalogue."""
    return catalogue(Declaration) + published(Declaration)


def row_maps() -> list[RowMap]:
    """The row maps of layers, sorted by name."""
    return [r for file in _specs_in(CATALOGUE / "rows") for r in load(file)]


def _specs_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.py") if p.name != "__init__.py")


def find(name: str) -> list[Any]:
    """The declarations that `name` means: a spec file on disk, or a name in the catalogue."""
    if name.endswith(".py") or os.sep in name:
        return load(name)
    for direct in (CATALOGUE / f"{name}.py", PUBLISHED / f"{name}.py"):
        if direct.is_file():
            return load(direct)
    shelf = catalogue(Declaration)
    for r in shelf:
        if r.name == name:
            return [r]
    if Path(name).exists():
        return load(name)
    here = [f"{name}.py"] if Path(f"{name}.py").is_file() else []
    near = (
        nearest(name, [*here, *sorted(r.name for r in shelf), *(p.stem for p in _specs_in(PUBLISHED))])
        or ": give a file, or a name that `chunkform list` shows"
    )
    raise LoadError(f"no spec named {name!r}{near}")
