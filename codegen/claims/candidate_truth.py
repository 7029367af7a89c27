"""Whether a candidate for a side of a claim is true, in one instance and in all, and says something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from chunkform.spec.language.claims import LENGTH, Setting
from chunkform.spec.language.formula import Formula, free_indices, walk
from chunkform.spec.language.statements import Equal, Statement

from .arithmetic import Transcendental
from .check import check, environments
from .evaluate import Evaluator
from .fingerprint import Faults, has_value
from .instance import OutOfRange
from .met_conditions import where_meant
from .prover import Bodies, Prover
from .restated import cancels, restates, says_itself, says_nothing
from .trial_sizes import Point

VALUES = ("at", "add", "product", "hadamard", "inner", "diag", "transpose", "negative")  # what may be 0


@dataclass(frozen=True)
class Side:
    """The side of an equation that candidates stand in the place of, and the one that they are compared with."""

    statement: Equal
    position: int
    known: Formula
    bodies: Bodies

    @property
    def stated(self) -> Formula:
        return self.statement.sides[self.position]


@dataclass
class Candidates:
    """Judges candidates: those for a side, or, without one, whatever `statement_with` makes of them."""

    prover: Prover
    statement_with: Callable[[Formula], tuple[Statement, Bodies]]
    setting: Setting
    point: Point
    side: Side | None = None
    real: bool = False  # whether 50-digit arithmetic is needed; found out on the way
    points: dict[bool, list[Mapping[str, int]]] = field(default_factory=dict)

    def quick(self, x: Formula) -> bool:
        """Whether a candidate is true in one instance."""
        if self.side is None:
            return self.retried(lambda: self.true_there(x))
        side = self.side
        return x != side.known and self.retried(lambda: self.same_as_known(x, side))

    def quick_before_the_end(self, x: Formula) -> bool:
        """Whether it is so at all steps but the last, where it has no value: a step later, there is nothing."""
        side = self.side
        return side is not None and x != side.known and self.retried(lambda: self.same_as_known(x, side, True))

    def proved(self, x: Formula) -> bool:
        """Whether it is true in all instances, and says something."""
        if self.side is None:
            nothing = cancels(x) or says_itself(*self.statement_with(x), self.setting)
        else:
            nothing = says_nothing(self.side.known, x, self.side.stated)
        return not nothing and self.retried(lambda: self.true(x) and not self.brings_nothing(x))

    def new(self, x: Formula) -> bool:
        """Whether it is more than a definition, or an equation of the recurrence."""
        side = self.side
        return side is None or not restates(side.known, x, self.setting, side.bodies, logs=True)

    def evaluator(self, bodies: Bodies) -> Evaluator:
        return self.prover.evaluator(self.setting, self.point, bodies, self.real)

    def retried(self, attempt: Callable[[], bool]) -> bool:
        try:
            return attempt()
        except Transcendental:
            if self.real:
                return False
        except Faults:
            return False
        self.real = True
        return self.retried(attempt)

    def needed(self, side: Side) -> list[Mapping[str, int]]:
        """The indices at which the formula as stated, and the other side, have values."""
        if self.real not in self.points:
            evaluate = self.evaluator(side.bodies)
            found = []
            for env in environments(side.statement.sides, side.statement.over, evaluate):
                if all(has_value(x, env, evaluate) for x in (side.stated, side.known)):
                    found.append(env)
            self.points[self.real] = found[::-1]  # what is wrong from some step on shows at the last one
        return self.points[self.real]

    def same_as_known(self, x: Formula, side: Side, but_for_the_end: bool = False) -> bool:
        evaluate = self.evaluator(side.bodies)
        last = evaluate.instance.sizes.get(LENGTH, 0)
        left_out = 0
        for env in self.needed(side):
            there = where_meant(evaluate, env)
            a = there(side.known, env)
            try:
                b = there(x, env)
            except OutOfRange:
                if not but_for_the_end or last not in env.values():
                    return False
                left_out += 1
                continue
            settled = there.algebra.settled(a).a, there.algebra.settled(b).a
            if a.shape != b.shape or not there.instance.arithmetic.equal(*settled):
                return False
        return len(self.needed(side)) > 2 * left_out

    def true_there(self, x: Formula) -> bool:
        whole, inner = self.statement_with(x)
        return check(whole, self.evaluator(inner)) is None

    def true(self, x: Formula) -> bool:
        whole, inner = self.statement_with(x)
        return self.prover.tried(whole, self.setting, inner, self.point.reach).failure is None

    def brings_nothing(self, x: Formula) -> bool:
        """Whether a part that the formula as stated doesn't have is 0 wherever the claim is meant, as 1 - lam(t) where
        lam(t) = 1."""
        side = self.side
        if side is None or not (self.setting.premises.text or self.setting.initial):
            return False
        there = set(walk(side.stated))
        parts = [y for y in walk(x) if y not in there and y.op in VALUES]
        evaluate, envs = self.evaluator(side.bodies), self.needed(side)
        return any(all(is_zero_at(y, env, evaluate) for env in envs) for y in parts)


def is_zero_at(x: Formula, env: Mapping[str, int], evaluate: Evaluator) -> bool:
    """Whether x has a value at these indices, and it is 0 where the claim is meant."""
    if not free_indices(x) <= set(env):
        return False
    try:
        value = evaluate.algebra.settled(where_meant(evaluate, env)(x, env))
    except Faults:
        return False
    return evaluate.instance.arithmetic.equal(value.a, np.full_like(value.a, evaluate.instance.arithmetic.number(0)))
