"""Coefficients without loss, wherever they stand: `1 - sigmoid(x)` is `sigmoid(-x)`, of which float32 has all digits at x = 20.

A sum that depends on no state, and in which terms cancel, is written over terms that are never negative, where the analysis of
decays knows such terms (`positive_terms.py`): `1 - tanh(x)` is `2 sigmoid(-2x)`, `1 - exp(-softplus(x))` is `sigmoid(x)`,
`1 - sigmoid(x)^2` is `sigmoid(-x) + sigmoid(x) sigmoid(-x)`. A quotient by `c + exp(x)` is a sigmoid, which doesn't overflow, the
logarithm of a sigmoid a function of its own, and its root the exponential of half of that, of which float32 has all digits. The
gate `decays` compares each with what it takes the place of, in many digits.
"""

from __future__ import annotations

from dataclasses import replace as with_parts
from fractions import Fraction

from ...ir.expr import (
    Node,
    add,
    const,
    expand,
    factors_of,
    fn,
    leaf_names,
    maximum,
    mul,
    number,
    power,
    rebuild,
    replace,
    split_constant,
    terms_of,
    walk,
)
from ...ir.logarithms import Logarithms, log_of, lossless
from ...ir.positive_terms import over_root
from ...ir.ranges import Ranges
from ...ir.step_program import DECAYS, StepProgram
from .decays import exponential, known_range
from .quotient_slopes import over_one_divisor
from .shares import shares_of

LEAST_LOG = const(-88)  # of a decay, below which it is 0 in float32: one of exactly 0 leaves a sum of logarithms finite
ROUNDED = ("sigmoid", "exp", "expm1")  # functions of inputs, near whose bounds a difference has no digits left


def lossless_terms(step: StepProgram) -> tuple[StepProgram, dict[Node, Node]]:
    """The step with such coefficients, and which took whose place; the very same step where there are none."""
    states = {("state", s.name) for s in step.states}
    logarithms = Logarithms(Ranges(lambda x: known_range(step, x)))
    made: dict[Node, Node] = {}
    whole: dict[Node, Node] = {}  # each node -> with these in it
    computed = set(walk(*step.updates.values(), *step.outputs.values()))
    for x in walk(*computed, *step.names, *step.origins):  # what has a name may be another stratum's
        free = not leaf_names(x) & states
        if free and (found := _lossless(x, logarithms)) is not None:
            made |= {x: found} if x in computed else {}
            whole[x] = replace(found, {a: whole[a] for a in walk(*x.args) if a not in x.args})
        elif not free and x.op == "mul" and (found := _of_product(own := _without(x, states))) is not None:
            made |= {own: found} if x in computed else {}
            rest = [whole[a] for a in x.args if leaf_names(a) & states]
            whole[x] = mul(*rest, replace(found, {a: whole[a] for a in x.args}))
        else:
            whole[x] = rebuild(x, [whole[a] for a in x.args]) if x.args else x
            if free and (left := _of_shares(whole[x], x, logarithms)) is not None:
                whole[x] = expand(left, x.axes)
                made |= {x: whole[x]} if x in computed else {}
    if not made:
        return step, {}
    return (
        with_parts(
            step,
            updates={n: whole[x] for n, x in step.updates.items()},
            outputs={n: whole[x] for n, x in step.outputs.items()},
            names={whole[x]: n for x, n in step.names.items()},
            origins={whole[x]: where for x, where in step.origins.items()},
        ),
        made,
    )


def _lossless(x: Node, logarithms: Logarithms) -> Node | None:
    found = None
    match x.op:
        case "add":
            found = _of_sum(x, logarithms)
        case "pow":
            found = _share(x.args[0], -x.attrs[0])
            if found is None and x.attrs[0].denominator > 1:
                found = _root(x, logarithms)
        case "mul":
            found = _of_product(x) or _share_of_sum(x, logarithms)
        case "fn" if x.attrs[0] == "log":
            y = x.args[0]
            if y.op == "leaf" and y.attrs[0] in DECAYS:
                found = maximum(x, LEAST_LOG)
            elif (exponent := _exponent(y)) is not None:
                found = add(log_of(exponent[0]), fn("softplus", exponent[1]))
            elif y.op == "fn" and y.attrs[0] == "sigmoid":
                found = fn("logsigmoid", y.args[0])
            elif y.op == "add" and _of_sum(y, logarithms) is not None:
                found = logarithms.log(y)
    return None if found is None or found is x else expand(found, x.axes)


def _without(x: Node, states: set[tuple[str, str]]) -> Node:
    """A product without the factors that depend on a state."""
    return mul(*(a for a in x.args if not leaf_names(a) & states))


