"""Sums of terms that are never negative: how a polynomial of bounded quantities is computed without loss.

`1 - s^2` with s in (0, 1) is `(1 - s) + s (1 - s)`: over s and 1 - s, both known without loss, nothing is subtracted. A
polynomial in quantities u of the unit interval is written over products of u and 1 - u (the Bernstein basis); where no
coefficient is below 0 it is never negative, its smallest and largest coefficients bound it, and terms that differ in a factor u
or 1 - u are joined, since u + (1 - u) = 1. Quantities with one bound only come in as powers of their distance from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import comb, inf, prod
from typing import Any

from .expr import ZERO, Node, add, const, fn, maximum, mul, number, power, split_constant, walk
from .ranges import Ranges
from .step_program import DECAYS

MOST = 400  # terms of a polynomial
SMALLEST = const(Fraction(1, 2**126))  # normal number of float32
HIGHEST = 6  # a power that is multiplied out
LARGEST_SLOPE = (
    1000  # slope of a decay's logarithm: its gradient is a sum over steps, whose rounding a slope multiplies
)
EXPONENTIALS = ("exp", "sigmoid", "softplus")  # functions whose logarithms are never steeper than what these are of


@dataclass(frozen=True)
class Part:
    """A quantity that is never negative: what it is, its logarithm, and whether it is above 0 for sure. `steady`: its logarithm
    is finite whatever the inputs are, even where the quantity itself is too small for a float."""

    node: Node
    log: Node
    positive: bool
    steady: bool = False


@dataclass(frozen=True)
class Quantity:
    """An independent quantity of polynomials: its part, and 1 less it where it's at most 1."""

    inside: Part
    beyond: Part | None = None


Key = tuple[tuple[Node, int], ...]  # quantities, by what names them, with their powers
Polynomial = dict[Key, Fraction]
Factor = tuple[Node, bool]  # a quantity, or (True) 1 less it
Exponents = tuple[tuple[Factor, int], ...]


@dataclass(frozen=True)
class Terms:
    """coefficient * product of parts, summed: no coefficient is below 0. `low` and `high` bound the sum."""

    terms: dict[Exponents, Fraction]
    low: Fraction
    high: Any
    quantities: dict[Node, Quantity]

    def part(self, f: Factor) -> Part:
        q = self.quantities[f[0]]
        part = q.beyond if f[1] else q.inside
        assert part is not None
        return part

    def node(self, terms: dict[Exponents, Fraction] | None = None) -> Node:
        terms = self.terms if terms is None else terms
        return add(*(mul(c, *(power(self.part(f).node, n) for f, n in t)) for t, c in terms.items()))

    @property
    def positive(self) -> bool:
        """Is a term above 0 for sure?"""
        return self.low > 0 or any(all(self.part(f).positive for f, _ in t) for t in self.terms)

    def shared(self) -> tuple[Exponents, dict[Exponents, Fraction]]:
        """The factors of every term, and the terms without them."""
        common = None
        for t in self.terms:
            have = dict(t)
            common = have if common is None else {f: min(n, have[f]) for f, n in common.items() if f in have}
        out = common or {}
        rest = {tuple((f, n - out.get(f, 0)) for f, n in t if n > out.get(f, 0)): c for t, c in self.terms.items()}
        return tuple(sorted(out.items())), rest


def log_above_zero(x: Node) -> Node:
    """log x of what is above 0, also where an exponential in it, or 1 less one, is too small for a float: there the logarithm is
    that of the smallest normal number, and flat, where it would be infinite, and its slope with it."""
    vanishing = any(y.op == "fn" and y.attrs[0] in (*EXPONENTIALS, "expm1") for y in walk(x))
    return fn("log", maximum(x, SMALLEST) if vanishing else x)


def over_root(x: Node) -> Node | None:
    """y where x = y / sqrt(1 + y^2), which is tanh(asinh(y)): 1 - x has no digits left far out, and sigmoid(-2 asinh(y)) has."""
    for f in x.args if x.op == "mul" and len(x.args) == 2 else ():
        (y,) = (a for a in x.args if a is not f)
        if f.op == "pow" and f.attrs[0] == Fraction(-1, 2) and f.args[0] is add(1, power(y, 2)):
            return y
    return None


