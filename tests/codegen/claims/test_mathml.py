"""LaTeX as MathML: brackets as large as what they hold, factors apart, and whatever is written ends in whole elements."""

import re

import pytest

from chunkform.codegen.claims.mathml import THIN, mathml


def test_an_exponent_belongs_to_all_that_stands_in_brackets():
    assert "<msup><mrow><mo>(</mo><mi>a</mi><mi>b</mi><mo>)</mo></mrow><mn>2</mn></msup>" in mathml("(ab)^2")


def test_factors_stand_apart_and_the_d_of_a_gradient_doesnt():
    assert THIN in mathml(r"\beta_t \mathbf{k}_t") and THIN in mathml(r"\log \lambda")
    assert THIN not in mathml(r"\mathrm{d} \mathbf{S}") and THIN not in mathml(r"a + b")


def test_fences_of_any_size_and_names_with_underscores():
    assert "⟨" in mathml(r"\left\langle a, b \right\rangle") and "\\" not in mathml(r"\left\langle a \right\rangle")
    assert "half_turn" in mathml(r"\mathrm{half\_turn}(q)")


@pytest.mark.parametrize(
    "source", [r"(a \Bigr) b)", r"\Bigl( x (y) \Bigr)", "((a)", "a)", "(a_) b)", "[0, 1)", r"(a & b)"]
)
def test_brackets_that_dont_match_are_shown_as_they_are(source):
    text = mathml(source)
    for name in set(re.findall(r"<(m\w+)[ >]", text)) - {"mspace"}:
        assert len(re.findall(rf"<{name}[ >]", text)) == text.count(f"</{name}>")
    assert text.count("<mo>(") + text.count('">(') == source.count("(")
