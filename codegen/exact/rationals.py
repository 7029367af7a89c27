"""Exact numbers that can be compared, in arrays of objects: fractions, and what is undefined, such as memory that nothing was
stored in.

What is undefined goes through arithmetic as NaN does, so that it shows wherever it isn't masked. Inside of `in_field` numbers are
taken modulo the prime 2^61 - 1, as integers: a gate is many times faster so. Where it asks for an order, it runs over fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import wraps
from typing import ParamSpec

import numpy as np

from chunkform.errors import GateError

from ..ir.evaluate import PRIME
from .meanings import (
    LN2,
    UNDEFINED,
    NeedsOrder,
    bounded_value,
    centred,
    function_value,
    has_order,
    in_some_order,
    irrational,
    residue,
    residue_of_function,
    written,
)

__all__ = [
    "LN2", "UNDEFINED", "Rationals", "array", "in_field", "irrational", "is_in_field", "is_over_fractions", "mapped",
    "needs_order", "over_fractions", "over_ordered", "same", "written",
]  # fmt: skip
P = ParamSpec("P")
_FIELD: ContextVar[bool] = ContextVar("field", default=False)
_BOUNDED: ContextVar[bool] = ContextVar("bounded", default=False)


def in_field(gate: Callable[P, None]) -> Callable[P, None]:
    """A gate that computes with residues, and again where it asks for an order of them. Of a number that is
    compared, two different formulas agree with a probability below 1e-15: their degree in what is drawn, below a thousand, over
    the 2^60 residues, or more, that each input is drawn from. Logarithms of decays, and what is ordered, are small whole numbers
    instead, of which each comparison has many.

    Where larger numbers are ordered, they first have some order. A maximum is then a choice that depends on both numbers and on
    nothing else, as a function is a number that depends on its argument. What agrees for such choices agrees for all. What
    doesn't may count on more of an order, that it is kept when something is added: so fractions have the last word. Their digits
    double with each product of states, and grow without end where a step divides by its state."""

    @wraps(gate)
    def run(*given: P.args, **named: P.kwargs) -> None:
        before = _FIELD.set(True)
        try:
            return gate(*given, **named)
        except NeedsOrder:
            if _agrees(gate, *given, **named):
                return None
        finally:
            _FIELD.reset(before)
        return gate(*given, **named)

    return run


def _agrees(gate: Callable[P, None], *given: P.args, **named: P.kwargs) -> bool:
    """Does a gate pass in some order?"""
    try:
        with in_some_order():
            gate(*given, **named)
    except (GateError, NeedsOrder):
        return False
    return True


def over_ordered(gate: Callable[P, None]) -> Callable[P, None]:
    """A gate that computes with fractions alone, as all that it compares goes through an order of numbers."""
    return gate


def is_in_field() -> bool:
    return _FIELD.get()


@contextmanager
def over_fractions() -> Iterator[None]:
    """In here functions have the bounds that `ranges.py` knows, and nothing is computed with residues, which can't have these."""
    before = _BOUNDED.set(True)
    try:
        yield
    finally:
        _BOUNDED.reset(before)


def is_over_fractions() -> bool:
    return _BOUNDED.get()


def needs_order() -> None:
    """From here on a gate counts on an order of numbers."""
    if _FIELD.get():
        raise NeedsOrder


class Rationals:
    """Arithmetic of fractions, or of residues, on numpy arrays of them, as `codegen/ir/evaluate.py` wants it."""

    exact: bool = True

    def const(self, value: Fraction) -> np.ndarray:
        return array(residue(value) if _FIELD.get() else Fraction(value))

    def number(self, text: str) -> np.ndarray:
        return self.const(irrational(text))

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return array((a + b) % PRIME if _FIELD.get() else a + b)

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return array((a * b) % PRIME if _FIELD.get() else a * b)

    def pow(self, a: np.ndarray, n: Fraction) -> np.ndarray:
        return mapped(lambda x: _power(x, n), a)

    def maximum(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return mapped(lambda x, y: UNDEFINED if x is UNDEFINED or y is UNDEFINED else max(x, y), *map(_ordered, (a, b)))

    def fn(self, name: str, a: np.ndarray) -> np.ndarray:
        if _FIELD.get():
            return mapped(lambda x: UNDEFINED if x is UNDEFINED else residue_of_function(name, residue(x)), a)
        value = bounded_value if _BOUNDED.get() else function_value
        return mapped(lambda x: UNDEFINED if x is UNDEFINED else value(name, x), a)

    def sum(self, a: np.ndarray, axis: int) -> np.ndarray:
        return array(a.sum(axis=axis) % PRIME if _FIELD.get() else a.sum(axis=axis))

    def peak(self, a: np.ndarray, axis: int) -> np.ndarray:
        return array(_ordered(a).max(axis=axis))

    def taken(self, a: np.ndarray) -> np.ndarray:
        """Fractions as the numbers that we compute with."""
        return mapped(lambda x: x if x is UNDEFINED else residue(x), a) if _FIELD.get() else a


def array(x: object) -> np.ndarray:
    """Numbers as an array of objects, also where numpy makes a bare number of one without axes."""
    return np.asarray(x, dtype=object)


def mapped(f: Callable[..., object], *values: np.ndarray) -> np.ndarray:
    """f of each entry of arrays that broadcast."""
    return array(np.frompyfunc(f, len(values), 1)(*map(array, values)))


def same(a: object, b: object) -> bool:
    """Are these one number, as the field says, or both undefined?"""
    if a is b or a is UNDEFINED or b is UNDEFINED:
        return a is b
    if isinstance(a, float) or isinstance(b, float):  # an infinity
        return bool(a == b)
    return residue(a) == residue(b)


def _ordered(a: np.ndarray) -> np.ndarray:
    """Numbers that have an order: residues of small whole ones."""
    if not _FIELD.get():
        return a
    found = mapped(lambda x: x if x is UNDEFINED else centred(residue(x)), a)
    if not has_order(max((abs(x) for x in found.ravel().tolist() if x is not UNDEFINED), default=0)):
        raise NeedsOrder
    return found


def _power(x: object, n: Fraction) -> object:
    if x is UNDEFINED or not isinstance(x, Fraction | int):
        return UNDEFINED
    if _FIELD.get():
        base = residue(x) if n.denominator == 1 else residue_of_function(f"root{n.denominator}", residue(x))
        return UNDEFINED if residue(x) == 0 and n < 0 else pow(base, n.numerator, PRIME)
    if x == 0 and n < 0:
        return UNDEFINED
    root = Fraction(x) if n.denominator == 1 else function_value(f"root{n.denominator}", Fraction(x))
    return root**n.numerator
