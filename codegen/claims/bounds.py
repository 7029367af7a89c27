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
from chunkform.spec.language.formula import Formula, substitute, transform, walk
from chunkform.spec.language.recurrence import DECAYS
from chunkform.spec.language.statements import AtMost

from .conditioned import Limits, of_scalar, only_limits
from .evaluate import open_names

HALVINGS = 7
POINTS = 2000  # of the grid that are tried
HIGHEST = 40  # power
DEEPEST = 20  # definitions in definitions
GRID = [Fraction(k, 8) for k in range(1, 8)]


class NotRational(Exception):
    """A formula that is no rational function of scalars."""


@dataclass(frozen=True)
class Bound:
    """proved; or the point where it is false, as (name, value) with both sides; or neither. `unless`: the decays that must
    be less than 1 for a strict inequality that is proved."""

    proved: bool
    point: tuple[tuple[str, Fraction], ...] = ()
    sides: tuple[Fraction, Fraction] | None = None
    unless: tuple[str, ...] = ()


class Undecided(Exception):
    """An inequality that is neither proved nor refuted: why it isn't judged."""


def decide_bound(
    statement: AtMost,
    setting: Setting,
    fixed: Mapping[str, Fraction] | None = None,
    bodies: Mapping[str, Formula] | None = None,
) -> Bound:
    """left <= right, or left < right, over the domain; `fixed` gives some quantities a value. A quantity at two indices is two
    variables.

    Raises:
        NotRational: a side is no rational function of scalars that are given.
    """
    sides_of = [free_of_names(f, setting, bodies or {}) for f in (statement.left, statement.right)]
    nodes = {str(y): y for f in sides_of for y in walk(f) if y.op == "at"}
    names = sorted(nodes)
    symbols = {name: sympy.Symbol(name) for name in names}
    left, right = (scalar(f, symbols) for f in sides_of)
    box, substitution = unit_box(names, nodes, setting, symbols, fixed or {})
    difference = sympy.together(substituted(right - left, substitution))
    above, below = sympy.fraction(difference)
    sign = sign_on_box(below, box)
    if statement.strict:
        within = any(
            setting.quantities[nodes[n].attrs[0]].between or has_ends(nodes[n], setting) for n in names
        )  # its ends are of it
        if sign and not within and positive(above * sign, box):
            closed = [nodes[n].attrs[0] for n in names if may_be_one(nodes[n], setting)]
            ends = [w for n, w in zip(names, map(unit, names)) if nodes[n].attrs[0] in closed and w in box]
            return Bound(True, unless=() if positive_at_ends(above * sign, below * sign, ends, box) else tuple(closed))
    elif sign and nonnegative(above * sign, box):
        return Bound(True)
    if not only_limits(setting.premises):
        return Bound(False)
    for values in itertools.islice(itertools.product(GRID, repeat=len(box)), POINTS):
        at = dict(zip(box, map(rational, values)))
        point = {n: substituted(symbols[n], substitution).subs(at) for n in names}
        sides = [f.subs({symbols[n]: v for n, v in point.items()}) for f in (left, right)]
        if not all(s.is_Rational for s in sides):
            continue
        if sides[0] > sides[1] or (statement.strict and sides[0] == sides[1]):
            return Bound(
                False, tuple((n, fraction(v)) for n, v in point.items()), (fraction(sides[0]), fraction(sides[1]))
            )
    return Bound(False)


def free_of_names(x: Formula, setting: Setting, bodies: Mapping[str, Formula], depth: int = 0) -> Formula:
    """x over scalars that may take any value of their domain: what is defined by a formula is replaced by it.

    Raises:
        NotRational: a symbol in it is no such scalar.
    """

    def visit(y: Formula) -> Formula | None:
        if y.op != "at":
            return None
        q = setting.quantities[y.attrs[0]]
        body = bodies.get(q.name, q.body)
        if q.kind == "defined" and body is not None and q.start is None and not q.alternatives and depth < DEEPEST:
            opened = substitute(body, {Formula("index", (), (p,)): a for p, a in zip(q.parameters, y.args)})
            return free_of_names(opened, setting, bodies, depth + 1)
        if not is_free(q, setting):
            raise NotRational(f"{y} is no scalar that may take any value of its domain")
        return None

    return transform(open_names(x), visit)


def is_free(q: Quantity, setting: Setting) -> bool:
    """Whether a quantity is a number that nothing else determines."""
    if q.dims != ("1", "1"):
        return False
    r = setting.recurrence
    given = {v.name for v in r.variables} if r is not None else set()
    return q.kind == "given" or (q.kind == "spec" and (q.source or q.name) in given)


def scalar(x: Formula, symbols: Mapping[str, object]) -> Any:
    """A formula of scalars as a SymPy expression."""
    match x.op:
        case "number":
            return rational(x.attrs[0])
        case "at":
            return symbols[str(x)]
        case "add":
            return sum((scalar(a, symbols) for a in x.args), sympy.Integer(0))
        case "negative":
            return -scalar(x.args[0], symbols)
        case "product":
            return sympy.Mul(*(scalar(a, symbols) for a in x.args))
        case "divide":
            return scalar(x.args[0], symbols) / scalar(x.args[1], symbols)
        case "power":
            exponent = scalar(x.args[1], symbols)
            if not exponent.is_Integer or abs(exponent) > HIGHEST:
                raise NotRational(f"{x} is no power of a small integer")
            return scalar(x.args[0], symbols) ** exponent
        case "named" | "call":
            return scalar(x.args[0], symbols)
    raise NotRational(f"{x} is no rational function of scalars")


