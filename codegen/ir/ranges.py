"""Which values an expression can take: an interval for each, found from its parts, whatever the inputs are.

Bounds are exact fractions, or infinite; a bound that is never reached is open. What terms have in common is not seen here
(`positive_terms.py` does that for polynomials): an interval is never too small, and may be too large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import product
from math import inf
from typing import Any

import mpmath
import sympy

from ..ir.step_program import DECAYS
from .expr import Node, add, expand, factors_of, mul, rename, split_constant
from .functions import HELD, MAGNITUDE, OVER_EXP, SAME, TABLE, UNIT_OF

Bound = Any  # a Fraction, or an infinite float
INCREASING = frozenset("exp log log1p expm1 sigmoid logsigmoid tanh softplus erf asinh relu step sign".split())
FLAT = frozenset("relu step sign".split())  # of these, whose bounds are reached inside
LIMITS: dict[str, dict[Bound, Bound]] = {
    "exp": {-inf: 0, 0: 1, inf: inf},
    "log": {0: -inf, 1: 0, inf: inf},
    "log1p": {-1: -inf, 0: 0, inf: inf},
    "expm1": {-inf: -1, 0: 0, inf: inf},
    "sigmoid": {-inf: 0, 0: Fraction(1, 2), inf: 1},
    "logsigmoid": {-inf: -inf, inf: 0},
    "tanh": {-inf: -1, 0: 0, inf: 1},
    "erf": {-inf: -1, 0: 0, inf: 1},
    "softplus": {-inf: 0, inf: inf},
    "asinh": {-inf: -inf, 0: 0, inf: inf},
    "relu": {-inf: 0, inf: inf},
    "step": {-inf: 0, inf: 1},
    "sign": {-inf: -1, inf: 1},
}
LEAST = {"log": 0, "log1p": -1}  # below which a function has no value; there its slope is infinite
ROUNDED = frozenset("exp sigmoid tanh erf".split())  # whose bounds floats round to, but for 0
_DIGITS, _SLACK = 40, Fraction(1, 10**30)
MOST_TERMS = 8  # of a sum in which factors are looked at
FARTHEST = 10**4  # bounds of functions aren't looked at beyond


@dataclass(frozen=True)
class Range:
    """The interval from `low` to `high`. A bound that is open isn't reached; infinite ones never are."""

    low: Bound = -inf
    high: Bound = inf
    low_open: bool = True
    high_open: bool = True

    @property
    def positive(self) -> bool:
        return self.low > 0 or (self.low == 0 and self.low_open)

    @property
    def negative(self) -> bool:
        return self.high < 0 or (self.high == 0 and self.high_open)

    @property
    def nonnegative(self) -> bool:
        return self.low >= 0

    @property
    def bounded(self) -> bool:
        return self.low > -inf and self.high < inf

    def __neg__(self) -> Range:
        return Range(-self.high, -self.low, self.high_open, self.low_open)

    def within(self, other: Range) -> Range:
        """What is in both."""
        low, low_open = max((self.low, self.low_open), (other.low, other.low_open))
        high, closed = min((self.high, not self.high_open), (other.high, not other.high_open))
        return Range(low, high, low_open, not closed)


REAL, POSITIVE = Range(), Range(Fraction(0))
DECAY = Range(Fraction(0), Fraction(1), True, False)
UNIT = Range(Fraction(0), Fraction(1))
AT_MOST_ZERO = Range(-inf, Fraction(0), True, False)


