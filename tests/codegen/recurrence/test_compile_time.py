"""What a compile does is bounded by counts, which no machine's load changes; `python -m benchmarks.compile_time` has seconds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.compile_time import chain, independent
from chunkform.codegen.ir import evaluate
from chunkform.codegen.ir.degree_bounds import Degrees
from chunkform.codegen.ir.expr import terms_of
from chunkform.codegen.recurrence import emit
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import section
from chunkform.codegen.recurrence.triton.launch import sweep_launches
from chunkform.spec.language import Recurrence


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """How often the dear parts of a compile are done."""
    found: Counter = Counter()

    def count(module: Any, name: str, key: str) -> None:
        whole = getattr(module, name)

        def noted(*given: Any, **words: Any) -> Any:
            found[key] += 1
            return whole(*given, **words)

        monkeypatch.setattr(module, name, noted)

    count(evaluate, "applied", "nodes evaluated")
    count(sweep_launches, "sweep_kernel", "kernels of walks")
    count(section, "swept_form", "sections")
    products = evaluate.CHUNK_OPERATIONS["transition_products"]

    def formed(*given: Any) -> Any:
        found["products of matrices"] += 1
        return products(*given)

    monkeypatch.setitem(evaluate.CHUNK_OPERATIONS, "transition_products", formed)
    return found


def compiled(r: Recurrence) -> Compiled:
    c = compile_spec(r)
    emit.emit(c, tidy=False)
    return c


def sweeps(c: Compiled) -> int:
    assert c.forward is not None and c.backward is not None
    return len(c.forward.sweeps) + 2 * len(c.backward.sweeps)


def test_coupled_states_take_a_bounded_number_of_steps(counted: Counter) -> None:
    """A gate forms the products of a group's matrices once for each chunk that it runs over, and evaluates what nodes share
    once; kernels are printed once, and those of a backward pass once more, to learn what they load."""
    c = compiled(chain(3))
    assert counted["sections"] == 1
    assert counted["kernels of walks"] <= sweeps(c)
    assert counted["products of matrices"] <= 250
    assert counted["nodes evaluated"] <= 30_000


def test_what_a_gate_evaluates_grows_with_the_pairs_of_states(counted: Counter) -> None:
    numbers = []
    for n in (2, 4):
        counted.clear()
        compile_spec(chain(n))
        numbers.append(counted["nodes evaluated"])
    assert numbers[1] < 5 * numbers[0], numbers


def test_multiples_of_one_write_are_one_product_of_matrices() -> None:
    """Each state of a chain is written a number of times the same: the weights of these are summed, not the products, and no
    sweep is so heavy that it is cut."""
    c = compile_spec(chain(6))
    assert c.forward is not None and c.backward is not None
    for plan in (c.forward, c.backward):
        for sweep in plan.sweeps:
            for node in sweep.chunk.states.values():
                assert sum(t.op == "sum" for t in terms_of(node)) == 1, str(node)
    assert section.kernel_plan(c, c.backward).sweeps == c.backward.sweeps


def test_independent_states_take_their_number(counted: Counter) -> None:
    numbers = []
    for n in (3, 6):
        counted.clear()
        compile_spec(independent(n))
        numbers.append(counted["nodes evaluated"])
    assert numbers[1] < 2.5 * numbers[0], numbers


def test_degrees_are_found_when_a_report_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        Degrees, "random", lambda self, *x, whole=Degrees.random, **y: (asked.append(1), whole(self, *x, **y))[1]
    )
    c = compile_spec(chain(1))
    assert not asked
    assert all(0 < g.error_bound < 1e-12 for g in c.gates) and asked


def test_a_softmax_of_inputs_beside_products_of_states_needs_no_fractions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their digits double with each product of states: of five steps that is most of a minute."""
    from chunkform.codegen.exact import run_kernel
    from chunkform.spec.language import dot, softmax

    r = Recurrence("unit_slots")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    w = r.let("w", v - S.prev.T * softmax(0.3 * k))
    r.update(S, S.prev + softmax(k) * w.T - S.prev * w * w.T / (1 + dot(w, w)))
    r.output("o", S.next.T * softmax(q))

    def refused() -> None:
        raise AssertionError("a kernel is run over fractions")

    monkeypatch.setattr(run_kernel, "Fractions", refused)
    compiled(r)
