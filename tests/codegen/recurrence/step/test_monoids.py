"""States whose entries go through maps that compose are scanned, whatever kind of map the step has."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch
from sympy import Max, Min

import chunkform
from chunkform.codegen.ir.expr import ONE, leaf, mul
from chunkform.codegen.ir.ranges import Ranges
from chunkform.codegen.ir.step_program import StepProgram
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.gates.strata_gates import gate_scans
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.codegen.recurrence.step.decays import known_range
from chunkform.codegen.recurrence.step.elementwise import scans
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.codegen.recurrence.step.monoids import found_in
from chunkform.codegen.recurrence.step.stabilize import stable
from chunkform.errors import GateError
from chunkform.runtime.torch_form.scans import EXTREMES, LAWS, scan_maps
from chunkform.spec.language import (
    Recurrence,
    absolute,
    apply,
    dot,
    exp,
    hadamard,
    log,
    logsigmoid,
    ones,
    sigmoid,
    softplus,
    tanh,
)


def every_kind() -> Recurrence:
    """Largest, smallest, quotients of polynomials of which much cancels, factors of either sign; states that others read."""
    r = Recurrence("every_kind")
    d = r.dims("d")
    a, b, c, g, x = r.inputs("a b c g x", d)
    w = r.parameter("w", d)
    z = r.inputs("z")
    m, P, q = r.state("m", d), r.state("P", d), r.state("q", d)
    h, n = r.state("h", d, initial=w), r.state("n")
    r.update(m, apply(Max, a + m.prev, b))
    predicted = r.let("predicted", hadamard(g**2, P.prev) + a**2)
    gain = r.let("gain", apply(lambda p, y, s: p * y / (y**2 * p + 1 + s**2), predicted, c, b))
    r.update(P, hadamard(1 - hadamard(gain, c), predicted))
    r.update(q, apply(Min, hadamard(sigmoid(a), q.prev), b - c))
    r.update(h, hadamard(tanh(g), h.prev) + m.next + hadamard(gain, x) + P.prev)
    r.update(n, tanh(z) * n.prev + 1)
    r.output("o", m.prev + n.next * P.next + q.next + h.next)
    r.output("s", dot(h.prev, x) * n.prev)
    return r


def rwkv4() -> Recurrence:
    """RWKV-4's time mixing (arXiv:2305.13048) with its running maximum."""
    r = Recurrence("rwkv4")
    d = r.dims("d")
    k, v = r.inputs("k v", d)
    w, u = r.parameter("w", d), r.parameter("u", d)
    a, b, p = r.state("a", d), r.state("b", d), r.state("p", d)
    q = r.let("q", apply(Max, p.prev, u + k))
    one, other = exp(p.prev - q), exp(u + k - q)
    r.update(p, apply(Max, p.prev - absolute(w), k))
    f, g = exp(p.prev - absolute(w) - p.next), exp(k - p.next)
    r.update(a, hadamard(f, a.prev) + hadamard(g, v))
    r.update(b, hadamard(f, b.prev) + g)
    r.output("o", (hadamard(one, a.prev) + hadamard(other, v)) / (hadamard(one, b.prev) + other))
    return r


def log_space() -> Recurrence:
    """The logarithm of a state that forgets, as it is, as a softplus, and with more that is added (minGRU, arXiv:2410.01201)."""
    r = Recurrence("log_space")
    d = r.dims("d")
    f, x, y = r.inputs("f x y", d)
    v = r.inputs("v")
    m, n, p, s = r.state("m", d), r.state("n", d), r.state("p", d, initial=-10 * ones(d)), r.state("s")
    r.update(m, log(exp(m.prev + logsigmoid(f)) + exp(x)))
    r.update(n, x + softplus(n.prev + logsigmoid(f) - x))
    r.update(p, log(3 * exp(x) + hadamard(exp(p.prev), exp(y)) / 2 + exp(x + y)))
    r.update(s, s.prev - v**2 + softplus(v - s.prev))
    r.output("o", m.next - n.prev + p.next)
    r.output("z", s.next)
    return r


SPECS = {f.__name__: f for f in (every_kind, rwkv4, log_space)}


@cache
def compiled(name):
    return compile_spec(SPECS[name]())


