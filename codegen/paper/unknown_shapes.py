"""Formulas that don't fit the shapes that were guessed, and that may be meant for others: x in h_t = A_t h_{t-1} + B_t x_t may
be a number. Nothing is called false for such a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chunkform.codegen.claims.verdict import Verdict
from chunkform.codegen.claims.verifier import Verifier
from chunkform.errors import ChunkformError
from chunkform.spec.language.formula import Formula, rebuild

from .bare_truths import bare_verdicts
from .document import Equation
from .heads import base_of
from .paper import Paper
from .shapes import Shape
from .symbols import Symbols, core_at, shape_words

EFFORT = 1.0  # of the search for conditions in other shapes
LARGEST = 12  # formulas of a document for which other shapes are tried


def true_in_other_shapes(paper: Paper, verdicts: Sequence[Verdict]) -> dict[str, tuple[str, bool]]:
    """Which claims whose shapes don't fit are true, or depend, in other shapes in which the recurrence fits as well, where states
    are as they were and no other claim is lost."""
    wrong = [v.claim for v in verdicts if v.verdict == "fails" and v.counterexample and not v.counterexample.sides]
    kept = {v.claim.id for v in verdicts if v.verdict == "holds"}
    found: dict[str, tuple[str, bool]] = {}
    for c in wrong[:LARGEST]:
        k = next((k for k, s in enumerate(paper.parts) if s.setting is c.setting and s.recurrence is not None), None)
        if k is None or paper.again is None or c.id in found:
            continue
        fits = (*kept_states(paper.parts[k]), sides_of(paper.equations[c.id], paper.parts[k]))
        other = paper.again(replace(paper.document.taken, fits=fits))
        text = other_shapes(paper.parts[k], other.parts[k])
        if not text:
            continue
        more = under_which(other, c.id)
        if more is not None and "fails" not in bare_verdicts(other, kept).values():
            found[c.id] = ", ".join([text, *more]), True
    return found


def under_which(paper: Paper, name: str) -> list[str] | None:
    """The conditions under which a claim is true; None where it isn't."""
    if bare_verdicts(paper, {name}).get(name) == "holds":
        return []
    claim = next((c for c in paper.claims if c.id == name), None)
    if claim is None:
        return None
    try:
        found = Verifier(effort=EFFORT).judge(claim)
    except ChunkformError:  # what can't be judged isn't true
        return None
    return (
        [c.text for c in found.conditions if c.kind == "condition" and c.holds] if found.verdict == "depends" else None
    )


def kept_states(s: Symbols) -> list[tuple[Formula, Formula]]:
    """Equations that say of each state that it is a matrix, a column, a row or a scalar, as it is."""
    made = []
    for n in s.steps.states:
        dims = tuple("1" if d == "1" else f"?{n}{k}" for k, d in enumerate(s.shapes[n]))
        made.append((core_at(n), Formula("matrix", (), ("i", "j", *dims))))
    return made


def sides_of(e: Equation, s: Symbols) -> tuple[Formula, Formula]:
    """An equation's sides, with what gradients are taken by for the gradients: their shapes are the same."""
    names = {*s.steps.given, *s.steps.states, *s.steps.lets, *s.steps.outputs}

    def bare(x: Formula) -> Formula:
        args = tuple(bare(a) for a in x.args)
        if x.op == "at" and x.attrs[0] not in names and base_of(x.attrs[0]) in names:
            return Formula("at", args, (base_of(x.attrs[0]),))
        return rebuild(x, args)

    return bare(e.head), bare(e.side)


def other_shapes(one: Symbols, other: Symbols) -> str:
    """What is taken in another shape, in words; nothing where nothing is, or where a state is."""
    if other.recurrence is None or any(kind(one.shapes[n]) != kind(other.shapes[n]) for n in one.steps.states):
        return ""
    changed = [n for n in one.steps.given if kind(one.shapes[n]) != kind(other.shapes[n])]
    return ", ".join(f"{n} is {shape_words(other.shapes[n]).strip() or 'a scalar'}" for n in changed)


def kind(shape: Shape) -> tuple[bool, bool]:
    return shape[0] == "1", shape[1] == "1"
