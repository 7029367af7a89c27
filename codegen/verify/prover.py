"""Tries a statement in three random worlds, exactly. Worlds are kept, as many claims share them."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula
from chunkform.spec.language.statements import Statement

from .arithmetic import FIELD, REAL, Transcendental
from .check import Failure, check
from .evaluate import Evaluator
from .plans import proof_sizes
from .world import GENERIC, Special, World

Bodies = Mapping[str, Formula]


class Prover:
    """Finds where a statement is false, if it is."""

    def __init__(self) -> None:
        self.worlds: dict[tuple, World] = {}
        self.evaluators: dict[tuple, Evaluator] = {}

    def evaluator(
        self, setting: Setting, variant: int, bodies: Bodies, real: bool, special: Special = GENERIC
    ) -> Evaluator:
        key = (
            setting.name,
            id(setting),
            variant,
            real,
            special,
            tuple(sorted((k, v) for k, v in bodies.items()))
            if len(bodies) < 2
            else tuple(sorted(((k, v) for k, v in bodies.items()), key=lambda p: p[0])),
        )
        if key not in self.evaluators:
            base = key[:5]
            if base not in self.worlds:
                sizes = proof_sizes(setting)[variant]
                self.worlds[base] = World(setting, sizes, REAL if real else FIELD, variant, special=special)
            world = copy.copy(self.worlds[base])
            world.bodies = bodies
            self.evaluators[key] = Evaluator(world)
        return self.evaluators[key]

    def first_failure(self, statement: Statement, setting: Setting, bodies: Bodies) -> tuple[Failure | None, bool]:
        real = False
        for variant in range(3):
            try:
                failure = check(statement, self.evaluator(setting, variant, bodies, real))
            except Transcendental:
                real = True
                failure = check(statement, self.evaluator(setting, variant, bodies, real))
            if failure is not None and not (failure.kind == "undefined" and variant < 2):
                return failure, real
        return None, real
