"""Tries a statement in three random worlds, exactly, and in more where none of those took some branch. Worlds are kept, as many
claims share them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula
from chunkform.spec.language.statements import Differs, Statement

from .arithmetic import FIELD, REAL, Transcendental
from .branches import Taken
from .check import Failure, check
from .coverage import around, branchings, untaken
from .evaluate import Evaluator
from .required_steps import Reach, reach
from .trial_sizes import Point, beyond
from .world import GENERIC, Special, World

Bodies = Mapping[str, Formula]
WORLDS = 3
MORE = 12  # worlds where those missed a branch, so that branches meet each other
MOST = 24  # and so many until each branch was taken


@dataclass(frozen=True)
class Trial:
    """How a statement fared: where it is false, if it is; whether 50 digits were needed; in how many worlds; and what none
    of them was like."""

    failure: Failure | None
    real: bool
    worlds: int = WORLDS
    untried: tuple[str, ...] = ()


class Prover:
    """Finds where a statement is false, if it is."""

    def __init__(self) -> None:
        self.worlds: dict[tuple, World] = {}
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
            if base not in self.worlds:
                arithmetic = REAL if real else FIELD
                self.worlds[base] = World(
                    setting, point.sizes(setting), arithmetic, point.variant, special=special, around=point.around
                )
            world = copy.copy(self.worlds[base])
            world.bodies = bodies
            self.evaluators[key] = Evaluator(world)
        return self.evaluators[key]

    def first_failure(self, statement: Statement, setting: Setting, bodies: Bodies) -> tuple[Failure | None, bool]:
        found = self.tried(statement, setting, bodies)
        return found.failure, found.real

    def tried(self, statement: Statement, setting: Setting, bodies: Bodies, far: Reach | None = None) -> Trial:
        """The statement in three worlds; where it is true there, in more that take the branches which those missed. The
        worlds have as many steps as the statement reaches, or as `far` says."""
        far = far or reach(statement, setting, bodies)
        real = False
        taken: Taken = {}
        nowhere: list[Failure] = []

        def failing(point: Point) -> Failure | None:
            nonlocal real
            try:
                failure = check(statement, self.evaluator(setting, point, bodies, real))
            except Transcendental:
                if real:
                    raise
                real = True
                return failing(point)
            for branching, seen in self.evaluator(setting, point, bodies, real).world.taken.items():
                taken.setdefault(branching, set()).update(seen)
            return failure and replace(failure, point=point)

        for variant in range(WORLDS):
            failure = failing(Point(variant, far))
            if failure is not None and failure.kind not in ("undefined", "nowhere"):
                return Trial(failure, real)
            nowhere += [failure] if failure is not None else []
        if len(nowhere) == WORLDS:
            return Trial(nowhere[-1], real)
        there = [] if isinstance(statement, Differs) else branchings(taken, statement, setting, bodies)
        missing = untaken(taken, there, setting)
        worlds = WORLDS
        near = around(there, setting, bodies) if missing else ()
        while near and worlds < WORLDS + (MOST if missing else MORE):
            failure = failing(Point(worlds, far, near))
            worlds += 1
            if failure is not None and failure.kind not in ("undefined", "nowhere"):
                return Trial(failure, real, worlds)
            missing = untaken(taken, there, setting)
        untried = [beyond(setting, far), *(branching.when(branch) for branching, branch in missing)]
        return Trial(None, real, worlds, tuple(x for x in untried if x))
