"""Numbers modulo the prime 2^61 - 1, in arrays of machine integers: what gates compute with wherever they need no order.

Every operation of a field means here what it means for fractions, so that equal fractions are equal residues. Different ones are
the same with a probability of at most their degree, in what is drawn at random, over the prime: for degrees below a thousand that
is less than 1e-15 for each number that is compared. Nothing lies before or after a residue, but those of whole numbers that are
small; a kernel that asks for another order is run in some order (`rationals.in_field`), or over fractions. -1 stands for what is
undefined, -2 for minus infinity, of which nothing is known but its order and its exponential.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ..ir.evaluate import PRIME
from .meanings import UNDEFINED, NeedsOrder, centred, has_order, inverse, residue, residue_of_function

NOTHING, LOWEST = -1, -2
BELOW_ALL = -(2**62)  # what stands for minus infinity where numbers are ordered
FEW = 64  # numbers: so many Python multiplies faster one by one
HIGH, LOW, UPPER, LOWER, SHIFT = (np.array([x], dtype=np.uint64) for x in (32, 2**32 - 1, 29, 2**29 - 1, 3))
BITS, ALL = np.array([61], dtype=np.uint64), np.array([PRIME], dtype=np.uint64)


def residues(x: object) -> np.ndarray:
    """Fractions and integers, as an array of residues."""
    a = np.asarray(x, dtype=object)
    if set(map(type, numbers := a.ravel().tolist())) == {int} and max(map(abs, numbers)) < 2**62:
        return np.array(numbers, dtype=np.int64).reshape(a.shape) % PRIME
    return np.array([NOTHING if y is UNDEFINED else residue(y) for y in numbers], dtype=np.int64).reshape(a.shape)


def fractions(x: np.ndarray) -> np.ndarray:
    """Residues as fractions that stand for them, those of small whole numbers as what they are."""
    out = np.empty(x.shape, dtype=object)
    out.ravel()[:] = [
        UNDEFINED if y == NOTHING else -math.inf if y == LOWEST else Fraction(centred(y)) for y in x.ravel().tolist()
    ]
    return out


# --- arithmetic, entry by entry -------------------------------------------------------------------------------------


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _marked(_below((a + b).view(np.uint64)), a, b)


def negative(a: np.ndarray) -> np.ndarray:
    return _marked(_below((PRIME - a).view(np.uint64)), a, a)


def subtract(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _marked(_below((a + (PRIME - b)).view(np.uint64)), a, b)


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Products of 122 bits, in halves: 2^61 is 1."""
    both = np.broadcast(a, b)
    if both.size <= FEW:
        made = a.astype(object) * b.astype(object) % PRIME
        return _marked(np.asarray(made).astype(np.int64).reshape(both.shape).view(np.uint64), a, b)
    x, y = a.view(np.uint64), b.view(np.uint64)
    x_high, x_low, y_high, y_low = x >> HIGH, x & LOW, y >> HIGH, y & LOW
    middle = x_high * y_low
    middle += x_low * y_high
    low = x_low * y_low
    total = x_high * y_high
    total <<= SHIFT
    total += middle >> UPPER
    middle &= LOWER
    middle <<= HIGH
    total += middle
    total += low >> BITS
    low &= ALL
    total += low
    return _marked(_below((total & ALL) + (total >> BITS)), a, b)


def _below(x: np.ndarray) -> np.ndarray:
    """Numbers below twice the prime, modulo it: what wraps around is larger than the number."""
    return np.minimum(x, x - ALL)


def _marked(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What is undefined stays so."""
    return x.view(np.int64) | ((a | b) >> 63)


def mapped(f: Callable[[int], int], a: np.ndarray) -> np.ndarray:
    """f of each number that is defined."""
    found = [NOTHING if x < 0 else f(x) for x in a.ravel().tolist()]
    return np.array(found, dtype=np.int64).reshape(a.shape)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return multiply(a, mapped(lambda x: inverse(x) if x else NOTHING, b))


def power(a: np.ndarray, n: Fraction) -> np.ndarray:
    whole = n.numerator

    def of(x: int) -> int:
        if x == 0 and n < 0:
            return NOTHING
        base = x if n.denominator == 1 else residue_of_function(f"root{n.denominator}", x)
        return pow(base, whole, PRIME)

    return mapped(of, a)


def function(name: str, a: np.ndarray) -> np.ndarray:
    return mapped(lambda x: residue_of_function(name, x), a)


# --- sums, and order ------------------------------------------------------------------------------------------------


def total(a: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    return _joined((a >> 32).sum(axis), (a & (2**32 - 1)).sum(axis), np.asarray((a < 0).any(axis)))


def cumulative(a: np.ndarray, axis: int) -> np.ndarray:
    high, low = np.cumsum(a >> 32, axis), np.cumsum(a & (2**32 - 1), axis)
    return _joined(high, low, np.logical_or.accumulate(a < 0, axis))


def _joined(high: np.ndarray, low: np.ndarray, nothing: np.ndarray) -> np.ndarray:
    """high 2^32 + low, of sums of fewer than 2^29 numbers."""
    x = (high >> 29) + ((high & (2**29 - 1)) << 32) + low
    x = np.asarray(x, dtype=np.int64)
    return np.where(nothing, NOTHING, x % PRIME)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Matrix products, over the last two axes."""
    return total(multiply(a[..., :, :, None], b[..., None, :, :]), -2)


def ordered(a: np.ndarray) -> np.ndarray:
    """Small whole numbers, which have an order; 0 for what is undefined."""
    x = np.where(a > PRIME // 2, a - PRIME, np.maximum(a, 0))
    if not has_order(int(abs(x).max(initial=0))):
        raise NeedsOrder
    return np.where(a == LOWEST, BELOW_ALL, x)


def extreme(a: np.ndarray, b: np.ndarray, most: bool) -> np.ndarray:
    x = (np.maximum if most else np.minimum)(ordered(a), ordered(b))
    x = np.where(x == BELOW_ALL, LOWEST, x % PRIME)
    return np.where((a == NOTHING) | (b == NOTHING), NOTHING, x)


def absolute(a: np.ndarray) -> np.ndarray:
    return np.where(a == NOTHING, NOTHING, abs(ordered(a)))


def of_whole(x: npt.ArrayLike) -> np.ndarray:
    """Whole numbers and truth values."""
    return np.asarray(np.asarray(x, dtype=np.int64) % PRIME, dtype=np.int64)
