"""Which coefficients are decays, and what their logarithms lose: nothing, near 0 and near 1."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from sympy import Max, Min

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.ir.evaluate import Reals, evaluate
from chunkform.codegen.ir.expr import Node, add, const, fn, leaf, mul, power
from chunkform.codegen.ir.ranges import Range, Ranges
from chunkform.codegen.recurrence.check import check_op, judge_all
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.definition import defined
from chunkform.codegen.recurrence.emit import signature_text
from chunkform.codegen.recurrence.normal_form.log_decay import log_of
from chunkform.codegen.recurrence.normal_form.normalize import normalize
from chunkform.codegen.recurrence.oracle import TorchNumbers
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case, Sample, sample
from chunkform.codegen.recurrence.step.decays import with_decays
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.errors import SpecError
from chunkform.spec.language import (
    Recurrence,
    cos,
    diag,
    erf,
    exp,
    eye,
    hadamard,
    sigmoid,
    sin,
    softmax,
    softplus,
    sqrt,
    tanh,
)


class Parts:
    """A state with keys and values, and what coefficients are made of: a vector g, a number b, a parameter u, a decay a."""

    def __init__(self) -> None:
        self.r = r = Recurrence("coefficients")
        self.d, self.e = r.dims("d e")
        self.q, self.k, self.g = r.inputs("q k g", self.d)
        self.v, self.b, self.u = r.inputs("v", self.e), r.inputs("b"), r.parameter("u", self.d)
        self.a = r.decay("a", self.d)
        self.S = r.state("S", self.d, self.e)


def spec(decayed: Callable[[Parts], Any]) -> Recurrence:
    p = Parts()
    p.r.update(p.S, decayed(p) + p.k * p.v.T)
    p.r.output("o", p.S.next.T * p.q)
    return p.r


def by_channel(coefficient: Callable[[Parts], Any]) -> Callable[[Parts], Any]:
    return lambda p: diag(coefficient(p)) * p.S.prev


DECAYS: dict[str, Callable[[Parts], Any]] = {
    "a little less than one": by_channel(lambda p: 1 - 0.1 * sigmoid(p.g)),
    "a lower bound": by_channel(lambda p: sigmoid(p.u) + hadamard(1 - sigmoid(p.u), sigmoid(p.g))),
    "an upper bound as well": by_channel(lambda p: 0.2 + 0.7 * sigmoid(p.g)),
    "half a tanh": by_channel(lambda p: (1 + tanh(p.g)) / 2),
    "what a rate leaves": by_channel(lambda p: 1 - exp(-softplus(p.g))),
    "a root": by_channel(lambda p: sqrt(1 - sigmoid(p.g) ** 2)),
    "a root of what a rate leaves": by_channel(lambda p: sqrt(1 - exp(-2 * softplus(p.g)))),
    "less a square": by_channel(lambda p: 1 - tanh(p.g) ** 2),
    "a logistic function written out": by_channel(lambda p: 1 / (1 + exp(-p.g))),
    "one over more than one": by_channel(lambda p: 1 / (1 + p.g**2)),
    "a bell's integral": by_channel(lambda p: 0.5 + 0.25 * erf(p.g)),
    "less a share": by_channel(lambda p: 1 - 0.5 * softmax(p.g)),
    "less a wave": by_channel(lambda p: 0.75 + 0.125 * sin(p.g) - 0.0625 * cos(p.u)),
    "beside a declared decay": by_channel(lambda p: hadamard(p.a, 1 - 0.5 * sigmoid(p.g))),
    "between two": by_channel(lambda p: hadamard(sigmoid(p.u), p.a) + hadamard(1 - sigmoid(p.u), sigmoid(p.g))),
    "a number": lambda p: (1 - sigmoid(p.b) / 3) * p.S.prev,
    "a clamped number": lambda p: Max(Min(p.b, 1), 0.125) * p.S.prev,
    "some of it taken away": lambda p: p.S.prev - 0.1 * sigmoid(p.b) * p.S.prev,
    "for each value": lambda p: p.S.prev * diag(1 - 0.5 * sigmoid(p.v)),
}
NONE = {
    "either sign": by_channel(lambda p: tanh(p.g)),
    "anything": by_channel(lambda p: p.g),
    "more than all taken away": by_channel(lambda p: 1 - 1.5 * sigmoid(p.g)),
    "zero at times": by_channel(lambda p: (1 + cos(p.g)) / 2),
    "a square": by_channel(lambda p: p.g**2),
}


@pytest.mark.parametrize("name", DECAYS)
def test_a_coefficient_that_is_seen_to_be_positive_is_a_decay(name: str) -> None:
    step, made = with_decays(lower(spec(DECAYS[name])))
    assert made
    (state,) = normalize(step).groups[0]
    assert state.decay is not None and len(state.writes) == 1


@pytest.mark.parametrize("name", NONE)
def test_a_coefficient_that_may_be_zero_or_negative_stays(name: str) -> None:
    step = lower(spec(NONE[name]))
    assert with_decays(step) == (step, {})


@pytest.mark.parametrize(
    "name", [n for n in DECAYS if n not in ("less a share", "less a square", "between two", "beside a declared decay")]
)
def test_its_logarithm_loses_nothing_in_float32(name: str) -> None:
    """Relative to the logarithm itself, also where that is nearly 0 or where the coefficient is too small for a float."""
    _, made = with_decays(lower(spec(DECAYS[name])))
    ((old, new),) = made.items()
    log, exact, single = log_of(new), Reals(120), TorchNumbers(dtype=torch.float32)
    points = [-80.0, -31.0, -9.5, -1.25, -1e-3, 0.0, 0.5, 3.0, 17.5, 36.0, 80.0]
    for one, other in product(points, points[::3]):
        values = {("input", "g"): one, ("input", "v"): one, ("input", "b"): one, ("parameter", "u"): other}
        env = {n: np.array([mpmath.mpf(x)], dtype=object) for n, x in values.items()}
        with mpmath.workdps(120):
            right = float(mpmath.log(np.ravel(evaluate(old, env, exact, {"d": 1, "e": 1}))[0]))
        got = evaluate(log, {n: torch.tensor([x]) for n, x in values.items()}, single, {"d": 1, "e": 1}).item()
        if abs(right) > 1e-37:
            assert abs(got - right) <= 3e-5 * abs(right), (one, other, got, right)


def test_two_spellings_are_one_step() -> None:
    taken = [
        lambda p: p.S.prev - 0.1 * diag(sigmoid(p.g)) * p.S.prev,
        lambda p: diag(1 - 0.1 * sigmoid(p.g)) * p.S.prev,
        lambda p: (eye(p.d) - diag(0.1 * sigmoid(p.g))) * p.S.prev,
    ]
    logistic = [
        by_channel(lambda p: sigmoid(p.g)),
        by_channel(lambda p: 1 / (1 + exp(-p.g))),
        by_channel(lambda p: (1 + tanh(p.g / 2)) / 2),
        by_channel(lambda p: 1 - exp(-softplus(p.g))),
        lambda p: p.S.prev - diag(sigmoid(-p.g)) * p.S.prev,
    ]
    for spellings in (taken, logistic):
        assert len({with_decays(lower(spec(x)))[0].updates["S"] for x in spellings[:4]}) == 1


@cache
def compiled(name: str) -> tuple[Compiled, Callable[..., Any]]:
    r = spec(DECAYS[name])
    return compile_spec(r), compile_op(r)


def called(c: Compiled, op: Callable[..., Any], s: Sample) -> dict[str, torch.Tensor | None]:
    given = {n: x.clone().requires_grad_() for n, x in s.given.items()}
    state = s.states["S"].clone().requires_grad_()
    keys = {v.name: f"log_{v.name}" if v.is_decay else v.name for v in c.step.variables}
    out, last = op(
        **{keys[n]: x for n, x in given.items()}, initial_state=state, output_final_state=True, backend="torch"
    )
    torch.autograd.backward([out, last], [s.cotangents["o"], s.final_cotangents["S"]])
    found = {"o": out.detach(), "final S": last.detach(), "d initial S": state.grad}
    return found | {f"d{n}": x.grad for n, x in given.items()}


@pytest.mark.parametrize("name", ["a lower bound", "a root", "some of it taken away", "half a tanh"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_torch_form_agrees_with_the_oracle_also_far_out(name: str, dtype: torch.dtype) -> None:
    c, op = compiled(name)
    for scale in (1.0, 60.0):
        case = Case(seed=0, steps=150, width=8, dtype=dtype)
        s = sample(c, case)
        s = dataclasses.replace(s, given={n: x * scale if n in ("g", "b") else x for n, x in s.given.items()})
        exact = defined(c, s)
        strict = dict.fromkeys(exact, 2e-13) if dtype == torch.float64 else None
        judged = judge_all(c, called(c, op, s), exact, s, case, bounds=strict)
        assert {n: j.error for n, j in judged.items() if not j.ok} == {}


@pytest.mark.parametrize("gate", [-25.0, -60.0])
def test_at_its_lower_bound_a_gate_has_the_small_gradient_that_it_has(gate: float) -> None:
    """dg is about exp(g) times the bound's own: in float32 a difference would leave nothing but rounding."""
    c, op = compiled("a lower bound")
    case = Case(seed=0, steps=40, width=4)
    s = sample(c, case)
    s = dataclasses.replace(s, given=s.given | {"g": torch.full_like(s.given["g"], gate)})
    double = dataclasses.replace(
        s,
        given={n: x.double() for n, x in s.given.items()},
        states={n: x.double() for n, x in s.states.items() if x is not None},
        cotangents={n: x.double() for n, x in s.cotangents.items() if x is not None},
        final_cotangents={n: x.double() for n, x in s.final_cotangents.items() if x is not None},
    )
    # that of the bound, from which the gate's follows: f = sigmoid(u) + (1 - sigmoid(u)) sigmoid(g)
    found, exact = called(c, op, s)["dg"], called(c, op, double)["dg"]
    assert found is not None and exact is not None
    share = exact / torch.sigmoid(double.given["g"])  # of order one, were it computed exactly
    assert float(share.abs().max()) < 1e3
    assert float(((found.double() - exact) / exact.norm()).norm()) < 1e-5


