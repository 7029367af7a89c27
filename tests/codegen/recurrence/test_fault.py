"""An error of the compiler says that it is one, and shows the smallest spec found that ends in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from random_specs.grammar import draw
from random_specs.run import recurrence_of

from chunkform.codegen.ir.expr import mul
from chunkform.codegen.ir.step_program import StepProgram
from chunkform.codegen.recurrence import compiler_fault as fault
from chunkform.codegen.recurrence import emit as emit_module
from chunkform.codegen.recurrence import pipeline
from chunkform.codegen.recurrence.smaller_specs import reduced, spec_text
from chunkform.codegen.recurrence.step.adjoint import Adjoint
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.errors import CompilerError, FunctionError, GateError, SpecError
from chunkform.spec.language import Recurrence, catalogue, hadamard, normalize, sigmoid, tanh
from chunkform.spec.language.data import as_data


def read_back(text: str) -> Recurrence:
    space: dict[str, Any] = {}
    exec(compile(text, "smallest.py", "exec"), space)
    return space["r"]


def long_spec() -> Recurrence:
    r = Recurrence("long_spec", doc="More than it takes.")
    d, e = r.dims("d e")
    q, k, u = r.inputs("q k u", d)
    v = r.inputs("v", e)
    b = r.inputs("b")
    lam = r.decay("lam")
    S, h = r.state("S", d, e), r.state("h", d)
    key = r.let("key", normalize(k))
    r.update(S, lam * S.prev + sigmoid(b) * key * (v - S.prev.T * key).T)
    r.update(h, h.prev + tanh(u))
    r.output("o", S.next.T * q)
    r.output("z", hadamard(h.next, q))
    return r


def corrupt_tanh(a: Adjoint) -> Adjoint:
    """A pass that is wrong where a gradient has a tanh: dq, of a read of a state that a tanh is added to."""
    outputs = {n: mul(2, x) if "tanh" in repr(x) else x for n, x in a.program.outputs.items()}
    return replace(a, program=replace(a.program, outputs=outputs))


def crash_on_tanh(p: StepProgram) -> StepProgram:
    if any("tanh" in repr(x) for x in p.updates.values()):
        raise ValueError("not enough values to unpack (expected 1, got 0)")
    return p


def after(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any]) -> None:
    original = getattr(pipeline, name)
    monkeypatch.setattr(pipeline, name, lambda *args: change(original(*args)))


def smallest(message: str) -> str:
    """The spec in a message."""
    text = message.partition("shows it):\n\n")[2].partition("\n\nVersions")[0]
    return re.sub(r"^    ", "", text, flags=re.MULTILINE)


def test_a_gate_reports_the_smallest_spec_that_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    after(monkeypatch, "adjoint_of", corrupt_tanh)
    r = long_spec()
    with pytest.raises(GateError, match="the pass `adjoint` changed the meaning of long_spec") as refused:
        pipeline.compile_spec(r)
    message = str(refused.value)
    assert message.startswith(f"{r.where}: ") and "The compiler is at fault here, not the spec" in message
    assert "Please report it" in message and "chunkform 0" in message
    found = read_back(smallest(message))
    assert [x.name for x in found.states] == ["h"] and [x.name for x in found.outputs] == ["z"]
    assert [x.name for x in found.variables] == ["q", "u"] and found.lets == []
    assert "tanh(u)" in smallest(message) and "sigmoid" not in smallest(message)


def test_a_crash_of_a_pass_is_reported_likewise_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    after(monkeypatch, "lower", crash_on_tanh)
    r = long_spec()
    with pytest.raises(CompilerError, match="long_spec can't be compiled: ValueError: not enough values") as refused:
        pipeline.compile_spec(r)
    assert isinstance(refused.value.__cause__, ValueError)
    assert refused.value.where == r.where
    assert [x.name for x in read_back(smallest(str(refused.value))).states] == ["h"]


def test_a_crash_of_a_printer_is_reported_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(c: pipeline.Compiled) -> Any:
        raise KeyError("x")

    c = pipeline.compile_spec(long_spec())
    monkeypatch.setattr(emit_module, "sections", crash)
    monkeypatch.setattr(fault, "SECONDS", 0.0)
    with pytest.raises(CompilerError, match="long_spec can't be compiled: KeyError: 'x'"):
        emit_module.emit(c)


def test_what_is_wrong_with_a_spec_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(p: StepProgram) -> StepProgram:
        raise FunctionError("no derivative")

    after(monkeypatch, "lower", refuse)
    with pytest.raises(FunctionError, match=r"^no derivative$"):
        pipeline.compile_spec(long_spec())


def test_the_search_ends_in_time() -> None:
    r = long_spec()
    assert reduced(r, lambda _: True, 0.0) == (r, 0)
    found, tried = reduced(r, lambda _: True, 60.0)
    assert tried < 60 and len(spec_text(found)) < len(spec_text(r)) / 2


def meaning(r: Recurrence) -> Any:
    p = lower(r)
    return p.updates, p.outputs, p.variables, p.states


@pytest.mark.parametrize("r", catalogue(), ids=lambda r: r.name)
def test_a_printed_spec_is_that_spec(r: Recurrence) -> None:
    assert meaning(read_back(spec_text(r))) == meaning(r)


def test_printed_random_specs_are_those_specs() -> None:
    for seed in range(25):
        r = recurrence_of(draw(seed))
        assert meaning(read_back(spec_text(r))) == meaning(r), spec_text(r)


def test_a_spec_that_is_nested_too_deeply_is_told_so_here_and_as_data() -> None:
    r = Recurrence("sums")
    d, e = r.dims("d e")
    k, v = r.inputs("k", d), r.inputs("v", e)
    S = r.state("S", d, e)
    x = S.prev
    for _ in range(1500):
        x = x + k * v.T
    r.update(S, x)
    r.output("o", S.next.T * k)
    with pytest.raises(SpecError, match="sums can't be compiled: its operations are nested too deeply"):
        pipeline.compile_spec(r)
    with pytest.raises(SpecError, match="sums can't be written as data: its operations are nested too deeply"):
        as_data(r)
