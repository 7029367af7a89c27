"""Kernels of the recurrent form are data, and a gate runs them over exact numbers: what is wrong in one is refused."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from shared.recurrent_programs import compiled

from chunkform.codegen.ir.code import Code, Literal, Load
from chunkform.codegen.ir.code_parts import rebuilt
from chunkform.codegen.ir.kernel_ir import (
    Barrier,
    For,
    If,
    KernelFunction,
    Let,
    Prefetch,
    Statement,
    Store,
    changed,
    loads,
    statements,
    stores,
)
from chunkform.codegen.ir.words import text_of
from chunkform.codegen.printing.code_passes import finished_kernel as finished
from chunkform.codegen.recurrence.stepwise import triton_form
from chunkform.codegen.recurrence.stepwise.kernel_gate import gate_kernel
from chunkform.codegen.recurrence.stepwise.triton_form import sequential_kernels, sequential_triton
from chunkform.errors import GateError

Made = dict[str, Any]
NAMES = ["tanh_layer", "channels"]
WIDE = "sherman_morrison"  # whose states may be too wide to be held whole


@cache
def made(name: str) -> list[Made]:
    return [x for x in sequential_kernels(compiled(name)) if x]


def gate(name: str, x: Made, f: KernelFunction) -> None:
    gate_kernel(compiled(name), x["kernel"], f, x.get("slots", 0))


def refused(name: str, x: Made, f: KernelFunction) -> None:
    assert f != finished(x["function"])
    with pytest.raises(GateError, match=f.name):
        gate(name, x, f)


def test_kernels_make_what_steps_say() -> None:
    for name in (*NAMES, WIDE):
        for x in made(name):
            gate(name, x, finished(x["function"]))
            gate(name, x, replace(x["function"], body=changed(x["function"].body, without_ahead)))


def without_ahead(x: Statement) -> tuple[Statement, ...]:
    """Each step loads what it takes."""
    return (replace(x, prefetch="") if isinstance(x, Let) else x,)


def edited(f: KernelFunction, number: int, change: Callable[[Load | Store], Load | Store]) -> KernelFunction:
    """A kernel with a change of one of its loads and stores that have a mask."""
    count = iter(range(10**6))

    def of(x: Code) -> Code:
        if isinstance(x, Load) and x.mask is not None:
            return change(x) if next(count) == number else x
        return rebuilt(x, of)

    def statement(x: Statement) -> Iterator[Statement]:
        x = replace(x, value=of(x.value)) if isinstance(x, Let | Store) else x
        yield change(x) if isinstance(x, Store) and x.mask is not None and next(count) == number else x

    return replace(f, body=changed(f.body, lambda x: tuple(statement(x))))


@pytest.mark.parametrize("name", NAMES)
def test_each_mask_is_needed(name: str) -> None:
    for x in made(name):
        f = x["function"]  # before passes: of steps that are taken at once, only the last reads next to memory's end
        masked = sum(y.mask is not None for y in (*loads(f.body), *stores(f.body)))
        assert masked > 7
        for n in range(masked):
            refused(name, x, finished(edited(f, n, lambda y: replace(y, mask=None))))


def several(f: KernelFunction) -> list[tuple[Statement, ...]]:
    """What is done where steps are taken several at once."""
    return [x.body for x in statements(f.body) if isinstance(x, If) and x.condition.text == "several"]


@pytest.mark.parametrize("name", NAMES)
def test_each_mask_is_needed_after_passes(name: str) -> None:
    """But where steps are taken several at once: of these, only the last reads next to memory's end."""
    for x in made(name):
        f = finished(x["function"])
        masked = sum(y.mask is not None for y in (*loads(f.body), *stores(f.body)))
        without_mask = (edited(f, n, lambda y: replace(y, mask=None)) for n in range(0, masked, 3))
        outside = [g for g in without_mask if several(g) == several(f)]
        assert len(outside) > 2
        for g in outside:
            refused(name, x, g)


def without(f: KernelFunction, kind: type, number: int) -> KernelFunction:
    """A kernel without one of its statements of a kind."""
    count = iter(range(10**6))
    body = changed(f.body, lambda x: () if isinstance(x, kind) and next(count) == number else (x,))
    return replace(f, body=body)


@pytest.mark.parametrize("name", NAMES)
def test_each_barrier_is_needed(name: str) -> None:
    """States are stored forwards, loaded backwards, and stored anew for the segment before."""
    _, backward = made(name)
    f = finished(backward["function"])
    assert sum(isinstance(x, Barrier) for x in statements(f.body)) == 2
    for n in range(2):
        refused(name, backward, without(f, Barrier, n))


def test_barriers_stand_between_passes_over_rows() -> None:
    """Vectors go through memory from one pass to the next."""
    _, _, forward, backward = made(WIDE)
    for x in (forward, backward):
        f = finished(x["function"])
        refused(WIDE, x, replace(f, body=changed(f.body, lambda y: () if isinstance(y, Barrier) else (y,))))


def with_ahead(f: KernelFunction, change: Callable[[Prefetch], Prefetch]) -> KernelFunction:
    def of(x: Statement) -> tuple[Statement, ...]:
        return (replace(x, prefetch=change(x.prefetch)) if isinstance(x, For) and x.prefetch is not None else x,)

    return finished(replace(f, body=changed(f.body, of)))


@pytest.mark.parametrize("name", NAMES)
def test_a_stale_prefetch_is_refused(name: str) -> None:
    """What is held for the next step is loaded at this one."""
    for x in made(name):
        if any(isinstance(y, Let) and y.prefetch for y in statements(x["function"].body)):
            refused(name, x, with_ahead(x["function"], lambda a: replace(a, next=())))


def test_the_state_that_is_prefetched_first_is_the_last_of_a_segment() -> None:
    _, backward = made("channels")
    at_first = (("offset", Literal(0)),)
    refused("channels", backward, with_ahead(backward["function"], lambda a: replace(a, first=at_first)))


def test_a_dropped_guard_is_refused() -> None:
    for name in NAMES:
        forward, _ = made(name)
        f = finished(forward["function"])
        body = changed(
            f.body, lambda x: x.body if isinstance(x, If) and "_checkpoints_at" in x.condition.text else (x,)
        )
        refused(name, forward, replace(f, body=body))


def test_a_dropped_store_is_refused() -> None:
    for x in made("tanh_layer"):
        f = finished(x["function"])
        for n in range(len(stores(f.body))):
            refused("tanh_layer", x, without(f, Store, n))


def test_the_gate_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(triton_form, "gate_kernel", lambda c, k, f, slots: seen.append(f.name))
    text = text_of(sequential_triton(compiled(WIDE)))
    assert len(seen) == 4 and all(f"def {name}(" in text for name in seen)
