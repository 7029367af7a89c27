"""What gates have passed is passed: a gate that gets the very same again doesn't run again.

A gate is a function of what it is given: points and orders follow from the program by a hash. So its success is noted, by all
that it is given, by what its own module says and the modules whose objects it is given, with all that they import
(`judged_by.py`). What a test corrupts is another program, for which the gate runs; so it does while a test has replaced anything
by `monkeypatch`, and where something that it is given has no content that can be compared. Failures are never noted.

Notes are in the tests' cache, for the processes of one tree; what takes long is recorded in `passed.txt` as well, for all who
have not changed what is gated. Of that one gate in 16 runs all the same, others for each record. `gates_record.py` writes it.
`CHUNKFORM_TEST_GATES=once` looks at no record, `all` at no note either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import os
import time
import types
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import sympy
from mpmath.ctx_mp import MPContext
from mpmath.ctx_mp_python import _mpf as mpf

from chunkform.codegen.exact import random_points, rationals
from chunkform.codegen.ir.expr import Node
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.spec.language import Declaration, Matrix
from chunkform.spec.language.expression import Atom, Contraction
from chunkform.spec.language.source import Source

from .judged_by import judged_by

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_suffix(".txt")
CODE = ("codegen", "runtime", "spec/language")
OURS = "chunkform.codegen."
DIGITS = 12  # of a key that are recorded
RECORDED = "recorded"
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
            key = content((gate, given, named))
        except NoContent:
            return run(*given, **named)
        note = folder() / key
        if note.exists():
            return None
        if is_recorded(key):
            note.write_text(RECORDED)
            return None
        begun = time.process_time()
        found = run(*given, **named)
        if found is None:
            note.write_text(f"{time.process_time() - begun:.3f}")
        return found

    return unless_passed


def is_recorded(key: str) -> bool:
    """Is it recorded that this has passed, and not its turn to run all the same?"""
    known, turn = record()
    return key[:DIGITS] in known and key[DIGITS] != turn


@functools.cache
def record() -> tuple[frozenset[str], str]:
    """The keys that are recorded, and which digit says that a gate runs all the same."""
    if os.environ.get("CHUNKFORM_TEST_GATES") or not RECORD.exists():
        return frozenset(), ""
    text = RECORD.read_bytes()
    return frozenset(text.decode().split()), hashlib.sha256(text).hexdigest()[0]


@functools.cache
def folder() -> Path:
    """Where it is noted what has passed, by this code."""
    text = hashlib.sha256()
    code = sorted(p for folder in CODE for p in (ROOT / folder).rglob("*.py"))
    for path in (*code, Path(__file__), Path(__file__).with_name("judged_by.py")):
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
            words = [_judging(t), *[_content(getattr(x, n), known, kept) for n in _fields(t) or ()]]
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
    words = [_judging(t), *[_content(y, known, kept) for y in inside]]
    known[id(x)] = found = hashlib.blake2b("\0".join(words).encode(), digest_size=16).hexdigest()
    kept.append(inside)
    return found


@functools.cache
def _judging(t: type) -> str:
    """A kind of objects, and what its methods are."""
    return f"{t.__module__} {t.__qualname__} {judged_by(t.__module__)}"


@functools.cache
def _fields(t: type) -> tuple[str, ...] | None:
    """Of data, the names of what it is made of: of what is compiled, its step is all that its spec says, and `known` follows."""
    left_out = ("spec", "known", "reason_where", "gates") if t is Compiled else ()
    if not dataclasses.is_dataclass(t) or t is Source:
        return None
    of_specs = t.__module__.startswith("chunkform.spec.language.")  # where what isn't compared says when it was written
    return tuple(f.name for f in dataclasses.fields(t) if f.name not in left_out and (f.compare or not of_specs))


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
        yield from (x.__module__, x.__qualname__, judged_by(x.__module__), *_place(x.__code__))
        yield from (x.__defaults__, x.__kwdefaults__)
        yield from (c.cell_contents for c in x.__closure__ or ())
    elif isinstance(x, types.MethodType | functools.partial):
        is_bound = isinstance(x, types.MethodType)
        yield from (x.__self__, x.__func__) if is_bound else (x.func, x.args, x.keywords)
    elif isinstance(x, np.ndarray | MPContext | mpf):
        yield from _of_numbers(x)
    elif isinstance(x, enum.Enum):
        yield x.name
    elif isinstance(x, type) and "<locals>" not in x.__qualname__:
        yield f"{x.__module__} {x.__qualname__}"
    elif isinstance(x, types.BuiltinFunctionType | types.ModuleType):
        yield f"{getattr(x, '__module__', '')} {x.__name__}"
    elif isinstance(x, Declaration | Matrix | Source | sympy.Basic):
        yield from _of_specs(x)
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


def _of_specs(x: Declaration | Matrix | Source | sympy.Basic) -> Iterator[Any]:
    """What specs say, wherever they are written."""
    if isinstance(x, Declaration):
        for n, y in vars(x).items():
            if n not in ("where", "doc", "source", "claims", "owner"):
                yield from (n, y)
    elif isinstance(x, Matrix):
        yield from (x.op, x.args, x.rows, x.cols)
    elif isinstance(x, Atom):
        yield from (x.name, x.kind, x.ref)
    elif isinstance(x, Contraction):
        yield x.matrix
    elif isinstance(x, sympy.Symbol):
        yield from (x.name, *sorted(map(str, x.assumptions0.items())))
    elif isinstance(x, sympy.Basic):
        yield x.args or sympy.srepr(x)


def _place(code: types.CodeType) -> Iterator[Any]:
    """Where a function is in its module, which may define several of its name."""
    if "<l" in code.co_qualname:  # a lambda, or within a function
        places = [(a, b) for _, _, a, b in code.co_positions() if b]
        yield from (
            code.co_firstlineno,
            min(places, default=None),
            max(b for _, b in places) if places else code.co_code,
        )