def test_a_rate_loses_nothing_in_float64() -> None:
    """torch's own softplus is its argument from 20 on, and so off by 2e-9."""
    r = Recurrence("rate")
    x = r.inputs("x")
    s = r.state("s")
    r.update(s, exp(-softplus(x)) * s.prev + softplus(x))
    r.output("y", s.next)
    y, _ = compile_op(r)(torch.full((1, 1, 1), 20.5, dtype=torch.float64))
    assert abs(float(y) / float(mpmath.log1p(mpmath.exp(20.5))) - 1) < 1e-15


def test_values_lie_in_the_ranges_of_expressions() -> None:
    """Of random ones, at random points."""
    rng, reals = random.Random(0), Reals()
    x = [leaf("input", n) for n in "xyz"]
    functions = [
        "exp",
        "log1p",
        "expm1",
        "sigmoid",
        "logsigmoid",
        "tanh",
        "softplus",
        "erf",
        "abs",
        "relu",
        "sin",
        "step",
    ]

    def drawn(depth: int) -> Node:
        if not depth:
            return rng.choice([*x, fn("sigmoid", x[0]), const(Fraction(rng.randint(-4, 4), 2))])
        a, b = drawn(depth - 1), drawn(depth - 1)
        pick = rng.choice(["add", "mul", "pow", "fn"])
        if pick == "pow" and a.op != "const":
            return power(a, Fraction(rng.choice([2, 3, -1, -2])))
        return add(a, b) if pick == "add" else mul(a, b) if pick == "mul" else fn(rng.choice(functions), a)

    tried = 0
    for _ in range(400):
        node = drawn(3)
        r = Ranges()(node)
        for _ in range(3):
            env = {("input", n): mpmath.mpf(rng.uniform(-6, 6)) for n in "xyz"}
            try:
                value = mpmath.mpf(np.ravel(evaluate(node, {n: np.array(v) for n, v in env.items()}, reals, {}))[0])
            except (ZeroDivisionError, TypeError, ValueError, OverflowError):
                continue
            low, high = (
                mpmath.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else x for x in (r.low, r.high)
            )
            slack = mpmath.mpf(10) ** -12 * (1 + abs(value))
            assert low - slack <= value <= high + slack, (node, r, value)
            tried += r.bounded
    assert tried > 100


