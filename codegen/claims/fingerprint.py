"""Fingerprints of formulas: their values at two indices of one instance, up to scale, so that a missing term is found by
looking it up."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from chunkform.spec.language.formula import Formula
from chunkform.spec.language.statements import Equal

from .arithmetic import CONTEXT, FIELD, PRIME, Arithmetic, Transcendental, Undefined
from .check import environments
from .evaluate import Evaluator, Unknown
from .instance import Beyond, OutOfRange
from .met_conditions import where_meant
from .values import ShapeFault, Value

Faults = (ShapeFault, Undefined, Transcendental, Unknown, RecursionError)
SMALL = [Fraction(above, below) for below in (1, 2, 3, 4) for above in (1, 2, 3, 4)]


class Residual:
    """What `known` minus a candidate leaves, at two indices in the middle of one instance, as a vector up to scale."""

    def __init__(self, statement: Equal, known: Formula, stated: Formula, evaluate: Evaluator) -> None:
        self.evaluate = evaluate
        self.arithmetic = evaluate.instance.arithmetic
        self.envs = []
        self.known = []
        for env in environments(statement.sides, statement.over, evaluate):
            if not has_value(stated, env, evaluate):
                continue
            try:
                self.known.append(self.value(known, env))
                self.envs.append(env)
            except Faults:
                continue
        middle = len(self.envs) // 2
        keep = slice(max(0, middle - 1), middle + 1)
        self.envs, self.known = self.envs[keep], self.known[keep]

    @property
    def shape(self) -> tuple[str, str] | None:
        return self.known[0].shape if self.known else None

    def value(self, x: Formula, env: Mapping[str, int]) -> Value:
        """The value of x where the claim is meant."""
        return where_meant(self.evaluate, env)(x, env)

    def vector(self, x: Formula, minus: bool = False) -> tuple | None:
        """The entries of x, or of known - x, at the indices; None for an index at which x has no value."""
        entries: list[Any] = []
        for env, known in zip(self.envs, self.known):
            try:
                value = self.value(x, env)
            except Faults:
                entries += [None] * known.a.size
                continue
            if value.shape != known.shape or value.log:
                return None
            entries += (self.arithmetic.reduce(known.a - value.a) if minus else value.a).flat
        return tuple(entries)

    def all_known(self) -> tuple:
        return tuple(v for known in self.known for v in known.a.flat)

    def key(self, entries: tuple) -> tuple:
        """A vector as a key of a table: numbers with 50 digits by their first 25."""
        return entries if self.arithmetic.kind == "field" else tuple(map(rounded, entries))

    def normalised(self, entries: tuple | None) -> tuple[Any, Any]:
        """(the key of the vector divided by its first number that isn't 0, that number)."""
        lead = next((v for v in entries or () if v is not None and not self.zero(v)), None)
        if entries is None or lead is None:
            return None, 0
        scale = self.arithmetic.invert(lead)
        return self.key(tuple(None if v is None else self.arithmetic.reduce(v * scale) for v in entries)), lead

    def zero(self, x: Any) -> bool:
        return x == 0 if self.arithmetic.kind == "field" else abs(x) < 1e-30

    def __call__(self, candidate: Formula) -> tuple[Any, Any]:
        return self.normalised(self.vector(candidate, True))

    def key_of(self, term: Formula) -> Any:
        return self.normalised(self.vector(term))[0]

    def ratio(self, scale: object, term: Formula) -> Fraction | None:
        """What a term must be multiplied with to have this scale, if that is a small fraction."""
        own = self.normalised(self.vector(term))[1]
        return (
            small_ratio(self.arithmetic.reduce(scale * self.arithmetic.invert(own)), self.arithmetic) if own else None
        )


def rounded(x: Any) -> str | None:
    if x is None:
        return None
    return "0" if abs(x) < 1e-30 else str(CONTEXT.nstr(x, 25))


def small_ratio(x: Any, arithmetic: Arithmetic = FIELD) -> Fraction | None:
    for ratio in SMALL:
        value = arithmetic.number(ratio)
        if arithmetic.kind != "field":
            if abs(abs(x) - value) < 1e-30:
                return ratio if x > 0 else -ratio
        elif x in (value, PRIME - value):
            return ratio if x == value else -ratio
    return None


def has_value(x: Formula, env: Mapping[str, int], evaluate: Evaluator) -> bool:
    """Whether every quantity in x exists at these indices; a wrong shape counts as existing."""
    try:
        evaluate(x, env)
    except Beyond:
        return True
    except OutOfRange:
        return False
    except (Undefined, ShapeFault):
        return True
    return True
