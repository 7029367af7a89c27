"""Whether two specs are the same recurrence: spellings, names, and a small counterexample where they aren't."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mpmath
import pytest
import sympy
from typer.testing import CliRunner

import chunkform
from chunkform.codegen.commands.cli import app
from chunkform.errors import SpecError
from chunkform.spec.language import Max, Min, Recurrence, diag, exp, eye, hadamard, log, ones, relu, sigmoid, softplus


def delta(name: str, update: Callable, key: str = "k", initial: bool = False) -> Recurrence:
    r = Recurrence(name)
    d, e = r.dims("d e") if key == "k" else r.dims("keys values")
    q, k = r.inputs("q", d), r.inputs(key, d)
    v, b, lam = r.inputs("v", e), r.inputs("b"), r.decay("lam")
    S = r.state("S" if key == "k" else "memory", d, e, initial=ones(d, e) if initial else None)
    r.update(S, update(S.prev, k, v, b, lam, eye(d)))
    r.output("o", S.next.T * q)
    return r


def usual(S, k, v, b, lam, one):
    return lam * S + b * k * (v - lam * S.T * k).T


def transition(S, k, v, b, lam, one):
    return lam * (one - b * k * k.T) * S + b * k * v.T


def undecayed(S, k, v, b, lam, one):
    return (one - b * k * k.T) * S + b * k * v.T


def gated(name: str, gate: Callable, sign: str | None = None) -> Recurrence:
    r = Recurrence(name)
    d, e = r.dims("d e")
    q, g = r.inputs("q", d), r.inputs("g", d, sign=sign)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    r.update(S, diag(gate(g)) * S.prev + hadamard(g, g) * v.T)
    r.output("o", S.next.T * q)
    return r


def test_two_spellings_are_the_same_exactly() -> None:
    found = chunkform.same(delta("a", usual), delta("b", transition))
    assert found.same and found.exact and "a and b are the same" in str(found)


def test_other_names_of_inputs_states_and_dims() -> None:
    assert chunkform.same(delta("a", usual), delta("b", transition, key="key"), {"k": "key"}).same


def test_a_small_counterexample() -> None:
    found = chunkform.same(delta("a", usual), delta("b", undecayed))
    assert not found.same and found.difference is not None
    x = found.difference
    assert (x.output, x.step, set(x.sizes.values())) == ("o", 2, {1})
    q, k, v, b, lam = ([float(y) for y in x.given[n][1:-1].split(", ")] for n in ("q", "k", "v", "b", "lam"))
    S = b[0] * k[0] * v[0]
    values = [(w * (1 - b[1] * k[1] ** 2) * S + b[1] * k[1] * v[1]) * q[1] for w in (lam[1], 1)]
    assert [float(y) for y in x.values] == pytest.approx(values)


@pytest.mark.parametrize("power", [6, 15, 25])
def test_values_are_told_with_as_many_digits_as_it_takes(power: int) -> None:
    def little(S, k, v, b, lam, one):
        return usual(S, k, v, b, lam, one) * (1 + sympy.Rational(1, 10**power))

    found = chunkform.same(delta("a", usual), delta("b", little)).difference
    assert found is not None
    one, other = found.values
    assert one != other and abs(mpmath.mpf(one) / mpmath.mpf(other) - 1) < 10.0 ** (2 - power)


def test_first_states_count() -> None:
    assert not chunkform.same(delta("a", usual), delta("b", usual, initial=True)).same


def test_functions_are_compared_with_many_digits() -> None:
    logistic = gated("a", sigmoid)
    assert chunkform.same(logistic, gated("b", lambda g: exp(-softplus(-g)))).same
    assert not chunkform.same(logistic, gated("b", lambda g: Max(sigmoid(g), 0.1))).same
    close = chunkform.same(logistic, gated("b", lambda g: sigmoid(g) + 1e-20))
    assert not close.same


def test_what_is_known_of_an_input_is_taken_into_account() -> None:
    def positive(g):
        return Max(sigmoid(g), 0.5)

    assert chunkform.same(gated("a", sigmoid, "positive"), gated("b", positive, "positive")).same
    assert not chunkform.same(gated("a", sigmoid), gated("b", positive)).same


def test_roots_and_logarithms_have_numbers_of_their_own() -> None:
    def rate(name: str, of: Callable) -> Recurrence:
        r = Recurrence(name)
        x = r.inputs("x")
        h = r.state("h")
        r.update(h, h.prev + of(x))
        r.output("y", h.next)
        return r

    assert chunkform.same(rate("a", lambda x: log(x**2)), rate("b", lambda x: 2 * log(x))).same
    with pytest.raises(SpecError, match="no numbers were found"):
        chunkform.same(rate("a", lambda x: log(-(x**2) - 1)), rate("b", lambda x: x))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({}, "b has no 'k', as a has"),
        ({"z": "k"}, "a has no 'z': names are of its inputs, parameters, constants and outputs$"),
        ({"key": "k"}, "a has no 'key'.*; b has: write it as k=key"),
        ({"k": "v", "v": "key"}, "the dim"),
    ],
)
def test_what_does_not_fit_is_told(names: dict[str, str], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        chunkform.same(delta("a", usual), delta("b", usual, key="key"), names)


def test_on_the_command_line(tmp_path: Path) -> None:
    text = """from chunkform.spec.language import Recurrence
