"""Exact numbers that can be compared: fractions, and what is undefined, such as memory that nothing was stored in.

Functions of a number (exp, sigmoid, roots) are uninterpreted: the same argument gives the same random fraction; but where a
function is 0 at 0, which printers count on, it is here. What is undefined goes through arithmetic as NaN does, so that it
shows wherever it isn't masked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np
import sympy

from ..ir.functions import KEEP_ZERO, RECIPROCAL


class Undefined:
    """A number of which nothing is known."""

    def _same(self, *_: object) -> Undefined:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __abs__ = (
        _same
    )

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED = Undefined()


class Rationals:
    """Arithmetic of fractions, on numpy arrays of them, as `codegen/ir/evaluate.py` wants it."""

    exact: bool = True

    def const(self, value: Fraction) -> np.ndarray:
        return array(Fraction(value))

    def number(self, text: str) -> np.ndarray:
        return array(irrational(text))

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return array(a + b)

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return array(a * b)

    def pow(self, a: np.ndarray, n: Fraction) -> np.ndarray:
        return mapped(lambda x: _power(x, n), a)

    def maximum(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return mapped(lambda x, y: UNDEFINED if x is UNDEFINED or y is UNDEFINED else max(x, y), a, b)

    def fn(self, name: str, a: np.ndarray) -> np.ndarray:
        return mapped(lambda x: UNDEFINED if x is UNDEFINED else _value(name, x), a)

    def sum(self, a: np.ndarray, axis: int) -> np.ndarray:
        return array(a.sum(axis=axis))

    def peak(self, a: np.ndarray, axis: int) -> np.ndarray:
        return array(a.max(axis=axis))


@cache
def irrational(text: str) -> Fraction:
    """A fraction near a number that SymPy knows."""
    return Fraction(float(sympy.sympify(text)))


def array(x: object) -> np.ndarray:
    """Numbers as an array of objects, also where numpy makes a bare number of one without axes."""
    return np.asarray(x, dtype=object)


def mapped(f: Callable[..., object], *values: np.ndarray) -> np.ndarray:
    """f of each entry of arrays that broadcast."""
    return array(np.frompyfunc(f, len(values), 1)(*map(array, values)))


@cache
def written(value: float) -> Fraction | float:
    """The number that a decimal stands for: 1/3 where it is what 1/3 is rounded to; infinities stay as they are."""
    if value in (float("inf"), -float("inf")):
        return value
    simple = Fraction(value).limit_denominator(2**20)
    return simple if float(simple) == value else Fraction(value)


LN2 = 1 / Fraction(1.4426950408889634)  # what stands for the logarithm of 2: kernels multiply by one over it
UNIT = {"exp": LN2, "exp2": Fraction(1)}


@cache
def _value(name: str, x: Fraction) -> Fraction:
    """Some number, the same for the same x; powers of two are what they are."""
    if name in UNIT and (x / UNIT[name]).denominator == 1:
        return Fraction(2) ** int(x / UNIT[name])
    if x == 0 and name in KEEP_ZERO:
        return x
    if name == RECIPROCAL:
        return 1 / x
    digest = hashlib.blake2b(f"{name}:{x}".encode(), digest_size=8).digest()
    return Fraction(1 + int.from_bytes(digest, "big") % 2**20, 2**18)


def _power(x: object, n: Fraction) -> object:
    if x is UNDEFINED or not isinstance(x, Fraction | int) or (x == 0 and n < 0):
        return UNDEFINED
    base = Fraction(x) if n.denominator == 1 else _value(f"root{n.denominator}", Fraction(x))
    return base**n.numerator