def ranges(step: StepProgram) -> Ranges:
    return Ranges(lambda x: known_range(step, x))


def test_the_kind_of_map_follows_from_the_update():
    step = lower(every_kind())
    kinds = {s.name: found_in(step.updates[s.name], s.leaf, ranges(step))[0] for s in step.states}
    assert kinds == {"m": "maximum", "P": "rational", "q": "minimum", "h": "affine", "n": "affine"}
    step = stable(lower(log_space()))
    found = {s.name: found_in(step.updates[s.name], s.leaf, ranges(step)) for s in step.states}
    assert {x[0] for n, x in found.items() if n != "s"} == {"logaddexp"}
    assert found["s"][0] == "logaddexp" and found["s"][1][1] is not found["s"][1][2]


@pytest.mark.parametrize(
    "update",
    [
        lambda h, a: tanh(h),
        lambda h, a: h**2 + a,
        lambda h, a: Max(a * h, 1),  # a may be below 0: the larger becomes the smaller
        lambda h, a: Max(h, 2 * h, a),
        lambda h, a: a / (h**2 + 1),
        lambda h, a: absolute(h) - a,
        lambda h, a: softplus(2 * h) + a,
        lambda h, a: a - softplus(h),
        lambda h, a: h + softplus(a + h),
    ],
)
def test_what_does_not_compose_is_not_scanned(update):
    r = Recurrence("no_scan")
    a = r.inputs("a")
    h = r.state("h")
    r.update(h, update(h.prev, a))
    r.output("o", h.next)
    step = lower(r)
    assert found_in(step.updates["h"], step.state("h").leaf, ranges(step)) is None
    assert compile_spec(r).family == "sequential"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n == "rwkv4")) for n in SPECS])
def test_scans_agree_with_the_step_by_step_run(name):
    c, op = compiled(name), chunkform.compile(SPECS[name]())
    assert c.family == "scan"
    for case in (Case(batch=1, steps=200, width=8, dtype=torch.float64), Case(steps=1, width=3, dtype=torch.float64)):
        worst = max(check_op(c, op, case), key=lambda r: r.error)
        assert worst.error < 1e-13, worst
    for dtype in (torch.float32, torch.bfloat16):
        bad = [r for r in check_op(c, op, Case(batch=1, steps=70, width=8, dtype=dtype)) if not r.ok]
        assert not bad, bad


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("forward", [True, False])
def test_a_scan_is_one_map_after_the_other(kind, forward):
    """Also of lengths that no chunk divides, of none, and where a map forgets all."""
    torch.manual_seed(0)
    law, extreme = LAWS[kind], EXTREMES.get(kind, torch.maximum)
    for count in (0, 1, 63, 130):
        maps = tuple(torch.rand(2, 1, count, 3, dtype=torch.float64) for _ in law.identity)
        if kind == "logaddexp":  # whose states aren't multiplied
            maps = (torch.ones_like(maps[0]), maps[1].log(), maps[2].log())
        if count > 5:
            maps[1 if kind == "logaddexp" else 0][:, :, 5] = -torch.inf if kind == "logaddexp" else 0.0
        state = first = torch.rand(2, 1, 3, dtype=torch.float64)
        before, after, last = scan_maps(kind, maps, first, forward)
        for t in range(count) if forward else reversed(range(count)):
            torch.testing.assert_close(before[:, :, t], state, rtol=1e-12, atol=1e-13)
            state = law.applied(tuple(x[:, :, t] for x in maps), state, extreme)
            torch.testing.assert_close(after[:, :, t], state, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(last, state, rtol=1e-12, atol=1e-13)


def test_a_wrong_map_is_refused():
    c = compiled("rwkv4")
    found = scans(c.step, c.adjoint)
    for side in ("forward", "backward"):
        entries = getattr(found, side)
        wrong = dataclasses.replace(
            entries[0], factor=mul(2, ONE), added=leaf("state", entries[0].state, ()), others=()
        )
        with pytest.raises(GateError, match="scans"):
            gate_scans(
                c.adjoint,
                dataclasses.replace(found, **{side: (dataclasses.replace(wrong, kind="affine"), *entries[1:])}),
            )
