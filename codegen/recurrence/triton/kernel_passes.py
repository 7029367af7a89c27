"""What is done to a kernel between building it and printing it: functions IR -> IR, listed in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...ir.code import Name, loads_in
from ...ir.kernel_ir import (
    Body,
    For,
    If,
    KernelFunction,
    Let,
    Statement,
    Store,
    argument_of,
    changed,
    expressions,
    let,
)
from .kernels.strip_mine import in_slices


def guarded(k: KernelFunction) -> KernelFunction:
    """What loads from an argument that may be missing, or stores there, does so where it is given; before what it loads there is
    its fallback. A loop that does nothing else is guarded as a whole."""
    return replace(k, body=_guarded(k.body, k.optional))


def falling_back(k: KernelFunction) -> KernelFunction:
    """What has a fallback is that first."""

    def change(x: Statement) -> Body:
        if isinstance(x, Let) and x.fallback is not None:
            return (let(x.names[0], x.fallback), replace(x, fallback=None))
        return (x,)

    return replace(k, body=changed(k.body, change))


PASSES: tuple[Callable[[KernelFunction], KernelFunction], ...] = (in_slices, falling_back, guarded)


def after(k: KernelFunction, name: str) -> KernelFunction:
    """A kernel as it is after the pass of this name."""
    names = [each.__name__ for each in PASSES]
    if name not in names:
        raise ValueError(f"a pass over kernels is one of {', '.join(names)}, got {name!r}")
    for each in PASSES[: names.index(name) + 1]:
        k = each(k)
    return k


def finished(k: KernelFunction) -> KernelFunction:
    """A kernel as it is printed."""
    for each in PASSES:
        k = each(k)
    return k


def _guarded(body: Body, optional: frozenset[str]) -> Body:
    found: list[Statement] = []
    for x in body:
        arguments = {_argument(y, optional) for y in (x.body if isinstance(x, For) else (x,))}
        if len(arguments) == 1 and (argument := arguments.pop()) is not None:
            found.append(If(Name(argument).given, (x,)))
        elif isinstance(x, If):
            found.append(replace(x, body=_guarded(x.body, optional), otherwise=_guarded(x.otherwise, optional)))
        elif isinstance(x, For):
            found.append(replace(x, body=_guarded(x.body, optional)))
        else:
            found.append(x)
    return tuple(found)


def _argument(x: Statement, optional: frozenset[str]) -> str | None:
    """The argument among these that a statement itself loads from, or stores to."""
    pointers = [y.pointer for e in expressions(x) for y in loads_in(e)]
    pointers += [x.pointer] if isinstance(x, Store) else []
    found = {a for p in pointers if (a := argument_of(p, optional)) is not None}
    assert len(found) < 2, found
    return found.pop() if found else None
