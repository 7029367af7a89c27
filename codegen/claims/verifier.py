"""The verifier: from a claim to a verdict.

A claim is tried under each reading of what its document leaves open. It holds when every reading makes it true in
every instance, it depends when some do, and it fails when none does; then the nearest true formula is searched for, and
conditions under which the claim would be true. Instances are random points of a prime field (or 50-digit numbers, for
what is transcendental): two different rational formulas of degree g agree at one with a probability of at most g /
2^61."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

from chunkform.errors import ClaimError, nearest
from chunkform.spec.language.claims import Claim, Setting
from chunkform.spec.language.formula import Formula, free_indices, substitute, walk
from chunkform.spec.language.notation import latex
from chunkform.spec.language.statements import AtMost, Differs, Equal, Number, OneOf, SameAs, Statement, Together

from . import analysis  # noqa: F401  (its decisions register themselves)
from .arithmetic import FUNCTIONS, Transcendental
from .bounds import Undecided
from .conditions import MEANT, SYMMETRIC, TRIVIAL, rescues, specials, true_under, without_ends
from .counterexample import smallest
from .edit_scope import scope_of
from .effort import NORMAL, Effort, Search
from .evaluate import open_names
from .fingerprint import Faults
from .instance import LONGEST, Special, TooMany
from .mutations import edits
from .proof import symbolic_proof
from .properties import Finding, decide, joined
from .prover import Bodies, Prover
from .repair import Repair, edited
from .repair_policy import Mender, Reading
from .same import verdict_of_same
from .scope import denominators, parts_of, used_names
from .trial_sizes import beyond
from .verdict import Condition, Counterexample, Verdict

AND = "; "  # between the choices of a reading
SLIP = 2  # the most that a repair by one index, sign, transpose or symbol costs


class Verifier:
    """Judges the claims of one setting after another; instances are kept, as many claims share them. `repaired` collects
    the definitions that were found wrong: (setting, name) -> (claim id, body that is right). Without `thorough`, the
    bare verdict: no counterexample, no search for repairs and conditions, no second proof. `effort`: about how many seconds
    each search for a claim may take."""

    def __init__(self, thorough: bool = True, effort: float = NORMAL) -> None:
        self.thorough = thorough
        self.effort = effort
        self.searches: list[Effort] = []
        self.prover = Prover()
        self.mender = Mender(self.prover)
        self.repaired: dict[tuple[str, str], tuple[str, Formula]] = {}
        self.kept: dict[tuple, Setting] = {}  # settings where states start at 0: instances go by their identity

    def judge(self, claim: Claim) -> Verdict:
        """The verdict on a claim."""
        started = time.process_time()
        self.searches = []
        self.prover.forget_branches()
        if isinstance(claim.statement, SameAs):
            return replace(verdict_of_same(claim, claim.statement), seconds=time.process_time() - started)
        refuse_empty(claim)
        try:
            verdict = self._judge(claim)
        except Transcendental as missing:
            raise ClaimError(
                f"the claim {claim.id} takes {missing}, of which the verifier has no numbers{nearest(str(missing), FUNCTIONS)}",
                claim.where,
                "the functions of chunkform.spec.language and of its module formula",
            ) from None
        except Undecided as why:
            raise ClaimError(
                f"the claim {claim.id} {why}", claim.where, "an inequality between rational functions"
            ) from None
        except TooMany as many:
            raise ClaimError(
                f"the claim {claim.id} {many}, and the verifier tries {LONGEST} values at most",
                claim.where,
                "bounds such as 1 and n, or fewer values",
            ) from None
        search = Search(self.effort, not any(e.ended for e in self.searches)) if self.searches else None
        if claim.setting.premises.text:
            under = Condition(claim.setting.premises.text, True, "where defined")
            verdict = replace(verdict, conditions=(under, *verdict.conditions))
        return replace(verdict, search=search, seconds=time.process_time() - started)

    def budget(self, part: float = 1 / 3) -> Effort:
        """That of one more search for the claim: all of the effort for a repair, and a part of it for others."""
        self.searches.append(Effort(part * self.effort))
        return self.searches[-1]

    def _judge(self, claim: Claim) -> Verdict:
        findings = [
            Reading(label, bodies, statement, self.decided(statement, claim.setting, bodies))
            for label, bodies, statement in self.readings(claim)
        ]
        good = [f for f in findings if f.true]
        if len(good) == len(findings):
            return self.held(claim, findings)
        if claim.setting.premises.step and self.at_every_step(claim):
            counter = self.counterexample(next(f for f in findings if not f.true), claim.setting)
            wider = Condition(f"{claim.setting.premises.text} at every step", True, "condition")
            return Verdict(claim, "depends", findings[0].finding.how, counter, conditions=(wider,))
        nowhere = [f.finding.failure for f in findings if f.finding.failure and f.finding.failure.kind == "nowhere"]
        if len(nowhere) == len(findings):
            far = beyond(claim.setting, nowhere[0].point.reach) if nowhere[0].point is not None else ""
            raise ClaimError(
                f"the claim {claim.id} can't be tried: it takes {far}, which the verifier doesn't run"
                if far
                else f"the claim {claim.id} says nothing: at no index does every quantity in it have a value, as "
                f"{nowhere[0].message}",
                claim.where,
                "indices of fewer steps" if far else "an index at which every quantity in it has a value",
            )
        mixed = any(f.finding.mixed for f in findings)
        if not self.thorough:
            return Verdict(claim, "depends" if good or mixed else "fails", findings[0].finding.how)
        conditions = told(findings)
        for f in findings:
            conditions += [replace(c, text=f"{f.label}: {c.text}" if f.label else c.text) for c in f.finding.conditions]
        worst = next(f for f in findings if not f.true)
        counter = worst.finding.counterexample or self.counterexample(worst, claim.setting)
        how = "; ".join(dict.fromkeys(f.finding.how for f in findings))
        if good or mixed:
            budget = self.budget()
            found = (c for f in findings for c in self.rescued(f, claim, budget, True))
            conditions += [replace(c, kind="condition") if c.kind == SYMMETRIC else c for c in found]
            return Verdict(claim, "depends", how, counter, conditions=tuple(conditions))
        repairs, where = self.repairs(claim, findings)
        defined = str(self.mender.defined[0].result) if self.mender.defined else ""
        counter = self.with_numbers(counter, next((f for f in findings if f.label == where), worst), claim.setting)
        budget = self.budget()
        rescued = [c for f in findings for c in self.rescued(f, claim, budget, not repairs)]
        if any(c.kind == SYMMETRIC for c in rescued):
            usual = self.usual_repairs(claim, findings, repairs)
            slips = usual or self.mender.defined
            kind = TRIVIAL if slips and slips[0].cost <= SLIP else "condition"
            rescued = [replace(c, kind=kind) if c.kind == SYMMETRIC else c for c in rescued]
        conditions += dict.fromkeys(rescued)
        full = self.repaired_formula(claim, repairs[0]) if repairs else ("", "")
        if claim.defines:
            usual = self.usual_repairs(claim, findings, repairs)
            if usual:
                self.repaired[claim.setting.name, claim.defines] = (claim.id, usual[0].result)
        return Verdict(
            claim,
            "depends" if any(c.kind == "condition" for c in rescued) else "fails",
            how,
            counter,
            tuple(repairs),
            *full,
            where,
            tuple(conditions),
            searched=True,
            defined=defined,
        )

    def repairs(self, claim: Claim, findings: list[Reading]) -> tuple[list[Repair], str]:
        """The nearest repairs, and the reading under which they are right. Where one edit makes nothing true, but it does where
        states start at 0, or where no loss is taken of the last ones, the author means that: what is stated without a term for
        either is mended so."""
        everything = self.budget(1)
        found, where = self.mender.repairs(claim, findings, everything, (1,))
        near = found or self.mender.defined
        open_ends = None if near or claim.defines else without_ends(claim.statement, claim.setting)
        if open_ends is not None:
            key = claim.setting, tuple(open_ends.initial.items()), open_ends.final_loss
            other = replace(claim, setting=self.kept.setdefault(key, open_ends))
            there = [replace(f, finding=self.decided(f.statement, other.setting, f.bodies)) for f in findings]
            if any(f.true for f in there):  # so it is as it stands
                return self.mender.repairs(claim, findings, self.budget())
            found, where = self.mender.repairs(other, there, self.budget(), (1, 2))
            near = found or self.mender.defined
            if found:
                reading = next(f for f in findings if f.label == where)
                anyway = [r for r in found if self.is_true(r, reading, claim.setting)]
                ends = "" if anyway else said_of_ends(claim.setting, other.setting)
                return anyway or found, AND.join(x for x in (ends, where) if x)
        return (found, where) if near else self.mender.repairs(claim, findings, everything, (2, 3))

    def is_true(self, repair: Repair, reading: Reading, setting: Setting) -> bool:
        """Whether a repair of an equation is true in a setting."""
        if repair.result.op != "equation" or not isinstance(reading.statement, Equal):
            return False
        whole = replace(reading.statement, sides=repair.result.args)
        return self.prover.first_failure(whole, setting, reading.bodies)[0] is None

    def at_every_step(self, claim: Claim) -> bool:
        """Whether a claim that is meant under what is so at one step is true where it is so at all of them."""
        so = claim.setting.premises
        setting = claim.setting.under(replace(so, step=""), {}, True)
        return all(self.decided(s, setting, b).failure is None for _, b, s in self.readings(claim))

    def usual_repairs(self, claim: Claim, findings: list[Reading], found: list[Repair]) -> list[Repair]:
        """The repairs that the usual effort finds: where a verdict turns on them, it is the same whatever the effort."""
        return found if self.effort == NORMAL else self.mender.repairs(claim, findings, Effort(NORMAL))[0]

    def rescued(self, reading: Reading, claim: Claim, effort: Effort, pairs: bool) -> list[Condition]:
        """Side conditions under which a reading that is false becomes true: such as an author could mean, and others. Of kind
        `symmetric` is that of a symmetric matrix: nothing but a point at which a mistake doesn't show, where the nearest true
        formula is one slip away."""
        failure = reading.finding.failure
        if not reading.finding.exact or failure is None or failure.kind != "value" or claim.defines:
            return []
        found = rescues(reading.statement, claim.setting, reading.bodies, pairs, failure.point, effort)
        several = isinstance(claim.statement, OneOf)
        kinds = {MEANT: "condition", SYMMETRIC: SYMMETRIC}
        return [
            Condition(f"{reading.label}: {s.text}" if several else s.text, True, kinds.get(s.kind, TRIVIAL))
            for s in found
        ]

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

    def decided(self, statement: Statement, setting: Setting, bodies: Bodies) -> Finding:
        if isinstance(statement, Equal | Differs | Number | Together) and not has_property(statement):
            return self.decide_exactly(statement, setting, bodies)
        if isinstance(statement, Together):
            found, open_ones = [], []
            for part in statement.parts:
                try:
                    found.append(self.decided(part, setting, bodies))
                except (
                    Undecided
                ) as why:  # nothing is true where a part isn't known, but a part that is false says enough
                    open_ones.append(why)
            if open_ones and not any(f.failure for f in found):
                raise open_ones[0]
            return joined(found)
        return decide(statement, setting, bodies)

    def decide_exactly(self, statement: Statement, setting: Setting, bodies: Bodies) -> Finding:
        found = self.prover.tried(statement, setting, bodies)
        conditions: list[Condition] = []
        if isinstance(statement, Differs) and found.failure is None:
            conditions = [Condition(x, False, "condition") for x in where_equal(statement, setting)]
        conditions += [Condition(x, False, "not tried") for x in found.untried]
        points = f"{found.instances} random points"
        how = f"50-digit arithmetic at {points}" if found.real else f"exact arithmetic at {points} of a prime field"
        return Finding(found.failure, how, tuple(conditions), mixed=bool(found.untried), exact=True)

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
        so = claim.setting.premises
        if self.thorough and not (so.unit or so.zero or so.step):
            proof = symbolic_proof(findings[0].statement, claim.setting, findings[0].bodies)
        return Verdict(claim, "holds", how, conditions=tuple(dict.fromkeys(conditions)), proof=proof)

    # --- what is wrong, and what would be right

    def with_numbers(self, found: Counterexample | None, reading: Reading, setting: Setting) -> Counterexample | None:
        """A fault of shape, and numbers as well where the reading that can be repaired has no such fault."""
        if found is None or found.sides or not reading.label:
            return found
        numbers = self.counterexample(reading, setting)
        if numbers is None or not numbers.sides:
            return found
        return replace(numbers, message=f"{found.message}; and if read: {reading.label}")

    def counterexample(self, reading: Reading, setting: Setting) -> Counterexample | None:
        failure = reading.finding.failure
        if failure is None or failure.kind != "value":
            return Counterexample(failure.message) if failure else None
        found = smallest(reading.statement, setting, reading.bodies, failure, effort=self.budget())
        return found or Counterexample(failure.message)

    def repaired_formula(self, claim: Claim, repair: Repair) -> tuple[str, str]:
        shown = {q.name: q.shown for q in claim.setting.quantities.values() if q.shown}
        whole = repair.result
        if claim.defines:
            q = claim.setting.quantities[claim.defines]
            head = Formula("at", tuple(Formula("index", (), (p,)) for p in q.parameters), (q.name,))
            whole = Formula("equation", (head, repair.result))
        return str(whole), latex(whole, shown)


# --- helpers ------------------------------------------------------------------------------------------------------


def said_of_ends(setting: Setting, other: Setting) -> str:
    """What is so in another setting: states start at 0, or no loss is taken of the last ones."""
    states = setting.recurrence.states if setting.recurrence is not None else ()
    initial = [f"{name}(0) = 0" for name in other.initial if name not in setting.initial]
    losses = [f"there is no loss on {s.name}(n)" for s in states] if setting.final_loss != other.final_loss else []
    return " and ".join([*initial, *losses])


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
                    raise ClaimError(
                        f"the claim {claim.id} says nothing: both sides are {a}", claim.where, "two sides that differ"
                    )


def inlined(x: Formula, setting: Setting) -> Formula:
    """x with quantities that are defined by a formula without parameters replaced by it."""
    from chunkform.spec.language.formula import transform

    def visit(y: Formula) -> Formula | None:
        q = setting.quantities.get(y.attrs[0]) if y.op == "at" and not y.args else None
        return inlined(q.body, setting) if q is not None and q.body is not None and not q.alternatives else None

    return transform(x, visit)


def has_property(statement: Statement) -> bool:
    if isinstance(statement, Equal):
        return any(y.op == "infinity" for s in statement.sides for y in walk(s))
    return any(isinstance(p, AtMost) or not isinstance(p, Equal | Differs | Number) for p in parts_of(statement))


def can_fail(claim: Claim, verifier: Verifier) -> bool:
    """Whether some small edit of an equation is found false: a claim that nothing refutes proves nothing."""
    statement = claim.statement
    assert isinstance(statement, Equal)
    for position, stated in enumerate(statement.sides):
        for e in itertools.islice(edits(stated, scope_of(stated, claim.setting, ())), 40):
            try:
                failure, _ = verifier.prover.first_failure(edited(statement, position, e.result), claim.setting, {})
            except Faults:
                return True
            if failure is not None:
                return True
    return False
