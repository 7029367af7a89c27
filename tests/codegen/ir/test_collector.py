"""While a spec is compiled and printed nothing looks for cycles; afterwards the collector is as it was."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from chunkform.codegen.ir.collector import uncollected
from chunkform.codegen.recurrence import compiler_fault, pipeline
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.errors import CompilerError
from chunkform.spec.language import Recurrence


def spec() -> Recurrence:
    r = Recurrence("sums")
    d = r.dims("d")
    k, h = r.inputs("k", d), r.state("h", d)
    r.update(h, r.decay("lam") * h.prev + k)
    r.output("o", h.next)
    return r


@pytest.mark.usefixtures("others_left_alone")
def test_nothing_is_collected_while_a_spec_is_compiled_and_printed() -> None:
    seen: list[Any] = []
    r = spec()
    gc.collect()
    gc.callbacks.append(lambda phase, _: seen.append(phase))
    try:
        emit(compile_spec(r))
    finally:
        gc.callbacks.pop()
    assert seen.count("start") <= 2, "the collector looks once when it is let go, after each of the two"
    assert gc.isenabled()


def test_it_is_let_go_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "run_passes", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(compiler_fault, "SECONDS", 0.0)
    with pytest.raises(CompilerError):
        compile_spec(spec())
    assert gc.isenabled()


def test_within_one_another_and_in_threads() -> None:
    begun, end = threading.Event(), threading.Event()

    def other() -> None:
        with uncollected():
            begun.set()
            end.wait(10)

    thread = threading.Thread(target=other)
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
        thread.start()
        assert begun.wait(10)
    assert not gc.isenabled(), "the other thread isn't done"
    end.set()
    thread.join()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
