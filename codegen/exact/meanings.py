"""What fractions and their residues modulo 2^61 - 1 have in common: what is undefined, the numbers that decimals stand for, and
functions of numbers.

Functions (exp, sigmoid, roots) are uninterpreted: the same argument gives the same random number; but where a function is 0 at
0, which printers count on, it is here. exp2 of a whole number n is the n-th power of a base. Kernels count on exp2(a + b) being
the product, and on nothing else, so the base isn't 2: with it a factor of two would pass for a decay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import cache
from math import inf

import sympy

from ..ir.evaluate import PRIME
from ..ir.functions import FINITE_EXP, KEEP_ZERO, RECIPROCAL, SAME
from ..ir.ranges import LIMITS, Bound


class Undefined:
    """A number of which nothing is known."""

    def _same(self, *_: object) -> Undefined:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __abs__ = (
        __mod__
    ) = _same

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED = Undefined()
LN2 = 1 / Fraction(1.4426950408889634)  # what stands for the logarithm of 2: kernels multiply by one over it
TURNS = frozenset("sin cos".split())
UNIT = {"exp": LN2, "exp2": Fraction(1)}
BASE = 37  # whose powers are all that the field has but zero
SMALL = 2**40  # whole numbers below it are known by their residues, and have an order


@cache
def irrational(text: str) -> Fraction:
    """A fraction near a number that SymPy knows."""
    return Fraction(float(sympy.sympify(text)))


@cache
def written(value: float) -> Fraction | float:
    """The number that a decimal stands for: 1/3 where it is what 1/3 is rounded to; infinities stay as they are."""
    if value in (float("inf"), -float("inf")):
        return value
    simple = Fraction(value).limit_denominator(2**20)
    return simple if float(simple) == value else Fraction(value)


class NeedsOrder(Exception):
    """Residues have no order that says which number is larger."""


_SOME_ORDER: ContextVar[bool] = ContextVar("some order", default=False)


@contextmanager
def in_some_order() -> Iterator[None]:
    """In here residues have the order of the numbers next to zero that have them: a total order that arithmetic doesn't keep."""
    before = _SOME_ORDER.set(True)
    try:
        yield
    finally:
        _SOME_ORDER.reset(before)


def has_order(largest: int) -> bool:
    """Have residues an order, of which this is the largest magnitude?"""
    return largest < SMALL or _SOME_ORDER.get()


def residue(x: object) -> int:
    """What a number is modulo the prime."""
    if type(x) is int:
        return x % PRIME
    if isinstance(x, Fraction):
        over = x.denominator
        return (x.numerator if over == 1 else x.numerator * inverse(over)) % PRIME
    if isinstance(x, float):
        raise NeedsOrder  # an infinity
    return int(x) % PRIME  # type: ignore[call-overload]


@cache
def inverse(x: int) -> int:
    return pow(x, -1, PRIME)


def centred(x: int) -> int:
    """The number next to zero of which x is the residue."""
    return x - PRIME if x > PRIME // 2 else x


@cache
def residue_of_function(name: str, x: int) -> int:
    """The residue of a function's value at a number whose residue is x; powers of the base are what they are."""
    name = "exp" if name == FINITE_EXP else name
    if name in UNIT:
        exponent = centred(x * residue(1 / UNIT[name]) % PRIME)
        if abs(exponent) < SMALL:
            return pow(BASE, exponent, PRIME)
    if x == 0 and name in KEEP_ZERO:
        return 0
    if name == RECIPROCAL:
        return inverse(x)
    if name in SAME:
        return x
    return residue(_otherwise(name, x))


@cache
def function_value(name: str, x: Fraction) -> Fraction:
    """The same as a fraction."""
    name = "exp" if name == FINITE_EXP else name
    if name in UNIT and (x / UNIT[name]).denominator == 1:
        return Fraction(BASE) ** int(x / UNIT[name])
    if x == 0 and name in KEEP_ZERO:
        return x
    if name == RECIPROCAL:
        return 1 / x
    if name in SAME:
        return x
    return _otherwise(name, residue(x))


def _otherwise(name: str, x: int) -> Fraction:
    """A number of which nothing more is known: one for exp(x) and for exp2(x / LN2)."""
    return _some("exp2", x * residue(1 / UNIT[name]) % PRIME) if name in UNIT else _some(name, x)


@cache
def bounded_value(name: str, x: Fraction) -> Fraction:
    """The same between the bounds that the function has there (`ranges.py`). Residues have no such thing."""
    value = function_value(name, x)
    if value is not x and value == _otherwise(name, residue(x)):
        low, high = bounds_at(name, x)
        if high < inf:
            return high - value if low == -inf else low + (high - low) * value / 5
        return value if low == -inf else low + value
    return value


def bounds_at(name: str, x: Fraction) -> tuple[Bound, Bound]:
    """What a function's value at x is between, so far as its values at a few places say."""
    if name in TURNS:
        return -1, 1
    known = LIMITS.get(name, {-inf: 0, inf: inf})
    low = max((a for a in known if a <= x), default=min(known))
    return known[low], min((b for a, b in known.items() if a > low), default=inf)


def _some(name: str, x: int) -> Fraction:
    """A number below four of which nothing is known."""
    digest = hashlib.blake2b(f"{name}:{x}".encode(), digest_size=8).digest()
    return Fraction(1 + int.from_bytes(digest, "big") % 2**60, 2**58)
