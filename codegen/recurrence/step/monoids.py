"""Updates of a state's entries that compose: maps x -> f(x) of one kind, two of which one after the other are one of that kind.

    affine    x -> a x + b                    maximum   x -> max(a x + b, c),  a >= 0
    rational  x -> (a x + b) / (c x + d)      minimum   x -> min(a x + b, c),  a >= 0
    logaddexp x -> log(exp(x + b) + exp(c))

So a scan computes all states at once. The update tells by its structure which kind it is: a sum of pieces that are affine in the
state, the largest or smallest of which it is, or a quotient of polynomials in the state.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

import numpy as np

from ...ir.evaluate import Env, Field, evaluate
from ...ir.expr import ONE, ZERO, Node, add, dim_of, expand, fn, leaves, maximum, minimum, mul, power, walk
from ...ir.ranges import Ranges

HIGHEST = 4  # degree that polynomials in a state may have before they cancel


def found_in(update: Node, state: Node, ranges: Ranges) -> tuple[str, tuple[Node, ...]] | None:
    """(the kind of map, its numbers) that an update is, entry by entry of a state; None where it is none of the table."""
    if not _holds(update, state):
        return "affine", (ZERO, update)
    return _as_extreme(update, state, ranges) or _as_log_sum(update, state) or _as_rational(update, state)


def applied(kind: str, maps: tuple[Node, ...], state: Node) -> Node:
    """What a map makes of a state, as an expression."""
    if kind == "affine":
        return add(mul(maps[0], state), maps[1])
    if kind == "rational":
        a, b, c, d = maps
        return mul(add(mul(a, state), b), power(add(mul(c, state), d), -1))
    if kind == "logaddexp":
        return fn("log", add(fn("exp", add(mul(maps[0], state), maps[1])), fn("exp", maps[2])))
    return extreme(1 if kind == "maximum" else -1, add(mul(maps[0], state), maps[1]), maps[2])


def extreme(sign: int, *terms: Node) -> Node:
    """The largest of terms, for sign = 1, or the smallest."""
    return maximum(*terms) if sign > 0 else minimum(*terms)


def _holds(x: Node, state: Node) -> bool:
    return any(y is state for y in walk(x))


# --- the largest or smallest of affine pieces ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pieces:
    """The largest (sign 1) or smallest (-1) of pieces slope * state + rest; of one piece the sign is 0."""

    pieces: frozenset[tuple[Node, Node]]
    sign: int = 0


def _as_extreme(update: Node, state: Node, ranges: Ranges) -> tuple[str, tuple[Node, ...]] | None:
    found = _pieces(update, state, ranges)
    if found is None:
        return None
    slopes = {a for a, _ in found.pieces if a is not ZERO}
    if len(slopes) != 1:
        return None
    (slope,) = slopes
    moving, still = (sorted(b for a, b in found.pieces if (a is ZERO) == fixed) for fixed in (False, True))
    rest = extreme(found.sign, *moving)
    if not still:
        return "affine", (slope, rest)
    if not ranges(slope).nonnegative:
        return None
    return "maximum" if found.sign > 0 else "minimum", (slope, rest, extreme(found.sign, *still))


def _pieces(x: Node, state: Node, ranges: Ranges) -> _Pieces | None:
    if x is state:
        return _Pieces(frozenset({(ONE, ZERO)}))
    if not _holds(x, state):
        return _Pieces(frozenset({(ZERO, x)}))
    if x.op == "add":
        parts = [_pieces(a, state, ranges) for a in x.args]
        signs = {p.sign for p in parts if p is not None and p.sign}
        if None in parts or len(signs) > 1 or sum(bool(p.sign) for p in parts if p) > 1:
            return None
        sums = product(*(p.pieces for p in parts if p))
        found = frozenset((add(*(a for a, _ in some)), add(*(b for _, b in some))) for some in sums)
        return _Pieces(found, next(iter(signs), 0) if len(found) > 1 else 0)
    if x.op == "mul":
        own = [a for a in x.args if _holds(a, state)]
        inner = _pieces(own[0], state, ranges) if len(own) == 1 else None
        if inner is None:
            return None
        factor = mul(*(a for a in x.args if a is not own[0]))
        known = ranges(factor)
        if inner.sign and not known.nonnegative and not known.high <= 0:
            return None
        turned = -1 if inner.sign and not known.nonnegative else 1
        return _Pieces(frozenset((mul(factor, a), mul(factor, b)) for a, b in inner.pieces), turned * inner.sign)
    if x.op == "fn" and x.attrs[0] == "relu":
        inner = _pieces(x.args[0], state, ranges)
        return None if inner is None or inner.sign < 0 else _Pieces(inner.pieces | {(ZERO, ZERO)}, 1)
    if x.op == "max":
        parts = [_pieces(a, state, ranges) for a in x.args]
        if any(p is None or p.sign < 0 for p in parts):
            return None
        return _Pieces(frozenset().union(*(p.pieces for p in parts if p)), 1)
    if x.op == "expand":
        inner = _pieces(x.args[0], state, ranges)
        return None if inner is None or not set(x.axes) <= set(state.axes) else inner
    return None


# --- logarithms of sums of exponentials ---------------------------------------------------------------------------------


def _as_log_sum(update: Node, state: Node) -> tuple[str, tuple[Node, ...]] | None:
    found = _exponents(update, state)
    if found is None or not found[1]:
        return None
    moving, (last, *rest) = found
    for y in rest:
        last = add(y, fn("softplus", add(last, mul(-1, y))))
    return "logaddexp", (ONE, moving, last)


def _exponents(x: Node, state: Node) -> tuple[Node, tuple[Node, ...]] | None:
    """b and c_i, where x = log(exp(state + b) + sum_i exp(c_i))."""
    if x is state:
        return ZERO, ()
    if x.op == "add":
        own = [a for a in x.args if _holds(a, state)]
        soft = [a for a in own if a.op == "fn" and a.attrs[0] == "softplus"]
        if len(soft) == 1 and len(own) > 1:  # (state + b) + softplus(c - (state + b))
            moving = add(*(a for a in x.args if a is not soft[0]))
            b, c = add(moving, mul(-1, state)), add(moving, soft[0].args[0])
            return None if _holds(b, state) or _holds(c, state) else (b, (c,))
        inner = _exponents(own[0], state) if len(own) == 1 else None
        if inner is None:
            return None
        rest = add(*(a for a in x.args if a is not own[0]))
        return add(inner[0], rest), tuple(add(c, rest) for c in inner[1])
    if x.op == "fn" and x.attrs[0] == "softplus":
        inner = _exponents(x.args[0], state)
        return None if inner is None else (inner[0], (*inner[1], ZERO))
    if x.op == "expand":
        return _exponents(x.args[0], state) if set(x.axes) <= set(state.axes) else None
    return None


# --- quotients ------------------------------------------------------------------------------------------------------------

_Polynomial = dict[int, Node]  # a coefficient for each power of the state


def _as_rational(update: Node, state: Node) -> tuple[str, tuple[Node, ...]] | None:
    found = _quotient(update, state)
    if found is None:
        return None
    above, below = map(_nonzero, found)
    if max(above, default=0) > 1 or max(below, default=0) != 1:
        return None
    return "rational", tuple(p.get(n, ZERO) for p in (above, below) for n in (1, 0))


def _quotient(x: Node, state: Node) -> tuple[_Polynomial, _Polynomial] | None:
    """x as a quotient of two polynomials in the state."""
    if x is state:
        return {1: ONE}, {0: ONE}
    if not _holds(x, state):
        return {0: x}, {0: ONE}
    if x.op in ("add", "mul"):
        parts = [_quotient(a, state) for a in x.args]
        if None in parts:
            return None
        total, *rest = (p for p in parts if p is not None)
        for other in rest:
            (a, b), (c, d) = total, other
            if x.op == "mul":
                total = _cancelled(_product(a, c), _product(b, d))
            elif b == d:
                total = _sum(a, c), b
            else:
                total = _cancelled(_sum(_product(a, d), _product(c, b)), _product(b, d))
            if max((*total[0], *total[1]), default=0) > HIGHEST:
                return None
        return total
    if x.op == "pow" and x.attrs[0].denominator == 1 and abs(x.attrs[0]) <= HIGHEST:
        inner = _quotient(x.args[0], state)
        if inner is None:
            return None
        above, below = inner if x.attrs[0] > 0 else inner[::-1]
        total = above, below
        for _ in range(abs(x.attrs[0].numerator) - 1):
            total = _product(total[0], above), _product(total[1], below)
        return total
    if x.op == "expand":
        return _quotient(x.args[0], state) if set(x.axes) <= set(state.axes) else None
    return None


def _product(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    out: dict[int, list[Node]] = {}
    for (n, x), (m, y) in product(a.items(), b.items()):
        out.setdefault(n + m, []).append(mul(x, y))
    return {n: add(*terms) for n, terms in out.items()}


def _sum(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    return {n: add(a.get(n, ZERO), b.get(n, ZERO)) for n in sorted({*a, *b})}


def _cancelled(above: _Polynomial, below: _Polynomial) -> tuple[_Polynomial, _Polynomial]:
    """A quotient without the factor that both sides have, where one side is a multiple of the other's highest term."""
    above, below = _nonzero(above), _nonzero(below)
    for one, other in ((above, below), (below, above)):
        divided = _divided(other, one)
        if divided is not None and max(one, default=0):
            return ({0: ONE}, divided) if one is above else (divided, {0: ONE})
    return above, below


