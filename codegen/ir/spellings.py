"""How functions of a number, and powers, are spelt in torch, in Triton and in Gluon: as expressions of their argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from .code import ATOM, MUL, Call, Code, Decimal, Group, Literal, Method, Name, Negative, Tree, call
from .code_parts import walk_code
from .functions import (
    APART,
    FINITE,
    FINITE_EXP,
    HELD,
    LARGEST,
    LIBRARIES,
    MAGNITUDE,
    OVER_EXP,
    RECIPROCAL,
    TORCH,
    TRITON,
    UNIT_OF,
)
from .words import Words, listed


@dataclass(frozen=True)
class Library:
    """The functions of a language of kernels. Gluon has those that Triton's spellings are made of."""

    language: str

    def __call__(self, function: str, *arguments: Code | float, **keywords: Code) -> Call:
        return call(f"{LIBRARIES[self.language]}.{function}", *arguments, **keywords)

    @property
    def every_nan(self) -> dict[str, Code]:
        """What tells a minimum or a maximum that nan with anything is nan."""
        return {"propagate_nan": Name(f"{LIBRARIES[self.language]}.PropagateNan.ALL")}


InTorch = Callable[[Code], Code]
InKernels = Callable[[Library, Code], Code]


def _torch(function: str) -> InTorch:
    return lambda x: call(f"torch.{function}", x)


def _kernels(function: str) -> InKernels:
    return lambda tl, x: tl(function, x)


# --- what Triton has no function for ----------------------------------------------------------------------------------


def _polynomial(x: Code, *coefficients: Code | float) -> Code:
    """a_0 + x (a_1 + x (a_2 + ..)); the last two terms as a_n + a_(n+1) x."""
    *others, last, highest = coefficients
    found: Code = _code(last) + _code(highest) * x
    for a in reversed(others):
        found = _code(a) + x * found
    return found


def _code(x: Code | float) -> Code:
    return x if isinstance(x, Code) else Literal(x)


def _tanh(tl: Library, x: Code) -> Code:
    """Near 0 Cephes' polynomial."""
    g = Group(x)
    inner = Decimal("2.06390888e-2") - Decimal("5.70498873e-3") * g * g
    for a in ("-5.37397156e-2", "1.33314422e-1", "-3.33332819e-1"):
        inner = Decimal(a) + g * g * inner
    return tl("where", tl("abs", x) < 0.55, g + g * g * g * inner, 2.0 * tl("sigmoid", 2.0 * g) - 1.0)


def _log1p(tl: Library, x: Code) -> Code:
    """x log(u) / (u - 1), u = 1 + x."""
    g = Group(x)
    u = 1.0 + g
    return tl("where", u.equals(1.0), x, tl("log", u) * (g / tl("where", u.equals(1.0), 1.0, Group(u) - 1.0)))


def _log1p_of_small(tl: Library, x: Code) -> Code:
    """log(1 + exp(-|x|)), the same way."""
    e = tl("exp", -tl("abs", x))
    return tl("where", tl("abs", x) > 16.0, e, tl("log", 1.0 + e) * e / (Group(1.0 + e) - 1.0))


def _softplus_of_torch(x: Code) -> Code:
    """torch's own softplus(x) is x from 20 on."""
    return Group(Negative(_torch("nn.functional.logsigmoid")(Negative(Group(x)))))


def _softplus(tl: Library, x: Code) -> Code:
    return Group(tl("maximum", x, 0.0) + _log1p_of_small(tl, x))


def _expm1(tl: Library, x: Code) -> Code:
    g = Group(x)
    digits = ("1.66666667e-1", "4.16666667e-2", "8.33333333e-3", "1.38888889e-3", "1.98412698e-4")
    near = g * _polynomial(g, 1.0, 0.5, *map(Decimal, digits))
    return tl("where", tl("abs", x) < 0.35, near, tl("exp", x) - 1.0)


def _asinh(tl: Library, x: Code) -> Code:
    """log1p(a + a^2 / (1 + sqrt(1 + a^2))) of a = |x|, and log a + log 2 where its square has no float."""
    a = tl("minimum", tl("abs", x), 1e9)
    near = _log1p(tl, a + a * a / Group(1.0 + tl("sqrt", 1.0 + a * a)))
    far = tl("log", tl("maximum", tl("abs", x), 1e9)) + Decimal("0.6931471806")
    return tl("where", x < 0, -1.0, 1.0) * tl("where", tl("abs", x) < 1e9, near, far)


def _reciprocal(tl: Library, x: Code) -> Code:
    small = tl("abs", x) < 1.2e-38
    return tl("where", small, 0.0, 1.0 / tl("where", small, 1.0, x))


def _finite(tl: Library, x: Code) -> Code:
    above = tl("minimum", x, Decimal(LARGEST), **tl.every_nan)
    return tl("maximum", above, Decimal(f"-{LARGEST}"), **tl.every_nan)


def _over_exp_of_torch(x: Code) -> Code:
    below = call("torch.exp", Negative(call("torch.clamp", x, -20.0, 0.0)))
    return call("torch.where", Group(x) < -20.0, 1.0 - 0.5 * call("torch.exp", x), _softplus_of_torch(x) * below)


