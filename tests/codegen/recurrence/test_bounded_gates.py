"""Gates above a bound, `b + (1 - b) sigmoid(g)`, as HGRN has them: decays over chunks wherever the bound keeps them above 0.

A gradient comes to a decay as that of its logarithm, a sum over steps that is rounded as the largest of them is. Where a gate is
nearly closed, the gradient of `b` is that over the gate: so a gate whose bound may be 0 is none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.recurrence.normal_form.form import NotAffine
from chunkform.codegen.recurrence.normal_form.normalize import normalize
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.step.decays import with_decays
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.spec.language import Recurrence, apply, diag, relu, sigmoid, tanh

T, D = 40, 8
FAR = (-700.0, -200.0, -50.0, -20.0, 20.0, 50.0, 700.0)

Words = dict[str, Any]
ABOVE_ZERO: dict[str, Words] = {
    "a constant": {"number": 0.1},
    "a sigmoid": {"squashed": True},
    "an input above 0": {"domain": (0.01, 1)},
    "a parameter above 0": {"domain": (0.01, 0.99), "parameter": True},
}
FROM_ZERO: dict[str, Words] = {
    "an input below 1": {"domain": (0, 0.99)},
    "a parameter below 1": {"domain": (0, 0.99), "parameter": True},
    "an input": {"domain": (0, 1)},
    "a parameter": {"domain": (0, 1), "parameter": True},
}


def bounded(b: Any, g: Any) -> Any:
    return b + (1 - b) * sigmoid(g)


def spec(words: Words) -> Recurrence:
    r = Recurrence("bounded")
    d, e = r.dims("d e")
    q, k, g = r.inputs("q k g", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    if "number" in words:
        gate = apply(lambda g: bounded(words["number"], g), g)
    else:
        declare = r.parameter if "parameter" in words else r.inputs
        b = declare("b", d, domain=words.get("domain"))
        gate = apply(lambda b, g: bounded(sigmoid(b) if "squashed" in words else b, g), b, g)
    r.update(S, diag(gate) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


@cache
def op(name: str) -> Callable[..., Any]:
    return compile_op(spec((ABOVE_ZERO | FROM_ZERO)[name]))


@pytest.mark.parametrize("name", [*ABOVE_ZERO, *FROM_ZERO])
def test_it_is_a_decay_where_the_bound_is_above_0(name: str) -> None:
    r = spec((ABOVE_ZERO | FROM_ZERO)[name])
    step, _ = with_decays(lower(r))
    if name in FROM_ZERO:  # the gradient of its logarithm is no number where both are 0
        with pytest.raises(NotAffine, match="may be zero or negative"):
            normalize(step)
    else:
        assert normalize(step).groups[0][0].decay is not None
        assert compile_spec(r).family == "chunk-parallel"


@pytest.mark.parametrize("name", [*ABOVE_ZERO, *FROM_ZERO])
def test_it_is_what_steps_make_one_by_one_far_out_as_well(name: str) -> None:
    words = (ABOVE_ZERO | FROM_ZERO)[name]
    torch.manual_seed(0)
    q, k, g, v = torch.randn(4, 1, T, 2, D, dtype=torch.float64)
    g = 3 * g
    for t, x in enumerate(FAR):
        g[0, 3 * t + 1, 0], g[0, 3 * t + 2, 1, ::2] = x, x
    given = {"q": q, "k": k, "g": g, "v": v}
    if "number" not in words:
        b = torch.rand((2, D) if words.get("parameter") else (1, T, 2, D), dtype=torch.float64)
        low, high = words.get("domain") or (-700, 700)
        b = 10 * b - 5 if words.get("squashed") else low + (high - low) * b
        b[..., :2], b[..., 2:4] = low, high
        given["b"] = b
    given = {n: x.requires_grad_() for n, x in given.items()}
    o, _ = op(name)(**given)
    found = [o.detach(), *torch.autograd.grad(o.sum(), list(given.values()))]
    wanted = steps(words, given)
    exact = [wanted.detach(), *torch.autograd.grad(wanted.sum(), list(given.values()))]
    for n, x, y in zip(("o", *given), found, exact, strict=True):
        assert float((x - y).norm() / y.norm()) < 1e-13, n


def steps(words: Words, given: dict[str, torch.Tensor]) -> torch.Tensor:
    S, rows = torch.zeros(1, 2, D, D, dtype=torch.float64), []
    for t in range(T):
        b: Any = words.get("number")
        if b is None:
            b = given["b"] if words.get("parameter") else given["b"][:, t]
            b = b.sigmoid() if words.get("squashed") else b
        kept = b + (1 - b) * given["g"][:, t].sigmoid()
        S = kept[..., None] * S + given["k"][:, t, :, :, None] * given["v"][:, t, :, None, :]
        rows.append((S * given["q"][:, t, :, :, None]).sum(-2))
    return torch.stack(rows, 1)


SPELLINGS: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, tuple[tuple[float, float], ...]]]] = {
    # for SymPy, for torch, and the domains of b for which it is a decay and for which it isn't
    "above b": (
        lambda b, g, h: (1 - b) * sigmoid(g) + b,
        lambda b, g, h: (1 - b) * g.sigmoid() + b,
        {"decays": ((0.001, 1), (0.01, 0.99)), "numbers": ((0, 0.99), (0.0001, 1), (0, 1))},
    ),
    "less than 1": (
        lambda b, g, h: 1 - (1 - b) * sigmoid(-g),
        lambda b, g, h: 1 - (1 - b) * (-g).sigmoid(),
        {"decays": ((0.01, 1),), "numbers": ((0, 0.99),)},
    ),
    "as much of 1": (
        lambda b, g, h: b * sigmoid(g) + (1 - b),
        lambda b, g, h: b * g.sigmoid() + (1 - b),
        {"decays": ((0, 0.99), (0.01, 0.99)), "numbers": ((0, 1), (0.01, 1))},
    ),
    "by tanh": (
        lambda b, g, h: b + (1 - b) * (1 + tanh(g)) / 2,
        lambda b, g, h: b + (1 - b) * (1 + g.tanh()) / 2,
        {"decays": ((0.01, 1),), "numbers": ((0, 0.99),)},
    ),
    "a square": (
        lambda b, g, h: b**2 + (1 - b**2) * sigmoid(g),
        lambda b, g, h: b**2 + (1 - b**2) * g.sigmoid(),
        {"decays": ((0.01, 1),), "numbers": ((0, 0.99), (0.001, 1))},
    ),
    "a mean of gates": (
        lambda b, g, h: b * sigmoid(g) + (1 - b) * sigmoid(h),
        lambda b, g, h: b * g.sigmoid() + (1 - b) * h.sigmoid(),
        {"decays": ((0.01, 0.99),), "numbers": ((0, 0.99), (0.01, 1))},
    ),
    "half of one": (
        lambda b, g, h: 1 - b * sigmoid(g) / 2,
        lambda b, g, h: 1 - b * g.sigmoid() / 2,
        {"decays": ((0, 1),), "numbers": ()},
    ),
    "a share of a relu": (
        lambda b, g, h: (relu(h) + sigmoid(g)) / (1 + relu(h) + b),
        lambda b, g, h: (h.relu() + g.sigmoid()) / (1 + h.relu() + b),
        {"decays": (), "numbers": ((0, 0.99),)},
    ),
}
CASES = [(n, kind == "decays", d) for n, (*_, of) in SPELLINGS.items() for kind, ds in of.items() for d in ds]
RUN = ("above b", (0.001, 1)), ("above b", (0, 0.99)), ("as much of 1", (0, 0.99)), ("a mean of gates", (0.01, 0.99))
RUN += ("a share of a relu", (0, 0.99)), ("by tanh", (0.01, 1))


def spelt(name: str, domain: tuple[float, float]) -> Recurrence:
    r = Recurrence("bounded")
    d, e = r.dims("d e")
    q, k, g, h = r.inputs("q k g h", d)
    v, b = r.inputs("v", e), r.inputs("b", d, domain=domain)
    S = r.state("S", d, e)
    r.update(S, diag(apply(SPELLINGS[name][0], b, g, h)) * S.prev + k * v.T)
    r.output("o", S.next.T * (q + h))
    return r


@pytest.mark.parametrize("name, decays, domain", CASES)
def test_a_gate_whose_logarithm_is_nowhere_too_steep_is_a_decay(
    name: str, decays: bool, domain: tuple[float, float]
) -> None:
    step, made = with_decays(lower(spelt(name, domain)))
    assert bool(made) == decays
    if decays:
        assert normalize(step).groups[0][0].decay is not None


@pytest.mark.parametrize("name, domain", RUN)
def test_gradients_are_true_at_the_ends_of_a_domain_where_gates_are_nearly_closed(
    name: str, domain: tuple[float, float]
) -> None:
    called = compile_op(spelt(name, domain))
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 5e-5)):
        given = {n: x.to(dtype) for n, x in at_ends(*domain).items()}
        given["b"] = given["b"].clamp(*domain)
        given = {n: x.requires_grad_() for n, x in given.items()}
        o, _ = called(**given)
        found = [o.detach(), *torch.autograd.grad(o.sum(), list(given.values()))]
        known = {n: x.detach().double().requires_grad_() for n, x in given.items()}
        kept = SPELLINGS[name][1](known["b"], known["g"], known["h"])
        wanted = decayed(kept, known | {"q": known["q"] + known["h"]})
        exact = [wanted.detach(), *torch.autograd.grad(wanted.sum(), list(known.values()))]
        for n, x, y in zip(("o", *given), found, exact, strict=True):
            assert float((x.double() - y).norm() / y.norm()) < bound, (n, dtype)


def at_ends(low: float, high: float) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    q, k, g, h, v = torch.randn(5, 1, 2 * T, 2, D, dtype=torch.float64)
    b = low + (high - low) * torch.rand_like(g)
    for t in range(2 * T):
        ends = low, high, low + 1e-30, high - 1e-8
        b[0, t, :, t % D] = ends[t // D % 4]
        if t % 3 == 0:
            g[0, t, :, t % D] = (-30, 30, -1e4, 1e4, -100, 0)[t // 3 % 6]
        if t % 4 == 0:
            h[0, t, :, t % D] = (-100, -1e4, 30, 1e4, -30)[t // 4 % 5]
    return {"q": q, "k": k, "v": v, "g": g, "h": h, "b": b}


def decayed(kept: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    S, rows = torch.zeros(1, 2, D, D, dtype=torch.float64), []
    for t in range(2 * T):
        S = kept[:, t, :, :, None] * S + given["k"][:, t, :, :, None] * given["v"][:, t, :, None, :]
        rows.append((S * given["q"][:, t, :, :, None]).sum(-2))
    return torch.stack(rows, 1)


def test_a_decay_less_a_gate_has_the_gradient_of_a_number() -> None:
    """log lam may be 0: 1 - lam sigmoid(g) is then sigmoid(-g), and the slope of its logarithm in log lam -exp(g)."""
    r = Recurrence("less_a_gate")
    d, e = r.dims("d e")
    q, k, g = r.inputs("q k g", d)
    v, lam = r.inputs("v", e), r.decay("lam", d)
    S = r.state("S", d, e)
    r.update(S, diag(apply(lambda x, g: 1 - x * sigmoid(g), lam, g)) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    given = at_ends(0, 1)
    given = {n: given[n] for n in "qkvg"}
    given["log_lam"] = -torch.rand_like(given["g"])
    given["log_lam"][0, ::3] = 0
    given = {n: x.requires_grad_() for n, x in given.items()}
    o, _ = compile_op(r)(**given)
    found = torch.autograd.grad(o.sum(), list(given.values()))
    wanted = decayed(1 - given["log_lam"].exp() * given["g"].sigmoid(), given)
    exact = torch.autograd.grad(wanted.sum(), list(given.values()))
    for n, x, y in zip(given, found, exact, strict=True):
        assert float((x - y).norm() / y.norm()) < 1e-12, n
