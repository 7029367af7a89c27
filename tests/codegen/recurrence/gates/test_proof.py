"""The printed proof: SymPy settles small recurrences, and says what it leaves."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import sympy

from chunkform.codegen.ir.expr import mul
from chunkform.codegen.recurrence.gates import symbolic_proof as proof
from chunkform.codegen.recurrence.gates.symbolic_proof import count_of_terms, is_larger, simplified, symbolic_proof
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Recurrence, find, hadamard, sqrt, tanh


def test_a_proof_covers_outputs_states_and_every_gradient() -> None:
    lines = symbolic_proof(compile_spec(find("lightning_attention")[0]))
    assert lines[0] == "In symbols, for d = 2, e = 1 and 2 steps:"
    settled = [line.split()[0] for line in lines if line.endswith(" = 0")]
    assert settled == ["o", "S_2", "dq", "dk", "dv", "dlog_lam", "dS_0"]


def test_a_sequential_recurrence_has_its_gradients_proved() -> None:
    lines = symbolic_proof(compile_spec(find("gradient_descent_logistic")[0]))
    assert any(line.startswith("  deta ") and line.endswith(" = 0") for line in lines)


def test_a_slope_by_two_sigmoids_is_that_of_a_tanh() -> None:
    r = Recurrence("rounded")
    d = r.dims("d")
    x, y = r.inputs("x y", d)
    h = r.state("h", d)
    r.update(h, hadamard(tanh(h.prev), x) + y)
    r.output("o", h.next)
    lines = symbolic_proof(compile_spec(r))
    assert [line.split()[0] for line in lines if line.endswith(" = 0")] == ["dx", "dy", "dh_0"]


def test_what_is_wrong_is_not_proved() -> None:
    c = compile_spec(find("linear_attention")[0])
    program = c.adjoint.program
    wrong = replace(program, outputs={**program.outputs, "dq": mul(2, program.outputs["dq"])})
    lines = symbolic_proof(replace(c, adjoint=replace(c.adjoint, program=wrong)))
    (line,) = [x for x in lines if x.startswith("  dq ")]
    assert "doesn't simplify" in line


def test_what_would_have_too_many_terms_is_not_expanded() -> None:
    a, b = sympy.symbols("a b")
    assert count_of_terms((a + b) ** 3 * (a + 1)) == 16
    assert simplified((a + b) ** 2 - a**2 - 2 * a * b - b**2) == 0
    assert simplified(1 / (a + b) - (a - b) / (a**2 - b**2)) == 0
    assert simplified(sympy.prod(1 + a**n * b for n in range(20))) is None


def test_what_there_is_no_patience_for_is_not_differentiated(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = sympy.symbols("a b")
    assert not is_larger(a - b, 1) and not is_larger(a / b, 1) and is_larger(sum(a**n * b for n in range(9)), 4)
    monkeypatch.setattr(proof, "PATIENCE", 1)
    monkeypatch.setattr(sympy, "diff", None)
    (_, _, *lines) = symbolic_proof(compile_spec(find("lightning_attention")[0]))
    assert lines and all(line.endswith("the gates decide it") for line in lines)


def test_sums_under_roots_are_expanded_once() -> None:
    """A running mean and variance: its differences took twenty seconds to expand, roots and all."""
    r = Recurrence("running_score")
    d = r.dims("d")
    x, lam = r.inputs("x", d), r.decay("lam", d)
    m, s = r.state("m", d), r.state("s", d)
    r.update(m, hadamard(lam, m.prev) + hadamard(1 - lam, x))
    r.update(s, hadamard(lam, s.prev) + hadamard(1 - lam, (x - m.next) ** 2))
    r.output("y", (x - m.next) / sqrt(s.next + 1e-6))
    c = compile_spec(r)
    start = time.process_time()
    lines = symbolic_proof(c)
    assert time.process_time() - start < 6
    settled = [line.split()[0] for line in lines if line.endswith(" = 0")]
    assert settled == ["y", "m_2", "s_2", "dx", "dlog_lam", "dm_0", "ds_0"]
    assert "1e-6" in lines[1] and "1000000" not in lines[1]


def test_a_root_of_a_square_is_not_taken_for_its_base() -> None:
    a, b = sympy.symbols("a b", real=True)
    assert simplified(sympy.sqrt((a + b) ** 2) - (a + b)) != 0
    assert simplified(sympy.sqrt((a + b) ** -2) - 1 / (a + b)) != 0
