"""Coefficients keep their digits wherever they stand, whatever the author's spelling: float32 against what they mean."""

from __future__ import annotations

import mpmath
import pytest
import torch

import chunkform
from chunkform.codegen.recurrence.gates import gates
from chunkform.codegen.recurrence.step.lossless import lossless_terms
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, exp, hadamard, log, sigmoid, softplus, sqrt, tanh

FORMS = {
    "1 - sigmoid": (lambda g: 1 - sigmoid(g), lambda x: torch.sigmoid(-x)),
    "sigmoid - 1": (lambda g: sigmoid(g) - 1, lambda x: -torch.sigmoid(-x)),
    "1 - exp(-softplus)": (lambda g: 1 - exp(-softplus(g)), torch.sigmoid),
    "1 - tanh": (lambda g: 1 - tanh(g), lambda x: 2 * torch.sigmoid(-2 * x)),
    "(1 + tanh) / 2": (lambda g: (1 + tanh(g)) / 2, lambda x: torch.sigmoid(2 * x)),
    "1 - sigmoid^2": (lambda g: 1 - sigmoid(g) ** 2, lambda x: torch.sigmoid(-x) * (1 + torch.sigmoid(x))),
    "sqrt(1 - sigmoid^2)": (
        lambda g: sqrt(1 - sigmoid(g) ** 2),
        lambda x: (torch.sigmoid(-x) * (1 + torch.sigmoid(x))).sqrt(),
    ),
    "exp(log(sigmoid))": (lambda g: exp(log(sigmoid(g))), torch.sigmoid),
    "log(sigmoid)": (lambda g: log(sigmoid(g)), torch.nn.functional.logsigmoid),
    "log(1 - sigmoid)": (lambda g: log(1 - sigmoid(g)), lambda x: torch.nn.functional.logsigmoid(-x)),
    "log(1 + exp)": (lambda g: log(1 + exp(g)), lambda x: -torch.nn.functional.logsigmoid(-x)),
    "1 / (1 + exp)": (lambda g: 1 / (1 + exp(g)), lambda x: torch.sigmoid(-x)),
    "exp / (1 + exp)": (lambda g: exp(g) / (1 + exp(g)), torch.sigmoid),
    "a share of two": (lambda g: exp(g) / (exp(g) + exp(-2 * g)), lambda x: torch.sigmoid(3 * x)),
    "a share of three": (
        lambda g: exp(-g) / (1 + exp(g) + exp(-g)),
        lambda x: torch.stack([-x, 0 * x, x], -1).softmax(-1)[..., 0],
    ),
    "a share squared": (lambda g: exp(2 * g) / (1 + exp(g)) ** 2, lambda x: torch.sigmoid(x) ** 2),
    "a product of shares": (
        lambda g: exp(g) * (1 - exp(g)) / (1 + exp(g)) ** 2,
        lambda x: -torch.sigmoid(x) * torch.tanh(x / 2),
    ),
    "tanh": (lambda g: (exp(g) - exp(-g)) / (exp(g) + exp(-g)), torch.tanh),
    "tanh of the half": (lambda g: (exp(g) - 1) / (exp(g) + 1), lambda x: torch.tanh(x / 2)),
}
EXPONENTIALS = {  # of gates, near 1 where these are closed
    "1 - exp(-sigmoid)": (lambda g: 1 - exp(-16 * sigmoid(g)), lambda x: -torch.expm1(-16 * torch.sigmoid(x))),
    "log(1 - exp(-sigmoid))": (
        lambda g: log(1 - exp(-3 * sigmoid(g))),
        lambda x: torch.log(-torch.expm1(-3 * torch.sigmoid(x))),
    ),
    "sqrt(1 - exp(-sigmoid)^2)": (
        lambda g: sqrt(1 - exp(-8 * sigmoid(g)) ** 2),
        lambda x: (-torch.expm1(-16 * torch.sigmoid(x))).sqrt(),
    ),
    "one inside another": (
        lambda g: 1 - exp(-3 * sigmoid(g) * (1 + tanh(g))),
        lambda x: -torch.expm1(-6 * torch.sigmoid(x) * torch.sigmoid(2 * x)),
    ),
}
POINTS = [-1e4, -100.0, -80.0, -20.0, -3.0, 0.0, 3.0, 20.0, 80.0, 100.0, 1e4]


def written(form, channels=False):
    """S = S + f(g) k v^T"""
    r = Recurrence("written")
    d, e = r.dims("d e")
    k, q = r.inputs("k q", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    if channels:
        r.update(S, S.prev + hadamard(form(r.inputs("g", d)), k) * v.T)
    else:
        r.update(S, S.prev + form(r.inputs("g")) * k * v.T)
    r.output("o", S.next.T * q)
    return r


# Of each kind another is in every run.
LONG = (
    "sigmoid - 1", "(1 + tanh) / 2", "exp(log(sigmoid))", "log(1 + exp)", "exp / (1 + exp)", "a share of two", "a share squared",
    "a product of shares", "tanh of the half",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in FORMS])