def rational(x: Fraction) -> Any:
    return sympy.Rational(x.numerator, x.denominator)


def fraction(x: Any) -> Fraction:
    return Fraction(int(x.p), int(x.q))


def unit_box(
    names: list[str],
    nodes: dict[str, Formula],
    setting: Setting,
    symbols: dict[str, Any],
    fixed: Mapping[str, Fraction],
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
        q: Quantity = setting.quantities[nodes[name].attrs[0]]
        symbol = symbols.setdefault(name, sympy.Symbol(name))
        if q.name in fixed:
            first.append((symbol, rational(fixed[q.name])))
            continue
        w = unit(name)
        box.append(w)
        if q.between is not None:
            for y in (y for f in q.between for y in walk(f) if y.op == "at"):
                queue.append(str(y))
                nodes.setdefault(str(y), y)
                symbols.setdefault(str(y), sympy.Symbol(str(y)))
            low, high = (scalar(f, symbols) for f in q.between)
            between.append((symbol, low + (high - low) * w))
        elif (limits := limits_of(nodes[name], setting)) is not None:
            first.append((symbol, between_limits(limits.within(domain_of(q, setting)), w)))
        elif domain_of(q, setting) == "decay":
            first.append((symbol, w))
        elif domain_of(q, setting) == "positive":
            first.append((symbol, w / (1 - w)))
        else:
            first.append((symbol, (2 * w - 1) / (w * (1 - w))))
    return box, between + first


def between_limits(limits: Limits, w: sympy.Expr) -> sympy.Expr:
    """A number between limits, over the unit interval."""
    low, high = (None if x is None else rational(x) for x in (limits.low, limits.high))
    if low is not None and high is not None:
        return low + (high - low) * w
    return low + w / (1 - w) if low is not None else high - w / (1 - w)


def unit(name: str) -> Any:
    """The variable on the unit interval that a quantity is written over."""
    return sympy.Symbol(f"w_{name}")


def may_be_one(node: Formula, setting: Setting) -> bool:
    """Whether a quantity is a decay that nothing says to be less than 1."""
    q = setting.quantities[node.attrs[0]]
    limits = limits_of(node, setting)
    below = limits is not None and limits.high is not None and not (limits.high == 1 and limits.high_closed)
    return domain_of(q, setting) == "decay" and (q.source or q.name) not in setting.below_one and not below


def limits_of(node: Formula, setting: Setting) -> Limits | None:
    """What the inequalities that the claim is meant under say of a number."""
    return of_scalar(setting.premises, node.attrs[0], node.args)


def has_ends(node: Formula, setting: Setting) -> bool:
    """Whether an inequality lets a number be what it is at least, or at most."""
    limits = limits_of(node, setting)
    return limits is not None and (limits.low_closed or limits.high_closed)


def domain_of(q: Quantity, setting: Setting) -> str:
    """A quantity's domain; that of a recurrence's input is what the recurrence says."""
    r = setting.recurrence
    kinds = {v.name: v.kind for v in r.variables} if r is not None and q.kind == "spec" else {}
    return "decay" if kinds.get(q.source or q.name) in DECAYS else q.domain


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


def positive(x: object, box: list) -> bool:
    """Whether x > 0 on the open unit box: Bernstein's polynomials are positive there, and no coefficient is below 0; or, on
    parts of it, all are above 0."""
    x = sympy.expand(x)
    if x == 0:
        return False
    number, factors = sympy.factor_list(x)
    sign = 1 if number > 0 else -1
    for factor, power in factors:
        used = [w for w in box if factor.has(w)]
        own = next((k for k in (1, -1) if above_zero(coefficients(sympy.Poly(factor, *used) * k), HALVINGS)), 0)
        if not own:
            return False
        sign *= own if power % 2 else 1
    return sign > 0


def above_zero(b: dict[tuple[int, ...], Fraction], depth: int, least: bool = True) -> bool:
    """Whether coefficients are all >= 0, or on every half all > 0, down to `depth` halvings."""
    if all(v >= 0 if least else v > 0 for v in b.values()):
        return True
    degrees = [max(i[k] for i in b) for k in range(len(next(iter(b))))]
    corners = itertools.product(*({0, k} for k in degrees))
    if depth == 0 or any(b[c] < 0 for c in corners):
        return False
    axis = max(range(len(degrees)), key=lambda k: degrees[k])
    return all(above_zero(half, depth - 1, False) for half in halves(b, axis, degrees[axis]))


def positive_at_ends(above: Any, below: Any, ends: list, box: list) -> bool:
    """Whether above / below stays positive where any of the decays is 1."""
    for count in range(1, len(ends) + 1):
        for some in itertools.combinations(ends, count):
            at = {w: sympy.Integer(1) for w in some}
            rest = [w for w in box if w not in at]
            if not (positive(above.subs(at), rest) and positive((below**2).subs(at), rest)):
                return False
    return True


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
