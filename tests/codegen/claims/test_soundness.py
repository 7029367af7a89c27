"""Soundness: a mutation that changes what a true claim means is judged false, and one that doesn't is not.

What a mutation means is decided by `independent.py`, in float64, with the recurrences written by hand and autograd.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from shared.independent import NotCovered, is_true

from chunkform.codegen.claims.arithmetic import REAL
from chunkform.codegen.claims.forward_run import Dual
from chunkform.codegen.claims.values import Algebra
from chunkform.codegen.claims.verifier import Verifier, can_fail
from chunkform.errors import SpecError
from chunkform.spec.claims import documents
from chunkform.spec.language.claims import Claim
from chunkform.spec.language.formula import BINDERS, Formula, formula, negative, rebuild
from chunkform.spec.language.statements import Equal

CLAIMS = {c.id: c for d in documents() for c in d.claims}


def mutations(x: Formula) -> Iterator[Formula]:
    """x with one slip: a sign, a factor, an index, a transpose, a dropped term or factor, two factors exchanged."""
    yield negative(x)
    if x.op in ("at", "product", "transpose", "inverse", "hadamard"):
        yield formula(2) * x
        yield x.T
    if x.op == "at":
        for k, index in enumerate(x.args):
            for shift in (1, -1):
                yield Formula("at", (*x.args[:k], index + shift, *x.args[k + 1 :]), x.attrs)
    if x.op in ("add", "product", "hadamard") and len(x.args) > 1:
        for k in range(len(x.args)):
            rest = (*x.args[:k], *x.args[k + 1 :])
            yield rebuild(x, rest) if len(rest) > 1 else rest[0]
    if x.op == "product":
        yield Formula("product", tuple(reversed(x.args)))
    if x.op == "negative":
        yield x.args[0]
    if x.op == "number":
        yield formula(x.attrs[0] + 1)
    if x.op in ("at", "named", "call", "gradient", "jacobian", "index", "size", "compare", "constant"):
        return
    skip = {"sum": 2, "product over": 2}.get(x.op, 0)
    for k, a in enumerate(x.args):
        if k < skip or (x.op in ("row", "power") and k == 1) or (x.op in BINDERS and k < len(x.args) - 1):
            continue
        for m in mutations(a):
            yield rebuild(x, (*x.args[:k], m, *x.args[k + 1 :]))


def true_claims() -> list[Claim]:
    """Claims that hold, are plain equations, and that the independent evaluator covers."""
    verifier = Verifier(thorough=False)
    found = []
    for c in CLAIMS.values():
        if isinstance(c.statement, Equal) and not c.defines:
            try:
                if is_true(c.statement, c.setting) and verifier.judge(c).verdict == "holds":
                    found.append(c)
            except NotCovered:
                continue
    return found


@pytest.fixture(scope="module")
def sample() -> list[tuple[Claim, Claim]]:
    """Pairs of a true claim and a mutation of it: all of them, some two thousand."""
    found = []
    for c in true_claims():
        assert isinstance(c.statement, Equal)
        *others, last = c.statement.sides
        for m in dict.fromkeys(m for m in mutations(last) if m != last):
            found.append((c, replace(c, statement=replace(c.statement, sides=(*others, m)))))
    return found


def test_every_document_with_equations_takes_part(sample: list[tuple[Claim, Claim]]) -> None:
    assert {c.id.split(".")[0] for c, _ in sample} == {"000", "001", "002", "003", "004"}
    assert len(sample) >= 1800


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.long)], ids=["a third", "all"])
def test_mutations_are_judged_by_what_they_mean(sample: list[tuple[Claim, Claim]], share: int) -> None:
    verifier = Verifier(thorough=False)
    changed = kept = 0
    wrong = []
    for _, mutant in sample[::share]:
        assert isinstance(mutant.statement, Equal)
        try:
            meaning = is_true(mutant.statement, mutant.setting)
        except NotCovered:
            continue
        if meaning is None:
            continue
        try:
            verdict = verifier.judge(mutant).verdict
        except SpecError:  # both sides became the same expression: refused, whatever it means
            continue
        if meaning:
            kept += 1
        else:
            changed += 1
        if (verdict == "holds") != meaning:
            wrong.append((mutant.id, verdict, str(mutant.statement.sides[-1])))
    assert not wrong
    assert changed >= 1500 / share, (changed, kept)
    assert kept >= 50 / share, (changed, kept)


def test_mutations_are_judged_by_what_they_mean_under_one_reading_too() -> None:
    """Claims that are true under their first reading, most of them chunk by chunk; the reading stays, the formula is
    mutated."""
    verifier = Verifier(thorough=False)
    changed = 0
    for c in CLAIMS.values():
        if not isinstance(c.statement, Equal) or c.defines or len(verifier.readings(c)) < 2:
            continue
        try:
            if not is_true(c.statement, c.setting):
                continue
        except NotCovered:
            continue
        assert verifier.prover.first_failure(c.statement, c.setting, {})[0] is None, c.id
        *others, last = c.statement.sides
        for m in dict.fromkeys(m for m in mutations(last) if m != last):
            mutant = replace(c.statement, sides=(*others, m))
            try:
                meaning = is_true(mutant, c.setting)
            except NotCovered:
                continue
            if meaning is not None:
                found = verifier.prover.first_failure(mutant, c.setting, {})[0] is None
                assert found == meaning, (c.id, str(m))
                changed += not meaning
    assert changed >= 200, changed


def test_every_equation_that_holds_could_have_failed() -> None:
    verifier = Verifier(thorough=False)
    for c in CLAIMS.values():
        if isinstance(c.statement, Equal) and not c.defines and verifier.judge(c).verdict == "holds":
            assert can_fail(c, verifier), c.id


STEP_CLAIMS = ("000.bw-dk-4", "000.bw-dq-3", "000.bw-ds-5", "000.stab-LA", "002.dq-diag")


def verdicts(ids: tuple[str, ...]) -> set[str]:
    verifier = Verifier(thorough=False)
    return {verifier.judge(CLAIMS[i]).verdict for i in ids}


def test_a_fault_in_the_evaluator_of_formulas_does_not_hide_in_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Algebra.times

    def wrong(self: Algebra, x, y, where):
        value = right(self, x, y, where)
        return value if value.is_scalar else replace(value, a=self.reduce(value.a * 3))

    monkeypatch.setattr(Algebra, "times", wrong)
    assert verdicts(STEP_CLAIMS[:4]) == {"fails"}


def test_a_fault_in_the_forward_run_does_not_hide_in_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Dual.__mul__

    def wrong(self: Dual, other: Dual) -> Dual:
        value = right(self, other)
        return Dual(value.arithmetic, value.arithmetic.reduce(value.value + 1), value.slope)

    monkeypatch.setattr(Dual, "__mul__", wrong)
    assert verdicts(STEP_CLAIMS[:4]) == {"fails"}


def test_a_fault_in_the_derivatives_does_not_hide_in_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Dual.__mul__

    def wrong(self: Dual, other: Dual) -> Dual:
        value = right(self, other)
        return Dual(value.arithmetic, value.value, self.slope)

    monkeypatch.setattr(Dual, "__mul__", wrong)
    assert verdicts(("000.bw-dk-4", "000.bw-ds-5")) == {"fails"}


def test_a_positive_number_that_is_drawn_is_no_small_square() -> None:
    """With numbers of a few values alone, 1/2 would pass for 1 / sqrt(c) now and then."""
    drawn = {REAL.sample(random.Random(seed), "positive") for seed in range(50)}
    assert len(drawn) == 50
    assert all(x > 0 for x in drawn)
