"""What stands for an argument that isn't given: a function of sizes, with any functions that a default may have."""

import math

import pytest
import sympy
import torch

from chunkform.codegen.attention.defaults import default_functions
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.spec.language import Attention, dot, exp, log, sqrt

SIZES = {"D": 8, "E": 3}


@pytest.mark.parametrize(
    "default",
    [
        lambda d, e: 1 / sqrt(d),
        lambda d, e: sqrt(2) * log(d) / e,
        lambda d, e: exp(-d / (d + e)) + d ** sympy.Rational(1, 3),
        lambda d, e: 2 / (3 + log(d) * log(d)),
    ],
)
def test_a_default_is_what_it_says(default) -> None:
    a = Attention("some")
    d, e = a.dims("D E")
    q, k, v = a.queries("q", d), a.keys("k", d), a.keys("v", e)
    a.softmax(dot(q, k), a.inverse_temperature("scale", default=default(a.size(d), a.size(e))))
    a.output("o", a.average(v))
    (made,) = default_functions(compile_attention(a))
    scope: dict = {"torch": torch}
    exec(made.text, scope)
    expected = sympy.N(default(sympy.Integer(8), sympy.Integer(3)), 30)
    found = scope["default_scale"](SIZES)
    assert isinstance(found, float) and math.isclose(found, float(expected), rel_tol=1e-14)
