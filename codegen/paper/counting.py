"""Documents that count steps otherwise: from 0, or with the state before a step at the step's own index. They are counted
anew, so that inputs are those of steps 1 to n, and S_t is the state after step t."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chunkform.codegen.claims.indices import shifted
from chunkform.spec.language.formula import RANGED, Formula, rebuild, walk

from .document import Document, Equation
from .steps import STEP, find_steps, index, letter_of

NEVER = ("unknown", "infinity")


def recounted(document: Document) -> list[str]:
    """Count the steps of a document anew where it counts them otherwise; what was found, in words."""
    steps = find_steps(document.equations)
    states = set(steps.states)
    if not states:
        return []
    nodes = [y for e in document.equations for x in (e.head, e.side) for y in walk(x) if y.op == "at"]
    early = all(reads_the_step_before(body, states) for body in steps.states.values())
    starts = {str(y.args[0]) for y in nodes if y.attrs[0] in states and len(y.args) == 1}
    summed = "-1" in starts or sums_from_zero(document.equations, steps.given)
    from_zero = "0" in starts if early else summed and "0" not in starts
    found = []
    if from_zero:
        counted = {y.attrs[0] for y in nodes for a in y.args if any(z.op == "index" for z in walk(a))}
        change(document, lambda x: from_one(x, counted))
        found.append("steps are counted from 0 in the document, and from 1 here")
    if early:
        both = states | {f"d{n}" for n in states}
        change(document, lambda x: moved(x, both))
        found.append(f"{', '.join(sorted(states))} at t + 1 is the state after step t in the document, and at t here")
    return found


def reads_the_step_before(body: Formula, states: set[str]) -> bool:
    """Whether a state's update reads inputs at t - 1, and nothing at t."""
    read = {letter_of(y.args[0]) for y in walk(body) if y.op == "at" and len(y.args) == 1 and y.attrs[0] not in states}
    return (STEP, -1) in read and (STEP, 0) not in read


def sums_from_zero(equations: Sequence[Equation], given: Iterable[str]) -> bool:
    """Whether a sum or a product from 0 takes an input of the recurrence at its own index."""
    given = set(given)
    for e in equations:
        for y in (y for x in (e.head, e.side) for y in walk(x) if y.op in RANGED and str(y.args[0]) == "0"):
            letter = (index(y.attrs[0]),)
            if any(z.op == "at" and z.attrs[0] in given and z.args == letter for z in walk(y.args[2])):
                return True
    return False


def change(document: Document, one: object) -> None:
    """Change all that the document's rows say."""
    assert callable(one)
    for r in (*document.extra, *document.rows):
        for e in r.equations:
            e.head, e.side = one(e.head), one(e.side)
        for c in r.conditions:
            letters = c.relations == ["range"] or any(has_letter(x) for x in c.sides)
            c.sides = [bound(x) if letters and not has_letter(x) else one(x) for x in c.sides]


def is_letter(x: Formula) -> bool:
    """Whether x is a bare letter that counts, and not how many there are."""
    return x.op in ("at", "size") and not x.args and len(x.attrs[0]) == 1 and x.attrs[0].islower() and x.attrs[0] != "n"


def has_letter(x: Formula) -> bool:
    return any(y.op == "index" or (y.op == "at" and y.args) or is_letter(y) for y in walk(x))


def bound(x: Formula) -> Formula:
    """A bound of an index, or an index, that is counted from 0, counted from 1."""
    return x if x.op in NEVER or has_letter(x) else shifted(x, 1)


def from_one(x: Formula, counted: set[str]) -> Formula:
    """A formula with indices that are counted from 1: letters stay in indices, and numbers grow by 1; elsewhere a letter is one
    less."""
    if x.op == "index":
        return x - 1
    if x.op == "at":
        return Formula("at", tuple(bound(a) for a in x.args) if x.attrs[0] in counted else x.args, x.attrs)
    if x.op in RANGED:
        low, high, body = x.args
        return Formula(x.op, (bound(low), bound(high), from_one(body, counted)), x.attrs)
    if x.op == "compare":
        return Formula(x.op, tuple(bound(a) for a in x.args), x.attrs)
    return rebuild(x, tuple(from_one(a, counted) for a in x.args))


def moved(x: Formula, names: set[str]) -> Formula:
    """A formula with names at one step less."""
    args = tuple(moved(a, names) for a in x.args)
    if x.op == "at" and x.attrs[0] in names and len(args) == 1:
        args = (shifted(args[0], -1),)
    return rebuild(x, args)
