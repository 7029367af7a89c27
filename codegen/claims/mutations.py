"""Small edits of a formula: the slips that people make when they derive by hand.

Each edit changes one place, and says what it does: a sign, a factor, an index, a transpose, a root, a reciprocal, a
dropped part, one symbol for another. Missing terms are found by `repair.py`, from what is left over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import (
    BINDERS,
    RANGED,
    Formula,
    formula,
    negative,
    product,
    rebuild,
    substitute,
    walk,
)

from .indices import is_decay, shifted

CLOSED = ("number", "index", "size", "infinity", "otherwise", "eye", "ones", "named", "call", "compare")
COSTS = {"index": 1, "sign": 1, "transpose": 1, "symbol": 2, "factor": 2, "drop": 3, "root": 2, "number": 2, "bound": 1}


@dataclass(frozen=True)
class Edit:
    """An edited formula; `kind` is a key of COSTS."""

    result: Formula
    kind: str
    what: str


@dataclass(frozen=True)
class Scope:
    """What an edit may bring in: names of one shape, scalars, and diagonal factors by the dim that they fit."""

    same_shape: dict[str, tuple[str, ...]]
    scalars: tuple[Formula, ...]
    diagonals: dict[str, tuple[Formula, ...]]
    dims: tuple[str, ...]
    components: tuple[Formula, ...] = ()


def edits(x: Formula, scope: Scope) -> Iterator[Edit]:
    """Every formula that is one edit away from x; a part that is there several times may be edited everywhere at
    once."""
    yield from _at(x, scope, (), True)
    parts = [y for y in walk(x) if y.op in ("divide", "product", "call", "at") and y != x]
    for part in dict.fromkeys(y for y in parts if parts.count(y) > 1):
        for e in _here(part, scope, (), False):
            yield Edit(substitute(x, {part: e.result}), e.kind, f"{e.what}, in every place")


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
            yield Edit(rebuild(x, (*x.args[:i], e.result, *x.args[i + 1 :])), e.kind, e.what)


def _here(x: Formula, scope: Scope, bound: tuple[str, ...], is_term: bool) -> Iterator[Edit]:
    match x.op:
        case "at":
            yield from _symbols(x, scope, bound)
        case "add":
            yield from _terms(x)
        case "product" | "hadamard":
            yield from _factors(x, scope)
        case "number":
            yield from _numbers(x, scope)
        case op if op in RANGED:
            yield from _bounds(x)
        case "transpose" | "inverse" | "sqrt" | "diag" | "tril" | "negative":
            yield Edit(x.args[0], "transpose" if x.op == "transpose" else "drop", f"without the {x.op} of {x.args[0]}")
        case "divide":
            above, below = x.args
            yield Edit(above, "drop", f"without the division by {below}")
            yield Edit(below / above, "root", f"{x} turned over")
        case "power":
            for shift in (1, -1):
                yield Edit(x.args[0] ** (x.args[1] + shift), "index", f"exponent {x.args[1] + shift}")
    if x.op == "tril":
        for shift in (-1, 1):
            offset = x.attrs[0] + shift
            yield Edit(Formula("tril", x.args, (offset,)), "index", f"triangle from diagonal {offset}")
    if x.op == "cases":
        yield from _conditions(x)
    if x.op in CLOSED and x.op not in ("named", "call"):
        return
    if x.op != "transpose":
        yield Edit(x.T, "transpose", f"{x} transposed")
    if x.op not in ("add", "negative", "transpose", "sum"):
        yield Edit(1 / x, "root", f"one over {x}")
        yield Edit(Formula("sqrt", (x,)), "root", f"the root of {x}")
        yield Edit(Formula("inverse", (x,)), "root", f"the inverse of {x}")
    for dim_index in scope.components:
        if x.op in ("at", "transpose", "product"):
            yield Edit(Formula("row", (x, dim_index)), "index", f"component {dim_index} of {x}")
    if is_term:
        if x.op != "negative":
            yield Edit(negative(x), "sign", f"the sign of {x}")
        yield from _scaled(x, scope)
        yield from _shifted(x)
    if x.op == "at":
        yield Edit(Formula("diag", (x,)), "transpose", f"diag({x}) for {x}")
    if x.op in ("at", "stack", "named", "transpose") or is_term:
        for dim in scope.diagonals:
            for f in scope.diagonals[dim]:
                shown = f"the factor {f}"
                yield Edit(product(f, x), "factor", f"{shown} before {x}")
                yield Edit(product(x, f), "factor", f"{shown} after {x}")


def _arguments(x: Formula, scope: Scope, bound: tuple[str, ...]) -> Iterator[Edit]:
    """A function such as M(Lambda) at another argument."""
    body, *args = x.args
    for i, a in enumerate(args):
        for e in _at(a, scope, bound, True):
            new = Formula("call", (substitute(body, {a: e.result}), *args[:i], e.result, *args[i + 1 :]), x.attrs)
            yield Edit(new, e.kind, e.what)


def _symbols(x: Formula, scope: Scope, bound: tuple[str, ...]) -> Iterator[Edit]:
    for i, index in enumerate(x.args):
        for shift in (-1, 1):
            moved = Formula("at", (*x.args[:i], shifted(index, shift), *x.args[i + 1 :]), x.attrs)
            yield Edit(moved, "index", f"{moved} for {x}")
        for name in bound:
            other = Formula("index", (), (name,))
            if index.op == "index" and index != other:
                moved = Formula("at", (*x.args[:i], other, *x.args[i + 1 :]), x.attrs)
                yield Edit(moved, "index", f"{moved} for {x}")
    for name in scope.same_shape.get(x.attrs[0], ()):
        other = Formula("at", x.args, (name,))
        yield Edit(other, "symbol", f"{other} for {x}")


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
        return
    for i in range(len(x.args) - 1):
        a, b = x.args[i], x.args[i + 1]
        before, after = x.args[:i], x.args[i + 2 :]
        for pair in ((b, a), (flipped(a), flipped(b)), (flipped(b), flipped(a)), (flipped(b), a), (b, flipped(a))):
            yield Edit(product(*before, *pair, *after), "transpose", f"{product(*pair)} for {product(a, b)}")
        if len(x.args) > 2 and b.op == "transpose":
            whole = product(product(*before, a, b.args[0]).T, *after)
            yield Edit(whole, "transpose", f"{whole} for {x}")
    last = x.args[-1]
    if last.op == "transpose":
        whole = product(*x.args[:-1], last.args[0]).T
        yield Edit(whole, "transpose", f"{whole} for {x}")


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
        yield Edit(product(f, x), "factor", f"the factor {f} on {x}")
        if f.op != "add":
            yield Edit(product(1 / f, x), "factor", f"{x} over {f}")
            yield Edit(negative(product(f, x)), "factor", f"the factor -{f} on {x}")
    for number in (Fraction(2), Fraction(1, 2)):
        yield Edit(product(formula(number), x), "factor", f"the factor {number} on {x}")


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


def scope_of(x: Formula, setting: Setting, names: tuple[str, ...], beside: tuple[Formula, ...] = ()) -> Scope:
    """What may be brought into x: quantities of the setting, at the indices that x, or what stands beside it, uses."""
    quantities = setting.quantities
    by_shape: dict[tuple, list[str]] = {}
    for name in names:
        q = quantities[name]
        by_shape.setdefault((q.dims if q.kind != "defined" else ("?", name), q.parameters), []).append(name)
    same = {n: tuple(m for m in group if m != n) for group in by_shape.values() for n in group}
    for name in names:
        if quantities[name].kind == "defined":
            mates = [m for m in names if m != name and quantities[m].parameters == quantities[name].parameters]
            same[name] = tuple(mates)
    indices = indices_of((x, *beside), setting)
    scalars = functions_in((x, *beside), setting)
    scalars += [1 - f for f in scalars]
    diagonals: dict[str, list[Formula]] = {}
    for name in names:
        q = quantities[name]
        if q.kind != "defined" and q.dims == ("1", "1"):
            for args in indices.get(len(q.parameters), []):
                here = Formula("at", args, (name,))
                scalars += [here, 1 - here]
        elif q.kind != "defined" and q.dims[1] == "1":
            for args in indices.get(len(q.parameters), []):
                here = Formula("diag", (Formula("at", args, (name,)),))
                diagonals.setdefault(q.dims[0], []).append(here) if q.domain == "decay" or is_decay(
                    setting, name
                ) else None
        elif is_decay_rows(setting, name):
            here = Formula("diag", (Formula("at", (), (name,)),))
            less = Formula("diag", (1 - Formula("at", (), (name,)),))
            diagonals.setdefault("n", []).extend([here, less])
    sizes = tuple(d for q in (quantities[n] for n in names) for d in q.dims if d != "1")
    components = dict.fromkeys(y.args[1] for z in (x, *beside) for y in walk(z) if y.op == "row")
    there = {k: tuple(v) for k, v in diagonals.items()}
    return Scope(same, tuple(scalars), there, tuple(dict.fromkeys(sizes)), tuple(components))


def indices_of(there: tuple[Formula, ...], setting: Setting) -> dict[int, list[tuple[Formula, ...]]]:
    """The indices that formulas use, by their number; those inside definitions too."""
    found: dict[int, list[tuple[Formula, ...]]] = {0: [()]}
    stack = [y for x in there for y in walk(x) if y.op in ("at", "named")]
    opened: set[str] = set()
    while stack:
        y = stack.pop(0)
        args = tuple(shifted(a, 0) for a in (y.args if y.op == "at" else y.args[1:]))
        group = found.setdefault(len(args), [])
        if args not in group:
            group.append(args)
        q = setting.quantities.get(y.attrs[0]) if y.op == "at" else None
        if q is not None and q.body is not None and q.parameters and q.name not in opened:
            opened.add(q.name)
            inside = substitute(q.body, {Formula("index", (), (p,)): a for p, a in zip(q.parameters, args)})
            stack += [z for z in walk(inside) if z.op == "at" and not any(w.op in BINDERS for w in walk(q.body))]
    return found


def functions_in(there: tuple[Formula, ...], setting: Setting) -> list[Formula]:
    """Scalar functions, such as sigmoid(b(t)), that formulas have, or the recurrence at their step."""
    found = [y for x in there for y in walk(x) if y.op in ("function", "exp")]
    if setting.recurrence is not None:
        from .derive import functions_of

        found += functions_of(setting.recurrence)
    return list(dict.fromkeys(found))


def is_decay_rows(setting: Setting, name: str) -> bool:
    """Whether a quantity stacks scalars over the steps, so that its diagonal matrix scales rows."""
    q = setting.quantities[name]
    if q.kind != "defined" or q.parameters or q.body is None or q.body.op != "stack" or q.body.attrs[1] != "n":
        return False
    body = q.body.args[0]
    body = body.args[0] if body.op == "transpose" else body
    inner = setting.quantities.get(body.attrs[0]) if body.op == "at" else None
    return inner is not None and inner.dims == ("1", "1")
