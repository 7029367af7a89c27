"""Repairs that say nothing: what a definition says already, or the left side itself, and factors that cancel.

Two formulas are compared in a plain form: definitions put in, indices added up, brackets of products taken away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, add, formula, inner, negative, product, rebuild, substitute, walk
from chunkform.spec.language.statements import Statement

from .derive import Terms, Underivable
from .required_steps import linear

ONE = formula(1)


def says_nothing(known: Formula, candidate: Formula, stated: Formula) -> bool:
    """Whether `candidate` in the place of `stated`, as what `known` is, would be a repair that says nothing."""
    if cancels(candidate) and not cancels(stated):
        return True
    if is_zero(known) and is_zero(candidate):
        return True
    left, right = paired(plain(known)), paired(plain(candidate))
    if contains(right, left) and not contains(paired(plain(stated)), left):
        return True
    return left == right


def says_itself(statement: Statement, bodies: Mapping[str, Formula], setting: Setting) -> bool:
    """Whether the sides of an equation are the same once definitions are put in, so that it is true of anything."""
    sides = [plain(opened(x, setting, bodies)) for x in getattr(statement, "sides", ())]
    return any(a == b for a, b in pairwise(sides))


def restates(
    known: Formula, candidate: Formula, setting: Setting, bodies: Mapping[str, Formula], logs: bool = False
) -> bool:
    """Whether `known` = `candidate`, which is true, is a definition, or one of the recurrence's own equations, in whatever
    order its factors stand; or true by a few equations. `logs`: or what the gradient of a logarithm is."""
    for one, other in ((known, candidate), (candidate, known)):
        symbol = one.args[0] if one.op == "transpose" else one
        body = defined_as(symbol, setting, bodies)
        if body is not None and made_of(body) == made_of(other):
            return True
        if plain(opened(one, setting, bodies, 1)) == plain(other):
            return True
    sides = [opened(x, setting, bodies) for x in (known, candidate)]
    if plain(sides[0]) == plain(sides[1]):
        return False  # several definitions together say something
    steps = [*sides, *(equations(x, setting, logs) for x in sides)]
    shown = [plain(x) for x in steps]
    turned = [plain(x.T) for x in steps[1::2]]  # h.T * C is C.T * h, as a number
    return any(a == b for a in shown[::2] for b in (*shown[1::2], *turned))


def defined_as(symbol: Formula, setting: Setting, bodies: Mapping[str, Formula]) -> Formula | None:
    """What a symbol is by its definition, or by an equation of the recurrence."""
    q = setting.quantities.get(symbol.attrs[0]) if symbol.op == "at" else None
    if q is None or q.kind != "defined":
        found = equations(symbol, setting) if q is not None else symbol
        return None if found == symbol else found
    body = bodies.get(q.name, None if q.alternatives else q.body)
    if body is None or q.start is not None:
        return None
    return substitute(body, {Formula("index", (), (p,)): i for p, i in zip(q.parameters, symbol.args)})


def made_of(x: Formula) -> Counter[tuple[object, ...]]:
    """What a formula is made of, in whatever order: its parts, but for transposes."""
    parts = (y for y in walk(plain(x)) if y.op not in ("transpose", "product"))
    return Counter((y.op, y.attrs, *y.args) if y.op == "at" else (y.op, y.attrs) for y in parts)


def plain(x: Formula) -> Formula:
    """x with indices added up, transposes taken inside products, and no brackets or ones in products."""
    if x.op == "at":
        return Formula("at", tuple(summed(i) for i in x.args), x.attrs)
    if x.op in ("named", "call"):
        return plain(x.args[0])
    args = tuple(plain(a) for a in x.args)
    if x.op == "transpose":
        (inside,) = args
        if inside.op == "product":
            return flat(tuple(plain(a.T) for a in reversed(inside.args)))
        if inside.op == "add":
            return add(*(plain(a.T) for a in inside.args))
        return negative(plain(inside.args[0].T)) if inside.op == "negative" else inside.T
    if x.op == "product":
        return flat(args)
    return rebuild(x, args)


def flat(factors: tuple[Formula, ...]) -> Formula:
    """A product without brackets, with its sign in front and without ones."""
    sign = False
    found: list[Formula] = []
    for f in factors:
        bare = f.args[0] if f.op == "negative" else f
        sign ^= f.op == "negative"
        found += [y for y in (bare.args if bare.op == "product" else (bare,)) if y != ONE]
    whole = product(*found) if found else ONE
    return negative(whole) if sign else whole


def summed(index: Formula) -> Formula:
    """An index with its terms added up: (i + 1 - 1) * c is c * i."""
    terms = {names: k for names, k in linear(index).items() if k}
    if not terms:
        return formula(0) if linear(index) else index
    parts = []
    for names, k in sorted(terms.items()):
        leaves = [Formula("index", (), (x,)) for x in names]
        parts.append(product(*([formula(k)] if k != 1 or not names else []), *leaves))
    return add(*parts)


def opened(x: Formula, setting: Setting, bodies: Mapping[str, Formula], depth: int = 8) -> Formula:
    """x with the setting's definitions put in; recursive ones, and those with several readings, stay."""
    args = tuple(opened(a, setting, bodies, depth) for a in x.args)
    if x.op == "at" and depth:
        q = setting.quantities.get(x.attrs[0])
        if q is not None and q.kind == "defined" and q.start is None:
            body = bodies.get(q.name, None if q.alternatives else q.body)
            if body is not None:
                here = {Formula("index", (), (p,)): i for p, i in zip(q.parameters, x.args)}
                return opened(substitute(body, here), setting, bodies, depth - 1)
        return x
    return rebuild(x, args)


