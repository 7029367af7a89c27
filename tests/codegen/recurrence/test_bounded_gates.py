"""Gates above a bound, `b + (1 - b) sigmoid(g)`, as HGRN has them: decays over chunks wherever the bound keeps them above 0."""

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
from chunkform.spec.language import Recurrence, apply, diag, sigmoid

T, D = 40, 8
FAR = (-700.0, -200.0, -50.0, -20.0, 20.0, 50.0, 700.0)

Words = dict[str, Any]
ABOVE_ZERO: dict[str, Words] = {
    "a constant": {"number": 0.1},
    "a sigmoid": {"squashed": True},
    "a parameter above 0": {"domain": (0.01, 0.99), "parameter": True},
}
FROM_ZERO: dict[str, Words] = {
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