class Polynomials:
    """Expressions as polynomials of independent quantities. `near_one`: whose logarithms have all digits near 0 as well."""

    def __init__(self, ranges: Ranges, near_one: bool = True) -> None:
        self.ranges, self.near_one = ranges, near_one
        self.quantities: dict[Node, Quantity] = {}
        self.memo: dict[Node, Polynomial | None] = {}

    def terms(self, x: Node) -> Terms | None:
        """x as a sum of terms that are never negative; None where it isn't seen to be one."""
        found = self.polynomial(x)
        return None if found is None else self._positive(found)

    def complement(self, x: Node) -> Terms | None:
        """1 - x, so."""
        found = self.polynomial(x)
        return None if found is None else self._positive(_plus({(): Fraction(1)}, {k: -c for k, c in found.items()}))

    def gentle(self, x: Node) -> bool:
        """Is the logarithm of such a sum no steeper than LARGEST_SLOPE, whatever the inputs are? That of b + (1 - b) sigmoid(g),
        where b may be 0, isn't: there it rises with b as 1 / sigmoid(g)."""
        p = self.polynomial(x)
        return p is not None and all(
            self._positive(_plus(_scaled(p, Fraction(LARGEST_SLOPE)), _scaled(slope, Fraction(sign)))) is not None
            for slope in self._slopes(p)
            for sign in (1, -1)
        )

    def _slopes(self, p: Polynomial) -> Iterator[Polynomial]:
        """The derivatives of a polynomial for inputs that are in it as they are, and for logarithms: of decays, and of
        exponentials of such inputs. What else is made of exponentials changes by no more than it is, and is less than 1."""
        for q in dict.fromkeys(q for key in p for q, _ in key):
            decay = q.op == "leaf" and q.attrs[0] in DECAYS
            share = decay or (q.op == "pow" and q.attrs[0] < 0) or (q.op == "fn" and q.attrs[0] == "exp")
            if not decay and not any(map(_as_it_is, q.args if share else (q,))):
                continue
            slope: Polynomial = {}
            for key, c in p.items():
                if n := dict(key).get(q):
                    less = tuple((u, m - (u is q)) for u, m in key if u is not q or n > 1)
                    slope[less] = slope.get(less, Fraction(0)) + n * c
            r = self.ranges(q)
            slope = _scaled(slope, 1 / (r.high - r.low)) if r.bounded else slope
            yield (_times(slope, self.polynomial(q) or {}) or {}) if share else slope

    # --- expressions as polynomials -----------------------------------------------------------------------------------

    def polynomial(self, x: Node) -> Polynomial | None:
        if x not in self.memo:
            self.memo[x] = self._polynomial(x)
        return self.memo[x]

    def _polynomial(self, x: Node) -> Polynomial | None:
        match x.op:
            case "const":
                return {(): x.attrs[0]} if x is not ZERO else {}
            case "add":
                parts = [self.polynomial(a) for a in x.args]
                return None if any(p is None for p in parts) else _plus(*(p for p in parts if p is not None))
            case "mul":
                c, core = split_constant(x)
                if self.ranges.is_share(core):
                    return _times({(): c}, self._other(core) or {})
                if (whole := self._joined(x)) is not x:
                    return self.polynomial(whole)
                if (y := over_root(core)) is not None:
                    return _times({(): c}, self.polynomial(fn("tanh", fn("asinh", y))) or {})
                factors = [self.polynomial(a) for a in x.args]
                return None if any(p is None for p in factors) else _times(*(p for p in factors if p is not None))
            case "expand":
                return self.polynomial(x.args[0])
            case "pow":
                n = x.attrs[0]
                base = self.polynomial(x.args[0]) if n.denominator == 1 and 0 < n <= HIGHEST else None
                if base is not None:
                    return _times(*[base] * int(n))
            case "fn" if x.attrs[0] == "tanh":
                return self.polynomial(add(mul(2, fn("sigmoid", mul(2, x.args[0]))), -1))
            case "fn" if x.attrs[0] == "sigmoid":
                return self._sigmoid(x.args[0])
            case "fn" if x.attrs[0] == "exp" and (found := _softplus_in(x.args[0])) is not None:
                return _times(*[self._sigmoid(mul(-1, found[0]))] * found[1])
        return self._other(x)

    def _joined(self, x: Node) -> Node:
        """A product of exponentials as one."""
        exponents = [a.args[0] for a in x.args if a.op == "fn" and a.attrs[0] == "exp"]
        if len(exponents) < 2:
            return x
        return mul(fn("exp", add(*exponents)), *(a for a in x.args if a.op != "fn" or a.attrs[0] != "exp"))

    def _sigmoid(self, y: Node) -> Polynomial:
        """sigmoid(y) is 1 - sigmoid(-y): one quantity for both."""
        other = mul(-1, y)
        turned = split_constant(y)[0] < 0 or (y.op == "add" and _negative_first(y))
        name = fn("sigmoid", other if turned else y)
        if name not in self.quantities:
            y, other = (other, y) if turned else (y, other)
            inside = Part(name, fn("logsigmoid", y), True, True)
            beyond = Part(fn("sigmoid", other), fn("logsigmoid", other), True, True)
            self.quantities[name] = Quantity(inside, beyond)
        own: Polynomial = {((name, 1),): Fraction(1)}
        return _plus({(): Fraction(1)}, {k: -c for k, c in own.items()}) if turned else own

    def _other(self, x: Node) -> Polynomial | None:
        """Any other expression, as a quantity of its own: by its range."""
        r = self.ranges(x)
        if x.op == "number":
            positive = r.positive
            size = x if positive else mul(-1, x)
            text = x.attrs[0] if positive else f"-({x.attrs[0]})"
            self.quantities[size] = Quantity(Part(size, number(f"log({text})"), True, True))
            return {((size, 1),): Fraction(1 if positive else -1)}
        if r.bounded and r.low < r.high:
            name, width = x, r.high - r.low
            self.quantities[name] = self._in_unit(x, r.low, r.high)
            return _plus({(): r.low} if r.low else {}, {((name, 1),): width})
        if r.low > -inf:
            distance, sign, bound = add(x, -r.low), 1, r.low
            positive = r.low_open
        elif r.high < inf:
            distance, sign, bound = add(r.high, mul(-1, x)), -1, r.high
            positive = r.high_open
        else:
            return None
        exponent = distance.args[0] if distance.op == "fn" and distance.attrs[0] == "exp" else None
        log = log_above_zero(distance) if exponent is None else exponent
        self.quantities[distance] = Quantity(Part(distance, log, positive, exponent is not None))
        return _plus({(): bound} if bound else {}, {((distance, 1),): Fraction(sign)})

    def _in_unit(self, x: Node, low: Fraction, high: Fraction) -> Quantity:
        r = self.ranges(x)
        whole = low == 0 and high == 1
        inside, beyond = mul(1 / (high - low), add(x, -low)), mul(1 / (high - low), add(high, mul(-1, x)))
        if x.op == "fn" and x.attrs[0] == "exp" and high == 1:
            beyond = mul(1 / (low - 1), fn("expm1", x.args[0]))
            log_inside, log_beyond = x.args[0] if whole else fn("log", inside), log_above_zero(beyond)
            if self.near_one:
                log_beyond = log_share(log_beyond, log_inside) if whole else fn("log", beyond)
        elif x.op == "pow" and x.attrs[0] == -1 and low == 0:  # 1 / (1 + p) and p / (1 + p)
            more = add(mul(high, x.args[0]), -1)
            beyond = mul(1 / high, more, x)
            log_inside, log_beyond = mul(-1, fn("log1p", more)), log_share(fn("log", more), ZERO)
        elif whole:
            log_inside, log_beyond = fn("log", inside), fn("log1p", mul(-1, x))
        else:
            up, down = fn("log", inside), fn("log", beyond)
            log_inside, log_beyond = log_share(up, down), log_share(down, up)
        return Quantity(Part(inside, log_inside, r.low_open), Part(beyond, log_beyond, r.high_open))

    # --- polynomials as positive terms --------------------------------------------------------------------------------

    def _positive(self, p: Polynomial) -> Terms | None:
        units = sorted({q for key in p for q, _ in key if self.quantities[q].beyond is not None})
        degrees = [max((n for key in p for q, n in key if q is u), default=0) for u in units]
        groups: dict[Key, dict[tuple[int, ...], Fraction]] = {}
        for key, c in p.items():
            have = dict(key)
            powers = tuple(have.pop(u, 0) for u in units)
            groups.setdefault(tuple(sorted(have.items())), {})[powers] = c
        if prod(n + 1 for n in degrees) * len(groups) > MOST:
            return None
        terms: dict[Exponents, Fraction] = {}
        low, high = Fraction(0), Fraction(0) if set(groups) <= {()} else inf
        for outside, coefficients in groups.items():
            weights = _bernstein(coefficients, degrees)
            if min(weights.values()) < 0:
                return None
            if not outside:
                low, high = min(weights.values()), high if high == inf else max(weights.values())
            for js, c in weights.items():
                if c:
                    parts = [((u, False), j) for u, j in zip(units, js, strict=True)]
                    parts += [((u, True), n - j) for u, j, n in zip(units, js, degrees, strict=True)]
                    parts += [((q, False), n) for q, n in outside]
                    ways = prod(comb(n, j) for n, j in zip(degrees, js, strict=True))
                    terms[_exponents(parts)] = c * ways
        return Terms(_merged(terms, units), low, high, self.quantities)


