"""Proves inequalities between rational functions on a box, exactly, or finds a point where they are false.

The variables of the domain are written over the unit interval (0 < lambda <= 1 is one, c > 0 is w / (1 - w), |u| <= c
is c (2 w - 1)); the difference is factored; a factor has one sign on the unit box when its Bernstein coefficients do,
after some halvings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any

import sympy

from chunkform.spec.language.claims import Quantity, Setting
from chunkform.spec.language.formula import Formula, walk
from chunkform.spec.language.statements import AtMost

from .evaluate import open_names

HALVINGS = 7
GRID = [Fraction(k, 8) for k in range(1, 8)]


class NotRational(Exception):
    """A formula that is no rational function of scalars."""


@dataclass(frozen=True)
class Bound:
    """proved; or the point where it is false, as (name, value) with both sides; or neither."""

    proved: bool
    point: tuple[tuple[str, Fraction], ...] = ()
    sides: tuple[Fraction, Fraction] | None = None


def decide_bound(statement: AtMost, setting: Setting, fixed: Mapping[str, Fraction] | None = None) -> Bound:
    """left <= right over the domain; `fixed` gives some quantities a value."""
    names = sorted({y.attrs[0] for f in (statement.left, statement.right) for y in walk(open_names(f)) if y.op == "at"})
    symbols = {name: sympy.Symbol(name) for name in names}
    left, right = (scalar(f, symbols) for f in (statement.left, statement.right))
    box, substitution = unit_box(names, setting, symbols, fixed or {})
    difference = sympy.together(substituted(right - left, substitution))
    above, below = sympy.fraction(difference)
    sign = sign_on_box(below, box)
    if sign and nonnegative(above * sign, box):
        return Bound(True)
    for values in itertools.product(GRID, repeat=len(box)):
        at = dict(zip(box, map(rational, values)))
        point = {n: substituted(symbols[n], substitution).subs(at) for n in names}
        sides = [f.subs({symbols[n]: v for n, v in point.items()}) for f in (left, right)]
        if sides[0] > sides[1]:
            return Bound(
                False, tuple((n, fraction(v)) for n, v in point.items()), (fraction(sides[0]), fraction(sides[1]))
            )
    return Bound(False)


def scalar(x: Formula, symbols: Mapping[str, object]) -> Any:
    """A formula of scalars as a SymPy expression."""
    match x.op:
        case "number":
            return rational(x.attrs[0])
        case "at":
            return symbols[x.attrs[0]]
        case "add":
            return sum((scalar(a, symbols) for a in x.args), sympy.Integer(0))
        case "negative":
            return -scalar(x.args[0], symbols)
        case "product":
            return sympy.Mul(*(scalar(a, symbols) for a in x.args))
        case "divide":
            return scalar(x.args[0], symbols) / scalar(x.args[1], symbols)
        case "power":
            return scalar(x.args[0], symbols) ** scalar(x.args[1], symbols)
        case "named" | "call":
            return scalar(x.args[0], symbols)
    raise NotRational(f"{x} is no rational function of scalars")


def rational(x: Fraction) -> Any:
    return sympy.Rational(x.numerator, x.denominator)


def fraction(x: Any) -> Fraction:
    return Fraction(int(x.p), int(x.q))


def unit_box(
    names: list[str], setting: Setting, symbols: dict[str, Any], fixed: Mapping[str, Fraction]
) -> tuple[list, list]:
    """Unit variables, and the substitutions that write the quantities over them, in order."""
    box: list[Any] = []
    first: list[tuple[Any, Any]] = []
    between: list[tuple[Any, Any]] = []
    queue = list(names)
    seen = set()
    while queue:
        name = queue.pop(0)
        if name in seen:
            continue
        seen.add(name)
        q: Quantity = setting.quantities[name]
        symbol = symbols.setdefault(name, sympy.Symbol(name))
        if name in fixed:
            first.append((symbol, rational(fixed[name])))
            continue
        w = sympy.Symbol(f"w_{name}")
        box.append(w)
        if q.between is not None:
            for f in q.between:
                queue += [y.attrs[0] for y in walk(f) if y.op == "at"]
            for f in q.between:
                for y in walk(f):
                    if y.op == "at":
                        symbols.setdefault(y.attrs[0], sympy.Symbol(y.attrs[0]))
            low, high = (scalar(f, symbols) for f in q.between)
            between.append((symbol, low + (high - low) * w))
        elif q.domain == "decay":
            first.append((symbol, w))
        elif q.domain == "positive":
            first.append((symbol, w / (1 - w)))
        else:
            first.append((symbol, (2 * w - 1) / (w * (1 - w))))
    return box, between + first


def substituted(x: Any, substitution: list[tuple[Any, Any]]) -> Any:
    for symbol, value in substitution:
        x = x.subs(symbol, value)
    return x


def nonnegative(x: object, box: list) -> bool:
    """Whether x >= 0 on the open unit box: every factor of odd power has one sign, and the signs multiply to plus."""
    x = sympy.expand(x)
    if x == 0:
        return True
    number, factors = sympy.factor_list(x)
    sign = 1 if number > 0 else -1
    for factor, power in factors:
        if power % 2:
            own = sign_on_box(factor, box)
            if not own:
                return False
            sign *= own
    return sign > 0


def sign_on_box(x: Any, box: list) -> int:
    """1 or -1 where x has that sign (or is 0) on all of the unit box, else 0."""
    x = sympy.expand(x)
    used = [w for w in box if x.has(w)]
    if not used:
        return 1 if x > 0 else -1
    poly = sympy.Poly(x, *used)
    for sign in (1, -1):
        if positive_somewhere_deep(coefficients(poly * sign), HALVINGS):
            return sign
    return 0


def coefficients(poly: Any) -> dict[tuple[int, ...], Fraction]:
    """The Bernstein coefficients of a polynomial on the unit box."""
    degrees = [poly.degree(g) for g in poly.gens]
    terms = {m: fraction(c) for m, c in poly.terms()}
    found = {}
    for index in itertools.product(*(range(k + 1) for k in degrees)):
        total = Fraction(0)
        for m, c in terms.items():
            if all(a <= b for a, b in zip(m, index)):
                weight = Fraction(1)
                for a, b, k in zip(m, index, degrees):
                    weight *= Fraction(comb(b, a), comb(k, a))
                total += c * weight
        found[index] = total
    return found


def positive_somewhere_deep(b: dict[tuple[int, ...], Fraction], depth: int) -> bool:
    """Whether the coefficients are all >= 0, here or on every half, down to `depth` halvings."""
    if all(v >= 0 for v in b.values()):
        return True
    degrees = [max(i[k] for i in b) for k in range(len(next(iter(b))))]
    corners = itertools.product(*({0, k} for k in degrees))
    if depth == 0 or any(b[c] < 0 for c in corners):
        return False
    axis = max(range(len(degrees)), key=lambda k: degrees[k])
    return all(positive_somewhere_deep(half, depth - 1) for half in halves(b, axis, degrees[axis]))


def halves(b: dict[tuple[int, ...], Fraction], axis: int, degree: int) -> Iterator[dict[tuple[int, ...], Fraction]]:
    """De Casteljau's division at one half along an axis."""
    left: dict[tuple[int, ...], Fraction] = {}
    right: dict[tuple[int, ...], Fraction] = {}
    for key in {(*i[:axis], 0, *i[axis + 1 :]) for i in b}:
        line = [b[(*key[:axis], k, *key[axis + 1 :])] for k in range(degree + 1)]
        for level in range(degree + 1):
            left[(*key[:axis], level, *key[axis + 1 :])] = line[0]
            right[(*key[:axis], degree - level, *key[axis + 1 :])] = line[-1]
            line = [(x + y) / 2 for x, y in itertools.pairwise(line)]
    yield left
    yield right
