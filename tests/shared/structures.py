"""Which specs a sweep of `make test` takes: together they have every structure that any spec has; the others are `long`.

A structure is what passes look at: a quantity's kind and axes, a state's axes and start, and which operation takes what others
make. Nothing here knows a spec's name, so a new spec with a structure of its own is taken without being listed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import pytest

from chunkform.codegen.ir.expr import Node, dim_of, walk
from chunkform.codegen.ir.step_program import StepProgram

from .step_calls import recurrences, step_of


def sweep(names: Iterable[str]) -> list[Any]:
    """Parameters of a test that takes each of these specs: `make test` runs it for those that show every structure of them."""
    some = tuple(names)
    few = set(few_of(some))
    return [name if name in few else pytest.param(name, marks=pytest.mark.long) for name in some]


@functools.cache
def few_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Some of the specs, in order, that have all structures: again and again the one that brings most that is new."""
    structures = {name: structures_of(step_of(name)) for name in names if name in recurrences()}
    missing: set[tuple[Any, ...]] = set().union(*structures.values())
    taken: set[str] = {name for name in names if name not in structures}
    while missing:
        best = max(structures, key=lambda name: len(structures[name] & missing))
        taken.add(best)
        missing -= structures[best]
    return tuple(name for name in names if name in taken)


def structures_of(step: StepProgram) -> frozenset[tuple[Any, ...]]:
    found: set[tuple[Any, ...]] = {("states", len(step.states)), ("outputs", len(step.outputs))}
    for v in step.variables:
        found.add(("variable", v.kind, v.per_step, len(v.axes), v.domain is not None))
    for s in step.states:
        square = len({dim_of(a) for a in s.axes}) < len(s.axes)
        found.add(("state", len(s.axes), square, s.initial is not None))
    for x in walk(*step.updates.values(), *step.outputs.values()):
        found |= {("operation", kind(x), kind(y)) for y in x.args}
        found |= {("operation", x.op, y.op, z.op) for y in x.args for z in y.args}
    return frozenset(found)


def kind(x: Node) -> tuple[str, int]:
    """An operation, which function it is, and of how many axes."""
    return x.op + "".join(f" {a}" for a in x.attrs if x.op == "fn" and isinstance(a, str)), len(x.axes)
