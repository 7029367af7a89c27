"""`chunkform.compile`: from a spec to its op at once, through a cache on disk that several processes may fill."""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from filelock import FileLock

from chunkform.errors import BuildError, LoadError, SpecError, need_triton
from chunkform.runtime import cached
from chunkform.runtime.launch.files import cache_folder, cache_instead, folder_made, write_whole
from chunkform.runtime.op.naming import named
from chunkform.spec.language import Declaration, find
from chunkform.types import Op
from chunkform.version import __version__

from ..ir.collector import uncollected
from .kernel_lines import lines_by_margin
from .kinds import kind_of

_CHECKSUM = "\n# checksum: "
_log = logging.getLogger(__name__)


@named
def compile_op(spec: Declaration | str | os.PathLike[str]) -> Op:
    """The op of a spec: a `Recurrence` (or another kind of declaration), a spec file, or a name of the catalogue.

    The generated module is kept in `cache_folder()`, keyed by what the spec says and by the compiler itself; a damaged entry
    is built anew. The op has the module as `op.__module__` in `sys.modules`, whose source can be read.
    """
    r = one_of(spec)
    op: Any = getattr(compile_module(r), r.name)
    op.spec = r
    found: Op = op
    return found


def compile_module(spec: Declaration | str | os.PathLike[str]) -> ModuleType:
    """The generated module of a spec."""
    r = one_of(spec)
    kind = kind_of(r)
    with uncollected():
        said = kind.declared_hash(r)
        if said is not None:
            return _load(_kept(_file_of(r, said), lambda: kind.emit(kind.compile_spec(r), tidy=False)))
        c = kind.compile_spec(r)
        return _load(_kept(_file_of(r, kind.spec_hash(c)), lambda: kind.emit(c, tidy=False)))


def _file_of(r: Declaration, said: str) -> str:
    """The name of a generated file in the cache: of a spec that says this, by this compiler."""
    return f"{r.name}_{hashlib.sha256(f'{said}{compiler_hash()}'.encode()).hexdigest()[:16]}.py"


def _kept(name: str, made: Callable[[], str]) -> Path:
    """The file of this name in the cache, with the text that is made for it; in a temporary folder where there can be none."""
    folder = cache_folder()
    try:
        return _written(folder / name, made)
    except BuildError as error:
        return _written(cache_instead(folder, str(error)) / name, made)


def _written(path: Path, made: Callable[[], str]) -> Path:
    if _intact(path):
        _log.info("%s is compiled already: %s", path.stem.rpartition("_")[0], path)
        return path
    folder_made(path.parent)
    try:
        with FileLock(path.with_suffix(".lock")):
            if not _intact(path):
                begun = time.perf_counter()
                if path.is_fifo() or path.is_socket():  # which a file is written into
                    path.unlink()
                text = made()
                write_whole(path, text + _CHECKSUM + _digest(path.name, text) + "\n")
                _log.info("printed in %.1f s: %s", time.perf_counter() - begun, path)
    except OSError as error:
        raise BuildError(f"can't write {path}: {error.strerror or error}") from error
    return path


@functools.cache
def compiler_hash() -> str:
    """A hash of the version and of the compiler's own files: a new compiler doesn't use what an old one printed."""
    here = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256(__version__.encode())
    for path in sorted([*here.rglob("*.py"), *here.rglob("*.jinja")]):
        digest.update(path.relative_to(here).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def one_of(spec: object, what: str = "compile") -> Declaration:
    """The one spec that is meant: a declaration itself, the one in a file, or the one of this name in the catalogue."""
    if isinstance(spec, Declaration):
        return spec
    from ..paper.build import is_paper, recurrence_of

    if not isinstance(spec, str | os.PathLike):
        raise SpecError(f"{what} takes a Recurrence, a spec file or a name of the catalogue, got {spec!r}")
    if is_paper(spec):
        return recurrence_of(spec)
    found = find(os.fspath(spec))
    if len(found) != 1:
        raise LoadError(
            f"{spec} holds {len(found)} {found[0].noun}s ({', '.join(r.name for r in found)}): pass one of them to {what}"
        )
    return found[0]


def _digest(name: str, text: str) -> str:
    """Of a file's text, and of its name, as another's may lie there."""
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()


def _intact(path: Path) -> bool:
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        text, mark, digest = path.read_text(encoding="utf-8").rpartition(_CHECKSUM)
    except (OSError, UnicodeDecodeError):
        return False
    return bool(mark) and digest.strip() == _digest(path.name, text)


def _load(path: Path) -> ModuleType:
    need_triton()
    cached.__path__[:] = [str(path.parent)]
    importlib.invalidate_caches()  # the file may be younger than what Python has seen of its folder
    with lines_by_margin():
        return importlib.import_module(f"{cached.__name__}.{path.stem}")
