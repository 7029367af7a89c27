"""Tries a statement in three random instances, exactly, and in more where none of those took some branch. Instances are kept, as
many claims share them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, walk
from chunkform.spec.language.statements import Differs, Statement

from .arithmetic import FIELD, REAL, Transcendental
from .branches import Branching, Taken
from .check import Failure, check
from .coverage import around, branchings, untaken
from .evaluate import Evaluator
from .instance import GENERIC, Instance, Special
from .required_steps import Reach, reach
from .scope import formulas_of
from .trial_sizes import Point, beyond

Bodies = Mapping[str, Formula]
INSTANCES = 3
MORE = 12  # instances where those missed a branch, so that branches meet each other
MOST = 24  # and so many until each branch was taken


@dataclass(frozen=True)
class Trial:
    """How a statement fared: where it is false, if it is; whether 50 digits were needed; in how many instances; and what none
    of them was like."""

    failure: Failure | None
    real: bool
    instances: int = INSTANCES
    untried: tuple[str, ...] = ()


class Prover:
    """Finds where a statement is false, if it is."""

    def __init__(self) -> None:
        self.instances: dict[tuple, Instance] = {}
        self.evaluators: dict[tuple, Evaluator] = {}

    def evaluator(
        self, setting: Setting, point: Point, bodies: Bodies, real: bool, special: Special = GENERIC
    ) -> Evaluator:
        key = (
            setting.name,
            id(setting),
            point,
            real,
            special,
            tuple(sorted((k, v) for k, v in bodies.items()))
            if len(bodies) < 2
            else tuple(sorted(((k, v) for k, v in bodies.items()), key=lambda p: p[0])),
        )
        if key not in self.evaluators:
            base = key[:5]
            if base not in self.instances:
                arithmetic = REAL if real else FIELD
                self.instances[base] = Instance(
                    setting, point.sizes(setting), arithmetic, point.variant, special=special, around=point.around
                )
            instance = copy.copy(self.instances[base])
            instance.bodies = bodies
            self.evaluators[key] = Evaluator(instance)
        return self.evaluators[key]

    def forget_branches(self) -> None:
        """Forget which branches of formulas were taken, so that a verdict doesn't turn on the claims before it."""
        self.evaluators.clear()
        for instance in self.instances.values():
            for branching in [b for b in instance.taken if isinstance(b.node, Formula)]:
                del instance.taken[branching]

    def first_failure(self, statement: Statement, setting: Setting, bodies: Bodies) -> tuple[Failure | None, bool]:
        found = self.tried(statement, setting, bodies)
        return found.failure, found.real

    def tried(
        self,
        statement: Statement,
        setting: Setting,
        bodies: Bodies,
        far: Reach | None = None,
        special: Special = GENERIC,
    ) -> Trial:
        """The statement in three instances; where it is true there, in more that take the branches which those missed. The
        instances have as many steps as the statement reaches, or as `far` says, and are `special`."""
        far = far or reach(statement, setting, bodies)
        real = False
        taken: Taken = {}
        nowhere: list[Failure] = []

        def failing(point: Point) -> Failure | None:
            nonlocal real
            try:
                failure = check(statement, self.evaluator(setting, point, bodies, real, special))
            except Transcendental:
                if real:
                    raise
                real = True
                return failing(point)
            for branching, seen in self.evaluator(setting, point, bodies, real, special).instance.taken.items():
                taken.setdefault(branching, set()).update(seen)
            return failure and replace(failure, point=point)

        for variant in range(INSTANCES):
            failure = failing(Point(variant, far))
            if failure is not None and failure.kind not in ("undefined", "nowhere"):
                return Trial(failure, real)
            nowhere += [failure] if failure is not None else []
        if len(nowhere) == INSTANCES:
            return Trial(nowhere[-1], real)
        there = [] if isinstance(statement, Differs) else branchings(taken, statement, setting, bodies)
        own = {y for x in formulas_of(statement) for y in walk(x)}
        there = [
            b for b in there if not is_cases(b) or b.node in own
        ]  # of a definition's, what the claim reaches was tried
        missing = untaken(taken, there, setting)
        instances = INSTANCES
        near = around(there, setting, bodies) if missing else ()
        while near and instances < INSTANCES + (MOST if missing else MORE):
            failure = failing(Point(instances, far, near))
            instances += 1
            if failure is not None and failure.kind not in ("undefined", "nowhere"):
                return Trial(failure, real, instances)
            missing = untaken(taken, there, setting)
        untried = [beyond(setting, far), *(branching.when(branch) for branching, branch in missing)]
        return Trial(None, real, instances, tuple(x for x in untried if x))


def is_cases(branching: Branching) -> bool:
    """Whether indices decide which branch is taken."""
    return isinstance(branching.node, Formula) and bool(branching.node.op == "cases")
