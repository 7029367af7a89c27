"""Gradients where what multiplies a state is exactly 0 or 1, or hardly more than 0: those of the steps, and never NaN."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from shared.ends import SPECS, Parts, errors
from shared.forked import script
from shared.gate_values import PLACES, SPELLINGS, off

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.recurrence.normal_form.form import NotAffine
from chunkform.codegen.recurrence.normal_form.normalize import normalize
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.step.decays import with_decays
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.spec.language import Recurrence, diag, erf, exp, hadamard, sigmoid, softmax, softplus, sqrt

TESTS = Path(__file__).parents[2]
INTERPRETED = ("numbers", "channels", "vectors")


@pytest.mark.parametrize("name", SPECS)
def test_gradients_at_the_ends_of_a_domain_are_those_of_the_steps(name: str) -> None:
    found = errors(name, "torch")
    assert {n: x for n, x in found.items() if not x < 3e-6} == {}


def test_kernels_have_them_as_well() -> None:
    done = script(TESTS / "shared" / "ends.py", json.dumps(INTERPRETED))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == set(INTERPRETED)
    assert {(n, k): x for n, rows in found.items() for k, x in rows.items() if not x < 3e-6} == {}


def of_channels(coefficient: Callable[[Parts], object]) -> Recurrence:
    p = Parts("coefficient")
    p.r.update(p.S, diag(coefficient(p)) * p.S.prev + p.k * p.v.T)
    p.r.output("o", p.S.next.T * p.q)
    return p.r


STAY = {
    "a number from 0 to 1": lambda p: p.z,
    "what it lacks to 1": lambda p: 1 - p.z,
    "one of two": lambda p: 1 - p.z * sigmoid(p.k.T * p.q),
    "a root": lambda p: sqrt(1 - p.z**2),
    "what saturates to 0": lambda p: (1 + erf(p.k)) / 2,
    "what goes below the smallest number": lambda p: softplus(p.k) / (1 + softplus(p.k)),
}
DECAYS = {
    "of a gate": lambda p: 1 - sigmoid(p.k) ** 2,
    "bounded away": lambda p: 1 - 0.9 * p.z,
    "less a share": lambda p: 1 - 0.5 * softmax(p.k),
    "an exponential": lambda p: exp(-softplus(p.k)),
}


@pytest.mark.parametrize("name", [*STAY, *DECAYS])
def test_what_may_be_zero_is_no_decay(name: str) -> None:
    step, _ = with_decays(lower(of_channels((STAY | DECAYS)[name])))
    if name in STAY:
        with pytest.raises(NotAffine, match="may be zero or negative"):
            normalize(step)
    else:
        assert normalize(step).groups


def test_a_root_has_no_slope_at_zero() -> None:
    """Where torch's own is infinite, and no number beside what is 0."""
    r = Recurrence("root")
    d = r.dims("d")
    x, z = r.inputs("x", d), r.inputs("z", d, domain=(0, 1))
    h = r.state("h", d)
    r.update(h, hadamard(z, h.prev) + hadamard(sqrt(1 - z**2), x))
    r.output("o", h.next)
    given = torch.tensor([0.5, 1.0, 0.0, 1 - 2**-20, 1e-40]).expand(1, 4, 1, 5).clone().requires_grad_()
    op = compile_op(r)
    op(torch.ones(1, 4, 1, 5), given)[0].sum().backward()
    wide, h, outputs = given.detach().double().requires_grad_(), 0.0, 0.0
    for t in range(4):
        h = wide[:, t] * h + (1 - wide[:, t] ** 2).sqrt()
        outputs = outputs + h.sum()
    outputs.backward()
    assert given.grad.isfinite().all() and not given.grad[..., 1].any()  # states are 0 there as well
    others = [0, 2, 3, 4]
    torch.testing.assert_close(given.grad[..., others].double(), wide.grad[..., others], rtol=1e-5, atol=1e-6)


def test_states_whose_channels_are_multiplied_by_numbers_are_one_stratum() -> None:
    """Each alone has a form over chunks in a frame of signs, and so do both."""
    p = Parts("two")
    G = p.r.state("G", p.d, p.e)
    p.r.update(p.S, diag(p.z) * p.S.prev + p.k * p.v.T)
    p.r.update(G, diag(1 - p.z) * G.prev + p.k * p.v.T)
    p.r.output("o", (p.S.next + G.next).T * p.q)
    c = compile_spec(p.r)
    assert c.family == "strata" and {s.name for s in c.strata[-1].compiled.step.states} == {"S", "G"}


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("decays", ("exp(-exp(g))", "1 - exp(-exp(g))", "tanh(exp(g))", "exp(g) / (1 + exp(g))")),
        (
            "factors",
            ("exp(-exp(g))", "1 - exp(-exp(g))", "sqrt(sigmoid(g))", "1 / (2 + exp(g))", "exp(g) / (1 + exp(g))"),
        ),
        (
            "factors",
            (
                "1 / (1 + exp(g) + exp(2 g))",
                "(1 + exp(g)) / (3 + exp(g) + exp(2 g))",
                "exp(g) / sqrt(1 + exp(2 g))",
                "exp(g) sigmoid(-2 g)",
            ),
        ),
        ("matrices", ("exp(-exp(g) softplus(g))", "exp(g) / (1 + exp(g))", "exp(-g^4)")),
    ],
)
def test_a_gate_far_out_is_at_its_limit_and_so_is_its_gradient(place: str, names: tuple[str, ...]) -> None:
    assert off(place, names) == []


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_every_spelling_of_a_gate_far_out(place: str) -> None:
    assert off(place, tuple(SPELLINGS)) == []
