"""The judge: from a claim to a verdict.

A claim is tried under each reading of what its document leaves open. It holds when every reading makes it true in
every world, it depends when some do, and it fails when none does; then the nearest true formula is searched for, and
conditions under which the claim would be true. Worlds are random points of a prime field (or 50-digit numbers, for
what is transcendental): two different rational formulas of degree g agree at one with a probability of at most g /
2^61."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from chunkform.errors import SpecError
from chunkform.spec.language.claims import (
    AtMost,
    Claim,
    Differs,
    Equal,
    Number,
    OneOf,
    Setting,
    Statement,
    Together,
)
from chunkform.spec.language.formula import Formula, free_indices, substitute, walk
from chunkform.spec.language.notation import latex

from . import analysis  # noqa: F401  (its decisions register themselves)
from .arithmetic import FIELD, REAL, Transcendental
from .check import Failure, check, environments
from .conditions import rescues, specials, true_under
from .counterexample import smallest
from .edits import edits, is_decay, scope_of
from .evaluate import Evaluator, open_names
from .names import formulas_of, used_names
from .plans import proof_sizes
from .proof import symbolic_proof
from .properties import Finding, decide, joined
from .repair import Faults, Repair, Residual, Target, edited, has_value, ranked, search
from .verdict import Condition, Counterexample, Verdict
from .world import GENERIC, Special, World

Bodies = Mapping[str, Formula]
AND = "; "  # between the choices of a reading


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


class Judge:
    """Judges the claims of one setting after another; worlds are kept, as many claims share them. `repaired` collects
    the definitions that were found wrong: (setting, name) -> (claim id, body that is right). Without `thorough`, the
    bare verdict: no counterexample, no search for repairs and conditions, no second proof."""

    def __init__(self, thorough: bool = True) -> None:
        self.thorough = thorough
        self.worlds: dict[tuple, World] = {}
        self.evaluators: dict[tuple, Evaluator] = {}
        self.repaired: dict[tuple[str, str], tuple[str, Formula]] = {}

    def judge(self, claim: Claim) -> Verdict:
        """The verdict on a claim."""
        started = time.monotonic()
        refuse_empty(claim)
        verdict = self._judge(claim)
        return replace(verdict, seconds=time.monotonic() - started)

    def _judge(self, claim: Claim) -> Verdict:
        findings = [
            Reading(label, bodies, statement, self.decided(statement, claim.setting, bodies))
            for label, bodies, statement in self.readings(claim)
        ]
        good = [f for f in findings if f.true]
        if len(good) == len(findings):
            return self.held(claim, findings)
        if not self.thorough:
            return Verdict(claim, "depends" if good else "fails", findings[0].finding.how)
        conditions = told(findings)
        for f in findings:
            conditions += [replace(c, text=f"{f.label}: {c.text}" if f.label else c.text) for c in f.finding.conditions]
        worst = next(f for f in findings if not f.true)
        counter = worst.finding.counterexample or self.counterexample(worst, claim.setting)
        how = "; ".join(dict.fromkeys(f.finding.how for f in findings))
        if good or any(f.finding.mixed for f in findings):
            conditions += [
                Condition(text, True, "condition") for f in findings for text in self.rescued(f, claim, True)
            ]
            return Verdict(claim, "depends", how, counter, conditions=tuple(conditions))
        repairs, where = self.repairs(claim, findings)
        rescued = [text for f in findings for text in self.rescued(f, claim, not repairs)]
        conditions += [Condition(text, True, "condition") for text in dict.fromkeys(rescued)]
        full = self.repaired_formula(claim, repairs[0]) if repairs else ("", "")
        if repairs and claim.defines:
            self.repaired[claim.setting.name, claim.defines] = (claim.id, repairs[0].result)
        return Verdict(
            claim,
            "depends" if rescued and not repairs else "fails",
            how,
            counter,
            tuple(repairs),
            *full,
            where,
            tuple(conditions),
            searched=True,
        )

    def rescued(self, reading: Reading, claim: Claim, pairs: bool) -> list[str]:
        """Side conditions under which a reading that is false becomes true."""
        failure = reading.finding.failure
        if not reading.finding.exact or failure is None or failure.kind != "value" or claim.defines:
            return []
        found = rescues(reading.statement, claim.setting, reading.bodies, pairs)
        several = isinstance(claim.statement, OneOf)
        return [f"{reading.label}: {text}" if several else text for text in found]

    # --- readings

    def readings(self, claim: Claim) -> list[tuple[str, dict[str, Formula], Statement]]:
        """Each way to read the claim: a label, the definitions that it chooses, and what is then stated. Quantities
        with the same readings are read alike."""
        if isinstance(claim.statement, OneOf):
            return [(label, {}, statement) for label, statement in claim.statement.alternatives]
        setting = claim.setting
        choices: dict[tuple[str, ...], dict[str, dict[str, Formula]]] = {}
        for name in used_names(claim.statement, setting):
            q = setting.quantities[name]
            if q.alternatives:
                group = choices.setdefault(tuple(label for label, _ in q.alternatives), {})
                for label, body in q.alternatives:
                    group.setdefault(label, {})[name] = body
            fixed = self.repaired.get((setting.name, name))
            if fixed is not None and name != claim.defines:
                labels = f"{name} as displayed", f"{name} as repaired in {fixed[0]}"
                choices[labels] = {labels[0]: {}, labels[1]: {name: fixed[1]}}
        found = []
        for choice in itertools.product(*(group.items() for group in choices.values())):
            bodies = {name: body for _, chosen in choice for name, body in chosen.items()}
            found.append((AND.join(label for label, _ in choice), bodies, claim.statement))
        return found

    # --- deciding

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

    def decided(self, statement: Statement, setting: Setting, bodies: Bodies) -> Finding:
        if isinstance(statement, Equal | Differs | Number | Together) and not has_property(statement):
            return self.decide_exactly(statement, setting, bodies)
        if isinstance(statement, Together):
            return joined([self.decided(part, setting, bodies) for part in statement.parts])
        return decide(statement, setting, bodies)

    def decide_exactly(self, statement: Statement, setting: Setting, bodies: Bodies) -> Finding:
        failure, real = self.first_failure(statement, setting, bodies)
        conditions: list[Condition] = []
        if isinstance(statement, Differs) and failure is None:
            conditions = [Condition(x, False, "condition") for x in where_equal(statement, setting)]
        how = (
            "50-digit arithmetic at 3 random points" if real else "exact arithmetic at 3 random points of a prime field"
        )
        return Finding(failure, how, tuple(conditions), exact=True)

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

    def held(self, claim: Claim, findings: list[Reading]) -> Verdict:
        conditions = told(findings)
        for f in findings:
            conditions += f.finding.conditions
        for f in findings:
            conditions += [
                Condition(f"{d} is not 0", True, "where defined") for d in denominators(f.statement, claim.setting)
            ]
        how = "; ".join(dict.fromkeys(f.finding.how for f in findings))
        proof = ""
        if self.thorough:
            proof = symbolic_proof(findings[0].statement, claim.setting, findings[0].bodies)
        return Verdict(claim, "holds", how, conditions=tuple(dict.fromkeys(conditions)), proof=proof)

    # --- what is wrong, and what would be right

    def counterexample(self, reading: Reading, setting: Setting) -> Counterexample | None:
        failure = reading.finding.failure
        if failure is None or failure.kind != "value":
            return Counterexample(failure.message) if failure else None
        found = smallest(reading.statement, setting, reading.bodies)
        return found or Counterexample(failure.message)

    def repairs(self, claim: Claim, findings: list[Reading]) -> tuple[list[Repair], str]:
        """The nearest repairs over all readings, and the reading under which they are right. First what is near, then
        the rest."""
        for depth in (1, 2, 3):
            best: list[Repair] = []
            where = ""
            for f in findings:
                if f.finding.failure is None:
                    continue
                found = list(f.finding.repairs) or (self.repair(claim, f, depth) if f.finding.exact else [])
                if found and (not best or found[0].cost < best[0].cost):
                    best, where = found, f.label
            if best:
                return best, where
        return [], ""

    def repair(self, claim: Claim, reading: Reading, depth: int) -> list[Repair]:
        setting, bodies, statement = claim.setting, reading.bodies, reading.statement
        if claim.defines:
            q = setting.quantities[claim.defines]
            assert q.body is not None
            beside = tuple(formulas_of(statement))

            def defined_as(x: Formula) -> tuple[Statement, Bodies]:
                return statement, {**bodies, claim.defines: x}

            names = scope_names(setting, {claim.defines})
            stated = bodies.get(claim.defines, q.body)
            target = self.target(defined_as, setting)
            return search(stated, setting, names, target, beside=beside, depth=depth)
        if isinstance(statement, Number):

            def number(x: Formula) -> tuple[Statement, Bodies]:
                return Number(x), bodies

            return search(statement.of, setting, (), self.target(number, setting), depth=depth)
        if isinstance(statement, Together):
            return self.repair_parts(statement, setting, bodies, depth)
        return self.repair_equation(statement, setting, bodies, depth)

    def repair_parts(self, whole: Together, setting: Setting, bodies: Bodies, depth: int) -> list[Repair]:
        """Each false part of a system is repaired by itself, under the same reading."""
        shown: list[Formula] = []
        what: list[str] = []
        cost = 0
        for part in parts_of(whole):
            if not isinstance(part, Equal):
                return []
            failure, _ = self.first_failure(part, setting, bodies)
            if failure is not None:
                found = self.repair_equation(part, setting, bodies, depth)
                if not found:
                    return []
                cost += found[0].cost
                what += found[0].edits
                shown.append(found[0].result)
            else:
                shown += [Formula("equation", pair) for pair in itertools.pairwise(part.sides)]
        return [Repair(Formula("all", tuple(shown)), tuple(what), cost)] if what else []

    def repair_equation(self, statement: Statement, setting: Setting, bodies: Bodies, depth: int) -> list[Repair]:
        """Repairs of one equation, as whole equations: of its last side, or of what stands on its left."""
        if not isinstance(statement, Equal):
            return []
        found: list[Repair] = []
        last = len(statement.sides) - 1
        for position in (0, *range(last, 0, -1)):
            stated = statement.sides[position]
            known = statement.sides[position - 1] if position else statement.sides[1]

            def statement_with(x: Formula, position: int = position) -> tuple[Statement, Bodies]:
                return edited(statement, position, x), bodies

            names = scope_names(setting, heads(known, stated))
            target = self.target(statement_with, setting, statement, position, known, bodies)
            residual = self.residual(statement, known, stated, setting, bodies)
            beside = tuple(s for s in statement.sides if s is not stated)
            for r in search(stated, setting, names, target, residual, beside, position == 0, depth=depth):
                pair = (r.result, known) if position == 0 else (known, r.result)
                found.append(replace(r, result=Formula("equation", pair), cost=r.cost + (position == 0)))
        return ranked(found)

    def residual(
        self, statement: Equal, known: Formula, stated: Formula, setting: Setting, bodies: Bodies
    ) -> Residual | None:
        try:
            found = Residual(statement, known, stated, self.evaluator(setting, 0, bodies, False))
        except Faults:
            return None
        return found if found.envs else None

    def target(
        self,
        statement_with,
        setting: Setting,
        statement: Equal | None = None,
        position: int = 0,
        known: Formula | None = None,
        bodies: Bodies | None = None,
    ) -> Target:
        kinds = [False]  # whether 50-digit arithmetic is needed; found out on the way

        def evaluator(variant: int, inner: Bodies) -> Evaluator:
            return self.evaluator(setting, variant, inner, kinds[0])

        def retried(attempt: Callable[[], bool]) -> bool:
            try:
                return attempt()
            except Transcendental:
                if kinds[0]:
                    return False
            except Faults:
                return False
            kinds[0] = True
            return retried(attempt)

        needed: list[Mapping[str, int]] = []
        if statement is not None and known is not None and bodies is not None:
            evaluate = evaluator(0, bodies)
            for env in environments(statement.sides, statement.over, evaluate):
                if has_value(statement.sides[position], env, evaluate) and has_value(known, env, evaluate):
                    needed.append(env)
        stated = statement.sides[position] if statement is not None else None

        def same_as_known(x: Formula) -> bool:
            evaluate = evaluator(0, bodies or {})
            for env in needed:
                a, b = evaluate(known, env), evaluate(x, env)  # type: ignore[arg-type]
                settled = evaluate.algebra.settled(a).a, evaluate.algebra.settled(b).a
                if a.shape != b.shape or not evaluate.world.arithmetic.equal(*settled):
                    return False
            return bool(needed)

        def true_in(x: Formula, variant: int) -> bool:
            whole, inner = statement_with(x)
            return check(whole, evaluator(variant, inner)) is None

        def quick(x: Formula) -> bool:
            if known is not None and (x == known or (contains(x, known) and not contains(stated, known))):  # type: ignore[arg-type]
                return False
            return retried(lambda: same_as_known(x) if known is not None else true_in(x, 0))

        return Target(quick, lambda x: all(retried(lambda v=v: true_in(x, v)) for v in range(3)))

    def repaired_formula(self, claim: Claim, repair: Repair) -> tuple[str, str]:
        shown = {q.name: q.shown for q in claim.setting.quantities.values() if q.shown}
        whole = repair.result
        if claim.defines:
            q = claim.setting.quantities[claim.defines]
            head = Formula("at", tuple(Formula("index", (), (p,)) for p in q.parameters), (q.name,))
            whole = Formula("equation", (head, repair.result))
        return str(whole), latex(whole, shown)


# --- helpers ------------------------------------------------------------------------------------------------------


def told(findings: list[Reading]) -> list[Condition]:
    """The readings, with what is true under each; a choice that makes no difference is left out."""
    rows = [(tuple(f.label.split(AND)), f.true) for f in findings if f.label and not f.finding.mixed]
    if not rows:
        return []
    keep = list(range(len(rows[0][0])))
    for k in list(keep):
        others = [m for m in keep if m != k]
        outcomes: dict[tuple, set[bool]] = {}
        for labels, good in rows:
            outcomes.setdefault(tuple(labels[m] for m in others), set()).add(good)
        if others and all(len(x) == 1 for x in outcomes.values()):
            keep = others
    seen: dict[str, bool] = {}
    for labels, good in rows:
        seen.setdefault(AND.join(labels[m] for m in keep), good)
    return [Condition(label, good) for label, good in seen.items()]


def where_equal(statement: Differs, setting: Setting) -> list[str]:
    """When the sides of an inequation are equal after all."""
    same = Equal((statement.left, statement.right), over=statement.over)
    found = [s.text for s in specials(same, setting) if true_under(s, same, setting, {})]
    indices = sorted({n for side in same.sides for n in free_indices(side)})
    for a, b in itertools.combinations(indices, 2):
        merged = [substitute(x, {Formula("index", (), (b,)): Formula("index", (), (a,))}) for x in same.sides]
        if true_under(Special(), Equal((merged[0], merged[1])), setting, {}):
            found.append(f"{a} = {b}")
    return found


def refuse_empty(claim: Claim) -> None:
    """A claim whose two sides are the same expression says nothing: it would hold whatever the truth is."""
    for part in parts_of(claim.statement):
        if isinstance(part, Equal):
            opened = [inlined(open_names(s), claim.setting) for s in part.sides]
            for a, b in itertools.pairwise(opened):
                if a == b and not claim.defines:
                    raise SpecError(f"the claim {claim.id} says nothing: both sides are {a}", claim.where)


def inlined(x: Formula, setting: Setting) -> Formula:
    """x with quantities that are defined by a formula without parameters replaced by it."""
    from chunkform.spec.language.formula import transform

    def visit(y: Formula) -> Formula | None:
        q = setting.quantities.get(y.attrs[0]) if y.op == "at" and not y.args else None
        return inlined(q.body, setting) if q is not None and q.body is not None and not q.alternatives else None

    return transform(x, visit)


def parts_of(statement: Statement) -> list[Statement]:
    if isinstance(statement, Together):
        return [p for part in statement.parts for p in parts_of(part)]
    return [statement]


def has_property(statement: Statement) -> bool:
    if isinstance(statement, Equal):
        return any(y.op == "infinity" for s in statement.sides for y in walk(s))
    return any(isinstance(p, AtMost) or not isinstance(p, Equal | Differs | Number) for p in parts_of(statement))


def places(statement: Statement) -> list:
    """Where an edit may be made: (how to rebuild the whole, the equation, which side), last sides first."""
    if isinstance(statement, Equal):
        order = [*range(len(statement.sides) - 1, 0, -1), 0]
        return [(lambda e: e, statement, k) for k in order]
    found = []
    if isinstance(statement, Together):
        for i, part in enumerate(statement.parts):
            for rebuilt, equation, k in places(part):

                def outer(e: Statement, rebuilt=rebuilt, i=i) -> Statement:
                    new = rebuilt(e)
                    return replace(statement, parts=(*statement.parts[:i], new, *statement.parts[i + 1 :]))

                found.append((outer, equation, k))
    return found


def heads(known: Formula, stated: Formula) -> set[str]:
    """Names that a repair may not bring in: those of the side that it is compared with, unless it has them already."""
    there = {y.attrs[0] for y in walk(stated) if y.op == "at"}
    return {y.attrs[0] for y in walk(known) if y.op == "at"} - there if known.op in ("at", "transpose") else set()


def scope_names(setting: Setting, without: set[str]) -> tuple[str, ...]:
    r = setting.recurrence
    if r is not None:
        for x in (*r.variables, *r.states, *r.outputs):
            setting.lookup(x.name)
        for x in (*r.states, *r.outputs):
            setting.lookup(f"d{x.name}")
    return tuple(name for name in setting.quantities if name not in without)


def denominators(statement: Statement, setting: Setting) -> list[str]:
    """What must not vanish for the formula to have a value, where it can."""
    found = []
    for x in formulas_of(statement):
        for y in walk(x):
            if y.op == "divide" and not always_positive(y.args[1], setting):
                found.append(str(y.args[1]))
            elif y.op == "inverse":
                found.append(f"the determinant of {y.args[0]}")
    return list(dict.fromkeys(found))


def always_positive(x: Formula, setting: Setting) -> bool:
    """Whether x is made of positive numbers and decays only, by products, quotients, sums and roots."""
    if x.op == "number":
        return x.attrs[0] > 0
    if x.op == "at":
        q = setting.quantities[x.attrs[0]]
        if q.domain in ("decay", "positive") or is_decay(setting, q.name):
            return True
        return q.body is not None and q.start is None and always_positive(q.body, setting)
    if x.op == "exp":
        return True
    if x.op in ("product", "hadamard", "divide", "sqrt", "add"):
        return all(always_positive(a, setting) for a in x.args)
    if x.op == "power":
        return always_positive(x.args[0], setting)
    return x.op in ("product over", "stack", "sum") and always_positive(x.args[-1], setting)


def contains(x: Formula, part: Formula) -> bool:
    return any(y == part for y in walk(x))


def can_fail(claim: Claim, judge: Judge) -> bool:
    """Whether some small edit of a claim is found false: a claim that nothing refutes proves nothing."""
    for rebuilt, statement, position in places(claim.statement):
        stated = statement.sides[position]
        for e in itertools.islice(edits(stated, scope_of(stated, claim.setting, ())), 40):
            try:
                failure, _ = judge.first_failure(rebuilt(edited(statement, position, e.result)), claim.setting, {})
            except Faults:
                return True
            if failure is not None:
                return True
    return False
