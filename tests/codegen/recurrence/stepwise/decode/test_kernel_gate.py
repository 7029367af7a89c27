"""The step kernels are data, and a gate runs them over exact numbers: what is wrong in one is refused."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from shared.recurrent_programs import compiled

from chunkform.codegen.exact.jit_source import body_of
from chunkform.codegen.ir.kernel_ir import (
    For,
    If,
    KernelFunction,
    Let,
    Return,
    Statement,
    Store,
    changed,
    statements,
    stores,
)
from chunkform.codegen.printing.code_passes import finished_kernel as finished
from chunkform.codegen.recurrence.stepwise.decode import decoding, source
from chunkform.codegen.recurrence.stepwise.decode.kernel import step_kernel, step_rows
from chunkform.codegen.recurrence.stepwise.decode.kernel_gate import gate_step, gate_steps
from chunkform.codegen.recurrence.stepwise.decode.several import several_steps
from chunkform.errors import GateError

NAMES = ["tanh_layer", "channels", "sherman_morrison"]


@cache
def made(name: str) -> list[dict[str, Any]]:
    """The kernels of a step, of one over rows where there is one, and of several steps."""
    c = compiled(name)
    one = step_kernel(c)
    return [one, *([rows] if not one["tiled"] and (rows := step_rows(c)) else []), several_steps(c)]


def gate(name: str, x: dict[str, Any], f: KernelFunction) -> None:
    if f.name == "steps_kernel":
        gate_steps(compiled(name), x["kernel"], f)
    else:
        gate_step(compiled(name), x["kernel"], f, x.get("slots", 0))


def everything() -> Iterator[tuple[str, dict[str, Any], KernelFunction]]:
    return ((name, x, finished(x["function"])) for name in NAMES for x in made(name))


def refused(name: str, x: dict[str, Any], f: KernelFunction) -> None:
    assert f != finished(x["function"])
    with pytest.raises(GateError, match=f.name):
        gate(name, x, f)


def test_kernels_make_what_a_step_says() -> None:
    assert {f.name for _, _, f in everything()} == {"step_kernel", "step_rows_kernel", "steps_kernel"}
    for name, x, f in everything():
        gate(name, x, f)


def test_a_dropped_store_is_refused() -> None:
    for name, x, f in everything():
        if f.name != "step_rows_kernel":
            for n in range(len(stores(f.body))):
                count = iter(range(100))
                body = changed(f.body, lambda y: () if isinstance(y, Store) and next(count) == n else (y,))  # noqa: B023
                refused(name, x, replace(f, body=body))


def test_each_mask_of_a_store_is_needed() -> None:
    for name, x, f in everything():
        if f.name != "step_rows_kernel":
            unmasked = changed(f.body, lambda y: (replace(y, mask=None) if isinstance(y, Store) else y,))
            refused(name, x, replace(f, body=unmasked))


def test_padding_and_what_is_beyond_a_count_is_left_alone() -> None:
    """Without a guard that returns, the state's row before the first of a pool is touched."""

    def unguarded(x: Statement) -> tuple[Statement, ...]:
        return () if isinstance(x, If) and x.body == (Return(),) else (x,)

    for name, x, f in everything():
        refused(name, x, replace(f, body=changed(f.body, unguarded)))


def test_a_dropped_guard_is_refused() -> None:
    for name, x, f in everything():
        if f.name == "steps_kernel":
            for word in ("yields", "keeps", "ends"):
                body = changed(f.body, lambda y: y.body if isinstance(y, If) and y.condition.text == word else (y,))  # noqa: B023
                refused(name, x, replace(f, body=body))


@pytest.mark.parametrize("left", ["ends or now + 1 < count", "keeps or now + 1 < count", "keeps or ends"])
def test_a_state_that_is_asked_for_is_made(left) -> None:
    """After each step but the last, after the last where it is the sequence's, and after each where all are kept."""

    def narrowed(y: Statement) -> tuple[Statement, ...]:
        asked = isinstance(y, If) and y.condition.text == "keeps or ends or now + 1 < count"
        return (replace(y, condition=body_of(f"if {left}: return")[0].condition) if asked else y,)

    for name, x, f in everything():
        if f.name == "steps_kernel":
            refused(name, x, replace(f, body=changed(f.body, narrowed)))


def test_a_stale_prefetch_is_refused() -> None:
    for name in ("channels",):
        x = made(name)[-1]
        assert any(isinstance(y, Let) and y.prefetch for y in statements(x["function"].body))

        def stale(y: Statement) -> tuple[Statement, ...]:
            return (
                replace(y, prefetch=replace(y.prefetch, next=()))
                if isinstance(y, For) and y.prefetch is not None
                else y,
            )

        refused(name, x, finished(replace(x["function"], body=changed(x["function"].body, stale))))


def test_the_gate_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(source, "gate_step", lambda c, k, f, slots: seen.append(f.name))
    monkeypatch.setattr(source, "gate_steps", lambda c, k, f: seen.append(f.name))
    text = decoding(compiled("sherman_morrison"), has_start=False).text
    assert len(seen) == 3 and all(f"def {name}(" in text for name in seen)