def log_share(a: Node, b: Node) -> Node:
    """log(e^a / (e^a + e^b)): without loss wherever it is near 0 or far from it."""
    return fn("logsigmoid", add(a, mul(-1, b)))


def _bernstein(p: dict[tuple[int, ...], Fraction], degrees: list[int]) -> dict[tuple[int, ...], Fraction]:
    """The coefficients over products of u^j (1 - u)^(n - j), without their binomials: none is far from the values there."""
    out = {}
    for js in product(*(range(n + 1) for n in degrees)):
        out[js] = Fraction(0)
        for powers, c in p.items():
            for i, j, n in zip(powers, js, degrees, strict=True):
                c *= Fraction(comb(j, i), comb(n, i))
            out[js] += c
    return out


def _merged(terms: dict[Exponents, Fraction], units: list[Node]) -> dict[Exponents, Fraction]:
    """Terms that differ in a factor u or 1 - u, joined: as much of both as there is of the smaller."""
    terms, changed = dict(terms), True
    while changed:
        changed = False
        for u in units:
            for t in list(terms):
                have = dict(t)
                if t not in terms or not have.get((u, False)):
                    continue
                less = {**have, (u, False): have[u, False] - 1}
                other = _exponents({**less, (u, True): less.get((u, True), 0) + 1}.items())
                if other in terms:
                    c, shorter = min(terms[t], terms[other]), _exponents(less.items())
                    for key in (t, other):
                        terms[key] -= c
                        if not terms[key]:
                            del terms[key]
                    terms[shorter] = terms.get(shorter, Fraction(0)) + c
                    changed = True
    return terms


