"""Logarithms without loss: of what is near 1 as well as of what is near 0, and never of a difference that rounding has eaten.

Where f is at most 1 and both f and 1 - f are sums of terms that are never negative, log f is log1p(-(1 - f)) if f is far from 0,
the logarithm of its terms if it is far from 1, and logsigmoid(log f - log(1 - f)) otherwise. Of a decay, where f or 1 - f has a
factor that may be 0 in floats, it is log f below 1/2, and log1p(-(1 - f)) above.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from ..ir.step_program import DECAYS
from .expr import (
    ONE,
    ZERO,
    Node,
    add,
    const,
    expand,
    factors_of,
    fn,
    maximum,
    minimum,
    mul,
    number,
    power,
    replace,
    split_constant,
    terms_of,
    walk,
)
from .functions import UNIT_OF
from .positive_terms import Polynomials, Terms, log_above_zero, log_share
from .ranges import LEAST, Range, Ranges, extremes, plus

SIDES: dict[str, tuple[Callable[[Node], Node], Callable[[Node], Node]]] = {  # functions, above 0 and below
    "abs": (lambda y: y, lambda y: mul(-1, y)),
    "sign": (lambda y: ONE, lambda y: const(-1)),
    "step": (lambda y: ONE, lambda y: ZERO),
    "relu": (lambda y: y, lambda y: ZERO),
}
FAR = Fraction(1, 16)  # from 0 or from 1: a float's logarithm is as good as the float


class Logarithms:
    """The logarithms of expressions that are seen to be positive.

    `near_one`: with all digits of a logarithm near 0 as well. Where a power of the expression is made of it, its absolute error
    counts alone, and a shorter form will do. `floats`, the ranges of what floats hold, for decays: gradients come as those of
    logarithms, so there is none whose slope is infinite, or nearly so.
    """

    def __init__(self, ranges: Ranges, near_one: bool = True, floats: Ranges | None = None) -> None:
        self.ranges, self.near_one, self.floats = ranges, near_one, floats
        self.polynomials = Polynomials(ranges, near_one)

    def log(self, x: Node) -> Node | None:
        """log x; None where x isn't seen to be above 0 whatever the inputs are."""
        if x.op == "leaf" and self.ranges(x).low > 0:
            return fn("log", x)
        whole = x.op == "expand" or (x.op == "pow" and (x.attrs[0].denominator != 1 or x.attrs[0] < 0))
        found = self._extreme(x) or self.share(x)
        if found is None and not whole:
            found = self._by_terms(x)
        if found is None:
            found = self._by_parts(x)
        return None if found is None else expand(found, x.axes)

    def product(self, x: Node) -> Node | None:
        """x as a product of powers of what is known without loss, if it is one."""
        t = self.polynomials.terms(x)
        if t is None or not t.positive or len(t.terms) != 1:
            return None
        (exponents,) = t.terms
        if not all(t.part(f).node.op == "fn" for f, _ in exponents):
            return None
        return expand(t.node(), x.axes)

    def at_most_one(self, x: Node) -> bool:
        return self.ranges(x).high <= 1 or self.polynomials.complement(x) is not None or self.share(x) is not None

    def _extreme(self, x: Node) -> Node | None:
        """The logarithm of a maximum or a minimum is that of the logarithms, also where it is a factor."""
        c, core = split_constant(x)
        if core.op == "mul" and c > 0 and any(a.op == "max" for a in core.args):
            factors = [self.log(a) for a in x.args]
            return None if any(y is None for y in factors) else add(*factors)
        if core.op != "max":
            return None
        logs = [self.log(mul(c, a)) for a in core.args]
        if any(y is None for y in logs):
            return None
        return maximum(*logs) if c > 0 else minimum(*logs)

    def share(self, x: Node) -> Node | None:
        """log(u / (u + v)), where v is seen to be no less than 0: of logarithms of u and v that lose nothing, or -log1p(v / u)
        where u is apart from 0."""
        for f in x.args if x.op == "mul" else ():
            if f.op == "pow" and f.attrs[0] == -1 and f.args[0].op == "add":
                above = mul(*(g for g in x.args if g is not f))
                more = one_sided(add(f.args[0], mul(-1, above)))
                if lossless(above) and (lossless(more) or self.ranges(more).low > 0):
                    up, down = self.log(above), self.log(more)
                    if up is not None and down is not None:
                        return log_share(up, down)
                if self.ranges(above).low > 0 and self.ranges(more).nonnegative:
                    return mul(-1, fn("log1p", mul(more, power(above, -1))))
        return None

    def _by_parts(self, x: Node) -> Node | None:
        match x.op:
            case "expand":
                return self.log(x.args[0])
            case "pow":
                base = self.log(x.args[0])
                return None if base is None else mul(x.attrs[0], base)
            case "mul":
                logs = [self.log(a) for a in x.args]
                return None if any(y is None for y in logs) else add(*(y for y in logs if y is not None))
            case "add":
                for one, other, largest in extremes(x):
                    a, b = self.log(one), self.log(other)
                    if a is not None and b is not None:
                        return maximum(a, b) if largest else minimum(a, b)
        return log_above_zero(x) if self.ranges(x).positive and self._gentle(x) else None

    def _gentle(self, x: Node) -> bool:
        """Will the slope of the logarithm do for a decay?"""
        return self.floats is None or self.polynomials.gentle(x)

    def _by_terms(self, x: Node) -> Node | None:
        t = self.polynomials.terms(x)
        if t is None or not t.positive or not self._gentle(x):
            return None
        if len(t.terms) == 1 or not self.near_one:
            return _log_of_terms(t)
        c = self.polynomials.complement(x)
        if c is None:
            return _log_of_terms(t)
        if not c.terms:
            return ZERO
        if t.low >= FAR:
            return fn("log1p", mul(-1, c.node()))
        if t.high <= 1 - FAR:
            return _log_of_terms(t)
        share = log_share(_log_of_terms(t), _log_of_terms(c))
        return _by_halves(t, c.node()) if self.endless(share) else share

    def endless(self, log: Node) -> bool:
        """Has the logarithm of a decay an infinite slope at values that floats take? A quotient of its gradient is none there."""
        logs = (x for x in walk(log) if x.op == "fn" and x.attrs[0] in LEAST)
        return self.floats is not None and not all(self._apart(x.args[0], LEAST[x.attrs[0]], self.floats) for x in logs)

    def _apart(self, argument: Node, least: int, floats: Ranges) -> bool:
        """Is the argument of a logarithm apart from where it has no value, as intervals or a sum of positive terms show?"""
        if plus(floats(argument), Range(Fraction(-least), Fraction(-least), False, False)).positive:
            return True
        terms = self.polynomials.terms(add(argument, -least))
        return terms is not None and terms.low > 0


