"""Quotients of sums of exponentials: `exp(x) / (exp(x) + exp(y))` is `sigmoid(x - y)`, which doesn't overflow.

Each term of the numerator has a share of the sum below, `exp(x_i) / sum_j c_j exp(x_j)`: 1 / c_i times the sigmoid of what x_i
is above the logarithm of all others. A difference of two that a sum has is a hyperbolic tangent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from fractions import Fraction

from ...ir.expr import ZERO, Node, add, const, expand, factors_of, fn, mul, number, power, split_constant, terms_of

MOST = 4  # terms of a sum, and powers of it, that are looked at
Terms = Mapping[Node, Fraction]  # coefficients by exponents


def shares_of(x: Node) -> Node | None:
    """The product with shares in the place of what is divided by a sum of exponentials; None where nothing is."""
    for a in x.args if x.op == "mul" else ():
        if a.op != "pow" or a.attrs[0] > -1:
            continue
        below = exponentials(a.args[0])
        if below is None or not 1 < len(below) <= MOST or any(c <= 0 for c in below.values()):
            continue
        rest = [b for b in x.args if b is not a]
        found = _above(rest, below, min(MOST, int(-a.attrs[0])))
        if found is not None:
            kept, shares, powers = found
            return expand(mul(*kept, shares, power(a.args[0], a.attrs[0] + powers)), x.axes)
    return None


def exponentials(x: Node) -> Terms | None:
    """The coefficients of a sum whose terms are all exponentials, and numbers, with at least one exponential."""
    found: dict[Node, Fraction] = {}
    for t in terms_of(x):
        c, core = split_constant(t)
        exponents = [_exponent(f) for f in factors_of(core)] if core.op != "const" else []
        if any(y is None for y in exponents):
            return None
        y = add(*(z for z in exponents if z is not None)) if exponents else ZERO
        found[y] = found.get(y, Fraction(0)) + c * (core.attrs[0] if core.op == "const" else 1)
    return found if any(y is not ZERO for y in found) else None


def _exponent(x: Node) -> Node | None:
    if x.op == "pow" and x.args[0].op == "fn" and x.args[0].attrs[0] == "exp":
        return mul(x.attrs[0], x.args[0].args[0])
    return x.args[0] if x.op == "fn" and x.attrs[0] == "exp" else None


def _above(factors: Iterable[Node], below: Terms, n: int) -> tuple[list[Node], Node, int] | None:
    """Factors that stay, what others are of n sums below them, and of how many of these."""
    factors = list(factors)
    for f in factors:
        above = exponentials(f) if f.op == "add" else None
        if above is not None and set(above) <= set(below):
            return [g for g in factors if g is not f], _quotient(above, below), 1
    exponents = {f: y for f in factors if (y := _exponent(f)) is not None}
    whole = add(*exponents.values()) if exponents else ZERO
    for size in range(n, 0, -1):
        for chosen in itertools.combinations_with_replacement(below, size):
            if whole is not ZERO and add(*chosen) is whole:
                return [g for g in factors if g not in exponents], mul(*(share(y, below) for y in chosen)), size
    return None


def _quotient(above: Terms, below: Terms) -> Node:
    """One sum over the other."""
    if len(above) == len(below) == 2 and not sum(above.values()) and len(set(below.values())) == 1:
        (x, c), (y, _) = above.items()
        scale = c / below[x]
        return mul(scale, fn("tanh", mul(Fraction(1, 2), add(x, mul(-1, y)))))
    return add(*(mul(c, share(y, below)) for y, c in above.items()))


def share(x: Node, below: Terms) -> Node:
    """exp(x) over the sum, of which it is one."""
    own = below[x]
    first, *others = [_log(c / own, add(y, mul(-1, x))) for y, c in below.items() if y is not x]
    for y in others:
        first = add(y, fn("softplus", add(first, mul(-1, y))))
    return mul(const(1 / own), fn("sigmoid", mul(-1, first)))


def _log(ratio: Fraction, x: Node) -> Node:
    """The logarithm of a number times exp(x)."""
    return x if ratio == 1 else add(x, number(f"log({ratio})"))