def _divided(x: _Polynomial, by: _Polynomial) -> _Polynomial | None:
    """x / by, where nothing is left."""
    top = max(by, default=0)
    if not by or not x or max(x) < top:
        return None
    rest, out = dict(x), {}
    while rest and max(rest) >= top:
        n = max(rest)
        out[n - top] = mul(rest[n], power(by[top], -1))
        rest = _nonzero(_sum(rest, _product({n - top: mul(-1, out[n - top])}, by)))
    return None if rest else out


def _nonzero(x: _Polynomial) -> _Polynomial:
    return {n: y for n, y in x.items() if not is_zero(y)}


def is_zero(x: Node) -> bool:
    """Is x zero whatever its leaves are? It is tried at a random point of a field."""
    if x is ZERO:
        return True
    if not leaves(x):
        return False
    field, rng = Field(), random.Random(x.key)
    sizes = {dim_of(a): 2 for y in walk(x) for a in (*y.axes, *(y.attrs if y.op == "size" else ()))}
    env: Env = {}
    for y in leaves(x):
        env.setdefault(y.attrs[:2], field.random(rng, tuple(sizes[dim_of(a)] for a in y.attrs[2])))
    try:
        return bool(np.all(evaluate(expand(x, x.axes), env, field, sizes) == 0))
    except ZeroDivisionError:
        return False
