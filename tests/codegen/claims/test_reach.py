"""Claims are tried at as many steps as their integers reach, and on both sides of what bends: a false one that differs only from
step 5 on, or only below a clip, is refuted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sympy import Abs, Max, Min, Rational, sign

from chunkform.codegen.claims.command import judged, reason
from chunkform.codegen.claims.verdict import Verdict
from chunkform.spec.language import Recurrence, norm, relu, sigmoid
from chunkform.spec.language.formula import Formula, cases, compare, product_over, row, sum_over


def far() -> tuple[Recurrence, Any]:
    """A decayed sum, and its quantities by name."""
    r = Recurrence("far")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    lam = r.decay("lam")
    S = r.state("S", d, e)
    r.update(S, lam * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r, r.quantities


def decay(low: Any, high: Any, lam: Any, i: Formula) -> Formula:
    return product_over(i, low, high, lam(i))


def verdict(r: Recurrence, *sides: Formula) -> Verdict:
    return judged([r.claim("claim", *sides)], jobs=1)[0]


def unrolled(condition: Callable[[Formula, Formula], Formula]) -> Verdict:
    """That o(t) is the sum over the steps s for which the condition on s and t is true."""
    r, names = far()
    t, s, i, q, k, v, lam, S, o = names("t s i q k v lam S o")
    term = decay(s + 1, t, lam, i) * (k(s).T * q(t)) * v(s)
    past = decay(1, t, lam, i) * S(0).T * q(t)
    return verdict(r, o(t), past + sum_over(s, 1, t, cases((condition(s, t), term), (None, 0 * term))))


@pytest.mark.parametrize("width", [4, 9])
def test_a_window_is_not_the_whole_past(width: int) -> None:
    found = unrolled(lambda s, t: compare(s, ">", t - width))
    assert found.verdict == "fails"
    assert found.counterexample is not None
    assert dict(found.counterexample.sizes)["n"] == width + 1


def test_the_first_steps_are_not_the_whole_past() -> None:
    assert unrolled(lambda s, t: compare(s, "<=", 5)).verdict == "fails"


def test_a_condition_that_no_step_meets_is_told() -> None:
    found = unrolled(lambda s, t: compare(s, ">=", 1))
    assert found.verdict == "depends"
    assert [c.kind for c in found.conditions] == ["not tried"]


def test_integers_beyond_any_run_are_told() -> None:
    r, names = far()
    t, q, k, S, o = names("t q k S o")
    found = verdict(r, o(t), S(t).T * cases((compare(t, "<", 1000), q(t)), (None, k(t))))
    assert found.verdict == "depends"
    assert "n > 80" in {c.text for c in found.conditions}


@pytest.mark.parametrize("steps", [6, 8, 20])
def test_several_steps_at_once_hold(steps: int) -> None:
    r, names = far()
    t, s, i, k, v, lam, S = names("t s i k v lam S")
    first = t - steps + 1
    later = sum_over(s, first, t, decay(s + 1, t, lam, i) * k(s) * v(s).T)
    assert verdict(r, S(t), decay(first, t, lam, i) * S(t - steps) + later).verdict == "holds"


def test_offsets_add_up_through_definitions() -> None:
    r, names = far()
    t, k, S, v, lam = names("t k S v lam")
    before = r.define("before", t, S(t - 5))
    right = lam(t - 10) * S(t - 11) + k(t - 10) * v(t - 10).T
    claims = [
        r.claim("right", before(t - 5), right),
        r.claim("wrong from 13 on", before(t - 5), cases((compare(t, "<=", 12), right), (None, 2 * right))),
    ]
    assert [found.verdict for found in judged(claims, jobs=1)] == ["holds", "fails"]


def test_one_step_multiples_of_steps_and_one_row_by_number_hold() -> None:
    r, names = far()
    t, k, v, lam, S = names("t k v lam S")
    claims = [
        r.claim("step", S(7), lam(7) * S(6) + k(7) * v(7).T),
        r.claim("multiple", S(4 * t), lam(4 * t) * S(4 * t - 1) + k(4 * t) * v(4 * t).T),
        r.claim("row", row(S(t), 5), lam(t) * row(S(t - 1), 5) + row(k(t), 5) * v(t).T),
    ]
    assert {v.verdict for v in judged(claims, jobs=1)} == {"holds"}


def test_a_claim_about_no_step_is_refused() -> None:
    r, names = far()
    q, k = names("q k")
    found = verdict(r, q(0), 2 * k(0))
    assert found.error is not None and found.error.message.endswith("q has no value at step 0")


def test_a_claim_that_reaches_beyond_any_run_is_refused() -> None:
    r, names = far()
    k, v, lam, S = names("k v lam S")
    found = verdict(r, S(1000), lam(1000) * S(999) + k(1000) * v(1000).T)
    assert found.error is not None and "can't be tried: it takes n > 80" in found.error.message


def test_many_steps_take_seconds() -> None:
    started = time.monotonic()
    test_several_steps_at_once_hold(64)
    assert time.monotonic() - started < 30


CLIPS: dict[str, Callable] = {
    "below -2": lambda a, lam, k: Max(a, -2),
    "below -2000": lambda a, lam, k: Max(a, -2000),
    "between": lambda a, lam, k: Max(Min(a, 20), -20),
    "above 10": lambda a, lam, k: a + relu(a - 10),
    "scaled": lambda a, lam, k: 6 * Min(Max(a / 6 + Rational(1, 2), 0), 1),
    "units": lambda a, lam, k: 1000 * Min(a / 1000, 2),
    "through a function": lambda a, lam, k: a + Max(sigmoid(a), Rational(9, 10)),
    "away from 7": lambda a, lam, k: Abs(a - 7),
}


def clipped(clip: Callable) -> dict[str, Verdict]:
    """A true claim, and the one that forgets the derivative of a clip."""
    r = Recurrence("clipped")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    a = r.inputs("a")
    lam = r.decay("lam")
    S = r.state("S", d, e)
    r.update(S, S.prev + r.let("ac", clip(a, lam, k)) * k * v.T)
    r.output("o", S.next.T * q)
    t, S, do, dq, da, dac = r.quantities("t S do dq da dac")
    r.claim("true", dq(t), S(t) * do(t))
    r.claim("forgotten", da(t), dac(t))
    return {v.claim.id: v for v in judged(r.claims, jobs=1)}


LONG = ("below -2000", "above 10", "units")


@pytest.mark.parametrize(
    "clip", [pytest.param(f, marks=[pytest.mark.long] * (n in LONG), id=n) for n, f in CLIPS.items()]
)
def test_both_sides_of_a_clip_are_tried(clip: Callable) -> None:
    found = clipped(clip)
    assert found["true"].verdict == "holds", reason(found["true"])
    assert found["forgotten"].verdict == "fails"
    counter = found["forgotten"].counterexample
    assert counter is not None and counter.sides


def test_jumps_and_small_floors_are_tried_too() -> None:
    assert clipped(lambda a, lam, k: a + sign(a - 7))["forgotten"].verdict == "holds"
    assert clipped(lambda a, lam, k: a / Max(norm(k), Rational(1, 10**6)))["true"].verdict == "holds"


def test_a_branch_that_nothing_takes_is_not_asked_for() -> None:
    assert clipped(lambda a, lam, k: a + Max(lam, 0) + Max(a**2 + 1, 0))["true"].verdict == "holds"


def test_what_no_claim_speaks_of_is_not_asked_for() -> None:
    """Claims share instances; what another one took in them is its own affair."""
    r = Recurrence("clipped")
    a, b = r.inputs("a b")
    S = r.state("S")
    r.update(S, S.prev + relu(a - 10))
    r.output("o", S.next)
    t, a, b, S = r.quantities("t a b S")
    by_formula = Formula("function", (a(t) - 10,), ("relu",))
    size = Formula("function", (b(t) - 50,), ("abs",))
    claims = [
        r.claim("state", S(t), S(t - 1) + by_formula),
        r.claim("input", size * size, (b(t) - 50) ** 2),
        r.claim("sign", size, 50 - b(t)),
    ]
    assert [found.verdict for found in judged(claims, jobs=1)] == ["holds", "holds", "fails"]


def test_branches_meet_each_other() -> None:
    """The claim is false only where both q > 10 and v > 30."""
    r = Recurrence("two_clips")
    q, v = r.inputs("q v")
    S = r.state("S")
    r.update(S, S.prev + relu(v - 30))
    r.output("o", S.next * q)
    t, q, v, S = r.quantities("t q v S")
    more, write = (Formula("function", (x,), ("relu",)) for x in (q(t) - 10, v(t) - 30))
    assert verdict(r, S(t), S(t - 1) + (1 + more) * write).verdict == "fails"


def test_a_branch_that_was_not_taken_is_told() -> None:
    """No number is below 0 there, which SymPy doesn't see."""
    found = clipped(lambda a, lam, k: a + Min(a**2 - a + 1, 0))["true"]
    assert found.verdict == "depends"
    assert [(c.kind, c.text) for c in found.conditions] == [("not tried", "a**2 - a + 1 is Min(0, a**2 - a + 1)")]
