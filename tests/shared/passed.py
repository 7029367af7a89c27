"""What gates have passed is passed: a gate that gets the very same again, in any process of the tests, does not run again.

A gate is a function of what it is given: points and orders follow from the program by a hash. So its success is noted in the
tests' cache, by all that it is given, by its own code, and by the text of all that it could call. What a test corrupts is another
program, for which the gate runs; so it does while a test has replaced anything by `monkeypatch`, and where something that it is
given has no content that can be compared. Failures are never noted. `CHUNKFORM_TEST_GATES=all` runs each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import os
import types
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from mpmath.ctx_mp import MPContext
from mpmath.ctx_mp_python import _mpf as mpf

from chunkform.codegen.exact import random_points, rationals
from chunkform.codegen.ir.expr import Node
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled

ROOT = Path(__file__).resolve().parents[2]
CODE = ("codegen", "runtime", "spec/language")
OURS = "chunkform.codegen."  # whose text is part of the key, with all that it calls
PLAIN = (type(None), bool, int, float, str, bytes, Fraction, range, type(Ellipsis))
TREES = ("chunkform.codegen.ir.code", "chunkform.codegen.ir.kernel_ir")  # expressions and statements of kernels
KNOWN = "its content, as tests have found it"
replaced: set[int] = set()  # the fixtures by which something is replaced now


class NoContent(Exception):
    """Of something it can't be said whether it is the same."""


def install() -> None:
    """From here on gates look first whether they have passed. To be called before modules with gates are imported."""
    if os.environ.get("CHUNKFORM_TEST_GATES") == "all" or hasattr(rationals.in_field, "__wrapped__"):
        return
    folder()  # before a test leads the cache elsewhere
    plain, disagreement = rationals.in_field, random_points.disagreement

    @functools.wraps(plain)
    def in_field(gate: Callable[..., None]) -> Callable[..., None]:
        return passing_once(plain(gate), gate)

    rationals.in_field = in_field
    rationals.over_ordered = lambda gate: passing_once(gate, gate)
    random_points.disagreement = passing_once(disagreement, disagreement)


def none() -> None:
    """From here on no gate runs. To be called before modules with gates are imported, by who compiles for the text alone."""

    def unrun(gate: Callable[..., None]) -> Callable[..., None]:
        return functools.wraps(gate)(lambda *_, **__: None)

    rationals.in_field = rationals.over_ordered = unrun
    random_points.disagreement = lambda check, point: None


def watch(patches: type[Any]) -> None:
    """Every gate runs while a `MonkeyPatch` has replaced anything."""
    setattr_, undo = patches.setattr, patches.undo

    @functools.wraps(setattr_)
    def noted(self: Any, target: Any, *given: Any, **named: Any) -> None:
        if not str(getattr(target, "__module__", "")).startswith("_pytest"):  # which replaces some of its own for good
            replaced.add(id(self))
        setattr_(self, target, *given, **named)

    @functools.wraps(undo)
    def undone(self: Any) -> None:
        undo(self)
        replaced.discard(id(self))

    patches.setattr, patches.undo = noted, undone


@contextlib.contextmanager
def instead(module: types.ModuleType, **gates: Callable[..., Any]) -> Iterator[None]:
    """In here a module calls these in the place of its gates of the same names, to note what they are asked. All other gates are
    as they were: what has passed doesn't run again."""
    before = {n: getattr(module, n) for n in gates}
    try:
        for n, x in gates.items():
            setattr(module, n, x)
        yield
    finally:
        for n, x in before.items():
            setattr(module, n, x)


