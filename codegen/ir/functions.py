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
APART = "apart"  # a quantity that is computed before what it is multiplied by, or added to
SAME = frozenset((FINITE, HELD, APART))  # functions whose value is what they are applied to, but for floats
_LARGEST = "1e30"  # of them: what they are multiplied by leaves them finite

# Triton has no tanh and log1p of its own. Near 0 tanh is Cephes' polynomial; log1p(e) is e log(u) / (u - 1), u = 1 + e.
_TRITON_TANH = (
    "tl.where(tl.abs({0}) < 0.55, ({0}) + ({0}) * ({0}) * ({0}) * (-3.33332819e-1 + ({0}) * ({0}) * (1.33314422e-1 "
    "+ ({0}) * ({0}) * (-5.37397156e-2 + ({0}) * ({0}) * (2.06390888e-2 - 5.70498873e-3 * ({0}) * ({0}))))), "
    "2.0 * tl.sigmoid(2.0 * ({0})) - 1.0)"
)
_TRITON_SOFTPLUS = (
    "(tl.maximum({0}, 0.0) + tl.where(tl.abs({0}) > 16.0, tl.exp(-tl.abs({0})), tl.log(1.0 + tl.exp(-tl.abs({0}))) "
    "* tl.exp(-tl.abs({0})) / ((1.0 + tl.exp(-tl.abs({0}))) - 1.0)))"
)
_TRITON_LOG1P = (
    "tl.where(1.0 + ({0}) == 1.0, {0}, tl.log(1.0 + ({0})) * (({0}) "
    "/ tl.where(1.0 + ({0}) == 1.0, 1.0, (1.0 + ({0})) - 1.0)))"
)
_TRITON_EXPM1 = (
    "tl.where(tl.abs({0}) < 0.35, ({0}) * (1.0 + ({0}) * (0.5 + ({0}) * (1.66666667e-1 + ({0}) * (4.16666667e-2 + ({0}) "
    "* (8.33333333e-3 + ({0}) * (1.38888889e-3 + 1.98412698e-4 * ({0}))))))), tl.exp({0}) - 1.0)"
)
_TRITON_LOGSIGMOID = (
    "(tl.minimum({0}, 0.0) - tl.where(tl.abs({0}) > 16.0, tl.exp(-tl.abs({0})), tl.log(1.0 + tl.exp(-tl.abs({0}))) "
    "* tl.exp(-tl.abs({0})) / ((1.0 + tl.exp(-tl.abs({0}))) - 1.0)))"
)


@dataclass(frozen=True)
class Function:
    """`derivative(x)` is f'(x); None where there is none. `torch` and `triton` are formats of the argument's text; where there is
    none for torch, the function is -g(-x), and `turned` is g."""

    name: str
    derivative: Callable[[Node], Node] | None
    sympy: Callable[[Any], Any]
    mpmath: Callable[[Any], Any]
    torch: str
    triton: str
    turned: str = ""

    def spelt(self, language: str) -> str:
        """The format in a language: Gluon has the functions that Triton's is made of."""
        if language == TORCH:
            return self.torch or f"(-{TABLE[self.turned].torch.format('-({})')})"
        return self.triton.replace(f"{LIBRARIES[TRITON]}.", f"{LIBRARIES[language]}.")

    def repeats(self, language: str) -> bool:
        """Does it have the argument's text more than once?"""
        return self.spelt(language).count("{") > 1


def _f(name: str) -> Callable[[Node], Node]:
    return lambda x: fn(name, x)


exp, log, sigmoid, tanh, sin, cos, sign, step = map(_f, "exp log sigmoid tanh sin cos sign step".split())

