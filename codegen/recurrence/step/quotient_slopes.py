"""Gradients of quotients without what cancels: a slope of `u / (1 + u)` is `1 / (1 + u) - u / (1 + u)^2`, of which rounding
leaves nothing as u grows; it is `1 / (1 + u)^2`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import permutations, product

from ...ir.expr import Node, add, expand, factors_of, fn, leaf_names, mul, power, terms_of
from ...ir.logarithms import one_sided, same_on_both_sides

MOST = 64  # terms of a product that are looked at


def joined_quotients(g: Node) -> Node:
    """g with one term in the place of two over different powers of a sum, where most of what is above them cancels."""
    whole = list(terms_of(g))
    if not any(_divided(x) or any(map(_divided, y.args)) for x in whole for y in (x, *factors_of(x))):
        return g
    for spread in (lambda x: [x], _over_quotients, _over_all):
        spread_out = add(*(_with_sizes(factors_of(y)) for x in whole for y in spread(x)))
        terms = list(terms_of(spread_out))
        for first, second in permutations(terms[:MOST], 2):
            made = _joined(first, second)
            if made is not None:
                rest = [x for x in terms if x is not first and x is not second]
                return joined_quotients(expand(add(*rest, made), g.axes))
    return g


def over_one_divisor(x: Node) -> Node | None:
    """A sum as one quotient, where most of what is above it cancels: `1 - u / (u + v)` is `v / (u + v)`."""
    terms = terms_of(x)
    for below in {f.args[0] for t in terms for f in factors_of(t) if _is_quotient(f)}:
        parts = [_without(t, below) for t in terms]
        n = -min(m for _, m in parts)
        if n.denominator != 1 or any(m > 0 for _, m in parts):
            continue
        spread = [_spread([*rest, *[below] * int(n + m)]) for rest, m in parts]
        if None in spread:
            continue
        whole = [y for some in spread if some is not None for y in some]
        above = one_sided(add(*whole))
        if len(terms_of(above)) < len(whole) and len(terms_of(above)) <= len(terms_of(below)):
            return expand(mul(above, power(below, -n)), x.axes)
    return None


def _over_all(x: Node) -> list[Node]:
    """A term, spread over all sums that are factors of it, where it is divided by one."""
    return (_spread(factors_of(x)) or [x]) if _divided(x) else _over_quotients(x)


def _over_quotients(x: Node) -> list[Node]:
    """A term, spread over a sum of quotients that is a factor of it."""
    for f in factors_of(x):
        if f.op == "add" and any(_divided(y) for y in f.args):
            rest = [y for y in factors_of(x) if y is not f]
            return [mul(*rest, y) for y in f.args]
    return [x]


def _divided(x: Node) -> bool:
    return any(map(_is_quotient, factors_of(x)))


def _is_quotient(f: Node) -> bool:
    return f.op == "pow" and f.attrs[0] < 0 and f.args[0].op == "add"


def _joined(first: Node, second: Node) -> Node | None:
    """The sum of two terms as one, whose divisor is the second's."""
    for below in (f.args[0] for f in factors_of(second) if f.op == "pow" and f.args[0].op == "add"):
        if any(kind in ("state", "trajectory") for kind, _ in leaf_names(below)):  # what is above is a state's gradient
            continue
        (one, n), (other, m) = (_without(x, below) for x in (first, second))
        if n >= 0 or n - m != 1:
            continue
        shared = Counter(one) & Counter(other)
        left, right = Counter(one) - shared, Counter(other) - shared
        above = _spread([*left.elements(), below]), _spread(right.elements())
        if None in above:
            continue
        made = same_on_both_sides(add(*(x for side in above if side is not None for x in side)))
        if len(terms_of(made)) < len(terms_of(below)):
            return mul(*shared.elements(), made, *(power(below, k) for k in _powers(second, below)))
    return None


def _powers(x: Node, below: Node) -> list[Fraction]:
    return [f.attrs[0] for f in factors_of(x) if f.op == "pow" and f.args[0] is below]


def _without(x: Node, below: Node) -> tuple[list[Node], Fraction]:
    """The factors of x but for powers of a sum, and which power of it these are."""
    rest = [f for f in factors_of(x) if f.op != "pow" or f.args[0] is not below]
    return rest, sum(_powers(x, below), Fraction(0))


def _spread(factors: Iterable[Node]) -> list[Node] | None:
    """The terms of a product, multiplied out; None where these are too many."""
    sums = [terms_of(f) if f.op == "add" else (f,) for f in factors]
    count = 1
    for x in sums:
        count *= len(x)
    return None if count > MOST else [_with_sizes(chosen) for chosen in product(*sums)]


def _with_sizes(factors: Iterable[Node]) -> Node:
    """A product, in which a number times its sign is its size, and the square of a size that of the number."""
    rest = list(factors_of(mul(*factors)))
    for sign in [f for f in rest if f.op == "fn" and f.attrs[0] == "sign"]:
        x = sign.args[0]
        if any(f is x or (f.op == "pow" and f.args[0] is x and f.attrs[0] >= 1) for f in rest):
            rest.remove(sign)
            rest += [power(x, -1), fn("abs", x)]
            rest = list(factors_of(mul(*rest)))
    for f in [f for f in rest if f.op == "pow" and f.args[0].op == "fn" and f.args[0].attrs[0] == "abs"]:
        n, x = f.attrs[0], f.args[0].args[0]
        if n > 1 and n.denominator == 1:
            rest.remove(f)
            rest += [power(x, n - n % 2), power(f.args[0], n % 2)]
    return mul(*rest)