def _by_halves(t: Terms, rest: Node) -> Node:
    """log f of f = 1 - rest, the sum of t: of f where it is below 1/2, and log1p(-rest) elsewhere, which is kept from infinity
    where it doesn't count. Both slopes are f'/f: none is lost or comes twice where rounding says of f and of the rest that they
    are below 1/2."""
    f, half = t.node(), const(Fraction(1, 2))
    side = fn(UNIT_OF, add(f, mul(-1, half)))  # -1 below, 1 above
    below, above = (mul(half, add(1, mul(sign, side))) for sign in (-1, 1))
    near_one = fn("log1p", mul(-1, minimum(rest, const(Fraction(3, 4)))))
    return add(mul(below, fn("log", f) if t.low > 0 else log_above_zero(f)), mul(above, near_one))


def one_sided(x: Node) -> Node:
    """A sum, in which a size and its number are one: |y| + y is 2 relu(y), and |y| - relu(y) is relu(-y)."""
    terms = list(terms_of(x))
    for t in terms:
        for f in factors_of(t):
            if f.op != "fn" or f.attrs[0] != "abs":
                continue
            rest, (y,) = mul(*(g for g in factors_of(t) if g is not f)), f.args
            for sign in (1, -1):
                positive, negative = fn("relu", mul(sign, y)), fn("relu", mul(-sign, y))
                for other, made in (
                    (mul(sign, rest, y), mul(2, rest, positive)),
                    (mul(-1, rest, positive), mul(rest, negative)),
                ):
                    if other in terms:
                        left = [z for z in terms if z is not t and z is not other]
                        return one_sided(add(*left, made))
    return x


def same_on_both_sides(x: Node) -> Node:
    """A sum that is one expression for y > 0 and for y < 0, without the sizes and signs of y in it."""
    for y in dict.fromkeys(f.args[0] for f in walk(x) if f.op == "fn" and f.attrs[0] in SIDES):
        above, below = (replace(x, {fn(n, y): sides[k](y) for n, sides in SIDES.items()}) for k in (0, 1))
        above, below = (add(*map(_multiplied_out, terms_of(z))) for z in (above, below))
        if above is below:
            return expand(above, x.axes)
    return x


def _multiplied_out(x: Node) -> Node:
    sums = [f for f in factors_of(x) if f.op == "add"]
    if len(sums) != 1:
        return x
    return add(*(mul(*(f for f in factors_of(x) if f is not sums[0]), t) for t in sums[0].args))


def _log_of_terms(t: Terms) -> Node:
    """The logarithm of a sum of terms: shared factors outside, and the rest as exponents where each has a finite one."""
    shared, rest = t.shared()
    outside = add(*(mul(n, t.part(f).log) for f, n in shared))
    if len(rest) == 1:
        (c,) = rest.values()
        return add(outside, log_of(c))
    endless = any(t.quantities[f[0]].beyond is None for e in rest for f, _ in e)
    steady = all(t.part(f).steady for e in rest for f, _ in e)
    if (start := rest.get(())) is not None and not (endless and steady):
        more = {e: c / start for e, c in rest.items() if e}
        return add(outside, log_of(start), fn("log1p", t.node(more)))
    if not steady:
        return add(outside, log_above_zero(t.node(rest)))
    logs = [add(log_of(c), *(mul(n, t.part(f).log) for f, n in e)) for e, c in rest.items()]
    total = logs[0]
    for y in logs[1:]:
        total = add(total, mul(-1, fn("logsigmoid", add(total, mul(-1, y)))))
    return add(outside, total)


def log_of(c: Fraction) -> Node:
    return ZERO if c == 1 else number(f"log({c})")


def lossless(x: Node) -> bool:
    """Is the logarithm of x what it is made of, so that no other form of x is needed?"""
    match x.op:
        case "leaf":
            return x.attrs[0] in DECAYS
        case "const":
            return x.attrs[0] > 0
        case "mul":
            return all(map(lossless, x.args))
        case "pow" | "expand":
            return lossless(x.args[0])
        case "fn":
            return x.attrs[0] in ("exp", "sigmoid")
        case "add":
            rest = add(ONE, mul(-1, x))
            return rest.op == "fn" and rest.attrs[0] == "sigmoid"
    return False
