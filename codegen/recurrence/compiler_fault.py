"""Where the compiler itself is at fault: an error that says so, with the smallest spec that still shows it."""

from __future__ import annotations

import functools
import inspect
import platform
import textwrap
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from chunkform.errors import ChunkformError, CompilerError, GateError, SpecError
from chunkform.spec.language import Declaration, Recurrence
from chunkform.spec.language.data import TOO_DEEP
from chunkform.version import __version__

from ..ir.collector import uncollected
from ..ir.expr import plain_name
from ..printing.passes import untold
from .smaller_specs import reduced, spec_text

SECONDS = 20.0  # that are spent on making a spec smaller
HERE = Path(__file__).parent


P = ParamSpec("P")
X = TypeVar("X")
R = TypeVar("R")


def blaming(f: Callable[Concatenate[X, P], R]) -> Callable[Concatenate[X, P], R]:
    """A function of a declaration, or of a compiled one, whose errors are the compiler's unless they are about the spec."""
    return _blaming(f, lambda spec: spec)


def blaming_with(
    compiled: Callable[[Any], Any],
) -> Callable[[Callable[Concatenate[X, P], R]], Callable[Concatenate[X, P], R]]:
    """As `blaming`, for functions of what `compiled` makes of a declaration: smaller ones can then be tried as well."""
    return lambda f: _blaming(f, inspect.unwrap(compiled))


def _blaming(f: Callable[Concatenate[X, P], R], compiled: Callable[[Any], Any]) -> Callable[Concatenate[X, P], R]:

    @functools.wraps(f)
    def run(x: X, *args: P.args, **words: P.kwargs) -> R:
        try:
            with uncollected():
                return f(x, *args, **words)
        except GateError as why:
            if isinstance(why.__cause__, GateError):  # which says so already
                raise
            raise _fault(x, why, lambda y: f(y, *args, **words), compiled) from why
        except (ChunkformError, OSError, MemoryError):
            raise
        except RecursionError as why:
            spec = _spec_of(x)
            raise SpecError(f"{spec.name} can't be compiled: {TOO_DEEP}", spec.where) from why
        except Exception as why:
            raise _fault(x, why, lambda y: f(y, *args, **words), compiled) from why

    return run


def _fault(x: Any, why: Exception, f: Callable[[Any], object], compiled: Callable[[Any], Any]) -> CompilerError:
    """The error to raise. `x` is what `f` was called with: a declaration, or what `compiled` makes of one."""
    spec = _spec_of(x)
    kind = GateError if isinstance(why, GateError) else CompilerError
    said = str(why) if kind is GateError else f"{spec.name} can't be compiled: {_at(why)}"
    lines = [f"{said}\nThe compiler is at fault here, not the spec, which is valid."]
    if isinstance(spec, Recurrence):
        again = f if x is spec else lambda smaller: f(compiled(smaller))
        smallest, tried = _smallest(spec, why, again)
        what = f"of {tried} smaller ones that were tried, this is the smallest" if tried else "the spec is this"
        lines.append(f"Please report it with this text ({what} that shows it):\n\n{textwrap.indent(smallest, '    ')}")
    else:
        lines.append("Please report it with the spec.")
    lines.append(f"Versions: {_versions()}.")
    return kind("\n".join(lines), spec.where)


def _spec_of(x: object) -> Declaration:
    spec = x if isinstance(x, Declaration) else getattr(x, "spec", None)
    assert isinstance(spec, Declaration)
    return spec


def _smallest(spec: Recurrence, why: Exception, again: Callable[[Any], object]) -> tuple[str, int]:
    mark = _mark(why)

    def shows(smaller: Recurrence) -> bool:
        try:
            with untold():
                again(smaller)
        except Exception as other:
            return _mark(other) == mark
        return False

    try:
        found, tried = reduced(spec, shows, SECONDS)
        return spec_text(found), tried
    except Exception as error:  # the error itself matters more than this
        return f"(no smaller spec was found: {error!r})\n", 0


def _mark(why: Exception) -> tuple[Any, ...]:
    """What two errors have in common that are the same fault: their type, the pass, and the line that raised them."""
    frame = traceback.extract_tb(why.__traceback__)[-1]
    said = str(why).partition("changed the meaning")[0] if isinstance(why, GateError) else ""
    return type(why), said, frame.filename, frame.lineno


def _at(why: Exception) -> str:
    """An unexpected error, and the compiler's line that it comes from."""
    frames = traceback.extract_tb(why.__traceback__)
    own = [f for f in frames if HERE in Path(f.filename).parents] or frames
    place = Path(own[-1].filename)
    place = place.relative_to(HERE.parent) if HERE in place.parents else place
    return f"{type(why).__name__}: {plain_name(str(why))} (in {place}, line {own[-1].lineno})"


def _versions() -> str:
    found = [f"chunkform {__version__}", f"Python {platform.python_version()}"]
    for name in ("torch", "triton", "sympy"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
