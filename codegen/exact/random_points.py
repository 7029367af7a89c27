"""How a gate compares: both sides at random points, exactly, and with 50 digits where functions matter.

Points lie in the field of integers modulo 2^61 - 1, where functions such as exp are uninterpreted: what agrees there is
equal as an expression, up to an error probability (the degree of the two sides over the prime, to the power of the
number of points). 50 digits decide when an identity between functions (sqrt(x)^2 = x) is all that the field misses.
Points follow from the program by a hash, so that a failure repeats.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from chunkform.errors import GateError

from ..ir.degree_bounds import Degrees
from ..ir.evaluate import PRIME, Field, RandomNumbers, Reals
from ..ir.expr import Node, dim_of, walk
from ..ir.step_program import StepProgram
from .run_spec import NoExactMeaning

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GateResult:
    """A passed gate: `what` held at `points` random points. `bound` finds the probability that it is wrong, when it is asked
    for: it takes another run of the check, over degrees."""

    name: str
    what: str
    points: int
    seconds: float
    bound: Callable[[], float] = field(repr=False, compare=False)

    @cached_property
    def error_bound(self) -> float:
        """The probability that two different sides agree at all points."""
        return self.bound()


@dataclass(frozen=True)
class Point:
    """Where a check is made: sizes of the dims, numbers of steps, and a source of random values."""

    arithmetic: RandomNumbers
    sizes: dict[str, int]
    steps: int
    seed: int
    attempt: int = 0

    @property
    def rng(self) -> random.Random:
        return random.Random(f"{self.seed}/{self.attempt}")

    def array(self, rng: random.Random, axes: Iterable[str], *lead: int, decay: bool = False) -> Any:
        return self.arithmetic.random(rng, (*lead, *(self.sizes[dim_of(a)] for a in axes)), decay)

    def __str__(self) -> str:
        sizes = ", ".join(f"{n} = {k}" for n, k in self.sizes.items())
        where = "mod 2^61 - 1" if self.arithmetic.exact else "with 50 digits"
        return f"{sizes}, {self.steps} steps, {where}, seed {self.seed}"


Compared = Iterator[tuple[str, Any, Any]]  # (quantity, what the pass made of it, what it means)


def compare(
    name: str,
    what: str,
    step: StepProgram,
    check: Callable[[Point], Compared],
    points: int = 2,
    steps: int = 3,
) -> GateResult:
    """Run `check` at random points; raises GateError where two values differ."""
    start = time.perf_counter()
    roots = [*step.updates.values(), *step.outputs.values()]
    has_functions = any(x.op in ("fn", "max") or (x.op == "pow" and x.attrs[0].denominator != 1) for x in walk(*roots))
    seed = seed_of(name, roots)
    for n in range(points):
        point = Point(Field(), _sizes(step, seed, n), steps, seed + n)
        exactly = disagreement(check, point)
        if exactly is not None or (has_functions and n == 0):  # of sqrt(x)^2 = x no function need be left
            point = replace(point, arithmetic=Reals())
            exactly = disagreement(check, point)
        if exactly is not None:
            quantity, got, expected = exactly
            raise GateError(
                f"the pass `{name}` changed the meaning of {step.name}: {quantity} is {_shown(got)}, and should be "
                f"{_shown(expected)} ({point}). This is an error in the compiler; nothing is printed from it."
            )
    first = Point(Degrees(), _sizes(step, seed, 0), steps, seed)
    seconds = time.perf_counter() - start
    _log.info("%s: gate %s passed in %.2f s", step.name, name, seconds)
    _log.debug("%s: gate %s: %s, at %d random points", step.name, name, what, points)
    return GateResult(name, what, points, seconds, lambda: _error_bound(check, first, points))


def seed_of(name: str, roots: Iterable[Node]) -> int:
    text = name + "".join(x.key for x in roots)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def _sizes(step: StepProgram, seed: int, n: int) -> dict[str, int]:
    """Different sizes for different dims, from 2 up; from 1 up at the second point."""
    order = list(range(len(step.dims)))
    random.Random(seed + n).shuffle(order)
    return {dim: 2 - n % 2 + k for dim, k in zip(step.dims, order, strict=True)}


def disagreement(check: Callable[[Point], Compared], point: Point) -> tuple[str, Any, Any] | None:
    """The first quantity whose two values differ. A point outside of the functions' domain is drawn again."""
    for attempt in range(20):
        trial = replace(point, attempt=attempt)
        if attempt % 2 and not point.arithmetic.exact:
            trial = replace(trial, arithmetic=Positive())
        try:
            for quantity, got, expected in check(trial):
                if isinstance(got, str) or np.shape(got) != np.shape(expected):
                    return quantity, got, expected
                if not point.arithmetic.equal(got, expected):
                    return quantity, got, expected
            return None
        except NoExactMeaning:
            return "a maximum", "without a meaning", "in a field"
        except GateError as error:  # two ways to one quantity
            return str(error), "two things", "one"
        except (ZeroDivisionError, ValueError, TypeError) as error:
            if point.arithmetic.exact and not isinstance(error, ZeroDivisionError):
                raise
            last = error
    raise GateError(f"no point was found where the program has a value ({point}): {last}")


class Positive(Reals):
    """Random values in (0.1, 1), for logarithms and roots."""

    def random(self, rng: random.Random, shape: tuple[int, ...], decay: bool = False) -> Any:
        return self.add(
            self.mul(super().random(rng, shape, True), self.const(Fraction(9, 10))), self.const(Fraction(1, 100))
        )


def _error_bound(check: Callable[[Point], Compared], point: Point, points: int) -> float:
    """The probability that two different sides agree at all points (Schwartz and Zippel)."""
    try:
        degree = max((Degrees.of_difference(a, b) for _, a, b in check(point)), default=0)
    except NoExactMeaning:
        return 0.0
    return min(1.0, float(degree) / PRIME) ** points


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    entries = np.asarray(value, dtype=object).reshape(-1)
    shown = ", ".join(str(x)[:24] for x in entries[:3])
    return shown if len(entries) == 1 else f"[{shown}{', ...' if len(entries) > 3 else ''}]"