def test_what_the_author_knows_of_a_quantity_makes_it_a_decay() -> None:
    r = Recurrence("known")
    d, e = r.dims("d e")
    k, v = r.inputs("k", d), r.inputs("v", e)
    z, b = r.inputs("z", d, domain=(0, 0.9)), r.inputs("b", domain=(0, 2))
    w = r.parameter("w", sign="positive")
    S, n = r.state("S", d, e), r.state("n", d)
    r.update(S, S.prev - diag(z) * S.prev + k * v.T)
    r.update(n, (1 - b / 2) / (1 + w) * hadamard(1 - z, n.prev) + k)
    r.output("o", S.next.T * k)
    r.output("m", n.next)
    c, op = compile_spec(r), compile_op(r)
    assert c.family == "chunk-parallel"
    for dtype, bound in ((torch.float64, 2e-13), (torch.float32, 1e-5)):
        rows = check_op(c, op, Case(seed=0, steps=150, width=8, dtype=dtype), backend="torch")
        assert {x.quantity: x.error for x in rows if not x.error < bound} == {}
    assert "Between 0 and 2." in op.__doc__ and "Above 0." in op.__doc__
    assert 'Argument("b", "input", (), domain=(0.0, 2.0))' in signature_text(c)


@pytest.mark.parametrize(
    "words, told",
    [
        ({"domain": (1, 0)}, "the lower first, got (1, 0)"),
        ({"domain": 1}, "two bounds such as (0, 1)"),
        ({"domain": (0, "one")}, "a number or None, got 'one'"),
        ({"domain": (float("nan"), 1)}, "a number or None"),
        ({"sign": "+"}, "'positive' or 'negative', got '+'"),
        ({"sign": "positive", "domain": (0, 1)}, "not both"),
    ],
)
def test_a_domain_that_is_none_says_what_was_expected(words: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as failed:
        Recurrence("x").inputs("z", **words)
    assert told in str(failed.value) and "test_decays.py" in str(failed.value)


A, B, C, U = (leaf("input", n) for n in "abcu")  # A is no less than 0, B and C are between 0 and 1, U between -1 and 1


def rest(x: Node) -> Node:
    return add(1, mul(-1, x))


OF_A_RANGE = {
    "a less a share": (A - A * B, A * rest(B)),
    "of a square": (power(A, 2) - power(A, 2) * B, power(A, 2) * rest(B)),
    "two shares": (A - A * B - A * C + A * B * C, A * rest(B) * rest(C)),
    "a sum of such": (A - A * B + power(A, 2) - power(A, 2) * C, A * rest(B) + power(A, 2) * rest(C)),
    "of either sign": (U - U * B, U * rest(B)),
    "of bounded ones": (rest(B) - C + B * C, rest(B) * rest(C)),
    "never above 0": (A * B - A, A * (B + -1)),
}


@pytest.mark.parametrize("name", OF_A_RANGE)
def test_expanded_spellings_have_the_range_of_those_in_factors(name: str) -> None:
    share = Range(Fraction(0), Fraction(1))
    known = {A: Range(Fraction(0), math.inf, False), B: share, C: share, U: Range(Fraction(-1), Fraction(1))}
    expanded, factored = (Ranges(known.get)(x) for x in OF_A_RANGE[name])
    assert expanded == factored
