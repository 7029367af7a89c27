"""Rewritings are proposed where they are proved, and only there."""

from __future__ import annotations

import pytest

from chunkform.codegen.exact.rewritings import proposals
from chunkform.codegen.recurrence.explain import proposed
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Recurrence, dot, eye, find, sigmoid


def declared(update):
    """A square state P, and what its update is made of."""
    r = Recurrence("declared")
    d = r.dims("d")
    k, q = r.inputs("k q", d)
    b, g = r.inputs("b g")
    P = r.state("P", d, d, initial=eye(d))
    r.update(P, update(P, k, q, b, g))
    r.output("o", P.next * q)
    return r.validate()


def weighted(P, k, q, b, g):
    x = P.prev * k
    return P.prev - b * x * x.T / (1 + b * dot(k, x))


def forgetting(P, k, q, b, g):
    x, lam = P.prev * k, sigmoid(g)
    return (P.prev - x * x.T / (lam + dot(k, x))) / lam


INVERSES = {weighted: "H.next = H.prev + b * k * k.T", forgetting: "H.next = sigmoid(g) * H.prev + k * k.T"}


@pytest.mark.parametrize("update", INVERSES)
def test_the_inverse_of_a_state_with_a_form_over_chunks(update):
    (sentence,) = proposed(compile_spec(declared(update)))
    assert sentence.startswith("P is the inverse of a matrix") and INVERSES[update] in sentence


def test_that_of_the_catalogue():
    (sentence,) = proposed(compile_spec(find("sherman_morrison")[0]))
    assert "H.next = lam * H.prev + u * u.T" in sentence


@pytest.mark.parametrize(
    "update",
    [
        lambda P, k, q, b, g: P.prev - b * P.prev * k * (P.prev * k).T / (1 + dot(k, P.prev * k)),  # a wrong weight
        lambda P, k, q, b, g: P.prev - b * P.prev * k * (P.prev * q).T / (1 + b * dot(k, P.prev * k)),
        lambda P, k, q, b, g: P.prev * P.prev + k * k.T,
    ],
)
def test_what_isnt_so_isnt_proposed(update):
    assert proposed(compile_spec(declared(update))) == []


def test_a_transposition_that_changes_nothing():
    symmetric = compile_spec(declared(lambda P, k, q, b, g: sigmoid(b) * P.prev.T + k * k.T))
    assert symmetric.reason == "the state is transposed in each step: P_{t-1}"
    (sentence,) = proposed(symmetric)
    assert "with P.prev for P.prev.T the outputs are the same" in sentence
    assert proposed(compile_spec(declared(lambda P, k, q, b, g: sigmoid(b) * P.prev.T + k * q.T))) == []


def test_only_what_helps_is_proposed():
    r = declared(lambda P, k, q, b, g: P.prev.T + k * k.T)
    assert proposals(r, lambda changed: False) == []
