"""Gradients of quotients without what cancels: a slope of `u / (1 + u)` is `1 / (1 + u) - u / (1 + u)^2`, of which rounding
leaves nothing as u grows; it is `1 / (1 + u)^2`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import permutations, product

from ...ir.expr import Node, add, expand, factors_of, fn, leaf_names, leaves, mul, power, rebuild, terms_of
from ...ir.functions import APART
from ...ir.logarithms import one_sided, same_on_both_sides

MOST = 64  # terms of a product that are looked at


def joined_quotients(g: Node, of_states: bool = False) -> Node:
    """g with one term in the place of two over different powers of a sum, where most of what is above them cancels. `of_states`:
    where the sum has states in it as well."""
    whole = list(terms_of(g))
    if not any(_divided(x) or any(map(_divided, y.args)) for x in whole for y in (x, *factors_of(x))):
        return g
    for spread in (lambda x: [x], _over_quotients, _over_all):
        spread_out = add(*(_with_sizes(factors_of(y)) for x in whole for y in spread(x)))
        terms = list(terms_of(spread_out))
        for first, second in permutations(terms[:MOST], 2):
            made = _joined(first, second, of_states)
            if made is not None:
                rest = [x for x in terms if x is not first and x is not second]
                return joined_quotients(expand(add(*rest, made), g.axes), of_states)
    return g


def over_one_divisor(x: Node) -> Node | None:
    """A sum with one quotient in the place of terms of which most cancels: `a - a u / (u + v)` is `a v / (u + v)`."""
    for f in x.args if x.op == "mul" else ():
        if f.op == "add" and (made := over_one_divisor(f)) is not None:
            return mul(*(g for g in x.args if g is not f), made)
    whole = add(*(y for t in terms_of(x) for y in _over_numerators(t)))
    terms = terms_of(whole)
    for below in sorted({f.args[0] for t in terms for f in factors_of(t) if _is_quotient(f)}):
        groups: dict[tuple[Node, ...], list[Node]] = {}
        for t in terms:
            others = [f for f in _without(t, below)[0] if f.op != "const" and not leaf_names(f) <= leaf_names(below)]
            groups.setdefault(tuple(sorted(others)), []).append(t)
        quotients = [_quotient(some, below) for some in groups.values()]
        if any(y is not None for y in quotients):
            left = [t for some, y in zip(groups.values(), quotients, strict=True) if y is None for t in some]
            whole = add(*left, *(y for y in quotients if y is not None))
            return expand(over_one_divisor(whole) or whole, x.axes)
    return None


def _over_numerators(x: Node) -> list[Node]:
    """A term, spread over sums above a divisor that have terms with what it is made of."""
    below = [leaf_names(f.args[0]) for f in factors_of(x) if _is_quotient(f)]
    for f in factors_of(x) if below else ():
        if f.op == "add" and any(leaf_names(f) & names and not leaf_names(f) <= names for names in below):
            rest = [g for g in factors_of(x) if g is not f]
            return [y for t in f.args for y in _over_numerators(mul(*rest, t))]
    return [x]


def _quotient(terms: list[Node], below: Node) -> Node | None:
    parts = [_without(t, below) for t in terms]
    n = -min(m for _, m in parts)
    if len(parts) < 2 or n < 1 or n.denominator != 1 or any(m > 0 for _, m in parts):
        return None
    shared = Counter(parts[0][0])
    for rest, _ in parts:
        shared &= Counter(rest)
    spread = [_spread([*(Counter(rest) - shared).elements(), *[below] * int(n + m)]) for rest, m in parts]
    if None in spread:
        return None
    whole = [y for some in spread if some is not None for y in some]
    above = one_sided(add(*whole))
    if len(terms_of(above)) < len(whole) and len(terms_of(above)) <= len(terms_of(below)):
        return mul(above, *shared.elements(), power(below, -n))
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


@lru_cache(maxsize=2**14)  # the same two are looked at again after each that is joined
def _joined(first: Node, second: Node, of_states: bool) -> Node | None:
    """The sum of two terms as one, whose divisor is the second's."""
    for below in (f.args[0] for f in factors_of(second) if f.op == "pow" and f.args[0].op == "add"):
        states = any(kind in ("state", "trajectory") for kind, _ in leaf_names(below))
        if states and not of_states:  # what is above is a state's gradient
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


def multiplied_out(x: Node) -> Node:
    """A sum in which products of sums are multiplied out, where terms cancel then."""
    spread = [_spread(_single(factors_of(t))) for t in terms_of(x)]
    whole = [y for some in spread if some is not None for y in some]
    if None in spread or len(whole) == len(terms_of(x)):
        return x
    made = add(*whole)
    return expand(made, x.axes) if len(terms_of(made)) < len(whole) else x


def _single(factors: Iterable[Node]) -> Iterable[Node]:
    """Factors, with whole powers of sums as so many of them."""
    for f in factors:
        n = f.attrs[0] if f.op == "pow" and f.args[0].op == "add" else Fraction(1)
        yield from [f.args[0]] * int(n) if n.denominator == 1 and 1 < n <= 4 else [f]


def divided_in_turn(x: Node, but: Callable[[Node], bool]) -> Node:
    """x, where what is divided by a sum several times is so factor by factor, `(u / w)^2 v` in the place of `u^2 v / w^2`, whose
    parts may have no float. `but`: leaves whose factors stay as they are."""
    x = rebuild(x, [divided_in_turn(a, but) for a in x.args]) if x.args else x
    for f in factors_of(x) if x.op == "mul" else ():
        n = -f.attrs[0] if f.op == "pow" and f.args[0].op == "add" else Fraction(0)
        if n < 1 or n.denominator != 1:
            continue
        if n > 1 and len(terms := _over_numerators(x)) > 1:
            return expand(add(*(divided_in_turn(t, but) for t in terms)), x.axes)
        below = f.args[0]
        powers = {
            (g.args[0] if g.op == "pow" else g): (g.attrs[0] if g.op == "pow" else Fraction(1))
            for g in factors_of(x)
            if g.op != "const" and leaf_names(g) <= leaf_names(below) and not any(map(but, leaves(g)))
        }
        above = {u: k for u, k in powers.items() if k > 0 and k.denominator == 1 and u is not below}
        if sum(above.values()) + n < 3 or not above:
            continue
        rest, left = [x], n
        for u, k in above.items():
            k = min(k, left)
            left -= k
            rest += [power(u, -k), power(below, k), power(fn(APART, mul(u, power(below, -1))), k)]
        return expand(mul(*rest), x.axes)
    return x


def _spread(factors: Iterable[Node]) -> list[Node] | None:
    """The terms of a product, multiplied out; None where these are too many."""
    sums = [terms_of(f) if f.op == "add" else (f,) for f in _single(factors)]
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
