"""Find declarations (recurrences, and the other kinds): in a spec file anywhere on disk, in a module, or in the catalogue."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from chunkform.errors import ChunkformError, LoadError, nearest
from chunkform.supervised import running

from .alone import REPLACED, alone
from .declaration import Declaration
from .kept import Kept
from .methods_of_tensors import METHODS
from .recurrence import Recurrence
from .row_map import RowMap
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
            told = f"{_told(error)}{_beside(error, own.parent) or _hint(error, str(place))}"
        except Exception as why:  # of a class of the file's own
            told = f"which can't be told, as its text ends in {type(why).__name__}"
        raise LoadError(f"{type(error).__name__}: {told}", place) from error
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
        return self.source_to_code(self.get_data(self.path), self.path)


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


def _hint(error: BaseException, place: str) -> str:
    """What to write instead, where Python's own message doesn't say it."""
    near = near_name(error)
    if near:
        return near
    if isinstance(error, NameError):
        return ": declare it with r.inputs, r.parameters, r.decay, ..., or import it from chunkform.spec.language"
    if isinstance(error, TypeError) and (right := _call(str(error))):
        return f": write {right}"
    if isinstance(error, AttributeError) and error.name in sys.modules[__package__].__all__:
        return f": {error.name} is of chunkform.spec.language"
    if "truth value" in str(error):
        return ": a spec has no branches; write Max, Min, relu or sigmoid"
    for said, instead in _PYTHON.items():
        if said in str(error) and any(x in str(error) for x in _SYMBOLS):
            return f": {instead}"
    if any(x in place for x in ("math.", "np.", "numpy.", "torch.")):
        return ": a spec is symbolic; use the functions of chunkform.spec.language"
    return ""


def _call(said: str) -> str:
    """How a function of the language, or a method of a declaration, is called, of which Python says that a call doesn't fit."""
    language = sys.modules[__package__]
    found = re.match(r"(?:(\w+)\.)?(\w+)\(\) (?:missing|takes|got)", said)
    if found is None:
        return ""
    kind, name = found.groups()
    kinds = {x.__name__: x for x in vars(language).values() if isinstance(x, type)}
    owner = kinds.get(kind) if kind else language if name in language.__all__ else None
    function = getattr(owner, name, None)
    if function is None:
        return ""
    _, *more = parameters = [*inspect.signature(function).parameters.values()]
    shown = [str(x.replace(annotation=x.empty)) for x in (more if kind else parameters) if not x.name.startswith("_")]
    return f"{kind if name == '__init__' else f'r.{name}' if kind else name}({', '.join(shown)})"


_SYMBOLS = ("Atom", "Contraction", "Matrix", "State", "Dim", "symbols", "expression", "'Mul'", "'Add'", "'Pow'")
_PYTHON = {  # what Python or SymPy says of a term of a spec, and what to write
    "has no len()": "a scalar has no length; the size of a dim is r.size(d), where r declares d",
    "not subscriptable": "a scalar has no entries",
    "not iterable": "a scalar has no entries to loop over",
    "not supported between": "terms have no order; write Max, Min, relu or absolute",
    "Cannot convert": "a term has no value in a spec; use the functions of chunkform.spec.language",
    "unsupported operand": "of Python's operators a spec has + - * / ** and unary -",
    "cannot be interpreted": "a term has no value in a spec; use the functions of chunkform.spec.language",
    "Cannot round": "a term has no value in a spec; use the functions of chunkform.spec.language",
    "bad operand": "of Python's operators a spec has + - * / ** and unary -",
}


def near_name(error: BaseException, beside: Iterable[str] = ()) -> str:
    """What a name that a file doesn't know, or can't import, is spelt like: functions of the language, and names `beside` it."""
    from . import formula

    imported = re.match(r"cannot import name '(\w+)' from 'chunkform", str(error))
    unknown = imported[1] if imported else getattr(error, "name", None) if isinstance(error, NameError) else None
    if unknown is None:
        return ""
    language = sys.modules[__package__]
    if unknown in language.__all__ and not imported and unknown not in beside:
        return f": write `from {language.__name__} import {unknown}`"
    if unknown in METHODS and len(unknown) > 2 and not imported and unknown not in beside:
        return f": {METHODS[unknown]}"
    public = [x for x, value in vars(formula).items() if callable(value) and not x.startswith("_")]
    public = [x for x in public if x != unknown]
    return nearest(unknown, [*(x for x in beside if not x.startswith("_")), *language.__all__, *public])


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
