"""What the author of a spec knows of a quantity's values: between which bounds they lie."""

from __future__ import annotations

from fractions import Fraction
from math import isnan

import sympy

from chunkform.errors import SpecError

from .expression import Matrix, scalar_of
from .source import caller

Domain = tuple[Fraction | None, Fraction | None]  # open: no bound is a value; None where there is none
SIGNS: dict[str, Domain] = {"positive": (Fraction(0), None), "negative": (None, Fraction(0))}


def domain_of(domain: object, sign: str | None) -> Domain | None:
    """The bounds that `domain` and `sign` say; None where both are silent."""
    if sign is not None:
        if domain is not None:
            raise SpecError(f"give domain or sign, not both: got domain={domain!r} and sign={sign!r}", caller())
        if sign not in SIGNS:
            raise SpecError(f"sign must be 'positive' or 'negative', got {sign!r}", caller())
        return SIGNS[sign]
    if domain is None:
        return None
    if not isinstance(domain, tuple | list) or len(domain) != 2:
        raise SpecError(f"domain must be two bounds such as (0, 1), None for no bound, got {domain!r}", caller())
    low, high = (_bound(x, domain) for x in domain)
    if low is not None and high is not None and low >= high:
        raise SpecError(f"domain must be two bounds, the lower first, got {domain!r}", caller())
    return (low, high) if (low, high) != (None, None) else None


def check_begins(name: str, domain: Domain, start: object) -> None:
    """A state whose first entries are numbers begins within its domain."""
    for x in _numbers(start):
        if _outside(x, domain):
            raise SpecError(
                f"the state {name} is said to be {_told(domain)}, but begins at {x}: give an initial=.. within its domain",
                caller(),
            )


def check_default(name: str, domain: Domain, default: sympy.Expr) -> None:
    """A constant's default lies within its domain."""
    if _outside(default, domain):
        raise SpecError(
            f"the default of constant {name} must be {_told(domain)}, as its domain says, got {float(default):g}",
            caller(),
        )


def _outside(x: sympy.Expr, domain: Domain) -> bool:
    low, high = domain
    return bool((low is not None and x < low) or (high is not None and x > high))


def _told(domain: Domain) -> str:
    low, high = (None if x is None else f"{float(x):g}" for x in domain)
    return f"at least {low}" if high is None else f"at most {high}" if low is None else f"between {low} and {high}"


def _numbers(x: object) -> list[sympy.Expr]:
    """The entries of a term, where they are numbers."""
    if not isinstance(x, Matrix):
        return [x] if isinstance(x, sympy.Expr) and x.is_number else []
    match x.op:
        case "full":
            return _numbers(x.args[0])
        case "eye":
            return [sympy.Integer(0), sympy.Integer(1)]
        case "scale":
            return [a * b for a in _numbers(x.args[0]) for b in _numbers(x.args[1])]
    return []


def _bound(x: object, domain: object) -> Fraction | None:
    value = None if x is None else scalar_of(x)
    if x is None or (isinstance(x, float) and abs(x) == float("inf")):
        return None
    if isinstance(x, float) and isnan(x):
        value = None
    if value is None or not (value.is_Rational or value.is_Float) or not value.is_finite:
        raise SpecError(f"a bound of domain must be a number or None, got {x!r} in {domain!r}", caller())
    return Fraction(str(value)) if value.is_Float else Fraction(int(value.p), int(value.q))