def test_a_write_keeps_its_digits(name):
    form, meaning = FORMS[name]
    op = chunkform.compile(written(form))
    x = torch.tensor(POINTS)
    g = x.reshape(-1, 1, 1).clone().requires_grad_()
    one = torch.ones(len(x), 1, 1, 1)
    o, _ = op(one, one, one, g)
    expected = meaning(x.double())
    large = expected.abs() > 1e-37  # which float32 can hold
    torch.testing.assert_close(o.flatten().double()[large], expected[large], rtol=1e-6, atol=0)
    o.sum().backward()
    assert g.grad.isfinite().all()


@pytest.mark.parametrize("name", EXPONENTIALS)
def test_so_does_one_less_an_exponential_and_its_gradient_is_finite(name):
    form, meaning = EXPONENTIALS[name]
    x = torch.tensor([-1e30, -110.0, -85.0, -40.0, -20.0, -3.0, 0.0, 3.0, 20.0, 100.0])
    g = x.reshape(-1, 1, 1).clone().requires_grad_()
    one = torch.ones(len(x), 1, 1, 1)
    o, _ = chunkform.compile(written(form))(one, one, one, g)
    o.sum().backward()
    wide = x.double().requires_grad_()
    expected = meaning(wide)
    expected.sum().backward()
    for found, exact in ((o, expected), (g.grad, wide.grad)):
        large = (exact.abs() > 1e-37) & (x > -110)  # which float32 can hold
        torch.testing.assert_close(found.flatten().double()[large], exact[large], rtol=1e-6, atol=0)
    assert g.grad.isfinite().all() or name.startswith("log")  # the slope of a logarithm has no end


SLOPES = {
    "sigmoid": (sigmoid, lambda x: 1 / (1 + mpmath.exp(-x))),
    "sigmoid^2": (lambda g: sigmoid(g) ** 2, lambda x: 1 / (1 + mpmath.exp(-x)) ** 2),
    "1 / (1 + exp(-g))": (lambda g: 1 / (1 + exp(-g)), lambda x: 1 / (1 + mpmath.exp(-x))),
    "tanh": (tanh, mpmath.tanh),
    "tanh^2": (lambda g: tanh(g) ** 2, lambda x: mpmath.tanh(x) ** 2),
    "(1 + tanh) / 2": (lambda g: (1 + tanh(g)) / 2, lambda x: (1 + mpmath.tanh(x)) / 2),
    "1 - tanh": (lambda g: 1 - tanh(g), lambda x: 1 - mpmath.tanh(x)),
    "tanh as a quotient": (lambda g: (exp(g) - exp(-g)) / (exp(g) + exp(-g)), mpmath.tanh),
    "2 exp / (1 + 3 exp)": (
        lambda g: 2 * exp(g) / (1 + 3 * exp(g)),
        lambda x: 2 * mpmath.exp(x) / (1 + 3 * mpmath.exp(x)),
    ),
    "a share": (lambda g: exp(g) / (exp(g) + exp(2 * g)), lambda x: 1 / (1 + mpmath.exp(x))),
}


@pytest.mark.parametrize("name", SLOPES)
def test_a_slope_keeps_its_digits_over_the_whole_range(name):
    """Against 60 digits: 1 - sigmoid(x) is 0 in float32 at x = 17, and 1 - tanh(x)^2 at 9."""
    form, meaning = SLOPES[name]
    x = torch.cat([torch.linspace(-40, 40, 161), torch.tensor([-17.3, 5.0, 17.3])])
    g = x.reshape(-1, 1, 1).clone().requires_grad_()
    one = torch.ones(len(x), 1, 1, 1)
    o, _ = chunkform.compile(written(form))(one, one, one, g)
    o.sum().backward()
    with mpmath.workdps(60):
        exact = [float(mpmath.diff(meaning, mpmath.mpf(y))) for y in x.tolist()]
    torch.testing.assert_close(
        g.grad.flatten().double(), torch.tensor(exact, dtype=torch.float64), rtol=2e-6, atol=1e-37
    )


def test_each_channel_of_a_vector_does():
    op = chunkform.compile(written(lambda g: 1 - sigmoid(g), channels=True))
    x = torch.tensor([20.0, 60.0])
    one = torch.ones(1, 1, 1, 2)
    o, _ = op(one, one, one[..., :1], x.reshape(1, 1, 1, 2))
    torch.testing.assert_close(o.item(), torch.sigmoid(-x).sum().item(), rtol=1e-6, atol=0.0)


def test_what_loses_nothing_stays():
    for form in (lambda g: 1 - g, lambda g: 1 + sigmoid(g), lambda g: sigmoid(g) - g):
        step = lower(written(form))
        assert lossless_terms(step)[0] is step


def test_a_wrong_form_is_refused():
    step = lower(written(lambda g: 1 - sigmoid(g)))
    _, made = lossless_terms(step)
    ((old, _),) = made.items()
    wrong = lossless_terms(lower(written(lambda g: 1 - sigmoid(2 * g))))[0]
    with pytest.raises(GateError, match="the pass `decays` changed the meaning"):
        gates.gate_decays(step, wrong, {old: old})
