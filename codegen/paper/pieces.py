"""Formulas put together from what the parser has read: quotients, derivatives, functions, conditions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from chunkform.spec.language.formula import Formula, add, differences, formula, negative, product, substitute, walk

from .row import Fault, Item


def times(a: Formula, b: Formula) -> Formula:
    """a b; a fraction's numerator isn't spread over what follows."""
    if a.op == "empty":
        return b
    return product(a, b)


def quotient(a: Formula, b: Formula) -> Formula:
    """a / b, a derivative where both are differentials."""
    if a.op == "differential" and b.op == "differential":
        return Formula("partial", (a.args[0], b.args[0]))
    if a.op == "product" and a.args[-1].op == "differential" and b.op == "differential":
        return product(*a.args[:-1], Formula("partial", (a.args[-1].args[0], b.args[0])))
    if b.op == "transpose" and b.args[0].op == "differential" and a.op == "differential":
        return Formula("partial", (a.args[0], b.args[0].args[0])).T
    if a.op == "number" and b.op == "number" and b.attrs[0]:
        return formula(a.attrs[0] / b.attrs[0])
    return a / b


def raised(x: Formula, kind: str, exponent: Formula | None = None) -> Formula:
    """x with a superscript."""
    match kind:
        case "transpose":
            return x.T
        case "inverse":
            return Formula("inverse", (x,))
        case "inverse transpose":
            return Formula("inverse", (x,)).T
        case "sqrt":
            return Formula("sqrt", (x,))
    assert exponent is not None
    return euler(x, exponent)


def euler(base: Formula, exponent: Formula) -> Formula:
    """A power; of e, the exponential."""
    if base.op == "at" and base.attrs == ("e",) and not base.args:
        return Formula("exp", (exponent,))
    return Formula("power", (base, exponent))


def minus_one(x: Formula) -> Formula:
    return add(x, formula(-1))


def function(name: str, arguments: list[Formula], below: list[Formula], parser: Any) -> Formula:
    """A known function of its arguments."""
    (x, *more) = arguments
    if name in ("exp", "log", "diag", "softmax", "cumsum", "revcumsum", "rowsum", "sqrt") and not more:
        if name == "softmax" and below:
            return Formula("softmax over", (x, *below))
        return Formula(name, (x,))
    if name in ("max", "min") and more and not below:
        for y in more:  # the largest of two is the one, and what the other has more
            more_of = add(x, negative(y)) if name == "min" else add(y, negative(x))
            x = add(x, (negative if name == "min" else add)(Formula("function", (more_of,), ("relu",))))
        return x
    if name == "tril" and len(arguments) <= 2:
        offset = more[0].attrs[0] if more and more[0].op == "number" else Fraction(0)
        if more and more[0].op != "number":
            raise Fault("the second argument of tril is a number", parser.token)
        return Formula("tril", (x,), (int(offset),))
    if name == "colsum" and not more:
        return Formula("rowsum", (x.T,)).T
    if name == "stril" and not more:
        return Formula("tril", (x,), (-1,))
    if name == "triu" and len(arguments) <= 2:
        offset = more[0].attrs[0] if more and more[0].op == "number" else Fraction(0)
        return Formula("tril", (x.T,), (-int(offset),)).T
    if name == "inner" and len(arguments) == 2:
        return Formula("inner", tuple(arguments))
    if name in ("sin", "cos", "tanh", "sigmoid", "softplus", "relu", "silu", "erf", "sign", "abs") and not more:
        return Formula("function", (x,), (name,))
    return Formula("apply", (*below, *arguments), (name, len(below)))


def of_all_pairs(a: Formula, b: Formula) -> Formula | None:
    """x[:, None] - y[None, :]."""
    if b.op != "negative":
        return None
    left = [y for y in walk(a) if y.op == "slice"]
    right = [y for y in walk(b) if y.op == "slice"]
    if len(left) != 1 or len(right) != 1 or (left[0].attrs[0], right[0].attrs[0]) != ("column", "row"):
        return None
    return differences(substitute(a, {left[0]: left[0].args[0]}), substitute(b.args[0], {right[0]: right[0].args[0]}))


def comparisons(item: Item) -> list[Formula]:
    """The conditions that an item states on indices: i >= j, or 1 <= s < t as two."""
    out = []
    for a, relation, b in zip(item.sides, item.relations, item.sides[1:]):
        if relation in ("<=", "<", ">=", ">", "=", "!="):
            out.append(Formula("compare", (as_index(a), as_index(b)), (relation,)))
    return out


def as_index(x: Formula) -> Formula:
    """x with bare names as indices."""
    if x.op == "at" and not x.args:
        return Formula("index", (), x.attrs)
    return Formula(x.op, tuple(as_index(a) for a in x.args), x.attrs) if x.args else x
