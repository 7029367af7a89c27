"""Products and quotients in which one factor overflows while another vanishes, as one exponential: `exp(x) sigmoid(-2 x)` is
`exp(x + logsigmoid(-2 x))`, and `g^4 sigmoid(-g)` is `(g / s)^4 exp(logsigmoid(-g) + 4 log s)` with s = max(1, |g|).

A sum is taken over the largest of its terms: with m = max(0, x, 2 x), `p exp(x) / (1 + q exp(x) + exp(2 x))` is
`p exp(x - m) / (exp(-m) + q exp(x - m) + exp(2 x - m))`, whatever p and q are. Where these may overflow as well, what is left of
the exponents, less m, and the logarithms of p and q are over the largest of their sums: exponents of any size cancel before
anything is added to them. s and m are held where gradients are taken: whatever they are, the value is the same, and so is its
slope. The gate `decays` compares each with what it takes the place of.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations
from math import inf

from ...ir.expr import (
    ONE,
    ZERO,
    Node,
    add,
    factors_of,
    fn,
    leaf_names,
    maximum,
    mul,
    power,
    rebuild,
    terms_of,
    walk,
)
from ...ir.functions import APART, HELD, OVER_EXP
from ...ir.ranges import Ranges
from .growth import Growth, Growths, is_scaled

OVERFLOWS = 2  # the power of an input that has no float where the input has one

Factor = tuple[Node, Fraction]  # what a product is of a power of


@dataclass
class Parts:
    """What a product is: exp of a sum of exponents, and of a sum of logarithms of sizes, times the `rest`."""

    exponents: list[Node] = field(default_factory=list)
    sizes: list[Node] = field(default_factory=list)
    rest: list[Node] = field(default_factory=list)

    def take(self, n: Fraction, exponent: Node, size: Node, rest: Node) -> None:
        """A power of a part."""
        self.exponents.append(mul(n, exponent))
        self.sizes.append(mul(n, size))
        self.rest.append(power(rest, n))

    def exponent(self, *less: Node) -> Node:
        """The sum of all that is an exponent, which is made before anything is added to it."""
        of = add(*self.exponents, *(mul(-1, x) for x in less))
        sizes = add(*self.sizes)
        return of if sizes is ZERO else add(fn(APART, of) if of.op == "add" else of, sizes)


class Shifted:
    """Rewrites products. `whole`: what stands for what lies inside them. `normed`: what is inside norms, where nothing but
    exponentials counts as overflowing."""

    def __init__(self, ranges: Ranges, whole: Mapping[Node, Node], normed: Container[Node] = ()) -> None:
        self.growths, self.whole, self.normed = Growths(ranges), whole, normed

    def __call__(self, x: Node, exponential: bool = True) -> Node | None:
        """The product as one exponential times what doesn't overflow with it; None where nothing overflows that may have a
        finite product, or where that isn't an exponential."""
        if x.op not in ("mul", "pow") or any(y.op in ("sum", "peak") for y in walk(x)):
            return None
        factors = _powers(x, self.growths.ranges)
        growths = [self._growth(f) for f in factors]
        endless = any(inf in (g.up, g.down) or self._is_endless(f) for f, g in zip(factors, growths, strict=True))
        if not any(map(self._overflows, walk(x))) and (x in self.normed or any(map(self._inside_overflows, walk(x)))):
            return None
        touched = self._touched(factors, growths) if endless or not exponential else set()
        if not touched:
            return None
        far = sum(growths[n].degree for n in touched) >= OVERFLOWS
        parts = self._parts([factors[n] for n in sorted(touched)], far)
        apart = (power(self._inside(base), m) for n, (base, m) in enumerate(factors) if n not in touched)
        return mul(fn("exp", parts.exponent()), *parts.rest, *apart)

    def logarithm(self, x: Node) -> Node | None:
        """The logarithm of a sum with an exponential that may overflow: that of the largest, and that of the sum over it."""
        if x.op != "fn" or x.attrs[0] not in ("log", "log1p") or any(y.op in ("sum", "peak") for y in walk(x)):
            return None
        inside = x.args[0] if x.attrs[0] == "log" else add(1, x.args[0])
        if inside.op != "add" or not any(map(self._overflows, walk(inside))) or any(map(is_scaled, walk(inside))):
            return None
        exponent, size, scaled = self._sum(inside, Fraction(1), False)
        largest = add(exponent, size)
        if ONE not in inside.args:
            return add(largest, fn("log", scaled))
        less = mul(-1, largest)
        return add(largest, fn("log1p", add(scaled, mul(-1, fn("exp", less)), fn("expm1", less))))

    def _overflows(self, x: Node) -> bool:
        """Is it an exponential that may overflow?"""
        return x.op == "fn" and x.attrs[0] == "exp" and self.growths(x).up == inf

    def _inside_overflows(self, x: Node) -> bool:
        """Is it a function of a power that overflows, so that nothing is known of its size?"""
        return x.op == "fn" and OVERFLOWS <= self.growths(x).up < inf

    def _growth(self, f: Factor) -> Growth:
        return self.growths(f[0]).raised(float(f[1]))

    def _is_endless(self, f: Factor) -> bool:
        """Is it of a sum, or a maximum, with an exponential that may overflow, or a term that vanishes while it may overflow?"""
        return f[0].op in ("add", "max") and (
            self.growths(f[0]).up == inf or any(map(self._grows_and_vanishes, f[0].args))
        )

    def _grows_and_vanishes(self, x: Node) -> bool:
        """Does one factor grow while another one vanishes?"""
        found = [self._growth(f) for f in _powers(x, self.growths.ranges)]
        return any(a.down == inf and b.up for a, b in permutations(found, 2))

    def _alone(self, f: Factor) -> bool:
        """Is it of a sum below a line, or in a root, so that its slope is a product of what overflows and what vanishes?"""
        base, n = f
        below = base.op in ("add", "max") and (n < 0 or n.denominator > 1)
        return below and max(self._growth(f).up, self._growth(f).down) >= OVERFLOWS

    def _touched(self, factors: list[Factor], growths: list[Growth]) -> set[int]:
        """The factors of which one may overflow while another vanishes, both as one input gets large, or exponentials as several
        do; and all that is made of these inputs."""
        names = [leaf_names(base) for base, _ in factors]
        found = {n for n, f in enumerate(factors) if self._alone(f)}
        for n, vanishing in enumerate(growths):
            others = [m for m in range(len(factors)) if m != n and growths[m].up]
            same = [m for m in others if names[m] & names[n]]
            if vanishing.down and sum(growths[m].up for m in same) >= OVERFLOWS:
                found |= {n, *same}
            if vanishing.down == inf and not _is_softplus(factors[n][0]):
                found |= {k for m in others if growths[m].up == inf for k in (m, n)}
        made_of = frozenset().union(*(names[n] for n in found))
        logarithms = {
            n for n, (y, _) in enumerate(factors) if found and _logarithm(y) is not None and not _is_softplus(y)
        }
        changing = {n for n, g in enumerate(growths) if (g.up or g.down) and names[n] & made_of}
        return found | logarithms | changing

    def _parts(self, factors: Iterable[Factor], far: bool) -> Parts:
        """far: powers that are no exponentials overflow as well."""
        parts = Parts()
        for base, n in factors:
            log, growth = _logarithm(base), self.growths(base)
            sized = far and 0 < growth.up < OVERFLOWS  # what has no float itself has no size
            if log is not None:
                parts.take(n, self._inside(log), ZERO, ONE)
            elif self._divides(base) and (inf in (growth.up, growth.down) or (far and growth.up)):
                parts.take(n, *self._sum(base, n, far))
            elif _is_softplus(base) and growth.down:
                y = self._inside(base.args[0])
                least = mul(-1, fn("relu", mul(-1, y)))  # its slope at 0 is 0, as that of OVER_EXP is without it
                parts.take(n, least, *self._sized(fn(OVER_EXP, y), sized, True))
            else:
                positive = self.growths.ranges(base).nonnegative
                parts.take(n, ZERO, *self._sized(self._inside(base), sized, positive))
        return parts

    def _divides(self, x: Node) -> bool:
        """Is its size that of the largest of its terms? In a maximum, what may be below 0 counts only where it is above."""
        if x.op != "max":
            return x.op == "add"
        below = [a for a in x.args if not self.growths.ranges(a).nonnegative]
        return len(below) < len(x.args) and all(self.growths(a).up < OVERFLOWS for a in below)

    def _sized(self, x: Node, far: bool, positive: bool) -> tuple[Node, Node]:
        """The logarithm of a size, and x over that."""
        if not far:
            return ZERO, x
        size = fn(HELD, maximum(1, x if positive else fn("abs", x)))
        return fn("log", size), fn(APART, mul(x, power(size, -1)))

    def _inside(self, x: Node) -> Node:
        """What stands for x, of which what is inside is known."""
        if x in self.whole:
            return self.whole[x]
        return rebuild(x, map(self._inside, x.args)) if x.args else x

    def _sum(self, x: Node, n: Fraction, far: bool) -> tuple[Node, Node, Node]:
        """The largest exponent of a sum, or of a maximum, the logarithm of the largest size, and the sum over both."""
        far = far or self.growths(x).degree * max(1.0, float(abs(n))) >= OVERFLOWS
        found = [self._term(t, x, far) for t in (terms_of(x) if x.op == "add" else x.args)]
        largest = fn(HELD, maximum(*(add(*t.exponents) for t in found)))
        left = [t.exponent(largest) for t in found]
        size = ZERO
        if any(add(*t.sizes) is not ZERO for t in found):
            size = fn(HELD, maximum(*left))
        scaled = [mul(*t.rest, fn("exp", add(y, mul(-1, size)))) for t, y in zip(found, left, strict=True)]
        return largest, size, add(*scaled) if x.op == "add" else maximum(*scaled)

    def _term(self, t: Node, whole: Node, far: bool) -> Parts:
        """The parts of a term of a sum, or of a maximum, in which what is below 0 has no size."""
        growth, parts = self.growths(t), Parts()
        if whole.op == "max" and not self.growths.ranges(t).nonnegative:
            parts.take(Fraction(1), ZERO, *self._sized(self._inside(t), far and growth.up > 0, True))
        elif growth.up == inf or (far and growth.up) or (growth.down and self.growths(whole).down):
            return self._parts(_powers(t, self.growths.ranges), far)
        else:
            parts.rest.append(self._inside(t))
        return parts


def _powers(x: Node, ranges: Ranges) -> list[Factor]:
    """What a product is of powers of, and which these are. The root of a product is one of roots, where no factor is ever 0."""
    out = []
    for f in factors_of(x):
        base, n = (f.args[0], f.attrs[0]) if f.op == "pow" else (f, Fraction(1))
        if base.op == "mul" and (n.denominator == 1 or all(ranges(y).positive for y in base.args)):
            out += [(y, n * m) for y, m in _powers(base, ranges)]
        else:
            out.append((base, n))
    return out


def _is_softplus(x: Node) -> bool:
    return x.op == "fn" and x.attrs[0] == "softplus"


def _logarithm(x: Node) -> Node | None:
    """Of an exponential, or of a sigmoid."""
    if x.op == "fn" and x.attrs[0] == "sigmoid":
        return fn("logsigmoid", x.args[0])
    return x.args[0] if x.op == "fn" and x.attrs[0] == "exp" else None