class Ranges:
    """The ranges of expressions. `known` gives that of a leaf, where more is known of it than its kind; `rounded`: functions take
    the values that floats round to."""

    def __init__(self, known: Callable[[Node], Range | None] = lambda x: None, rounded: bool = False) -> None:
        self.known, self.rounded = known, rounded
        self.memo: dict[Node, Range] = {}

    def __call__(self, x: Node) -> Range:
        if x not in self.memo:
            self.memo[x] = self._of(x)
        return self.memo[x]

    def _of(self, x: Node) -> Range:
        match x.op:
            case "leaf":
                kind = DECAY if x.attrs[0] in DECAYS else REAL
                return self.known(x) or kind
            case "const":
                return _point(x.attrs[0])
            case "number":
                value = Fraction(str(sympy.N(sympy.sympify(x.attrs[0]), _DIGITS)))
                return Range(value - _slack(value), value + _slack(value))
            case "size":
                return Range(Fraction(1), inf, False)
            case "eye":
                return Range(Fraction(0), Fraction(1), False, False)
            case "add":
                return self._sum(x)
            case "mul":
                out = _point(Fraction(1))
                for a in x.args:
                    out = times(out, self(a))
                c, core = split_constant(x)
                return out.within(times(_point(c), UNIT_SHARE)) if self.is_share(core) else out
            case "max":
                return reduce(larger, map(self, x.args))
            case "pow":
                return raised(self(x.args[0]), x.attrs[0])
            case "sum":
                return _summed(self(x.args[0]))
            case "expand" | "peak":
                return self(x.args[0])
            case "fn":
                found = applied(x.attrs[0], self(x.args[0]))
                return _closed(found) if self.rounded and x.attrs[0] in ROUNDED else found
        return REAL

    def _sum(self, x: Node) -> Range:
        out = _point(Fraction(0))
        for a in x.args:
            out = plus(out, self(a))
        for one, other, largest in extremes(x):
            first, second = self(one), self(other)
            out = out.within(larger(first, second) if largest else -larger(-first, -second))
        if _less_than_largest(x):
            out = out.within(AT_MOST_ZERO)
        return out if (found := self._between(x)) is None else out.within(found)

    def _between(self, x: Node) -> Range | None:
        """Of a sum that is affine in a bounded factor, such as b in a - a b, where its terms have factors in common: it is
        between what it is at both of the factor's bounds. What else is made of that factor counts as another quantity, so the
        range is never too small."""
        if len(x.args) > MOST_TERMS:
            return None
        counts = Counter(f for t in x.args for f in factors_of(t) if f.op != "const")
        shared = [t for t in x.args if any(counts[f] > 1 for f in factors_of(t))]
        for q in sorted({f for t in shared for f in factors_of(t) if f in counts}):
            own = self(q)
            if not own.bounded or own.low == own.high:
                continue
            low, high = (self(_at_bound(x, q, bound)) for bound in (own.low, own.high))
            return _hull(low, high, own)
        return None

    def is_share(self, x: Node) -> bool:
        """Is it one of several positive numbers, over their sum, as a softmax is?"""
        for f in x.args if x.op == "mul" else ():
            if f.op == "pow" and f.attrs[0] == -1 and f.args[0].op == "sum":
                (bound,), body = f.args[0].attrs, f.args[0].args[0]
                one = mul(*(g for g in x.args if g is not f))
                for axis in set(one.axes) - set(f.axes):
                    if rename(body, {bound: axis}) is one and self(body).positive:
                        return True
        return False


UNIT_SHARE = Range(Fraction(0), Fraction(1), True, False)


def extremes(x: Node) -> list[tuple[Node, Node, bool]]:
    """The ways to see a sum as max(a, b) = b + relu(a - b) or as min(a, b) = b - relu(b - a): (a, b, is it the maximum)."""
    out = []
    for a in x.args:
        sign, core = (-1, mul(-1, a)) if a.op == "mul" else (1, a)
        if core.op == "fn" and core.attrs[0] == "relu":
            rest = add(*(y for y in x.args if y is not a))
            out.append((add(rest, mul(sign, core.args[0])), rest, sign > 0))
    return out


def _less_than_largest(x: Node) -> bool:
    """Is a sum one of several quantities less the largest of them, which is held?"""
    for a in x.args:
        c, core = split_constant(a)
        if c == -1 and core.op == "fn" and core.attrs[0] == HELD:
            rest, (largest,) = add(*(y for y in x.args if y is not a)), core.args
            if rest is largest or (largest.op == "max" and rest in largest.args):
                return True
    return False


def _at_bound(x: Node, q: Node, value: Bound) -> Node:
    """A sum with a number in the place of a factor of its terms."""
    return expand(add(*(mul(*(value if f is q else f for f in factors_of(t))) for t in x.args)), x.axes)


def _hull(a: Range, b: Range, between: Range) -> Range:
    """The interval around what lies between numbers of two. What isn't at one of the ends is beyond a bound that both share, if
    one of them doesn't reach it."""

    def is_open(first: Bound, second: Bound, first_open: bool, second_open: bool, least: Bound) -> bool:
        at_first = first == least and not first_open
        at_second = second == least and not second_open
        return not (
            (at_first and not between.low_open) or (at_second and not between.high_open) or (at_first and at_second)
        )

    low, high = min(a.low, b.low), max(a.high, b.high)
    low_open = low == -inf or is_open(a.low, b.low, a.low_open, b.low_open, low)
    high_open = high == inf or is_open(a.high, b.high, a.high_open, b.high_open, high)
    return Range(low, high, low_open, high_open)


def plus(a: Range, b: Range) -> Range:
    return Range(a.low + b.low, a.high + b.high, a.low_open or b.low_open, a.high_open or b.high_open)


def times(a: Range, b: Range) -> Range:
    ends = [_product(x, y) for x, y in product(_ends(a), _ends(b))]
    low, low_open = min(ends)
    high, closed = max((v, not is_open) for v, is_open in ends)
    return Range(low, high, low_open, not closed)


