"""Products and quotients in which one exponential overflows while another vanishes, as one: `exp(x) sigmoid(-2 x)` is
`exp(x + logsigmoid(-2 x))`.

A sum of exponentials is taken over the largest of them: with m = max(0, x, 2 x), which is held where gradients are taken,
`p exp(x) / (1 + q exp(x) + exp(2 x))` is `p exp(x - m) / (exp(-m) + q exp(x - m) + exp(2 x - m))`, whatever p and q are. Whatever
m is, the value is the same, and so is its slope. The gate `decays` compares each with what it takes the place of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import inf

from ...ir.expr import ONE, Node, add, factors_of, fn, maximum, mul, power, rebuild, terms_of, walk
from ...ir.functions import HELD
from ...ir.ranges import Ranges

Parts = tuple[tuple[Node, ...], Node]  # exponents, and what the exponential of their sum is multiplied by


class Shifted:
    """Rewrites products. `whole`: what stands for what lies inside them."""

    def __init__(self, ranges: Ranges, whole: Mapping[Node, Node]) -> None:
        self.ranges, self.whole = ranges, whole

    def __call__(self, x: Node) -> Node | None:
        """The product as one exponential times what doesn't overflow with it; None where no exponential overflows."""
        if x.op not in ("mul", "pow") or any(y.op in ("sum", "peak") for y in walk(x)):
            return None
        factors = _powers(x)
        grow = {n for n, f in enumerate(factors) if self._grows(*f)}
        vanish = {n for n, f in enumerate(factors) if self._vanishes(*f)}
        if not any(m != n or factors[n][0].op == "add" for n in grow for m in vanish):
            return None
        exponents, rest = self._parts(factors)
        return mul(fn("exp", add(*exponents)), rest)

    def logarithm(self, x: Node) -> Node | None:
        """The logarithm of a sum with an exponential that may overflow: that of the largest, and that of the sum over it."""
        if x.op != "fn" or x.attrs[0] not in ("log", "log1p") or any(y.op in ("sum", "peak") for y in walk(x)):
            return None
        inside = x.args[0] if x.attrs[0] == "log" else add(1, x.args[0])
        if inside.op != "add" or not self._grows(inside, Fraction(1)):
            return None
        largest, scaled = self._sum(inside)
        if ONE not in inside.args:
            return add(largest, fn("log", scaled))
        less = mul(-1, largest)
        return add(largest, fn("log1p", add(scaled, mul(-1, fn("exp", less)), fn("expm1", less))))

    def _grows(self, base: Node, n: Fraction) -> bool:
        """May a power of it, or a term below it, overflow as exponentials do?"""
        if base.op == "add":
            return any(self._exponents(t) for t in base.args)
        exponent = _exponent(base)
        return exponent is not None and self.ranges(mul(n, exponent)).high == inf

    def _vanishes(self, base: Node, n: Fraction) -> bool:
        """May a power of it, or of its slope, be 0 in floats, as that of an exponential or of a sum of them is?"""
        if base.op == "add":
            return (n < 0 or n.denominator > 1) and self._grows(base, n)
        log = _logarithm(base)
        return log is not None and self.ranges(mul(n, log)).low == -inf

    def _exponents(self, term: Node) -> bool:
        """Has a term of a sum an exponential that may overflow?"""
        return any(self._grows(*f) for f in _powers(term))

    def _parts(self, factors: Iterable[tuple[Node, Fraction]]) -> Parts:
        exponents: list[Node] = []
        rest = []
        for base, n in factors:
            log = _logarithm(base)
            if log is not None:
                exponents.append(mul(n, self._inside(log)))
            elif base.op == "add" and self._grows(base, n):
                largest, scaled = self._sum(base)
                exponents.append(mul(n, largest))
                rest.append(power(scaled, n))
            else:
                rest.append(power(self._inside(base), n))
        return tuple(exponents), mul(*rest)

    def _inside(self, x: Node) -> Node:
        """What stands for x, of which what is inside is known."""
        if x in self.whole:
            return self.whole[x]
        return rebuild(x, map(self._inside, x.args)) if x.args else x

    def _sum(self, x: Node) -> tuple[Node, Node]:
        """The logarithm of the largest exponential of a sum, and the sum over that."""
        found = []
        for t in terms_of(x):
            exponents, rest = self._parts(_powers(t)) if self._exponents(t) else ((), self._inside(t))
            found.append((add(*exponents), rest))
        largest = fn(HELD, maximum(*(y for y, _ in found)))
        return largest, add(*(mul(rest, fn("exp", add(y, mul(-1, largest)))) for y, rest in found))


def _powers(x: Node) -> list[tuple[Node, Fraction]]:
    """What a product is of powers of, and which these are."""
    return [(f.args[0], f.attrs[0]) if f.op == "pow" else (f, Fraction(1)) for f in factors_of(x)]


def _exponent(x: Node) -> Node | None:
    return x.args[0] if x.op == "fn" and x.attrs[0] == "exp" else None


def _logarithm(x: Node) -> Node | None:
    """Of an exponential, or of a sigmoid."""
    if x.op == "fn" and x.attrs[0] == "sigmoid":
        return fn("logsigmoid", x.args[0])
    return _exponent(x)
