"""Arithmetic on degrees: how large the numerator and the denominator of a rational expression can be.

Running a check over degrees bounds the probability that the check passes by accident. A value is the complex number
numerator + i denominator.
"""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np

from .functions import RECIPROCAL, SAME


class Degrees:
    """Upper bounds of degrees, on numpy arrays. The value of a function counts as one more variable."""

    exact: bool = True

    def const(self, value: Fraction) -> np.ndarray:
        return np.array(0j)

    def number(self, text: str) -> np.ndarray:
        return np.array(1 + 0j)

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = _complex(a), _complex(b)
        return np.asarray(np.maximum(a.real + b.imag, b.real + a.imag) + 1j * (a.imag + b.imag))

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(_complex(a) + _complex(b))

    def pow(self, a: np.ndarray, n: Fraction) -> np.ndarray:
        a = _complex(a)
        if n.denominator != 1:
            a = a.real + a.imag + 1
        if n < 0:
            a = np.asarray(a.imag + 1j * a.real)
        return np.asarray(a * abs(n.numerator))

    def fn(self, name: str, a: np.ndarray) -> np.ndarray:
        if name == RECIPROCAL:
            return self.pow(a, Fraction(-1))
        if name in SAME:
            return a
        a = _complex(a)
        return np.asarray(a.real + a.imag + 1 + 0j)

    def maximum(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        both = self.add(a, b)
        return self.add(both, self.fn("apart", both))

    def sum(self, a: np.ndarray, axis: int) -> np.ndarray:
        a = _complex(a)
        below = a.imag.sum(axis=axis, keepdims=True)
        above = (a.real + below - a.imag).max(axis=axis, initial=0)
        return np.asarray(above + 1j * below.squeeze(axis))

    def peak(self, a: np.ndarray, axis: int) -> np.ndarray:
        return self.fn("peak", self.sum(a, axis))

    def random(self, rng: random.Random, shape: tuple[int, ...], decay: bool = False) -> np.ndarray:
        return np.ones(shape, dtype=complex)

    def equal(self, a: object, b: object) -> bool:
        return True

    @staticmethod
    def of_difference(a: np.ndarray, b: np.ndarray) -> int:
        """The degree of the numerator of a - b."""
        a, b = _complex(a), _complex(b)
        return int(np.max(np.maximum(a.real + b.imag, b.real + a.imag), initial=0))


def _complex(a: object) -> np.ndarray:
    return np.asarray(a, dtype=complex)
