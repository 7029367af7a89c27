"""The parts of the verifier, one by one: each is right on a case that can be checked by hand, and refuses one that is
wrong."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from fractions import Fraction

import pytest

from chunkform.codegen.claims.arithmetic import FIELD, FRACTION, Undefined
from chunkform.codegen.claims.bounds import decide_bound
from chunkform.codegen.claims.derive import derivative, shapes_in, step_adjoint
from chunkform.codegen.claims.mathml import mathml
from chunkform.codegen.claims.stability import products, spectral_radius, state_norms
from chunkform.codegen.claims.verifier import Verifier
from chunkform.spec.claims import documents
from chunkform.spec.language import find
from chunkform.spec.language.claims import Claim, Setting
from chunkform.spec.language.formula import Formula, formula, gradient, inverse, product, sum_over
from chunkform.spec.language.notation import latex, text
from chunkform.spec.language.statements import Equal, at_most


def test_roots_in_the_field_multiply() -> None:
    a, b = 1234567**2, 7654321**2
    assert FIELD.sqrt(a) * FIELD.sqrt(b) % (2**61 - 1) == FIELD.sqrt(a * b % (2**61 - 1))
    with pytest.raises(Undefined):
        FRACTION.sqrt(Fraction(2))


@pytest.fixture
def box() -> tuple:
    s = Setting("box")
    return s, s.given("lam", domain="decay"), s.given("c", domain="positive")


def test_inequalities_are_proved_or_refuted_exactly(box: tuple) -> None:
    s, lam, c = box
    assert decide_bound(at_most(lam * (2 - lam), 1), s).proved
    assert decide_bound(at_most(1, (1 + c) ** 2 / (4 * c)), s).proved
    refuted = decide_bound(at_most(lam + lam * (1 - lam) * c, 1), s)
    assert not refuted.proved
    assert refuted.sides is not None
    assert refuted.sides[0] > refuted.sides[1]


def test_nearly_true_is_refuted_or_left_open_but_never_proved(box: tuple) -> None:
    s, lam, _ = box
    assert not decide_bound(at_most(lam * (2 - lam), 1 - formula(Fraction(1, 10**6))), s).proved


def test_formulas_print_as_written() -> None:
    s = Setting("printing")
    t, i = s.indices("t i")
    q, S = s.given("q", "d", over=(t, 1, 3)), s.given("S", "d", "e", over=(t, 0, 3))
    x = (1 - Formula("number", (), (Fraction(1, 2),)) * q(t).T) * (S(t - 1) * S(t).T) - sum_over(i, 1, t, q(i).T)
    assert text(x) == "(1 - (1/2) * q(t).T) * (S(t-1) * S(t).T) - sum[i=1..t] q(i).T"
    assert latex(q(t).T * S(t - 1)) == r"\mathbf{q}_{t}^\top \mathbf{S}_{t - 1}"


@pytest.mark.parametrize("claim", [c for d in documents() for c in d.claims], ids=lambda c: c.id)
def test_every_documented_formula_becomes_well_formed_mathml(claim: Claim) -> None:
    shown = mathml(claim.latex)
    xml.fromstring(shown.replace("&#x2061;", ""))
    assert "mathbf" not in shown and "odot" not in shown


def test_derivatives_of_formulas_agree_with_dual_numbers() -> None:
    s = Setting("rules")
    s.dims("d e")
    A, B = s.given("A", "d", "e"), s.given("B", "d", "d")
    x, y = s.given("x", "d"), s.given("y", "e")
    shapes, verifier = shapes_in(s), Verifier(thorough=False)
    for f in (
        x.T * A * y,
        x.T * inverse(B) * B.T * x / (1 + y.T * y),
        (x.T * B * x) * (y.T * A.T * x) - x.T * x,
        x.T * (x * (y.T * y)),
    ):
        for by in (A, B, x, y):
            if by.attrs[0] in {z.attrs[0] for z in walk_at(f)}:
                claim = Claim("rule", Equal((gradient(f, by), derivative(f, by, shapes))), s)
                assert verifier.judge(claim).verdict == "holds", (str(f), str(by))


def walk_at(x: Formula) -> list[Formula]:
    return [x] if x.op == "at" else [y for a in x.args for y in walk_at(a)]


@pytest.mark.parametrize(
    "name", ["linear_attention", "delta_rule", "gated_delta_rule", "gated_linear_attention", "sherman_morrison"]
)
def test_the_adjoint_of_any_rational_recurrence_is_derived_and_true(name: str) -> None:
    (r,) = find(name)
    s = Setting(name, r)
    verifier, t = Verifier(thorough=False), s.names("t")
    for what, body in step_adjoint(r, s).items():
        left = s.lookup(what.removesuffix(" initial"))(0 if what.endswith(" initial") else t)
        assert verifier.judge(Claim(what, Equal((left, body)), s)).verdict == "holds", what


def test_stability_is_lost_above_c_1_and_by_products() -> None:
    import numpy as np

    lam = np.linspace(0.01, 1, 50)
    assert spectral_radius(lam, np.full(50, 1.0)).max() <= 1 + 1e-12
    assert spectral_radius(lam, np.full(50, 1.5)).max() > 1
    free, short, same = products()
    assert free.norms[-1] > 1e3
    assert short.norms.max() <= 1 + 1e-9 and same.norms.max() <= 1 + 1e-9
    first, stable = state_norms().values()
    assert first[-1] > 1e6 > stable.max()


def test_products_on_the_right_stay_in_brackets() -> None:
    a, b, c = (Formula("at", (), (n,)) for n in "abc")
    assert product(a, product(b, c)) != product(product(a, b), c)
