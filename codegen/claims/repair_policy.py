"""Repairs of claims: which side to edit, under which reading, and what counts as true; `repair.py` searches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkform.spec.language.claims import Claim, Setting
from chunkform.spec.language.formula import Formula, walk
from chunkform.spec.language.statements import Equal, Number, Statement, Together

from .candidate_terms import first_value
from .candidate_truth import Candidates, Side
from .check import Failure
from .edit_scope import Known
from .effort import Effort
from .fingerprint import Faults, Residual
from .mutations import Edit
from .properties import Finding
from .prover import Bodies, Prover
from .repair import Repair, Target, edited, ranked, search
from .restated import restates
from .scope import formulas_of, parts_of
from .tidy import tidied
from .trial_sizes import Point

SHOWN = 4  # repairs that are told: the nearest, and others
HEADS = ("at", "transpose", "gradient")  # what a formula is for, when it stands on the left


@dataclass(frozen=True)
class Reading:
    """One way to read a claim, and what was found under it."""

    label: str
    bodies: Bodies
    statement: Statement
    finding: Finding

    @property
    def true(self) -> bool:
        return self.finding.failure is None and not self.finding.mixed


class Mender:
    """Looks for the nearest true formula of a claim that fails under every reading."""

    def __init__(self, prover: Prover) -> None:
        self.prover = prover
        self.known: dict[int, Known] = {}
        self.effort = Effort()
        self.waiting = 1
        self.near: dict[Any, list[Edit]] = {}
        self.defined: list[Repair] = []  # what the nearest true formula is, where a definition says that already

    def searched(self, *args: Any, **how: Any) -> list[Repair]:
        """A search within its share: an equal part for all that may still come at this depth, of half of what is left, or of
        all at the last one."""
        parts = self.waiting if how["depth"] == 3 else 2 * self.waiting
        share = self.effort.share(parts)
        how |= {"effort": share, "near": self.near}
        self.waiting = max(1, self.waiting - 1)
        found = search(*args, **how)
        self.effort.ended |= share.ended
        return found

    def about(self, setting: Setting, bodies: Bodies) -> Known:
        """What is known of the quantities that a setting defines."""
        if id(setting) not in self.known:
            evaluate = self.prover.evaluator(setting, Point(), bodies, True)
            shapes = {}
            strict = []
            for q in setting.quantities.values():
                if q.kind == "defined":
                    here = Formula("at", tuple(Formula("index", (), (p,)) for p in q.parameters), (q.name,))
                    value = first_value(here, evaluate)
                    if value is not None:
                        shapes[q.name] = value.shape
                        if value.rows == value.cols != "1" and not np.triu(value.a).any():
                            strict.append(q.name)
            self.known[id(setting)] = Known(shapes, tuple(strict))
        return self.known[id(setting)]

    def repairs(
        self, claim: Claim, findings: list[Reading], effort: Effort, depths: Iterable[int] = (1, 2, 3)
    ) -> tuple[list[Repair], str]:
        """The nearest repairs over all readings, and the reading under which they are right. First what is near, then
        the rest."""
        self.prover.evaluators.clear()  # what a search takes doesn't depend on the claims before
        self.effort, self.near, self.defined = effort, {}, []
        sides = 1 if claim.defines else sides_of(claim.statement)
        for depth in depths:
            self.waiting = sides * sum(f.finding.failure is not None for f in findings)
            best: list[Repair] = []
            where = ""
            for f in findings:
                if f.finding.failure is None:
                    continue
                found = list(f.finding.repairs) or (self.repair(claim, f, depth) if f.finding.exact else [])
                found = [self.tidied(r, f, claim.setting) for r in found[:SHOWN]]
                if found and (not best or nearness(found[0]) < nearness(best[0])):
                    best, where = found, f.label
            if best or self.defined:
                return best, where
        return [], ""

    def tidied(self, r: Repair, reading: Reading, setting: Setting) -> Repair:
        """A repair as a person would write it, where that is true as well."""
        plain = tidied(r.result)
        if plain == r.result or plain.op != "equation" or not isinstance(reading.statement, Equal):
            return r
        whole = replace(reading.statement, sides=plain.args)
        true = self.prover.first_failure(whole, setting, reading.bodies)[0] is None
        return replace(r, result=plain) if true else r

    def repair(self, claim: Claim, reading: Reading, depth: int) -> list[Repair]:
        setting, bodies, statement = claim.setting, reading.bodies, reading.statement
        point = point_of(reading.finding.failure)
        if claim.defines:
            q = setting.quantities[claim.defines]
            assert q.body is not None
            beside = tuple(formulas_of(statement))

            def defined_as(x: Formula) -> tuple[Statement, Bodies]:
                return statement, {**bodies, claim.defines: x}

            names = scope_names(setting, {claim.defines})
            stated = bodies.get(claim.defines, q.body)
            target = self.target(defined_as, setting, point)
            about = self.about(setting, bodies)
            return self.searched(stated, setting, names, target, beside=beside, depth=depth, known=about)
        if isinstance(statement, Number):

            def number(x: Formula) -> tuple[Statement, Bodies]:
                return Number(x), bodies

            return self.searched(statement.of, setting, (), self.target(number, setting, point), depth=depth)
        if isinstance(statement, Together):
            return self.repair_parts(statement, setting, bodies, depth)
        fits = reading.finding.failure is None or reading.finding.failure.kind != "shape"
        return self.repair_equation(statement, setting, bodies, depth, point, fits)

    def repair_parts(self, whole: Together, setting: Setting, bodies: Bodies, depth: int) -> list[Repair]:
        """Each false part of a system is repaired by itself, under the same reading."""
        shown: list[Formula] = []
        what: list[str] = []
        cost = 0
        for part in parts_of(whole):
            if not isinstance(part, Equal):
                return []
            failure, _ = self.prover.first_failure(part, setting, bodies)
            if failure is not None:
                fits = failure.kind != "shape"
                found = self.repair_equation(part, setting, bodies, depth, point_of(failure), fits)
                if not found:
                    return []
                cost += found[0].cost
                what += found[0].edits
                shown.append(found[0].result)
            else:
                shown += [Formula("equation", pair) for pair in itertools.pairwise(part.sides)]
        return [Repair(Formula("all", tuple(shown)), tuple(what), cost)] if what else []

    def repair_equation(
        self, statement: Statement, setting: Setting, bodies: Bodies, depth: int, point: Point, fits: bool = True
    ) -> list[Repair]:
        """Repairs of one equation, as whole equations: of its last side, or of what stands on its left. None where the nearest
        one is what a definition says."""
        if not isinstance(statement, Equal):
            return []
        found: list[Repair] = []
        last = len(statement.sides) - 1
        about = self.about(setting, bodies)
        whole = Formula("equation", statement.sides[:2]) if last == 1 else None
        for position in (0, *range(last, 0, -1)):
            stated = statement.sides[position]
            known = statement.sides[position - 1] if position else statement.sides[1]

            def statement_with(x: Formula, position: int = position) -> tuple[Statement, Bodies]:
                return edited(statement, position, x), bodies

            names = scope_names(setting, heads(known, stated))
            target = self.target(statement_with, setting, point, Side(statement, position, known, bodies))
            residual = self.residual(statement, known, stated, setting, bodies, point)
            beside = tuple(s for s in statement.sides if s is not stated)
            head = position == 0 and (stated.op in HEADS or depth > 1)
            how = {"depth": depth, "known": about, "fits": fits}
            for r in self.searched(stated, setting, names, target, residual, beside, head, **how):
                pair = (r.result, known) if position == 0 else (known, r.result)
                found.append(replace(r, result=Formula("equation", pair), cost=r.cost + (position == 0)))
        found = ranked(found, whole)
        sides = [tidied(r.result).args for r in found]
        told = [restates(left, right, setting, bodies) for left, right in sides]
        if told and told[0]:
            self.defined.append(replace(found[0], result=tidied(found[0].result)))
            return []
        return [r for r, again in zip(found, told) if not again]

    def residual(
        self, statement: Equal, known: Formula, stated: Formula, setting: Setting, bodies: Bodies, point: Point
    ) -> Residual | None:
        for real in (False, True):
            try:
                found = Residual(statement, known, stated, self.prover.evaluator(setting, point, bodies, real))
            except Faults:
                continue
            if found.envs:
                return found
        return None

    def target(
        self,
        statement_with: Callable[[Formula], tuple[Statement, Bodies]],
        setting: Setting,
        point: Point,
        side: Side | None = None,
    ) -> Target:
        judge = Candidates(self.prover, statement_with, setting, point, side)
        return Target(judge.quick, judge.proved, judge.new, judge.quick_before_the_end)


def sides_of(statement: Statement) -> int:
    """How many formulas of a statement are searched."""
    return sum(len(p.sides) if isinstance(p, Equal) else 1 for p in parts_of(statement))


def nearness(r: Repair) -> tuple[int, int]:
    return r.cost, len(str(r.result))


def point_of(failure: Failure | None) -> Point:
    """The instance in which candidates are compared: the first usual one, or one around constants where only such a one shows
    that the formula is false."""
    point = failure.point if failure is not None and failure.point is not None else Point()
    return point if point.around else replace(point, variant=0)


def heads(known: Formula, stated: Formula) -> set[str]:
    """Names that a repair may not bring in: those of the side that it is compared with, unless it has them already."""
    there = {y.attrs[0] for y in walk(stated) if y.op == "at"}
    return {y.attrs[0] for y in walk(known) if y.op == "at"} - there if known.op in ("at", "transpose") else set()


def scope_names(setting: Setting, without: set[str]) -> tuple[str, ...]:
    r = setting.recurrence
    if r is not None:
        carried = [*(x.name for x in r.states), *(x.name for x in r.outputs)]
        for name in (*(v.name for v in r.variables), *carried, *(f"d{x}" for x in carried)):
            setting.lookup(name)
    return tuple(name for name in setting.quantities if name not in without)
