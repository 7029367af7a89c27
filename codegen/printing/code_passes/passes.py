"""The passes over code, in order: all kernels go through the first list, all functions that launch these through the second one.

They follow those of a declaration's own list (`pipeline.py`), when its file is printed, and are shown, and written to files,
after these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ...exact.launch_gate import gate_kept_launches, gate_launches
from ...ir.expr import plain_name
from ...ir.kernel_ir import KernelFunction
from ...ir.launch_ir import Function
from ..kernel_text import kernel_function_text
from ..launch_text import launch_text
from ..passes import is_watched, tell
from .falling_back import falling_back
from .freed import freed
from .guarded import guarded
from .in_slices import in_slices
from .prefetched import prefetched
from .rounds_at_once import rounds_at_once
from .wanted import wanted

F = TypeVar("F", KernelFunction, Function)


@dataclass(frozen=True)
class CodePass(Generic[F]):
    """One pass: a function IR -> IR, and what it makes."""

    run: Callable[[F], F]
    what: str

    @property
    def name(self) -> str:
        return self.run.__name__


# Two orders matter. `guarded` comes after `falling_back`: a fallback behind a guard isn't there where it is needed, and the gates
# refuse that (tests/codegen/printing/code_passes/test_guards.py has where it isn't needed). `prefetched` comes after
# `rounds_at_once`: rounds at once that load a round ahead as well load more than they need. All others commute
# (tests/codegen/printing/code_passes/test_order.py).
KERNEL_PASSES: tuple[CodePass[KernelFunction], ...] = (
    CodePass(in_slices, "kernels with loops over slices of wide axes"),
    CodePass(falling_back, "what stands for an argument of a kernel that isn't given"),
    CodePass(guarded, "loads from arguments that may be missing, and stores there, where they are given"),
    CodePass(rounds_at_once, "loops that take several rounds at once"),
    CodePass(prefetched, "loads a round before a loop needs them"),
)
FUNCTION_PASSES: tuple[CodePass[Function], ...] = (
    CodePass(wanted, "functions that launch kernels for the results that are wanted"),
    CodePass(freed, "large tensors let go of after their last use"),
)
CODE_PASSES: tuple[CodePass[KernelFunction] | CodePass[Function], ...] = (*KERNEL_PASSES, *FUNCTION_PASSES)


def finished_kernel(k: KernelFunction) -> KernelFunction:
    """A kernel as it is printed."""
    return _through(KERNEL_PASSES, k, kernel_function_text)


def finished_function(f: Function) -> Function:
    """A function as it is printed.

    Raises GateError where it reads what it hasn't assigned, or what no launch has stored, or two programs store to one place, and
    where passes have changed a launch.
    """
    gate_launches(f)
    made = _through(FUNCTION_PASSES, f, launch_text)
    gate_launches(made)
    gate_kept_launches(f, made)
    return made


def after(k: KernelFunction, name: str) -> KernelFunction:
    """A kernel as it is after the pass of this name."""
    names = [p.name for p in KERNEL_PASSES]
    if name not in names:
        raise ValueError(f"a pass over kernels is one of {', '.join(names)}, got {name!r}")
    for p in KERNEL_PASSES[: names.index(name) + 1]:
        k = p.run(k)
    return k


# --- what is told of them ---------------------------------------------------------------------------------------------


@dataclass
class _Told:
    """What the passes have made so far: of each pass, texts by the part of the declaration and the function, and the time."""

    texts: dict[str, dict[tuple[tuple[str, ...], str], Callable[[], str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """What a pass made, function by function; those of a part stand below its name."""
        found: list[str] = []
        shown: tuple[str, ...] = ()
        for (place, _), text in self.texts.get(name, {}).items():
            if place != shown:
                found.append(f"# {'/'.join(place)}")
            shown = place
            found.append(text().strip())
        return plain_name("\n\n".join(found)) + "\n"


_now: ContextVar[_Told | None] = ContextVar("_now", default=None)
_all: ContextVar[list[KernelFunction | Function] | None] = ContextVar("_all", default=None)
_part: ContextVar[tuple[str, ...]] = ContextVar("_part", default=())


@contextmanager
def collected() -> Iterator[list[KernelFunction | Function]]:
    """All kernels and functions that are printed meanwhile, as data, after all passes."""
    found: list[KernelFunction | Function] = []
    token = _all.set(found)
    try:
        yield found
    finally:
        _all.reset(token)


class Listed(Protocol):
    """A pass of a list."""

    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str: ...


@contextmanager
def told(name: str, count: int, before: Sequence[Listed] = ()) -> Iterator[None]:
    """While a declaration of this name is printed, which has gone through `count` passes of its own: what passes over code make
    is told once it is printed, after what those make that come `before` them (`tell_made`)."""
    if not is_watched() or _now.get() is not None:
        yield
        return
    found = _Told()
    token = _now.set(found)
    try:
        yield
    finally:
        _now.reset(token)
    for number, p in enumerate((*before, *CODE_PASSES), count + 1):
        tell(name, number, p.name, p.what, found.text(p.name), found.seconds.get(p.name, 0.0))


@contextmanager
def part_of(name: str) -> Iterator[None]:
    """While a part of a declaration is printed, such as one of a program's operations."""
    token = _part.set((*_part.get(), plain_name(name)))
    try:
        yield
    finally:
        _part.reset(token)


def tell_made(p: Listed, of: str, text: Callable[[], str], seconds: float) -> None:
    """Have it told what a pass made of a part that is called so, if anybody looks at it."""
    found = _now.get()
    if found is None:
        return
    found.seconds[p.name] = found.seconds.get(p.name, 0.0) + seconds
    texts = found.texts.setdefault(p.name, {})
    texts.pop((_part.get(), of), None)
    texts[_part.get(), of] = text


def _through(passes: tuple[CodePass[F], ...], x: F, text: Callable[[F], str]) -> F:
    for p in passes:
        begun = time.perf_counter()
        x = p.run(x)
        tell_made(p, x.name, lambda made=x: text(made), time.perf_counter() - begun)  # type: ignore[misc]
    if (every := _all.get()) is not None:
        every.append(x)
    return x
