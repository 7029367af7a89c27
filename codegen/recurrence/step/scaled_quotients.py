"""Quotients and logarithms of sums of powers, over what no power of overflows: with s = max(1, |g|), which has no gradient of its
own, `g^3 / (1 + |g|^3)` is `(g / s)^3 / ((1 / s)^3 + |g / s|^3)`, and `log(1 + g^2)` is `2 log s + log1p(..)`.

Whatever s is, the value is the same, and so is its slope; so s is held where gradients are taken. The gate `decays` compares each
with what it takes the place of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace as with_parts
from fractions import Fraction

from ...ir.expr import (
    ONE,
    Node,
    add,
    const,
    expand,
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
from ...ir.functions import APART, HELD
from ...ir.ranges import Ranges
from ...ir.step_program import StepProgram
from .decays import known_range
from .growth import is_scaled
from .shifted_exponentials import OVERFLOWS, Shifted

TINY = const(Fraction(1, 2**120))  # what a sum is divided by at least, where all that it is of is 0 in floats
Powers = dict[Node, int]  # of what a term is a product of


def scaled_quotients(step: StepProgram) -> tuple[StepProgram, dict[Node, Node]]:
    """The step with such quotients, and which took whose place; the very same step where there are none."""
    ranges = Ranges(lambda x: known_range(step, x))
    states = {("state", s.name) for s in step.states}
    made: dict[Node, Node] = {}
    whole: dict[Node, Node] = {}
    computed = set(walk(*step.updates.values(), *step.outputs.values()))
    roots = (x for x in walk(*computed, *step.names, *step.origins) if x.op == "pow" and x.attrs[0].denominator > 1)
    shifted = Shifted(ranges, whole, set(walk(*(x for x in walk(*roots) if x.op == "sum"))))
    for x in walk(*computed, *step.names, *step.origins):
        if leaf_names(x) & states and x.op == "mul":  # its own factors that depend on no state
            own = mul(*(a for a in x.args if not leaf_names(a) & states))
            found = _found(own, shifted, ranges)
            if found is not None:
                made |= {own: found} if x in computed else {}
                whole[x] = expand(mul(found, *(whole[a] for a in x.args if leaf_names(a) & states)), x.axes)
                continue
        elif not leaf_names(x) & states and (found := _found(x, shifted, ranges)) is not None:
            whole[x] = expand(found, x.axes)
            made |= {x: whole[x]} if x in computed else {}
            continue
        whole[x] = rebuild(x, [whole[a] for a in x.args]) if x.args else x
    if not made:
        return step, {}
    scaled = with_parts(
        step,
        updates={n: whole[x] for n, x in step.updates.items()},
        outputs={n: whole[x] for n, x in step.outputs.items()},
        names={whole[x]: n for x, n in step.names.items()},
        origins={whole[x]: where for x, where in step.origins.items()},
    )
    return scaled, made


def _found(x: Node, shifted: Shifted, ranges: Ranges) -> Node | None:
    return shifted(x) or shifted.logarithm(x) or _scaled(x, ranges) or shifted(x, exponential=False)


def _scaled(x: Node, ranges: Ranges) -> Node | None:
    if x.op in ("mul", "pow"):
        powers = [(f.attrs[0], f) for f in factors_of(x) if f.op == "pow"]
        for n, f in sorted(powers, key=lambda p: p[0] > 0):  # roots last: what they are over scales them
            if n < 0 or n.denominator != 1:
                below = _Sum.of(f.args[0], ranges)
                if below is not None and below.overflows(n):
                    return below.quotient([g for g in factors_of(x) if g is not f], n)
    if x.op == "fn" and x.attrs[0] in ("log", "log1p"):
        inside = x.args[0] if x.attrs[0] == "log" else add(1, x.args[0])
        rest = add(inside, -1)
        if x.attrs[0] == "log" and not any(t.op == "const" for t in terms_of(rest)) and inside.op == "add":
            near = _Sum.of(inside, ranges)
            if near is not None and near.degree == 1:
                return fn("log1p", rest)
        whole = _Sum.of(inside, ranges)
        if whole is not None and whole.degree >= OVERFLOWS:
            return whole.logarithm()
    return None


@dataclass(frozen=True)
class _Sum:
    """A sum of terms c a^n b^m .. none of which is below 0, as a polynomial of its quantities, and the largest of these."""

    terms: tuple[tuple[Node, tuple[tuple[Node, int], ...]], ...]
    degree: int
    scale: Node
    quantities: frozenset[Node]
    ranges: Ranges

    @classmethod
    def of(cls, x: Node, ranges: Ranges) -> _Sum | None:
        if x.op != "add" or any(y.op in ("sum", "peak") or is_scaled(y) for y in walk(x)):
            return None
        if not all(ranges(t).nonnegative for t in x.args):
            return None
        terms = _terms(x, ranges)
        if terms is None:
            return None
        sizes = {sum(p.values()) for _, p in terms}
        quantities = {q for _, p in terms for q in p}
        if max(sizes) > 1 and any(q.op == "fn" and q.attrs[0] == "exp" for q in quantities):
            return None  # a power of an exponential is one, of another size
        bounds = [q if ranges(q).nonnegative else fn("abs", q) for q in sorted(quantities)]
        largest = maximum(1 if min(sizes) < max(sizes) else TINY, *bounds)
        found = tuple((c, tuple(p.items())) for c, p in terms)
        return cls(found, max(sizes), fn(HELD, largest), frozenset(quantities), ranges)

    def overflows(self, n: Fraction) -> bool:
        """Has a power of it, or of its slope, no float where its quantities have one?"""
        least = min(sum(m for _, m in p) for _, p in self.terms)
        exponential = any(q.op == "fn" and q.attrs[0] == "exp" for q in self.quantities)
        powers = self.degree >= OVERFLOWS or -n * self.degree >= OVERFLOWS
        return powers or (n < 0 and (least > 0 or exponential))

    def quotient(self, above: Iterable[Node], n: Fraction) -> Node:
        """This to a power, times other factors."""
        left: Fraction = -n * self.degree  # powers of the scale that factors may take
        made = []
        for f in above:
            found = self._over_scale(f)
            if found is None or (n > 0 and found[0] >= 0):
                made.append(f)
            else:
                left -= found[0]
                made.append(found[1])
        return mul(*made, power(self.scaled(), n), power(self.scale, -left))

    def logarithm(self) -> Node:
        share = power(self.scale, -1)
        free = [c for c, p in self.terms if not p]
        if free == [ONE]:  # (1 / s)^n - 1 is 0 where s is 1, and nothing is lost of the other terms
            rest = add(*(self._term(c, p) for c, p in self.terms if p), fn(APART, add(power(share, self.degree), -1)))
        else:
            rest = add(self.scaled(), -1)
        return add(mul(self.degree, fn("log", self.scale)), fn("log1p", rest))

    def scaled(self) -> Node:
        return add(*(self._term(c, p) for c, p in self.terms))

    def _term(self, c: Node, p: Iterable[tuple[Node, int]]) -> Node:
        p = tuple(p)
        own = [power(self._share(q), m) for q, m in p]
        return mul(c, *own, power(self.scale, sum(m for _, m in p) - self.degree))

    def _share(self, q: Node) -> Node:
        """A quantity over the scale."""
        if q.op == "fn" and q.attrs[0] == "abs":
            return fn("abs", self._share(q.args[0]))
        return fn(APART, mul(q, power(self.scale, -1)))

    def _over_scale(self, f: Node) -> tuple[Fraction, Node] | None:
        """(n, f / s^n): of a factor above, which is made of the same quantities."""
        if f.op == "const":
            return None
        if f.op == "pow" and f.args[0].op == "add" and len({*map(_signless, self.quantities)}) == 1:
            base, n = f.args[0], f.attrs[0]
            is_whole = n > 0 and n.denominator == 1
            found = self._over_scale(base) if is_whole or all(self.ranges(t).nonnegative for t in base.args) else None
            return None if found is None else (found[0] * n, power(found[1], n))
        terms = _terms(f, self.ranges)
        if terms is None or not all(self._known(q) for _, p in terms for q in p):
            return None
        n = max(sum(p.values()) for _, p in terms)
        above = (
            mul(c, *(power(self._share(q), m) for q, m in p.items()), power(self.scale, sum(p.values()) - n))
            for c, p in terms
        )
        return Fraction(n), add(*above)

    def _known(self, q: Node) -> bool:
        return _signless(q) in map(_signless, self.quantities)


def _signless(q: Node) -> Node:
    return q.args[0] if q.op == "fn" and q.attrs[0] == "abs" else q


def _terms(x: Node, ranges: Ranges) -> list[tuple[Node, Powers]] | None:
    """The terms of a sum as products of powers, and what these are multiplied by, numbers and exponentials that are at most 1;
    None where there are others than whole ones."""
    out = []
    for t in terms_of(x):
        c = ONE
        powers: Powers = {}
        for f in factors_of(t):
            base, n = (f.args[0], f.attrs[0]) if f.op == "pow" else (f, Fraction(1))
            if base.op == "const" or (base.op == "fn" and base.attrs[0] == "exp" and ranges(f).high <= 1):
                c = mul(c, f)
            elif n.denominator != 1 or n < 0:
                return None
            else:
                powers[base] = powers.get(base, 0) + int(n)
        out.append((c, powers))
    return out