def passing_once(run: Callable[..., Any], gate: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, which returns None where `gate` passes, but not where that is known already."""

    @functools.wraps(run)
    def unless_passed(*given: Any, **named: Any) -> Any:
        if replaced:
            return run(*given, **named)
        try:
            path = folder() / content((gate, given, named))
        except NoContent:
            return run(*given, **named)
        if path.exists():
            return None
        found = run(*given, **named)
        if found is None:
            path.touch()
        return found

    return unless_passed


@functools.cache
def folder() -> Path:
    """Where it is noted what has passed, by this code."""
    text = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(p for folder in CODE for p in (ROOT / folder).rglob("*.py")):
        text.update(f"{path.relative_to(ROOT)}".encode() + path.read_bytes())
    found = Path(os.environ["CHUNKFORM_CACHE"]) / "gates" / text.hexdigest()[:16]
    found.mkdir(parents=True, exist_ok=True)
    return found


# --- what is the same -----------------------------------------------------------------------------------------------------


def content(x: Any) -> str:
    """A hash of all that something is made of. Equal hashes: the same to a function that asks for no identity."""
    return _content(x, {}, [])


def _content(x: Any, known: dict[int, str | None], kept: list[Any]) -> str:
    t = type(x)
    if t in PLAIN:
        return f"{t.__name__} {x!r}"
    if t is Node:
        return str(x.identity)
    if t.__module__ in TREES:  # of which nothing changes any more
        found = x.__dict__.get(KNOWN)
        if found is None:
            words = [t.__module__, t.__qualname__, *[_content(getattr(x, n), known, kept) for n in _fields(t) or ()]]
            found = x.__dict__[KNOWN] = hashlib.blake2b("\0".join(words).encode(), digest_size=16).hexdigest()
        return str(found)
    if id(x) in known:
        found = known[id(x)]
        if found is None:
            raise NoContent  # it holds itself
        return found
    known[id(x)] = None
    kept.append(x)  # so that nothing else has its id
    if t is tuple or t is list:
        inside = x
    elif (fields := _fields(t)) is not None:
        inside = [getattr(x, n) for n in fields]
    else:
        inside = list(_inside(x))
    words = [t.__module__, t.__qualname__, *[_content(y, known, kept) for y in inside]]
    known[id(x)] = found = hashlib.blake2b("\0".join(words).encode(), digest_size=16).hexdigest()
    kept.append(inside)
    return found


@functools.cache
def _fields(t: type) -> tuple[str, ...] | None:
    """Of data, the names of what it is made of: of what is compiled, its step is all that its spec says, and `known` follows."""
    left_out = ("spec", "known", "reason_where", "gates") if t is Compiled else ()
    return (
        tuple(f.name for f in dataclasses.fields(t) if f.name not in left_out) if dataclasses.is_dataclass(t) else None
    )


def _inside(x: Any) -> Iterator[Any]:
    """What it is made of, in an order that follows from it."""
    if isinstance(x, tuple | list):
        yield from x
    elif isinstance(x, set | frozenset):
        yield from sorted(content(y) for y in x)
    elif isinstance(x, dict | types.MappingProxyType):
        for n, y in x.items():
            yield from (n, y)
    elif isinstance(x, types.FunctionType) and f"{x.__module__}.".startswith(OURS):
        yield from (x.__module__, x.__qualname__, *_code(x.__code__), x.__defaults__, x.__kwdefaults__)
        yield from (c.cell_contents for c in x.__closure__ or ())
    elif isinstance(x, types.MethodType):
        yield from (x.__self__, x.__func__)
    elif isinstance(x, functools.partial):
        yield from (x.func, x.args, x.keywords)
    elif isinstance(x, np.ndarray | MPContext | mpf):
        yield from _of_numbers(x)
    elif isinstance(x, enum.Enum):
        yield x.name
    elif isinstance(x, type) and "<locals>" not in x.__qualname__:
        yield f"{x.__module__} {x.__qualname__}"
    elif isinstance(x, types.BuiltinFunctionType | types.ModuleType):
        yield f"{getattr(x, '__module__', '')} {x.__name__}"
    elif f"{type(x).__module__}.".startswith(OURS) and hasattr(x, "__dict__"):
        later = {n for n in vars(x) if isinstance(getattr(type(x), n, None), functools.cached_property)}
        for n, y in vars(x).items():
            if n not in later:
                yield from (n, y)
    else:
        raise NoContent


def _of_numbers(x: np.ndarray | MPContext | mpf) -> Iterator[Any]:
    """What arrays are made of, numbers of many digits, and what says how many."""
    if isinstance(x, np.ndarray):
        yield from (str(x.dtype), x.shape, x.tolist())
    else:
        yield str(x._prec_rounding if isinstance(x, MPContext) else x._mpf_)


def _code(code: types.CodeType) -> Iterator[str]:
    yield f"{code.co_filename} {code.co_firstlineno} {code.co_code.hex()} {code.co_names} {code.co_varnames}"
    for x in code.co_consts:
        if isinstance(x, types.CodeType):
            yield from _code(x)
        elif isinstance(x, frozenset):
            yield repr(sorted(map(repr, x)))
        else:
            yield repr(x)
