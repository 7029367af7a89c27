"""The table of scalar functions: one row each, with derivative, SymPy form, and printed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import sympy

from chunkform.spec.language.functions import sigmoid_, softplus_

from .expr import Node, add, const, fn, mul, number, power

TRITON, GLUON, TORCH = "triton", "gluon", "torch"  # the languages that expressions are printed in
LIBRARIES = {TRITON: "tl", GLUON: "gl"}  # what kernels call a language by
RECIPROCAL = "reciprocal"  # 1 / x in slopes of roots; 0 at 0, where a root has none, and where it would be infinite
FINITE_EXP = "finite_exp"  # exp in slopes of what is flat where exp would be infinite: 0 times it is 0
FINITE = "finite"  # what is no larger than a float either way, of products of such slopes
HELD = "held"  # a quantity on which nothing depends that is made of it: its gradient is taken to be 0
MAGNITUDE, UNIT_OF = "magnitude", "unit"  # |x|, and x / |x|: 1 at 0, and there too the slope of the magnitude
APART = "apart"  # a quantity that is computed before what it is multiplied by, or added to
OVER_EXP = "softplus_over_exp"  # softplus(x) / exp(min(x, 0)), between 0.69 and 1 where softplus has no float
SAME = frozenset((FINITE, HELD, APART))  # functions whose value is what they are applied to, but for floats
LARGEST = "1e30"  # of them: what they are multiplied by leaves them finite


@dataclass(frozen=True)
class Function:
    """`derivative(x)` is f'(x); None where there is none. `turned` is g where torch has no such function, which is -g(-x)."""

    name: str
    derivative: Callable[[Node], Node] | None
    sympy: Callable[[Any], Any]
    mpmath: Callable[[Any], Any]
    turned: str = ""


def _f(name: str) -> Callable[[Node], Node]:
    return lambda x: fn(name, x)


exp, log, sigmoid, tanh, sin, cos, sign, step = map(_f, "exp log sigmoid tanh sin cos sign step".split())

TABLE = {
    row.name: row
    for row in (
        Function("exp", lambda x: exp(x), sympy.exp, mpmath.exp),
        Function("log", lambda x: power(x, -1), sympy.log, mpmath.log),
        Function(
            "log1p",
            lambda x: power(add(1, x), -1),
            lambda x: sympy.log(1 + x),
            mpmath.log1p,
        ),
        Function("expm1", lambda x: exp(x), lambda x: sympy.exp(x) - 1, mpmath.expm1),
        Function(
            "sigmoid",
            lambda x: mul(sigmoid(x), sigmoid(mul(-1, x))),  # 1 - sigmoid has no digits left far above 0
            sigmoid_,
            lambda x: 1 / (1 + mpmath.exp(-x)),
        ),
        Function(
            "tanh",
            lambda x: mul(4, sigmoid(mul(2, x)), sigmoid(mul(-2, x))),  # 1 - tanh^2 has no digits left far from 0
            sympy.tanh,
            mpmath.tanh,
        ),
        Function(
            "logsigmoid",
            lambda x: sigmoid(mul(-1, x)),
            lambda x: -softplus_(-x),
            lambda x: -mpmath.log1p(mpmath.exp(-x)),
        ),
        Function("sin", lambda x: cos(x), sympy.sin, mpmath.sin),
        Function("cos", lambda x: mul(-1, sin(x)), sympy.cos, mpmath.cos),
        Function(
            "softplus",
            lambda x: sigmoid(x),
            softplus_,
            lambda x: mpmath.log(1 + mpmath.exp(x)),
            turned="logsigmoid",
        ),
        Function(
            OVER_EXP,
            lambda x: add(sigmoid(fn("abs", x)), mul(-1, step(mul(-1, x)), fn(OVER_EXP, x))),
            lambda x: softplus_(x) * sympy.exp(-sympy.Min(x, 0)),
            lambda x: mpmath.log1p(mpmath.exp(x)) * mpmath.exp(-min(x, mpmath.mpf(0))),
        ),
        Function(
            "erf",
            lambda x: mul(number("2/sqrt(pi)"), exp(mul(-1, power(x, 2)))),
            sympy.erf,
            mpmath.erf,
        ),
        Function("asinh", lambda x: power(add(1, power(x, 2)), "-1/2"), sympy.asinh, mpmath.asinh),
        Function("abs", lambda x: sign(x), sympy.Abs, abs),
        Function(
            "relu",
            lambda x: step(x),
            lambda x: sympy.Max(x, 0),
            lambda x: max(x, mpmath.mpf(0)),
        ),
        Function(
            "sign",
            None,
            sympy.sign,
            mpmath.sign,
        ),
        Function(
            "step",
            None,
            lambda x: sympy.Heaviside(x, 0),
            lambda x: mpmath.mpf(1 if x > 0 else 0),
        ),
        Function(
            RECIPROCAL,
            None,
            lambda x: 1 / x,
            lambda x: 1 / x if x else x,
        ),
        Function(
            FINITE_EXP,
            None,
            sympy.exp,
            lambda x: min(mpmath.exp(x), mpmath.mpf(LARGEST)),
        ),
        Function(
            FINITE,
            None,
            lambda x: x,
            lambda x: max(min(x, mpmath.mpf(LARGEST)), -mpmath.mpf(LARGEST)),
        ),
        Function(MAGNITUDE, lambda x: fn(UNIT_OF, x), sympy.Abs, abs),
        Function(UNIT_OF, lambda x: const(0), lambda x: sympy.Integer(1), lambda x: mpmath.mpf(-1 if x < 0 else 1)),
        Function(HELD, lambda x: mul(0, x), lambda x: x, lambda x: x),
        Function(APART, lambda x: const(1), lambda x: x, lambda x: x),
    )
}

KEEP_ZERO = frozenset(
    f"tanh sin relu abs asinh erf sign step {MAGNITUDE} {RECIPROCAL} {FINITE} {HELD} {APART}".split()
)  # f(0) = 0: sums over what lies beyond an end need no mask
