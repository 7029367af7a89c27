"""Repairs as a person would write them: numbers of a product multiplied, terms of 0 left out, exponents added up."""

from __future__ import annotations

from fractions import Fraction

from chunkform.spec.language.formula import Formula, add, formula, negative, product, rebuild

from .indices import shifted


def tidied(x: Formula) -> Formula:
    """x with the same value and shape, without 2 * 1 *, 0 * S + S or t + 1 - 1 in it."""
    if not x.args:
        return x
    args = tuple(tidied(a) for a in x.args)
    match x.op:
        case "product":
            return _product(x, args)
        case "add":
            kept = tuple(a for a in args if not vanishes(a))
            if not kept:
                return rebuild(x, args)
            whole = add(*kept) if len(kept) > 1 else kept[0]
            return shifted(whole, 0) if len(_numbers(kept)) > 1 and all(counts(a) for a in kept) else whole
        case "negative" if args[0].op == "negative":
            return args[0].args[0]
        case "divide" if args[1] == formula(1):
            return args[0]
    return rebuild(x, args) if args != x.args else x


def _product(x: Formula, args: tuple[Formula, ...]) -> Formula:
    numbers = [value(a) for a in args]
    known = [v for v in numbers if v is not None]
    rest = [a for a, v in zip(args, numbers) if v is None]
    if not rest or (len(known) < 2 and 1 not in known):
        return rebuild(x, args) if args != x.args else x
    scale = Fraction(1)
    for v in known:
        scale *= v
    whole = product(*rest) if len(rest) > 1 else rest[0]
    if abs(scale) != 1:
        whole = product(formula(abs(scale)), *(whole.args if whole.op == "product" else (whole,)))
    return negative(whole) if scale < 0 else whole


def value(x: Formula) -> Fraction | None:
    """The number that x is by its form."""
    if x.op == "number":
        return Fraction(x.attrs[0])
    if x.op == "negative":
        inside = value(x.args[0])
        return None if inside is None else -inside
    if x.op == "divide":
        above, below = (value(a) for a in x.args)
        return above / below if above is not None and below else None
    return None


def vanishes(x: Formula) -> bool:
    """Whether a term is 0 by its form."""
    if x.op == "negative":
        return vanishes(x.args[0])
    return value(x) == 0 or (x.op == "product" and any(value(a) == 0 for a in x.args))


def counts(x: Formula) -> bool:
    """Whether x is an integer made of indices and sizes."""
    if x.op == "number":
        return bool(x.attrs[0].denominator == 1)
    return x.op in ("index", "size") or (x.op in ("negative", "product") and all(counts(a) for a in x.args))


def _numbers(args: tuple[Formula, ...]) -> list[Formula]:
    return [a for a in args if value(a) is not None]
