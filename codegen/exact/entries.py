"""The numbers that the interpreter of kernels computes with: residues in machine integers, or fractions where an order is asked
for. Both kinds are arrays, and have the same operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from . import residues as r
from .meanings import UNDEFINED, NeedsOrder, residue, written
from .rationals import Rationals, array, mapped

Entry: TypeAlias = Any  # a fraction, an infinity, or what is undefined
COMPARISONS: dict[str, Callable[[Entry, Entry], Entry]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip


BINARY = {"+": r.add, "-": r.subtract, "*": r.multiply, "/": r.divide}


class Entries(Protocol):
    """Operations on numbers in arrays."""

    def of(self, x: object) -> np.ndarray: ...
    def of_whole(self, x: npt.ArrayLike) -> np.ndarray: ...
    def given(self, cells: np.ndarray) -> np.ndarray: ...
    def left(self, cells: np.ndarray) -> np.ndarray: ...
    def empty(self, shape: tuple[int, ...]) -> np.ndarray: ...
    def binary(self, operator: str, a: np.ndarray, b: np.ndarray) -> np.ndarray: ...
    def compared(self, operator: str, a: np.ndarray, b: np.ndarray) -> np.ndarray: ...
    def negative(self, a: np.ndarray) -> np.ndarray: ...
    def absolute(self, a: np.ndarray) -> np.ndarray: ...
    def extreme(self, a: np.ndarray, b: np.ndarray, most: bool) -> np.ndarray: ...
    def most(self, a: np.ndarray, axis: int | tuple[int, ...], most: bool) -> np.ndarray: ...
    def total(self, a: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray: ...
    def cumulative(self, a: np.ndarray, axis: int) -> np.ndarray: ...
    def dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray: ...
    def function(self, name: str, a: np.ndarray) -> np.ndarray: ...
    def power(self, a: np.ndarray, n: Fraction) -> np.ndarray: ...


class Residues:
    """Numbers modulo 2^61 - 1. Of minus infinity, once there is one, nothing is known but its order and its exponential."""

    def __init__(self) -> None:
        self.infinite = False

    def finite(self, *values: np.ndarray) -> None:
        if self.infinite and any((a == r.LOWEST).any() for a in values):
            raise NeedsOrder

    of_whole = staticmethod(r.of_whole)

    def of(self, x: object) -> np.ndarray:
        if x == -math.inf:
            self.infinite = True
            return np.array([r.LOWEST], dtype=np.int64)
        return np.array([residue(x)], dtype=np.int64)

    def given(self, cells: np.ndarray) -> np.ndarray:
        return r.residues(cells)

    def left(self, cells: np.ndarray) -> np.ndarray:
        return r.fractions(cells)

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, r.NOTHING, dtype=np.int64)

    def binary(self, operator: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        self.finite(a, b)
        return BINARY[operator](a, b)

    def compared(self, operator: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if operator in ("==", "!="):
            return np.asarray(COMPARISONS[operator](a, b))
        found = np.asarray(COMPARISONS[operator](r.ordered(a), r.ordered(b)))
        return found & (a != r.NOTHING) & (b != r.NOTHING)

    def negative(self, a: np.ndarray) -> np.ndarray:
        self.finite(a)
        return r.negative(a)

    def absolute(self, a: np.ndarray) -> np.ndarray:
        self.finite(a)
        return r.absolute(a)

    def extreme(self, a: np.ndarray, b: np.ndarray, most: bool) -> np.ndarray:
        return r.extreme(a, b, most)

    def most(self, a: np.ndarray, axis: int | tuple[int, ...], most: bool) -> np.ndarray:
        if (a == r.NOTHING).any():
            raise NeedsOrder
        found = np.asarray((np.max if most else np.min)(r.ordered(a), axis=axis))
        return np.where(found == r.BELOW_ALL, r.LOWEST, self.of_whole(found))

    def total(self, a: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
        self.finite(a)
        return r.total(a, axis)

    def cumulative(self, a: np.ndarray, axis: int) -> np.ndarray:
        self.finite(a)
        return r.cumulative(a, axis)

    def dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        self.finite(a, b)
        return r.product(a, b)

    def function(self, name: str, a: np.ndarray) -> np.ndarray:
        if self.infinite and name == "exp2":
            return np.where(a == r.LOWEST, 0, r.function(name, a))
        self.finite(a)
        return r.function(name, a)

    def power(self, a: np.ndarray, n: Fraction) -> np.ndarray:
        self.finite(a)
        return r.power(a, n)


class Fractions:
    """Fractions, infinities, and what is undefined."""

    numbers = Rationals()

    def of(self, x: object) -> np.ndarray:
        return array([written(x) if isinstance(x, float) else Fraction(x)])  # type: ignore[call-overload]

    def of_whole(self, x: npt.ArrayLike) -> np.ndarray:
        return mapped(lambda y: Fraction(int(y)), array(x))

    def given(self, cells: np.ndarray) -> np.ndarray:
        return cells.copy()

    def left(self, cells: np.ndarray) -> np.ndarray:
        return cells

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, UNDEFINED, dtype=object)

    def binary(self, operator: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if operator == "/":
            return mapped(_divided, a, b)
        if operator == "*":
            return mapped(_times, a, b)
        return array(a + b if operator == "+" else a - b)

    def compared(self, operator: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(COMPARISONS[operator](a, b), dtype=bool)

    def negative(self, a: np.ndarray) -> np.ndarray:
        return array(-a)

    def absolute(self, a: np.ndarray) -> np.ndarray:
        return array(abs(a))

    def extreme(self, a: np.ndarray, b: np.ndarray, most: bool) -> np.ndarray:
        which = max if most else min
        return mapped(lambda x, y: UNDEFINED if UNDEFINED in (x, y) else which(x, y), a, b)

    def most(self, a: np.ndarray, axis: int | tuple[int, ...], most: bool) -> np.ndarray:
        return array((np.max if most else np.min)(a, axis=axis))

    def total(self, a: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
        return array(a.sum(axis=axis))

    def cumulative(self, a: np.ndarray, axis: int) -> np.ndarray:
        return array(np.cumsum(a, axis=axis))

    def dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return array(a @ b)

    def function(self, name: str, a: np.ndarray) -> np.ndarray:
        if name == "exp2":  # of minus infinity
            return mapped(_power_of_two, a)
        return self.numbers.fn(name, a)

    def power(self, a: np.ndarray, n: Fraction) -> np.ndarray:
        return self.numbers.pow(a, n)


def _divided(a: Entry, b: Entry) -> Entry:
    return UNDEFINED if a is UNDEFINED or b is UNDEFINED or b == 0 else a / b


def _times(a: Entry, b: Entry) -> Entry:
    """A product; of an infinity and zero, nothing is known."""
    made = a * b
    return UNDEFINED if isinstance(made, float) and made != made else made


def _power_of_two(x: Entry) -> Entry:
    if x is UNDEFINED or isinstance(x, float):
        return UNDEFINED if x is UNDEFINED or x > 0 else Fraction(0)
    return Fractions.numbers.fn("exp2", array(x)).item()