r = Recurrence("{name}")
{x} = r.inputs("{x}")
h = r.state("h")
r.update(h, h.prev + {x})
r.output("y", {y})
"""
    one, two, other = (tmp_path / f"{n}.py" for n in ("one", "two", "other"))
    one.write_text(text.format(name="one", x="x", y="h.next"))
    two.write_text(text.format(name="two", x="z", y="h.prev + z"))
    other.write_text(text.format(name="other", x="x", y="h.next - 3 * h.prev"))
    run = CliRunner().invoke
    assert run(app, ["verify", str(one), "--same-as", str(two), "--names", "x=z"]).exit_code == 0
    done = run(app, ["verify", str(one), "--same-as", str(other), "--json", str(tmp_path / "found.json")])
    assert done.exit_code == 1 and "y of step 2" in done.stdout
    assert json.loads((tmp_path / "found.json").read_text())["same"] is False
    done = run(app, ["verify", str(one), "--same-as", str(two)])
    assert done.exit_code == 2 and "two has no 'x'" in done.stderr
    assert run(app, ["verify", str(one), "--same-as", str(two), "--names", "x"]).exit_code == 2


def counted(name: str, step: Callable, states: int = 1, given: str = "b", default: float = 0.5) -> Recurrence:
    """States one after the other: the first takes what `step` makes of it, each other what the one before it had."""
    r = Recurrence(name)
    b, c, m = *r.inputs("b c"), r.constant("m", default)
    h = [r.state(f"h{n}") for n in range(states)]
    r.output("y", h[-1].prev + m * r.inputs("x"))
    for n in reversed(range(1, states)):
        r.update(h[n], h[n - 1].prev)
    r.update(h[0], step(h[0].prev, {"b": b, "c": c}[given]))
    return r


def test_a_difference_that_shows_late() -> None:
    one, other = (counted(n, lambda h, b: b, states=9, given=n) for n in "bc")
    found = chunkform.same(one, other)
    assert not found.same and found.difference.step == 10
    assert chunkform.same(one, counted("again", lambda h, b: b, states=9)).same


@pytest.mark.parametrize(
    "step", [lambda h, b: Min(h + 1, 11), lambda h, b: h + 1 + relu(b - 50), lambda h, b: h + 1 + Max(b, -7) - b]
)
def test_a_difference_beyond_a_number(step: Callable) -> None:
    assert not chunkform.same(counted("a", lambda h, b: h + 1), counted("b", step)).same


def test_what_is_out_of_reach_is_told() -> None:
    found = chunkform.same(counted("a", lambda h, b: h + 1), counted("b", lambda h, b: Min(h + 1, 1000)))
    assert (
        found.same and "over 6 steps" in str(found) and "only one side of Min(1000, h0.prev + 1) was met" in str(found)
    )
    both = chunkform.same(counted("a", lambda h, b: Max(h, b)), counted("b", lambda h, b: h + relu(b - h)))
    assert both.same and both.notes == ()


def test_other_defaults_and_other_domains_are_told() -> None:
    found = chunkform.same(counted("a", lambda h, b: b), counted("b", lambda h, b: b, default=0.25))
    assert found.same and found.notes == ("the default of m is 0.5 in a, and 0.25 in b",)
    found = chunkform.same(counted("a", lambda h, b: log(b**2)), counted("b", lambda h, b: 2 * log(b)))
    assert (
        found.same
        and found.notes[0].startswith("b has no value for some numbers")
        and "for which a has one" in str(found)
    )
