"""How far a claim reaches: how many steps it takes to be on both sides of every integer in its indices and conditions.

`S(t - 8)` has a value from step 8 on, and `s > t - 4` is both true and false from step 5 on. Offsets to one index, such as t - 8
and t - 7, overlap; those to different indices, or in different definitions, add up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import RANGED, Formula, formula, free_indices, negative, walk
from chunkform.spec.language.statements import Statement

from .scope import formulas_of, ranges_of, used_names

USUAL = 1  # offsets such as t - 1 and t + 1 are within reach of the usual sizes
NUMBERED = 3  # and so are these first steps, by their number


@dataclass(frozen=True)
class Reach:
    """`beyond`: so many more steps than usual; `factor`: the largest multiple of an index, as in S(8 * j); `dims`: the dims
    that indices run over, whose sizes must grow as well."""

    beyond: int = 0
    factor: int = 1
    dims: frozenset[str] = frozenset()

    def grown(self, size: int) -> int:
        return (size + self.beyond) * self.factor


NEAR = Reach()


def reach(statement: Statement, setting: Setting, bodies: Mapping[str, Formula]) -> Reach:
    """The reach of a statement, with that of the definitions that it uses."""
    offsets: dict[tuple, list[Fraction]] = {}
    factor = 1
    dims: set[str] = set()
    for scope, x in scopes(statement, setting, bodies):
        for y in walk(x):
            dims |= numbered(y, setting)
            for index in indices_in(y):
                dims |= {z.attrs[0] for z in walk(index) if z.op == "size"}
                terms = linear(index)
                offset = terms.pop((), Fraction(0))
                multiple = max(1, *(math.ceil(abs(k)) for k in terms.values()), 1)
                factor = max(factor, multiple)
                offsets.setdefault((scope, frozenset(terms.items())), [Fraction(0)]).append(offset / multiple)
    beyond = sum(
        excess(-min(k), USUAL) + excess(max(k), USUAL if terms else NUMBERED) for (_, terms), k in offsets.items()
    )
    return Reach(beyond, factor, frozenset(dims)) if beyond or factor > 1 else NEAR


def excess(offset: Fraction, usual: int) -> int:
    return max(0, math.ceil(offset) - usual)


def scopes(statement: Statement, setting: Setting, bodies: Mapping[str, Formula]) -> Iterator[tuple[str, Formula]]:
    """(where it stands, formula): those of the statement, and of the definitions and ranges of what it uses."""
    for x in formulas_of(statement):
        yield "", x
    for bound in ranges_of(statement):
        yield "", Formula("bound", (bound,))
    free = {name for x in formulas_of(statement) for name in free_indices(x)}
    for bound in (y for name in free & setting.index_ranges.keys() for y in setting.index_ranges[name]):
        yield "", Formula("bound", (bound,))
    for name in used_names(statement, setting):
        q = setting.quantities[name]
        body = bodies.get(name, q.body)
        start = q.start[1] if q.start else None
        yield from ((name, own) for own in (body, start) if own is not None)
        for low, high in q.ranges:
            yield name, Formula("bound", (low,))
            yield name, Formula("bound", (high,))
        if q.start is not None:
            yield name, Formula("bound", (formula(q.start[0]),))


def indices_in(x: Formula) -> tuple[Formula, ...]:
    """The integers that a node of a formula has: its indices, its bounds, the two sides of its comparison."""
    match x.op:
        case "at" | "bound":
            return x.args
        case op if op in RANGED:
            return tuple(y for y in x.args[:2] if y.op != "infinity")
        case "compare":
            return (Formula("add", (x.args[0], negative(x.args[1]))),)
        case "row":
            return x.args[1:]
        case "unit":
            return x.args[:1]
        case "tril":
            return (Formula("add", (Formula("index", (), ("row",)), Formula("number", (), (Fraction(x.attrs[0]),)))),)
        case "power":
            return x.args[1:] if any(y.op in ("index", "size") for y in walk(x.args[1])) else ()
    return ()


def numbered(x: Formula, setting: Setting) -> set[str]:
    """The dims whose entries a node of a formula counts."""
    match x.op:
        case "matrix":
            return set(x.attrs[2:])
        case "stack":
            return set(x.attrs[1:])
        case "unit":
            return set(x.attrs)
        case "tril":
            return set(setting.sizes)
        case "row" if any(y.op == "number" for y in walk(x.args[1])):
            return set(setting.sizes)
    return set()


def linear(x: Formula) -> dict[tuple[str, ...], Fraction]:
    """The coefficients of an integer by products of indices and sizes, that of () being the number alone."""
    match x.op:
        case "number":
            return {(): x.attrs[0]}
        case "index" | "size":
            return {(x.attrs[0],): Fraction(1)}
        case "negative":
            return {names: -k for names, k in linear(x.args[0]).items()}
        case "add":
            total: dict[tuple[str, ...], Fraction] = {}
            for a in x.args:
                for names, k in linear(a).items():
                    total[names] = total.get(names, Fraction(0)) + k
            return {names: k for names, k in total.items() if k or not names}
        case "product":
            result: dict[tuple[str, ...], Fraction] = {(): Fraction(1)}
            for a in x.args:
                parts = linear(a)
                product: dict[tuple[str, ...], Fraction] = {}
                for one, k in result.items():
                    for other, m in parts.items():
                        names = tuple(sorted((*one, *other)))
                        product[names] = product.get(names, Fraction(0)) + k * m
                result = product
            return result
    return {}
