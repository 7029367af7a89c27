"""Constants whose bounds the spec knows: the compiler counts on them, and every call is held to them."""

from __future__ import annotations

import json

import pytest
import torch

import chunkform
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import ArgumentError, SpecError
from chunkform.spec.language import Recurrence, diag, sigmoid
from chunkform.spec.language.data import as_data, from_data


def lower_bound(default: float | None = None, **within: object) -> Recurrence:
    """Gates above a bound that a model sets layer by layer."""
    r = Recurrence("lower_bound")
    d, e = r.dims("d e")
    (q, g), v, low = r.inputs("q g", d), r.inputs("v", e), r.constant("low", default, **within)
    S = r.state("S", d, e)
    gate = r.let("gate", low + (1 - low) * sigmoid(g))
    r.update(S, diag(gate) * S.prev + (1 - gate) * v.T)
    r.output("o", S.next.T * q)
    return r


@pytest.mark.parametrize("within", [{"domain": (0.7, 0.95)}, {"sign": "positive"}])
def test_what_is_made_of_a_bounded_constant_is_a_decay(within):
    assert (
        chunkform.explain(lower_bound()).family == "strata"
    )  # which may be below 0, or 1 at all gates: a sign is counted
    r = lower_bound(**within)
    c = compile_spec(r)
    assert c.family == "chunk-parallel"
    rows = check_op(c, chunkform.compile(r), Case(dtype=torch.float64, width=6, steps=70))
    assert max(x.error for x in rows) < 1e-13


def test_every_call_is_held_to_the_bounds():
    op = chunkform.compile(lower_bound(0.9, domain=(0.5, 0.99)))
    q, g, v = torch.randn(3, 1, 5, 2, 4)
    given, usual = op(q, g, v, low=0.5)[0], op(q, g, v)[0]
    assert not torch.equal(given, usual)
    for low in (0.4, 1.0):
        with pytest.raises(ArgumentError, match=rf"lower_bound: low must be between 0.5 and 0.99, .* got {low}"):
            op(q, g, v, low=low)


def test_bounds_are_checked_where_they_are_declared_and_go_with_a_spec_as_data():
    with pytest.raises(SpecError, match=r"default of constant low must be between 0.5 and 0.8, .* got 0.9"):
        lower_bound(0.9, domain=(0.5, 0.8))
    r = lower_bound(0.9, domain=(0.5, 0.99))
    (again,) = (v for v in from_data(json.loads(json.dumps(as_data(r)))).variables if v.name == "low")
    assert again.domain == next(v for v in r.variables if v.name == "low").domain
    assert chunkform.check(r).ok