def larger(a: Range, b: Range) -> Range:
    """Of the larger of two."""
    low, low_open = max((a.low, a.low_open), (b.low, b.low_open))
    high, closed = max((a.high, not a.high_open), (b.high, not b.high_open))
    return Range(low, high, low_open, not closed)


def raised(a: Range, n: Fraction) -> Range:
    """Of a power."""
    if n < 0:
        inner = raised(a, -n)
        if not inner.positive and not inner.negative:
            return POSITIVE if inner.nonnegative else REAL
        if inner.negative:
            return -raised(-inner, Fraction(-1))
        return Range(_inverse(inner.high), _inverse(inner.low), inner.high_open, inner.low_open)
    if n.denominator != 1:
        if a.high < 0:
            return REAL  # it has no value
        a = a.within(Range(Fraction(0), inf, False))  # elsewhere it has no value
        return Range(_root(a.low, n, down=True), _root(a.high, n, down=False), a.low_open, a.high_open)
    if n.numerator % 2:
        return Range(a.low**n.numerator, a.high**n.numerator, a.low_open, a.high_open)
    a = applied("abs", a)
    return Range(a.low**n.numerator, a.high**n.numerator, a.low_open, a.high_open)


def applied(name: str, a: Range) -> Range:
    """Of a function of the table."""
    if name == UNIT_OF:
        return Range(Fraction(-1), Fraction(1), False, False)
    if name in ("abs", MAGNITUDE):
        if a.nonnegative:
            return a
        if a.high <= 0:
            return -a
        high, closed = max((a.high, not a.high_open), (-a.low, not a.low_open))
        return Range(Fraction(0), high, False, not closed)
    if name in SAME:
        return a
    if name == OVER_EXP:
        return Range(Fraction(1, 2))
    if name in ("sin", "cos"):
        return Range(Fraction(-1), Fraction(1), False, False)
    if name not in INCREASING:
        return REAL
    least = LEAST.get(name)
    if least is not None and a.high <= least:
        return REAL  # it has no value
    if least is not None:
        a = a.within(Range(Fraction(least)))
    low, high = _at(name, a.low, down=True), _at(name, a.high, down=False)
    flat = name in FLAT
    return Range(low, high, (a.low_open and not flat) or low == -inf, (a.high_open and not flat) or high == inf)


def _at(name: str, x: Bound, down: bool) -> Bound:
    """A bound's value, rounded away from the interval."""
    if x in LIMITS[name]:
        value = LIMITS[name][x]
        return value if value in (inf, -inf) else Fraction(value)
    if abs(x) > FARTHEST:  # any bound will do
        x = x.__class__(FARTHEST if x > 0 else -FARTHEST)
        if down != (x > 0):
            return _at(name, inf if x > 0 else -inf, down)
    with mpmath.workdps(_DIGITS):
        value = _fraction(TABLE[name].mpmath(mpmath.mpf(x.numerator) / x.denominator))
    return value if name in FLAT else value + _slack(value) * (-1 if down else 1)


def _root(x: Bound, n: Fraction, down: bool) -> Bound:
    if x in (0, 1, inf):
        return x
    with mpmath.workdps(_DIGITS):
        value = _fraction(
            mpmath.power(mpmath.mpf(x.numerator) / x.denominator, mpmath.mpf(n.numerator) / n.denominator)
        )
    return value + _slack(value) * (-1 if down else 1)


def _fraction(x: Any) -> Fraction:
    sign, mantissa, exponent, _ = mpmath.mpf(x)._mpf_
    return Fraction(-mantissa if sign else mantissa) * Fraction(2) ** exponent


def _slack(x: Fraction) -> Fraction:
    return abs(x) * _SLACK


def _summed(a: Range) -> Range:
    """Of a sum over an axis, of one number or more."""
    low = a.low if a.low >= 0 else -inf
    high = a.high if a.high <= 0 else inf
    return Range(low, high, a.low_open, a.high_open)


def _closed(a: Range) -> Range:
    """With its bounds, where these are finite and not 0."""
    return Range(a.low, a.high, a.low in (-inf, 0) and a.low_open, a.high in (0, inf) and a.high_open)


def _point(x: Fraction) -> Range:
    return Range(x, x, False, False)


def _ends(a: Range) -> list[tuple[Bound, bool]]:
    return [(a.low, a.low_open), (a.high, a.high_open)]


def _product(x: tuple[Bound, bool], y: tuple[Bound, bool]) -> tuple[Bound, bool]:
    (a, a_open), (b, b_open) = x, y
    if a == 0 or b == 0:
        reached = (a == 0 and not a_open) or (b == 0 and not b_open)
        return Fraction(0), not reached
    return a * b, a_open or b_open


def _inverse(x: Bound) -> Bound:
    return inf if x == 0 else Fraction(0) if x in (inf, -inf) else 1 / x
