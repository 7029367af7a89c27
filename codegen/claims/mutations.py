"""Small edits of a formula: the slips that people make when they derive by hand.

Each edit changes one place, and says what it does: a sign, a factor, an index, a transpose, a root, a reciprocal, a
dropped part, one symbol for another, a solve, an inner product or a product over a range. Missing terms are found by
`repair.py`, from what is left over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from chunkform.spec.language.formula import (
    BINDERS,
    RANGED,
    Formula,
    formula,
    hadamard,
    inner,
    negative,
    product,
    rebuild,
    substitute,
    walk,
)

from .edit_scope import Scope, missing_ranges
from .indices import shifted

CLOSED = ("number", "index", "size", "infinity", "otherwise", "eye", "ones", "named", "call", "compare")
TWINS = {"cumsum": "revcumsum", "revcumsum": "cumsum", "rowsum": "colsum", "colsum": "rowsum"}
COSTS = {
    **dict.fromkeys(("index", "sign", "transpose", "bound"), 1),
    **dict.fromkeys(("symbol", "factor", "root", "number"), 2),
    **dict.fromkeys(("drop", "solve", "entries"), 3),
    "factor of a product": 4,
}
INSERTED = ("solve", "factor of a product")
BROUGHT = (*INSERTED, "entries")  # what comes alone, and not with another edit


@dataclass(frozen=True)
class Edit:
    """An edited formula; `kind` is a key of COSTS."""

    result: Formula
    kind: str
    what: str


def edits(x: Formula, scope: Scope) -> Iterator[Edit]:
    """Every formula that is one edit away from x; a part that is there several times may be edited everywhere at
    once."""
    yield from _at(x, scope, (), True)
    parts = [y for y in walk(x) if y.op in ("divide", "product", "call", "at") and y != x]
    for part in dict.fromkeys(y for y in parts if parts.count(y) > 1):
        for e in _here(part, scope, (), False):
            yield Edit(substitute(x, {part: e.result}), e.kind, f"{e.what}, in every place")


def moves(x: Formula) -> Iterator[Edit]:
    """Every formula in which one quantity of x is a step earlier or later."""
    if x.op == "at":
        for i, index in enumerate(x.args):
            for shift in (-1, 1):
                moved = Formula("at", (*x.args[:i], shifted(index, shift), *x.args[i + 1 :]), x.attrs)
                yield Edit(moved, "index", f"{moved} for {x}")
    elif x.op not in CLOSED:
        for i, a in enumerate(x.args):
            for e in moves(a):
                yield Edit(rebuild(x, (*x.args[:i], e.result, *x.args[i + 1 :])), e.kind, e.what)


def _at(x: Formula, scope: Scope, bound: tuple[str, ...], is_term: bool) -> Iterator[Edit]:
    """Edits at x or below; `is_term`: x is a summand, or stands alone."""
    yield from _here(x, scope, bound, is_term)
    if x.op == "call":
        yield from _arguments(x, scope, bound)
    if x.op in CLOSED:
        return
    inner = bound + (x.attrs[: BINDERS[x.op]] if x.op in BINDERS else ())
    for i, a in enumerate(x.args):
        if x.op in (*RANGED, "power") and (i < len(x.args) - 1 if x.op != "power" else i == 1):
            continue  # bounds and exponents are edited where they stand
        if x.op in ("at", "gradient", "jacobian") or (x.op == "row" and i == 1):
            continue
        terms = x.op not in ("product", "negative", "transpose", "hadamard")
        for e in _at(a, scope, inner, terms):
            if x.op == "transpose" and e.kind in INSERTED:
                continue  # it is tried outside, transposed
            one = x.op == "product" and e.result == formula(1)
            here = () if one else (e.result,)
            yield Edit(rebuild(x, (*x.args[:i], *here, *x.args[i + 1 :])), e.kind, e.what)


def _here(x: Formula, scope: Scope, bound: tuple[str, ...], is_term: bool) -> Iterator[Edit]:
    yield from _of_its_kind(x, scope, bound)
    if x.op in CLOSED and x.op not in ("named", "call"):
        return
    yield from _wrapped(x, scope, is_term)
    if is_term:
        yield from _of_a_term(x, scope, bound)
    yield from _put_around(x, scope, is_term)


def _of_its_kind(x: Formula, scope: Scope, bound: tuple[str, ...]) -> Iterator[Edit]:
    """What is written otherwise within x."""
    match x.op:
        case "at":
            yield from _symbols(x, scope, bound)
            for exponent in scope.exponents:
                yield Edit(x**exponent, "factor", f"{x**exponent} for {x}")
        case "add":
            yield from _terms(x)
        case "product" | "hadamard":
            yield from _factors(x, scope)
        case "number":
            yield from _numbers(x, scope)
        case op if op in RANGED:
            yield from _bounds(x)
        case "transpose" | "inverse" | "sqrt" | "diag" | "tril" | "negative":
            kind = {"transpose": "transpose", "negative": "sign"}.get(x.op, "drop")
            yield Edit(x.args[0], kind, f"without the {x.op} of {x.args[0]}")
            yield from _triangles(x)
        case "inner":
            yield from _pairs(x)
        case "row" | "unit":
            yield from _moved(x, scope, bound)
        case op if op in TWINS:
            twin = TWINS[op]
            yield Edit(Formula(twin, x.args, x.attrs), "symbol", f"{twin} for {op}")
        case "divide":
            above, below = x.args
            yield Edit(above, "drop", f"without the division by {below}")
            yield Edit(below / above, "root", f"{x} turned over")
            yield Edit(above / below**2, "number", f"the square of {below}")
        case "power":
            yield Edit(x.args[0], "number", f"{x.args[0]} for {x}")
            for shift in (1, -1):
                exponent = shifted(x.args[1], shift)
                yield Edit(x.args[0] ** exponent, "index", f"exponent {exponent}")
        case "cases":
            yield from _conditions(x)


def _moved(x: Formula, scope: Scope, bound: tuple[str, ...]) -> Iterator[Edit]:
    """Another row, or unit vector."""
    *whole, index = x.args
    near = [shifted(index, k) for k in (-1, 1)]
    for other in (*near, *_others(index, scope, bound)):
        moved = Formula(x.op, (*whole, other), x.attrs)
        yield Edit(moved, "index", f"{moved} for {x}")


def _triangles(x: Formula) -> Iterator[Edit]:
    for shift in (-1, 1) if x.op == "tril" else ():
        offset = x.attrs[0] + shift
        yield Edit(Formula("tril", x.args, (offset,)), "index", f"triangle from diagonal {offset}")


def _wrapped(x: Formula, scope: Scope, is_term: bool) -> Iterator[Edit]:
    """x transposed, inverted, or a component of it."""
    if x.op != "transpose":
        yield Edit(x.T, "transpose", f"{x} transposed")
    if x.op not in ("add", "negative", "transpose", "sum"):
        yield Edit(1 / x, "root", f"one over {x}")
        yield Edit(Formula("sqrt", (x,)), "root", f"the root of {x}")
    yield from _inverted(x, is_term)
    for dim_index in scope.components:
        if x.op in ("at", "transpose", "product"):
            yield Edit(Formula("row", (x, dim_index)), "index", f"component {dim_index} of {x}")


def _of_a_term(x: Formula, scope: Scope, bound: tuple[str, ...]) -> Iterator[Edit]:
    if x.op != "negative":
        yield Edit(negative(x), "sign", f"the sign of {x}")
    yield from _scaled(x, scope)
    yield from _shifted(x)
    yield from _ranged(x, scope, bound)
    for f in scope.entries:
        if f != x:
            yield Edit(hadamard(f, x), "entries", f"the entries of {f} on {x}")
            yield Edit(x / f, "entries", f"{x} over the entries of {f}")


def _put_around(x: Formula, scope: Scope, is_term: bool) -> Iterator[Edit]:
    """x with more factors, or as a diagonal matrix."""
    if is_term or x.op in ("at", "transpose", "stack", "named"):
        yield from _inserted(x, scope)
    if x.op == "at":
        yield Edit(Formula("diag", (x,)), "transpose", f"diag({x}) for {x}")
    if x.op in ("at", "stack", "named", "transpose") or is_term:
        for dim in scope.diagonals:
            for f in scope.diagonals[dim]:
                shown = f"the factor {f}"
                yield Edit(times(f, x), "factor", f"{shown} before {x}")
                yield Edit(times(x, f), "factor", f"{shown} after {x}")


def _inverted(x: Formula, is_term: bool) -> Iterator[Edit]:
    """The inverse of what may be a matrix: of a sum where it is a factor. Of factors the transposed one as well."""
    if x.op not in ("negative", "transpose", "sum") and not (x.op == "add" and is_term):
        yield Edit(Formula("inverse", (x,)), "solve", f"the inverse of {x}")
    if x.op in ("add", "at") and not is_term:
        yield Edit(Formula("inverse", (x,)).T, "solve", f"the transposed inverse of {x}")


def times(*factors: Formula) -> Formula:
    """The product from left to right, with products among the factors taken apart, and a sign in front."""
    flat: list[Formula] = []
    sign = False
    for f in factors:
        bare = f.args[0] if f.op == "negative" else f
        sign ^= f.op == "negative"
        flat += bare.args if bare.op == "product" else (bare,)
    return negative(product(*flat)) if sign else product(*flat)


def _inserted(x: Formula, scope: Scope) -> Iterator[Edit]:
    """A solve, or a vector or matrix, that is missing before or after x; between the factors of a product too."""
    for factor, kind in (*((y, "solve") for y in scope.solves), *((y, "factor of a product") for y in scope.factors)):
        shown = f"the missing {kind.partition(' ')[0]} {factor}"
        yield Edit(times(factor, x), kind, f"{shown} before {x}")
        yield Edit(times(x, factor), kind, f"{shown} after {x}")
        if x.op == "product":
            for i in range(1, len(x.args)):
                yield Edit(product(*x.args[:i], factor, *x.args[i:]), kind, f"{shown} before {x.args[i]}")


def _ranged(x: Formula, scope: Scope, bound: tuple[str, ...]) -> Iterator[Edit]:
    """A product of decays over a range that is missing from a term, or from a vector in it."""
    for f, entries in missing_ranges(scope, bound):
        if not entries:
            yield Edit(times(f, x), "factor", f"the missing factor {f} on {x}")
            continue
        vectors = False
        for i, a in enumerate(x.args if x.op in ("product", "hadamard") else ()):
            bare = a.args[0] if a.op == "transpose" else a
            if bare.op in ("at", "hadamard"):
                own = bare.args if bare.op == "hadamard" else (bare,)
                new = hadamard(f, *own).T if a.op == "transpose" else hadamard(f, *own)
                vectors = True
                yield Edit(
                    Formula(x.op, (*x.args[:i], new, *x.args[i + 1 :])), "factor", f"the missing factor {f} on {bare}"
                )
        if not vectors:
            yield Edit(hadamard(f, x), "factor", f"the missing factor {f} on {x}")


def _pairs(x: Formula) -> Iterator[Edit]:
    """Another product of the two sides of an inner product."""
    a, b = x.args
    for other in (hadamard(a, b), product(flipped(a), b), product(a, flipped(b)), product(a, b)):
        yield Edit(other, "symbol", f"{other} for {x}")


def _arguments(x: Formula, scope: Scope, bound: tuple[str, ...]) -> Iterator[Edit]:
    """A function such as M(Lambda) at another argument."""
    body, *args = x.args
    for i, a in enumerate(args):
        for e in _at(a, scope, bound, True):
            new = Formula("call", (substitute(body, {a: e.result}), *args[:i], e.result, *args[i + 1 :]), x.attrs)
            yield Edit(new, e.kind, e.what)


def _symbols(x: Formula, scope: Scope, bound: tuple[str, ...]) -> Iterator[Edit]:
    yield from moves(x)
    for i, index in enumerate(x.args):
        for other in _others(index, scope, bound):
            moved = Formula("at", (*x.args[:i], other, *x.args[i + 1 :]), x.attrs)
            yield Edit(moved, "index", f"{moved} for {x}")
    for name in (*scope.same_shape.get(x.attrs[0], ()), *scope.misfits.get(x.attrs[0], ())):
        other = Formula("at", x.args, (name,))
        yield Edit(other, "symbol", f"{other} for {x}")


def _others(index: Formula, scope: Scope, bound: tuple[str, ...]) -> Iterator[Formula]:
    """The other indices that there are, in the place of one."""
    if index.op == "index":
        for name in dict.fromkeys((*bound, *scope.indices)):
            if name != index.attrs[0]:
                yield Formula("index", (), (name,))


def _terms(x: Formula) -> Iterator[Edit]:
    for i, term in enumerate(x.args):
        rest = (*x.args[:i], *x.args[i + 1 :])
        yield Edit(rebuild(x, rest), "drop", f"without the term {term}")


def _factors(x: Formula, scope: Scope) -> Iterator[Edit]:
    for i, factor in enumerate(x.args):
        rest = (*x.args[:i], *x.args[i + 1 :])
        short = rebuild(x, rest) if len(rest) > 1 else rest[0]
        yield Edit(short, "drop", f"without the factor {factor}")
    if x.op == "hadamard":
        if len(x.args) == 2:
            yield Edit(inner(*x.args), "symbol", f"{inner(*x.args)} for {x}")
        return
    yield Edit(product(*x.args[:-1]) / x.args[-1], "root", f"over {x.args[-1]}")
    for mask in scope.masks:
        for i in range(2, len(x.args)):
            scores = product(*x.args[:i])
            yield Edit(product(hadamard(scores, mask), *x.args[i:]), "entries", f"the missing {mask} on {scores}")
    for i in range(len(x.args) - 1):
        a, b = x.args[i], x.args[i + 1]
        before, after = x.args[:i], x.args[i + 2 :]
        for one, two in turned_beside_ones(a, b, scope):
            yield Edit(product(*before, one, two, *after), "transpose", f"{product(one, two)} for {product(a, b)}")
        for both in (inner(flipped(a), b), inner(a, b), inner(a, flipped(b))):
            yield Edit(product(*before, both, *after), "symbol", f"{both} for {product(a, b)}")
        for pair in ((b, a), (flipped(a), flipped(b)), (flipped(b), flipped(a)), (flipped(b), a), (b, flipped(a))):
            yield Edit(product(*before, *pair, *after), "transpose", f"{product(*pair)} for {product(a, b)}")
        if len(x.args) > 2 and b.op == "transpose":
            whole = product(product(*before, a, b.args[0]).T, *after)
            yield Edit(whole, "transpose", f"{whole} for {x}")
    last = x.args[-1]
    if last.op == "transpose":
        whole = product(*x.args[:-1], last.args[0]).T
        yield Edit(whole, "transpose", f"{whole} for {x}")


def turned_beside_ones(a: Formula, b: Formula, scope: Scope) -> Iterator[tuple[Formula, Formula]]:
    """A matrix transposed beside a vector of ones, which then has as many as fit."""
    if b.op == "ones":
        yield from ((flipped(a), Formula("ones", (), (dim,))) for dim in scope.dims if (dim,) != b.attrs)
    if a.op == "transpose" and a.args[0].op == "ones":
        yield from ((Formula("ones", (), (d,)).T, flipped(b)) for d in scope.dims if (d,) != a.args[0].attrs)


def flipped(x: Formula) -> Formula:
    return x.args[0] if x.op == "transpose" else x.T


def _numbers(x: Formula, scope: Scope) -> Iterator[Edit]:
    value = x.attrs[0]
    for other in {value + 1, value - 1, value * 2, value / 2, -value} - {value}:
        yield Edit(formula(other), "number", f"{other} for {value}")
    if value == 1:
        for dim in scope.dims:
            yield Edit(Formula("eye", (), (dim,)), "number", f"the identity I_{dim} for 1")


def _bounds(x: Formula) -> Iterator[Edit]:
    low, high, body = x.args
    (name,) = x.attrs
    for shift in (-1, 1):
        start = shifted(low, shift)
        yield Edit(Formula(x.op, (start, high, body), x.attrs), "bound", f"{name} from {start}")
        if high.op != "infinity":
            end = shifted(high, shift)
            yield Edit(Formula(x.op, (low, end, body), x.attrs), "bound", f"{name} up to {end}")
    for other in sorted({y.attrs[0] for y in walk(body) if y.op == "index"} - {name}):
        renamed = substitute(body, {Formula("index", (), (other,)): Formula("index", (), (name,))})
        yield Edit(Formula(x.op, (low, high, renamed), x.attrs), "index", f"the index {name} for {other}")
    if high.op != "infinity":
        last = substitute(body, {Formula("index", (), (name,)): high})
        yield Edit(last, "drop", f"the last term of the {'sum' if x.op == 'sum' else 'product'} alone")


def _conditions(x: Formula) -> Iterator[Edit]:
    for i, condition in enumerate(x.args[::2]):
        if condition.op == "compare":
            swapped = {">=": ">", ">": ">=", "<=": "<", "<": "<="}.get(condition.attrs[0])
            if swapped:
                other = Formula("compare", condition.args, (swapped,))
                args = (*x.args[: 2 * i], other, *x.args[2 * i + 1 :])
                yield Edit(Formula("cases", args), "bound", f"{other} for {condition}")


def _scaled(x: Formula, scope: Scope) -> Iterator[Edit]:
    for f in scope.scalars:
        yield Edit(times(f, x), "factor", f"the factor {f} on {x}")
        if f.op != "add":
            yield Edit(times(1 / f, x), "factor", f"{x} over {f}")
            yield Edit(negative(times(f, x)), "factor", f"the factor -{f} on {x}")
    for f in scope.pairs:
        yield Edit(times(f, x), "factor", f"the missing factor {f} on {x}")
    for number in (Fraction(2), Fraction(1, 2)):
        yield Edit(times(formula(number), x), "factor", f"the factor {number} on {x}")


def _shifted(x: Formula) -> Iterator[Edit]:
    """Every free index of a term of several factors moved by one."""
    names = {y for y in walk(x) if y.op == "index"}
    if x.op == "at" or len(names) != 1:
        return
    (name,) = names
    for shift in (-1, 1):
        moved = _move(x, name, shift)
        yield Edit(moved, "index", f"{moved} for {x}")


def _move(x: Formula, name: Formula, shift: int) -> Formula:
    if x.op in ("at", "named"):
        kept = x.args[:1] if x.op == "named" else ()
        moved = [shifted(i, shift) if any(y == name for y in walk(i)) else i for i in x.args[len(kept) :]]
        body = tuple(_move(k, name, shift) for k in kept)
        return Formula(x.op, (*body, *moved), x.attrs)
    return rebuild(x, tuple(_move(a, name, shift) for a in x.args))