def _over_exp(tl: Library, x: Code) -> Code:
    below = tl("exp", -tl("minimum", tl("maximum", x, -10.0), 0.0))
    return tl("where", Group(x) < -10.0, 1.0 - 0.5 * tl("exp", x), _softplus(tl, x) * below)


SPELLINGS: dict[str, tuple[InTorch, InKernels]] = {
    "exp": (_torch("exp"), _kernels("exp")),
    "exp2": (_torch("exp2"), _kernels("exp2")),
    "log": (_torch("log"), _kernels("log")),
    "log1p": (_torch("log1p"), _log1p),
    "expm1": (_torch("expm1"), _expm1),
    "sigmoid": (_torch("sigmoid"), _kernels("sigmoid")),
    "tanh": (_torch("tanh"), _tanh),
    "logsigmoid": (
        _torch("nn.functional.logsigmoid"),
        lambda tl, x: Group(tl("minimum", x, 0.0) - _log1p_of_small(tl, x)),
    ),
    "sin": (_torch("sin"), _kernels("sin")),
    "cos": (_torch("cos"), _kernels("cos")),
    "softplus": (_softplus_of_torch, _softplus),
    OVER_EXP: (_over_exp_of_torch, _over_exp),
    "erf": (_torch("erf"), _kernels("erf")),
    "asinh": (_torch("asinh"), _asinh),
    "abs": (_torch("abs"), _kernels("abs")),
    "relu": (_torch("relu"), lambda tl, x: tl("maximum", x, 0.0, **tl.every_nan)),
    "sign": (_torch("sign"), lambda tl, x: tl("where", x > 0, 1.0, tl("where", x < 0, -1.0, 0.0))),
    "step": (
        lambda x: call("torch.heaviside", x, call("torch.zeros_like", x)),
        lambda tl, x: tl("where", x > 0, 1.0, 0.0),
    ),
    RECIPROCAL: (
        lambda x: call("torch.where", Method(Group(x), "abs", ()) < 1.2e-38, 0.0, 1.0 / Group(x)),
        _reciprocal,
    ),
    FINITE_EXP: (
        lambda x: Method(call("torch.exp", x), "clamp", (), (("max", Decimal(LARGEST)),)),
        lambda tl, x: tl("minimum", tl("exp", x), Decimal(LARGEST), **tl.every_nan),
    ),
    FINITE: (lambda x: Method(Group(x), "clamp", (Decimal(f"-{LARGEST}"), Decimal(LARGEST))), _finite),
    MAGNITUDE: (_torch("abs"), _kernels("abs")),
    UNIT_OF: (
        lambda x: call("torch.where", x < 0, -1.0, call("torch.ones_like", x)),
        lambda tl, x: tl("where", x < 0, -1.0, 1.0),
    ),
    HELD: (Group, lambda tl, x: Group(x)),
    APART: (Group, lambda tl, x: Group(x)),
}


def spelt(name: str, x: Code, language: str) -> Code:
    """A function of x in a language."""
    in_torch, in_kernels = SPELLINGS[name]
    return in_torch(x) if language == TORCH else in_kernels(Library(language), x)


@lru_cache
def repeats(name: str, language: str) -> bool:
    """Does it have its argument more than once?"""
    x = Name("x")
    return sum(y == x for y in walk_code(spelt(name, x, language))) > 1


@lru_cache
def called(name: str, language: str) -> frozenset[str]:
    """The functions of the language that it is made of."""
    return frozenset(y.function for y in walk_code(spelt(name, Name("x"), language)) if isinstance(y, Call))


# --- the expressions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function(Tree):
    """A function of a number, as `functions.py` has it, in a language."""

    name: str
    value: Code
    language: str = TRITON

    def printed(self) -> Words:
        return spelt(self.name, self.value, self.language).words


@dataclass(frozen=True)
class Power(Tree):
    """A power in a language of kernels, written out where it is one of a few factors, unless it is taken `by_logarithm` to base
    two."""

    value: Code
    exponent: Fraction
    by_logarithm: bool = False
    language: str = TRITON

    @property
    def as_exponential(self) -> bool:
        return self.by_logarithm or self.exponent.denominator > 2 or abs(self.exponent) > 16

    @property
    def factors(self) -> int:
        whole, half = divmod(abs(self.exponent), 1)
        return int(whole) + bool(half)

    @property
    def level(self) -> int:
        if self.as_exponential:
            return ATOM
        return MUL if self.exponent < 0 or self.factors > 1 else ATOM

    def printed(self) -> Words:
        library = Library(self.language)
        if self.as_exponential:
            exp, log = ("exp2", "log2") if self.by_logarithm else ("exp", "log")
            return library(exp, float(self.exponent) * library(log, self.value)).words
        whole, half = divmod(abs(self.exponent), 1)
        factors = [self.value.words_at(ATOM)] * int(whole)
        factors += [library("sqrt", self.value).words] if half else []
        product = listed(factors, " * ")
        if self.exponent > 0:
            return product
        return ("1.0 / (", *product, ")") if len(factors) > 1 else ("1.0 / ", *product)
