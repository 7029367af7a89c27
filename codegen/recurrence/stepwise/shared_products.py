"""Products of a step whose factors are partly the same: what they have in common is made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import combinations, takewhile

from ...ir.code import Binary, Code, Literal, Name
from ...ir.code_parts import rebuilt, walk_code
from ...ir.kernel_ir import Body, Let, Statement, Store, let

Factors = tuple[Code, ...]


def with_shared_products(body: Body, fresh: Callable[[str], str]) -> Body:
    """Statements in a row, none of which changes what another one multiplies, with names for what products have in common:
    those of most factors first. `fresh` makes names."""
    while common := _common([x for statement in body for x in _products(statement)]):
        name = fresh("shared")
        made = [_over(x, common, Name(name)) for x in body]
        before = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(body, made, strict=True))))
        body = (*made[:before], let(name, reduce(lambda a, b: a * b, common)), *made[before:])
    return tuple(body)


def _common(products: list[Factors]) -> Factors:
    """The most factors that two different products have in common, two at least."""
    pairs = (tuple(x for x in a if x in b) for a, b in combinations(dict.fromkeys(products), 2))
    return max((x for x in pairs if len(x) > 1), key=len, default=())


def _factors(x: Code) -> Factors:
    return (*_factors(x.left), x.right) if isinstance(x, Binary) and x.operator == "*" else (x,)


def _products(statement: Statement) -> Iterator[Factors]:
    """The factors of each product, but for numbers."""
    value = _value(statement)
    inside: set[int] = set()  # of another product
    for x in () if value is None else walk_code(value):
        if isinstance(x, Binary) and x.operator == "*" and id(x) not in inside:
            inside |= {id(y) for y in walk_code(x.left)}
            yield tuple(y for y in dict.fromkeys(_factors(x)) if not isinstance(y, Literal))


def _over(statement: Statement, common: Factors, name: Name) -> Statement:
    if isinstance(statement, Let | Store):
        return replace(statement, value=_with(statement.value, common, name))
    return statement


def _with(x: Code, common: Factors, name: Name) -> Code:
    """The code with a name in the place of these factors, where they stand in one product."""
    if not (isinstance(x, Binary) and x.operator == "*"):
        return rebuilt(x, lambda y: _with(y, common, name))
    factors = [y if y in common else _with(y, common, name) for y in _factors(x)]
    if set(common) <= set(factors):
        for y in common:  # of a square, one factor is left
            factors.remove(y)
        factors.append(name)
    return reduce(lambda a, b: a * b, factors)


def _value(statement: Statement) -> Code | None:
    """What a statement computes; where it is stored is no matter of products."""
    return statement.value if isinstance(statement, Let | Store) else None


__all__ = ["with_shared_products"]
