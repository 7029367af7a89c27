"""Exact numbers for the verifier: a prime field, fractions, and 50 digits for what is transcendental.

A number is a Python object; an `Arithmetic` says how to reduce, invert and sample it. Square roots exist in the prime
field for the squares, and the one that is itself a square is taken, so that sqrt(a) sqrt(b) = sqrt(a b)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import sympy

PRIME = 2**61 - 1
DIGITS = 50
CONTEXT = mpmath.mp.clone()
CONTEXT.dps = 2 * DIGITS  # so that 50 are right where large numbers cancel
mpf = CONTEXT.mpf
FUNCTIONS = ("exp", "log", "sin", "cos", "tanh", "sigmoid", "silu", "softplus", "erf", "abs", "sign", "relu")
DECAY_DOMAINS = ("decay", "slow decay")  # values between 0 and 1


class Undefined(ArithmeticError):
    """A formula has no value at this point: a division by zero, a root of a non-square, a singular matrix."""


class Transcendental(ArithmeticError):
    """A formula needs exp, log or another function that exact arithmetic doesn't have."""


@dataclass(frozen=True)
class Arithmetic:
    """kind: "field", "fraction", "real" or "symbolic"."""

    kind: str

    def number(self, x: Fraction | int) -> Any:
        x = Fraction(x)
        if self.kind == "symbolic":
            return sympy.Rational(x.numerator, x.denominator)
        if self.kind == "field":
            return x.numerator * pow(x.denominator, -1, PRIME) % PRIME
        return x if self.kind == "fraction" else mpf(x.numerator) / x.denominator

    def reduce(self, x: Any) -> Any:
        return x % PRIME if self.kind == "field" else x

    def invert(self, x: Any) -> Any:
        if x == 0:
            raise Undefined("division by zero")
        return pow(x, -1, PRIME) if self.kind == "field" else 1 / x

    def sqrt(self, x: Any) -> Any:
        if self.kind == "field":
            root = pow(x, (PRIME + 1) // 4, PRIME)
            if root * root % PRIME != x:
                raise Undefined("the root of a non-square")
            return root
        if self.kind == "symbolic":
            return sympy.sqrt(x)
        if x < 0:
            raise Undefined("the root of a negative number")
        if self.kind == "fraction":
            parts = [int(np.sqrt(float(n)) + 0.5) for n in (x.numerator, x.denominator)]
            if Fraction(parts[0], parts[1]) ** 2 != x:
                raise Undefined("an irrational root")
            return Fraction(parts[0], parts[1])
        return CONTEXT.sqrt(x)

    def function(self, name: str, x: Any) -> Any:
        """A scalar function, and what it takes for its derivative, at x: (f(x), f'(x))."""
        if self.kind != "real":
            raise Transcendental(name)
        m = CONTEXT
        match name:
            case "exp":
                return m.exp(x), m.exp(x)
            case "log":
                if x <= 0:
                    raise Undefined("the log of a number that isn't positive")
                return m.log(x), 1 / x
            case "sin":
                return m.sin(x), m.cos(x)
            case "cos":
                return m.cos(x), -m.sin(x)
            case "tanh":
                return m.tanh(x), m.sech(x) ** 2
            case "sigmoid":
                y = 1 / (1 + m.exp(-x))
                return y, y * y * m.exp(-x)
            case "silu":
                y = 1 / (1 + m.exp(-x))
                return x * y, y + x * y * y * m.exp(-x)
            case "softplus":
                return m.log(1 + m.exp(x)), 1 / (1 + m.exp(-x))
            case "erf":
                return m.erf(x), 2 * m.exp(-x * x) / m.sqrt(m.pi)
            case "abs":
                return abs(x), mpf(m.sign(x))
            case "sign":
                return mpf(m.sign(x)), mpf(0)
            case "relu":
                return max(x, mpf(0)), mpf(1 if x > 0 else 0)
        raise Transcendental(name)

    def equal(self, a: np.ndarray, b: np.ndarray) -> bool:
        if self.kind != "real":
            return bool(np.all(self.reduce(a - b) == 0))
        scale = max([abs(x) for x in (*a.flat, *b.flat)], default=mpf(0)) + 1
        return all(abs(x) <= scale * mpf(10) ** -35 for x in (a - b).flat)

    def sample(self, rng: random.Random, domain: str, spread: int = 3) -> Any:
        """A random number. Decays and positive numbers of the field are squares, as they have roots in the reals."""
        if self.kind == "field":
            x = rng.randrange(2, PRIME)
            return x * x % PRIME if domain in (*DECAY_DOMAINS, "positive") else x
        if domain == "slow decay":
            if self.kind == "fraction":
                return Fraction(rng.randrange(2, 5), 5) ** 2
            return mpf(rng.randrange(6000, 10000)) / 10000
        if domain == "decay":
            k = rng.randrange(2, 5) if self.kind == "fraction" else rng.uniform(1.05, 2.0)
            return self.real(1 / Fraction(k) ** 2) if self.kind == "fraction" else mpf(1) / mpf(k)
        if domain == "positive" and self.kind == "real":
            return mpf(rng.randrange(10**5, 4 * 10**6)) / 10**6
        if domain == "positive":
            return self.real(Fraction(rng.randrange(1, spread + 1)) ** 2)
        if self.kind == "real":
            return mpf(rng.randrange(-(10**6), 10**6)) / 10**6
        return Fraction(rng.randrange(-spread, spread + 1))

    def near(self, rng: random.Random, domain: str, centre: Fraction, width: Fraction) -> Any:
        """A random number at most `width` from `centre`, where the domain has such a number."""
        small = Fraction(rng.randrange(-2, 3), 2)
        x = centre + width * (small if self.kind == "fraction" else Fraction(rng.randrange(-(10**6), 10**6 + 1), 10**6))
        if domain in DECAY_DOMAINS and not 0 < x < 1:
            x = Fraction(rng.randrange(1, 100), 100)
        return self.sample(rng, domain) if domain == "positive" and x <= 0 else self.real(self.number(x))

    def real(self, x: object) -> Any:
        return self.number(x) if isinstance(x, Fraction | int) else mpf(x)


FIELD, FRACTION, REAL = Arithmetic("field"), Arithmetic("fraction"), Arithmetic("real")
SYMBOLIC = Arithmetic("symbolic")  # numbers are SymPy expressions
