"""Inequalities that a claim is meant under, such as `if \\lambda_t < 1`: the numbers that they leave."""

from __future__ import annotations

import operator
import random
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from chunkform.spec.language.claims import Premises
from chunkform.spec.language.formula import Formula

from .arithmetic import Arithmetic
from .values import Value

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}


@dataclass(frozen=True)
class Limits:
    """What a number is between; an end that it may take itself is closed."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_closed: bool = False
    high_closed: bool = False

    def and_also(self, relation: str, bound: Fraction) -> Limits:
        """These limits, and those of one more inequality."""
        closed = relation.endswith("=")
        if relation[0] == "<" and (self.high is None or bound <= self.high):
            closed = closed and (self.high != bound or self.high_closed)
            return replace(self, high=bound, high_closed=closed)
        if relation[0] == ">" and (self.low is None or bound >= self.low):
            closed = closed and (self.low != bound or self.low_closed)
            return replace(self, low=bound, low_closed=closed)
        return self

    def within(self, domain: str) -> Limits:
        """These limits of a number that is positive, or a decay."""
        made = self if domain not in ("positive", "decay") else self.and_also(">", Fraction(0))
        return made if domain != "decay" else made.and_also("<=", Fraction(1))

    @property
    def empty(self) -> bool:
        return self.low is not None and self.high is not None and self.low >= self.high

    def drawn(self, rng: random.Random, domain: str) -> Fraction:
        """A number between them."""
        so = self.within(domain)
        part = Fraction(rng.randrange(1, 64), 64)
        if so.low is not None and so.high is not None:
            return so.low + (so.high - so.low) * part
        if so.low is not None:
            return so.low + part * rng.choice((1, 2, 4))
        assert so.high is not None
        return so.high - part * rng.choice((1, 2, 4))


@lru_cache(maxsize=256)
def of_scalar(premises: Premises, name: str, args: tuple[Formula, ...] | None = None) -> Limits | None:
    """What inequalities between a symbol and a number say of it, at whatever step, or where it has these indices."""
    found, said = Limits(), False
    for left, relation, right in premises.where:
        if left.op == "number":
            left, relation, right = right, FLIPPED[relation], left
        bound = number(right)
        if left.op != "at" or left.attrs != (name,) or bound is None or relation == "!=":
            continue
        if args is not None and premises.step and args != left.args:
            continue
        found, said = found.and_also(relation, bound), True
    return found if said else None


def only_limits(premises: Premises) -> bool:
    """Whether every inequality is one between a symbol and a number, so that limits say all."""
    pairs = [(a, b) if a.op == "at" else (b, a) for a, relation, b in premises.where if relation != "!="]
    return len(pairs) == len(premises.where) and all(a.op == "at" and number(b) is not None for a, b in pairs)


def number(x: Formula) -> Fraction | None:
    if x.op == "negative":
        inner = number(x.args[0])
        return None if inner is None else -inner
    if x.op == "divide":
        top, below = number(x.args[0]), number(x.args[1])
        return top / below if top is not None and below else None
    return Fraction(x.attrs[0]) if x.op == "number" else None


def compares(left: Value, relation: str, right: Value, arithmetic: Arithmetic) -> bool:
    """Whether two values are so, entry by entry."""
    if relation == "!=":
        return left.shape != right.shape or not arithmetic.equal(left.a, right.a)
    less = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[relation]
    return all(less(x, y) for x, y in zip(*(v.flat for v in np.broadcast_arrays(left.a, right.a)), strict=True))