TABLE = {
    row.name: row
    for row in (
        Function("exp", lambda x: exp(x), sympy.exp, mpmath.exp, "torch.exp({})", "tl.exp({})"),
        Function("log", lambda x: power(x, -1), sympy.log, mpmath.log, "torch.log({})", "tl.log({})"),
        Function(
            "log1p",
            lambda x: power(add(1, x), -1),
            lambda x: sympy.log(1 + x),
            mpmath.log1p,
            "torch.log1p({})",
            _TRITON_LOG1P,
        ),
        Function("expm1", lambda x: exp(x), lambda x: sympy.exp(x) - 1, mpmath.expm1, "torch.expm1({})", _TRITON_EXPM1),
        Function(
            "sigmoid",
            lambda x: mul(sigmoid(x), sigmoid(mul(-1, x))),  # 1 - sigmoid has no digits left far above 0
            sigmoid_,
            lambda x: 1 / (1 + mpmath.exp(-x)),
            "torch.sigmoid({})",
            "tl.sigmoid({})",
        ),
        Function(
            "tanh",
            lambda x: mul(4, sigmoid(mul(2, x)), sigmoid(mul(-2, x))),  # 1 - tanh^2 has no digits left far from 0
            sympy.tanh,
            mpmath.tanh,
            "torch.tanh({})",
            _TRITON_TANH,
        ),
        Function(
            "logsigmoid",
            lambda x: sigmoid(mul(-1, x)),
            lambda x: -softplus_(-x),
            lambda x: -mpmath.log1p(mpmath.exp(-x)),
            "torch.nn.functional.logsigmoid({})",
            _TRITON_LOGSIGMOID,
        ),
        Function("sin", lambda x: cos(x), sympy.sin, mpmath.sin, "torch.sin({})", "tl.sin({})"),
        Function("cos", lambda x: mul(-1, sin(x)), sympy.cos, mpmath.cos, "torch.cos({})", "tl.cos({})"),
        Function(
            "softplus",
            lambda x: sigmoid(x),
            softplus_,
            lambda x: mpmath.log(1 + mpmath.exp(x)),
            "",  # torch's own softplus(x) is x from 20 on
            _TRITON_SOFTPLUS,
            turned="logsigmoid",
        ),
        Function(
            "erf",
            lambda x: mul(number("2/sqrt(pi)"), exp(mul(-1, power(x, 2)))),
            sympy.erf,
            mpmath.erf,
            "torch.erf({})",
            "tl.erf({})",
        ),
        Function("abs", lambda x: sign(x), sympy.Abs, abs, "torch.abs({})", "tl.abs({})"),
        Function(
            "relu",
            lambda x: step(x),
            lambda x: sympy.Max(x, 0),
            lambda x: max(x, mpmath.mpf(0)),
            "torch.relu({})",
            "tl.maximum({}, 0.0, propagate_nan=tl.PropagateNan.ALL)",
        ),
        Function(
            "sign",
            None,
            sympy.sign,
            mpmath.sign,
            "torch.sign({})",
            "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))",
        ),
        Function(
            "step",
            None,
            lambda x: sympy.Heaviside(x, 0),
            lambda x: mpmath.mpf(1 if x > 0 else 0),
            "torch.heaviside({0}, torch.zeros_like({0}))",
            "tl.where({} > 0, 1.0, 0.0)",
        ),
        Function(
            RECIPROCAL,
            None,
            lambda x: 1 / x,
            lambda x: 1 / x if x else x,
            "torch.where(({0}).abs() < 1.2e-38, 0.0, 1.0 / ({0}))",
            "tl.where(tl.abs({0}) < 1.2e-38, 0.0, 1.0 / tl.where(tl.abs({0}) < 1.2e-38, 1.0, {0}))",
        ),
        Function(
            FINITE_EXP,
            None,
            sympy.exp,
            lambda x: min(mpmath.exp(x), mpmath.mpf(_LARGEST)),
            f"torch.exp({{}}).clamp(max={_LARGEST})",
            f"tl.minimum(tl.exp({{}}), {_LARGEST}, propagate_nan=tl.PropagateNan.ALL)",
        ),
        Function(
            FINITE,
            None,
            lambda x: x,
            lambda x: max(min(x, mpmath.mpf(_LARGEST)), -mpmath.mpf(_LARGEST)),
            f"({{}}).clamp(-{_LARGEST}, {_LARGEST})",
            f"tl.maximum(tl.minimum({{}}, {_LARGEST}, propagate_nan=tl.PropagateNan.ALL), -{_LARGEST}, "
            "propagate_nan=tl.PropagateNan.ALL)",
        ),
        Function(HELD, lambda x: mul(0, x), lambda x: x, lambda x: x, "({})", "({})"),
        Function(APART, lambda x: const(1), lambda x: x, lambda x: x, "({})", "({})"),
    )
}

KEEP_ZERO = frozenset(
    f"tanh sin relu abs erf sign step {RECIPROCAL} {FINITE} {HELD} {APART}".split()
)  # f(0) = 0: sums over what lies beyond an end need no mask
