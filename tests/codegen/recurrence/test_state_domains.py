"""What an author knows of a state: the compiler takes it for granted, and debug mode looks."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from chunkform import compile as compile_op
from chunkform import debug
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.codegen.recurrence.smaller_specs import spec_text
from chunkform.errors import ArgumentError, SpecError
from chunkform.spec.language import Max, Recurrence, diag, exp, hadamard, ones, sigmoid
from chunkform.spec.language.data import as_data, from_data


def gated_by_a_mean(**known: Any) -> Recurrence:
    """The gate is made of a running mean, of which the compiler doesn't know that it is one."""
    r = Recurrence("gated_by_a_mean")
    d, e = r.dims("d e")
    q, k, v = r.inputs("q", d), r.inputs("k", d), r.inputs("v", e)
    z = r.inputs("z", d, domain=(0, 1))
    n, S = r.state("n", d, **known), r.state("S", d, e)
    r.update(n, hadamard(z, n.prev) + hadamard(1 - z, sigmoid(k)))
    r.update(S, diag(1 - 0.5 * n.next) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


def counted(**known: Any) -> Recurrence:
    """LightNet's decay as a quotient of its normalisers."""
    r = Recurrence("counted")
    d, e = r.dims("d e")
    q, k, v = r.inputs("q", d), r.inputs("k", d), r.inputs("v", e)
    n, S = r.state("n", d, initial=ones(d), **known), r.state("S", d, e)
    r.update(n, n.prev + exp(k))
    r.update(S, diag(n.prev / n.next) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


@pytest.mark.parametrize("make, known", [(gated_by_a_mean, {"domain": (0, 1)}), (counted, {"domain": (1, None)})])
def test_a_decay_made_of_a_state_whose_values_are_known_runs_over_chunks(make: Any, known: dict[str, Any]) -> None:
    assert "chunk-parallel" not in [p.compiled.family for p in compile_spec(make()).strata[1:]]
    r = make(**known)
    c, op = compile_spec(r), compile_op(r)
    assert [p.compiled.family for p in c.strata] == ["chunk-parallel", "chunk-parallel"]
    for dtype, bound in ((torch.float64, 2e-13), (torch.float32, 1e-5)):
        rows = check_op(c, op, Case(seed=0, steps=150, width=8, dtype=dtype), backend="torch")
        assert {x.quantity: x.error for x in rows if not x.error < bound} == {}


@pytest.mark.parametrize("make", [gated_by_a_mean, counted])
def test_without_it_signs_are_counted_of_what_an_earlier_part_hands_on(make: Any) -> None:
    r = make()
    c, op = compile_spec(r), compile_op(r)
    assert "triton" in sys.modules[op.__module__].OP.backends
    for dtype, bound in ((torch.float64, 2e-13), (torch.float32, 1e-5)):
        rows = check_op(c, op, Case(seed=0, steps=150, width=8, dtype=dtype), backend="torch")
        assert {x.quantity: x.error for x in rows if not x.error < bound} == {}


def test_a_maximum_whose_slope_is_known_not_to_be_negative_is_scanned() -> None:
    families = []
    for known in ({}, {"sign": "positive"}):
        r = Recurrence("largest")
        d = r.dims("d")
        x, z = r.inputs("x", d), r.inputs("z", d, **known)
        m = r.state("m", d)
        r.update(m, Max(hadamard(z, m.prev), x))
        r.output("o", m.next)
        families.append(compile_spec(r).family)
    assert families == ["sequential", "scan"]


def test_a_leaf_above_a_bound_and_a_mean_of_two_are_decays() -> None:
    r = Recurrence("bounded_below")
    d, e = r.dims("d e")
    k, v = r.inputs("k", d), r.inputs("v", e)
    a, z, n = r.inputs("a", d, domain=(0.01, 1)), r.inputs("z", d, domain=(0, 1)), r.inputs("n", d, domain=(0, 1))
    S, M = r.state("S", d, e), r.state("M", d, e)
    r.update(S, diag(a) * S.prev + k * v.T)
    r.update(M, diag(1 - 0.5 * (hadamard(z, n) + hadamard(1 - z, sigmoid(k)))) * M.prev + k * v.T)
    r.output("o", S.next.T * k + M.next.T * k)
    c, op = compile_spec(r), compile_op(r)
    assert c.family == "chunk-parallel"
    rows = check_op(c, op, Case(seed=0, steps=150, width=8, dtype=torch.float32), backend="torch")
    assert {x.quantity: x.error for x in rows if not x.error < 1e-5} == {}


def test_debug_mode_looks_at_what_has_a_domain() -> None:
    op = compile_op(gated_by_a_mean(domain=(0, 1)))
    q, k, v, z = torch.randn(4, 1, 5, 1, 3).unbind(0)
    z = z.sigmoid()
    states = torch.rand(1, 1, 3), torch.randn(1, 1, 3, 3)
    with debug():
        _, last = op(q, k, v, z, initial_state=states, output_final_state=True)
        op.step(last, q[:, 0], k[:, 0], v[:, 0], z[:, 0])
        with pytest.raises(
            ArgumentError, match=r"z must be between 0 and 1, as the spec says, got 2 at \[B, T, H, d\]"
        ):
            op(q, k, v, z.index_fill(1, torch.tensor(3), 2.0))
        with pytest.raises(ArgumentError, match="the state n must be between 0 and 1, as the spec says, got -1"):
            op(q, k, v, z, initial_state=(-torch.ones(1, 1, 3), states[1]))
        with pytest.raises(ArgumentError, match="the state n must be between 0 and 1"):
            op.step((last[0] + 1, last[1]), q[:, 0], k[:, 0], v[:, 0], z[:, 0])
    assert "n [B, H, d] (between 0 and 1)" in op.__doc__


def test_debug_mode_tells_of_a_state_that_leaves_its_domain() -> None:
    r = Recurrence("leaves")
    x = r.inputs("x")
    s = r.state("s", sign="positive")
    r.update(s, s.prev + x)
    r.output("o", s.next)
    op = compile_op(r)
    with debug():
        op(torch.ones(1, 3, 1), output_final_state=True)
        with pytest.raises(ArgumentError, match=r"the last state s must be at least 0, as the spec says, got -3"):
            op(-torch.ones(1, 3, 1), output_final_state=True)


def test_a_state_begins_within_its_domain() -> None:
    r = Recurrence("x")
    d = r.dims("d")
    with pytest.raises(SpecError, match=r"the state s is said to be between 0\.5 and 1, but begins at 0"):
        r.state("s", domain=(0.5, 1))
    with pytest.raises(SpecError, match="at most 0, but begins at 2"):
        r.state("t", d, sign="negative", initial=2 * ones(d))
    with pytest.raises(SpecError, match="'positive' or 'negative'"):
        r.state("u", sign="+")


def test_a_domain_of_a_state_is_written_as_data_and_as_text() -> None:
    r = gated_by_a_mean(domain=(0, 1))
    assert [s.domain for s in from_data(as_data(r)).states] == [s.domain for s in r.states]
    assert 'n = r.state("n", d, domain=(0.0, 1.0))' in spec_text(r)