def _of_sum(x: Node, logarithms: Logarithms) -> Node | None:
    """A sum in which terms cancel, over terms that don't."""
    if not any(_cancels(a) for a in x.args):
        return None
    for sign in (1, -1):
        t = logarithms.polynomials.terms(x if sign > 0 else mul(-1, x))
        if t is None or not t.terms:
            continue
        parts = [t.part(f).node for exponents in t.terms for f, _ in exponents]
        if any(y.op == "fn" and y.attrs[0] in ROUNDED for part in parts for y in (part, *part.args)):
            return mul(sign, t.node())
    return None


def _cancels(x: Node) -> bool:
    """May this term of a sum take digits of the others?"""
    c, core = split_constant(x)
    return c < 0 or (core.op == "fn" and core.attrs[0] == "tanh") or over_root(core) is not None


def _root(x: Node, logarithms: Logarithms) -> Node | None:
    """A root, whose derivative has no value where what is below it is too small for a float: by its logarithm."""
    base = x.args[0]
    sigmoid = base.op == "fn" and base.attrs[0] == "sigmoid"
    if not sigmoid and (base.op != "add" or _of_sum(base, logarithms) is None):
        return None
    log = Logarithms(logarithms.ranges, near_one=False).log(base)
    return None if log is None else _power_by_logarithm(log, x.attrs[0])


def _power_by_logarithm(log: Node, n: Fraction) -> Node:
    """exp(n log): the powers of what terms are logarithms of, times the exponential of the others."""
    powers, rest = [], []
    for term in terms_of(log):
        c, core = split_constant(term)
        name = core.attrs[0] if core.op == "fn" else ""
        if name in ("log", "log1p"):
            powers.append(power(core.args[0] if name == "log" else add(1, core.args[0]), n * c))
        else:
            rest.append(term)
    return mul(*powers, *([exponential(mul(n, add(*rest)))] if rest else []))


def _share(x: Node, n: Fraction) -> Node | None:
    """(c + exp(y))^-n"""
    found = _exponent(x) if n > 0 else None
    if found is None:
        return None
    c, y = found
    if n.denominator == 1:
        return mul(const(c**-n.numerator), power(fn("sigmoid", mul(-1, y)), n))
    scale = const(1) if c == 1 else number(f"({c})**({-n})")
    return mul(scale, fn("exp", mul(n, fn("logsigmoid", mul(-1, y)))))


def _of_shares(x: Node, written: Node, logarithms: Logarithms) -> Node | None:
    """A sum that has others in the place of its terms, or quotients: what is left of it without loss."""
    if x.op != "add":
        return None
    found = None if x is written else _of_sum(x, logarithms)
    return over_one_divisor(x) if found is None else found


def _share_of_sum(x: Node, logarithms: Logarithms) -> Node | None:
    """A product with u / (u + v), where both have logarithms that lose nothing: sigmoid(log u - log v)."""
    for f in x.args:
        if f.op != "pow" or f.attrs[0] != -1 or f.args[0].op != "add":
            continue
        known = [g for g in x.args if g is not f and g.op != "const" and lossless(g)]
        for above in ([mul(*known)] if len(known) > 1 else []) + known:
            share = logarithms.share(mul(above, f))
            if share is not None:
                return mul(*(g for g in x.args if g is not f and g not in factors_of(above)), exponential(share))
    return None


def _exponent(x: Node) -> tuple[Fraction, Node] | None:
    """(c, y) where x = c (1 + exp(y))."""
    if x.op != "add" or len(x.args) != 2:
        return None
    numbers = [a for a in x.args if a.op == "const" and a.attrs[0] > 0]
    if len(numbers) != 1:
        return None
    c = numbers[0].attrs[0]
    share, rest = split_constant(add(x, mul(-1, numbers[0])))
    if share <= 0 or rest.op != "fn" or rest.attrs[0] != "exp":
        return None
    scale = share / c
    return c, rest.args[0] if scale == 1 else add(rest.args[0], number(f"log({scale})"))


def _of_product(x: Node) -> Node | None:
    """A product with exp(y) / (1 + exp(y)), which would overflow: sigmoid(y)."""
    if (shares := shares_of(x)) is not None:
        parts = [(_share(f.args[0], -f.attrs[0]) or f) if f.op == "pow" else f for f in factors_of(shares)]
        return _of_product(shares) or mul(*parts)
    for a in x.args if x.op == "mul" else ():
        found = _exponent(a.args[0]) if a.op == "pow" and a.attrs[0] <= -1 else None
        if found is not None and found[0] == 1 and fn("exp", found[1]) in x.args:
            y = found[1]
            rest = [b for b in x.args if b is not a and b is not fn("exp", y)]
            return mul(*rest, fn("sigmoid", y), power(fn("sigmoid", mul(-1, y)), -a.attrs[0] - 1))
    return None