def equations(x: Formula, setting: Setting, logs: bool = False) -> Formula:
    """x with outputs, lets, next states, and gradients of `logs`, put in by the recurrence's own equations, once."""
    r = setting.recurrence
    if r is None:
        return x
    terms = {y.name: y.term for y in (*r.lets, *r.outputs, *r.updates)}
    if x.op == "at" and x.args:
        q = setting.quantities.get(x.attrs[0])
        here = {Formula("index", (), ("t",)): x.args[0]}
        if q is not None and q.kind == "spec" and q.source in terms:
            try:
                return substitute(Terms(r)(terms[q.source]), here)
            except Underivable:
                return x
        if q is not None and logs and q.kind == "log gradient":
            scale, by = (Formula("at", x.args, (name,)) for name in (q.source, f"d{q.source}"))
            return Formula("hadamard", (scale, by)) if q.dims != ("1", "1") else product(scale, by)
        return x
    return rebuild(x, tuple(equations(a, setting, logs) for a in x.args))


def paired(x: Formula) -> Formula:
    """x with k.T * q and q.T * k as one inner product."""
    args = tuple(paired(a) for a in x.args)
    pair = args if x.op == "inner" else ()
    if x.op == "product" and len(args) == 2 and args[0].op == "transpose":
        pair = args[0].args[0], args[1]
    return inner(*sorted(pair, key=str)) if pair else rebuild(x, args)


def is_zero(x: Formula) -> bool:
    """Whether a formula is zero as it is written: 0 times anything, or 0 over it."""
    if x.op == "number":
        return x.attrs[0] == 0
    if x.op in ("product", "hadamard"):
        return any(is_zero(y) for y in x.args)
    return x.op in ("divide", "negative", "transpose", "inner") and is_zero(x.args[0])


def contains(x: Formula, part: Formula) -> bool:
    """Whether a part, which isn't a number, stands in x, transposed or not."""
    return part.op != "number" and any(y in (part, part.T) for y in walk(x))


def cancels(x: Formula) -> bool:
    """Whether something is multiplied by its own reciprocal or inverse, divided by itself, or taken from itself."""
    for y in walk(x):
        if y.op in ("product", "hadamard"):
            below = [z.args[1] for z in y.args if z.op == "divide"] + [z.args[0] for z in y.args if z.op == "inverse"]
            above = [*y.args, *(z.args[0] for z in y.args if z.op == "divide")]
            if any(z in above for z in below if z != ONE):
                return True
        if y.op == "divide":
            above_factors = y.args[0].args if y.args[0].op in ("product", "hadamard") else (y.args[0],)
            if y.args[1] in above_factors:
                return True
        if y.op == "add" and any(z.op == "negative" and z.args[0] in y.args for z in y.args):
            return True
        if y.op in ("inverse", "divide") and y.args[-1].op == y.op and (y.op == "inverse" or y.args[0] == ONE):
            return True
        if y.op == "power" and y.args[1] == formula(Fraction(0)):
            return True
    return False