def _exponents(parts: Iterable[tuple[Factor, int]]) -> Exponents:
    return tuple(sorted((f, n) for f, n in parts if n))


def _plus(*parts: Polynomial) -> Polynomial:
    out: Polynomial = {}
    for p in parts:
        for key, c in p.items():
            out[key] = out.get(key, Fraction(0)) + c
    return {key: c for key, c in out.items() if c}


def _scaled(p: Polynomial, n: Fraction) -> Polynomial:
    return {key: n * c for key, c in p.items()}


def _times(*parts: Polynomial) -> Polynomial | None:
    out: Polynomial = {(): Fraction(1)}
    for p in parts:
        made: Polynomial = {}
        for (a, c), (b, d) in product(out.items(), p.items()):
            powers = dict(a)
            for q, n in b:
                powers[q] = powers.get(q, 0) + n
            key = tuple(sorted(powers.items()))
            made[key] = made.get(key, Fraction(0)) + c * d
        out = {key: c for key, c in made.items() if c}
        if len(out) > MOST:
            return None
    return out


def _as_it_is(x: Node, summed: bool = False) -> bool:
    """Is x made of an input that has a gradient, other than in exponentials, or of a decay in a sum?"""
    if x.op == "leaf":
        return x.attrs[0] != "constant" and (summed or x.attrs[0] not in DECAYS)
    if x.op == "fn" and x.attrs[0] in EXPONENTIALS:
        return False
    return any(_as_it_is(a, summed or x.op == "add") for a in x.args)


def _softplus_in(x: Node) -> tuple[Node, int] | None:
    """(y, n) where x = -n softplus(y)."""
    c, core = split_constant(x)
    whole = c.denominator == 1 and 0 < -c <= HIGHEST
    return (core.args[0], int(-c)) if whole and core.op == "fn" and core.attrs[0] == "softplus" else None


def _negative_first(x: Node) -> bool:
    """Of a sum and its negative exactly one is so."""
    signs = [split_constant(a)[0] < 0 for a in sorted(x.args, key=lambda a: split_constant(a)[1])]
    return signs[0]
