"""Which reading of a document is meant, where one explains more than the others.

An ambiguous symbol is tried under each of its readings. Where all that is true under the others is true under one as well, and
more, that one is what the author means, and the document is judged under it; else each claim depends on the reading."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from chunkform.codegen.claims.scope import formulas_of, used_names
from chunkform.codegen.claims.verdict import Condition, Verdict
from chunkform.codegen.claims.verifier import Verifier
from chunkform.spec.language.claims import Claim, Setting
from chunkform.spec.language.formula import Formula, add, formula, product, rebuild, transform, walk
from chunkform.spec.language.statements import Equal

from .bare_truths import bare_verdicts, truths
from .between import limit_to_ranges
from .chunk_counting import first_chunks, tell_the_way
from .directions import SAYS_ORDER, turned_about
from .document import Taken
from .doubts import without_doubtful
from .header import name_of
from .paper import Paper
from .resolve import QuantityShapes
from .row import Item
from .shapes import Dims, shape_of
from .steps import OUTPUTS, core
from .symbols import Symbols
from .unknown_shapes import true_in_other_shapes
from .wrong_definitions import mark_wrong_definitions


def adopted(paper: Paper, judge: Callable[[list[Claim]], list[Verdict]]) -> tuple[list[Claim], list[Verdict]]:
    """The claims and their verdicts, under the reading that is meant where there is such a one."""
    for symbols in paper.parts:
        adopt(paper, symbols)
    open_ones = taken_better(paper)
    limit_to_ranges(paper)
    verdicts = judge(paper.claims)
    turned = (
        true_when_square(paper, verdicts)
        | true_when_turned(paper, verdicts)
        | true_in_other_shapes(paper, verdicts)
        | true_downwards(verdicts)
        | true_when_repeated(paper, verdicts)
        | true_from_its_start(paper, verdicts)
    )
    found = without_doubtful(
        paper, [depending(v, open_ones.get(v.claim.id) or turned.get(v.claim.id)) for v in verdicts]
    )
    mark_wrong_definitions(paper, found)
    return paper.claims, found


def true_downwards(verdicts: Sequence[Verdict]) -> dict[str, tuple[str, bool]]:
    """Which claims that fail are true where products of matrices start with the last factor: \\prod_{i=1}^t A_i doesn't say
    whether that is A_1 .. A_t, as it is read, or A_t .. A_1. And those that are true where \\prod_{i=s}^{r} runs down from s."""
    found: dict[str, tuple[str, bool]] = {}
    bare = Verifier(thorough=False)
    for v in verdicts:
        statement = v.claim.statement
        if v.verdict != "fails" or not isinstance(statement, Equal) or SAYS_ORDER.search(v.claim.latex):
            continue
        turned = tuple(turned_about(x, {}, v.claim.latex) for x in statement.sides)
        ways = [
            (
                tuple(transform(x, downwards) for x in statement.sides),
                "products of matrices start with their last factor",
            ),
            (turned, "a product runs between its bounds the other way"),
        ]
        for sides, text in ways:
            other = replace(v.claim, statement=replace(statement, sides=sides))
            with contextlib.suppress(Exception):  # what can't be judged tells nothing
                if sides != statement.sides and bare.judge(other).verdict == "holds":
                    found.setdefault(v.claim.id, (text, True))
    return found


def true_from_its_start(paper: Paper, verdicts: Sequence[Verdict]) -> dict[str, tuple[str, bool]]:
    """Which claims with a term for a first state, as gamma^t S_0, hold only as the document says that it is 0."""
    zero = {
        s.names[n]: f"{s.names[n]}(0) = 0"
        for s in paper.parts
        if s.recurrence is not None
        for n, body in s.steps.initial.items()
        if body == formula(0) and n in s.names
    }
    about = {}
    for v in verdicts:
        nodes = (y for x in formulas_of(v.claim.statement) for y in walk(x) if y.op == "at" and y.args == (formula(0),))
        said = [zero[y.attrs[0]] for y in nodes if y.attrs[0] in zero]
        if said and v.verdict == "holds" and not v.claim.setting.premises.text:
            about[v.claim.id] = said[0], True
    if not about or paper.again is None:
        return {}
    there = truths(paper.again(replace(paper.document.taken, any_start=True)), set(about))
    return {k: told for k, told in about.items() if there.get(k) is False}


def true_when_repeated(paper: Paper, verdicts: Sequence[Verdict]) -> dict[str, tuple[str, bool]]:
    """Which claims that fail are true where a column that is added to a matrix is repeated, as programs do: P o (dP - D)."""
    found = {}
    bare = Verifier(thorough=False)
    for v in verdicts:
        statement = v.claim.statement
        part = next((s for s in paper.parts if s.setting is v.claim.setting), None)
        if v.verdict != "fails" or not isinstance(statement, Equal) or part is None:
            continue
        sides = tuple(repeated(x, part) for x in statement.sides)
        if sides != statement.sides:
            other = replace(v.claim, statement=replace(statement, sides=sides))
            with contextlib.suppress(Exception):  # what can't be judged tells nothing
                if bare.judge(other).verdict == "holds":
                    found[v.claim.id] = "a column that is added to a matrix stands for each of its columns", True
    return found


def repeated(x: Formula, symbols: Symbols) -> Formula:
    """x with columns that are added to a matrix as matrices whose columns they are."""
    args = tuple(repeated(a, symbols) for a in x.args)
    if x.op != "add":
        return rebuild(x, args)
    dims = Dims(lenient=True)
    shapes = [tuple(map(dims.find, shape_of(a, QuantityShapes(symbols), dims))) for a in args]
    whole = next((s for s in shapes if "1" not in s and not any(d.startswith("?") for d in s)), None)
    if whole is None:
        return rebuild(x, args)
    across = Formula("ones", (), (whole[1],)).T
    return add(*(product(a, across) if s == (whole[0], "1") else a for a, s in zip(args, shapes)))


def downwards(x: Formula) -> Formula | None:
    return Formula("product down", x.args, x.attrs) if x.op == "product over" else None


def depending(v: Verdict, when: tuple[str, bool] | None) -> Verdict:
    """A verdict that is another one when the document is taken in another way."""
    if when is None or v.verdict not in ("holds", "fails", "error"):
        return v
    text, holds = when
    conditions = (Condition(text, holds, "condition"), *v.conditions)
    return replace(v, verdict="depends", conditions=conditions, repairs=(), repaired="", error=None)


def taken_better(paper: Paper) -> dict[str, tuple[str, bool]]:
    """Take what is computed beside the outputs as an abbreviation, of which no loss takes anything, where that makes all true
    that is true otherwise, and more. Where it makes other claims true: which ones depend on it, and whether they hold then."""
    found: dict[str, tuple[str, bool]] = {}
    if any(name.endswith(" 1") for s in paper.parts for name in s.names):
        take_if_better(paper, replace(paper.document.taken, text="X_i is the row of X as it stands", rows=True), found)
    if not first_chunks(paper.document) and tell_the_way(paper.document):
        count_chunks_better(paper, found)
    for taken in [t for s in paper.parts for t in abbreviations(s, paper)]:
        take_if_better(paper, taken, found, read=True)
    return found


def take_if_better(paper: Paper, taken: Taken, found: dict[str, tuple[str, bool]], read: bool = False) -> None:
    """Take a document so where that makes all true that is true otherwise, and more; else note which claims depend on it. `read`:
    where something reads what is taken so."""
    here = truths(paper)
    if all(here.values()) or paper.again is None:
        return
    other = paper.again(taken)
    if read and not any(n in symbols.steps.lets for symbols in other.parts for n, _ in taken.kinds):
        return  # nothing reads it: its gradient would be 0, and all that lacks a term with it true
    for symbols in other.parts:
        adopt(other, symbols)
    there = truths(other)
    changed = {k: there[k] for k in here.keys() & there.keys() if here[k] != there[k]}
    lost = [k for k, true in here.items() if true and k not in there]
    if changed and all(changed.values()) and not lost:
        paper.__dict__.update(other.__dict__)
        paper.symbols.guess(f"{taken.text}: so {sum(there.values())} claims are true, and fewer otherwise")
    else:
        found |= {k: (taken.text, true) for k, true in changed.items()}


def count_chunks_better(paper: Paper, found: dict[str, tuple[str, bool]]) -> None:
    """Count a document's chunks from 0 where more claims are true so. What is true the other way only depends on that; and all
    that differs, where neither way makes more of it true."""
    here = bare_verdicts(paper)
    if set(here.values()) <= {"holds"} or paper.again is None:
        return
    other = paper.again(replace(paper.document.taken, chunks_from=0))
    for symbols in other.parts:
        adopt(other, symbols)
    there = bare_verdicts(other)
    gained = {k for k in there if there[k] == "holds" and here.get(k) != "holds"}
    lost = {k for k in here if here[k] in ("holds", "depends") and there.get(k) not in (here[k], "holds")}
    if len(gained) > len(lost):
        paper.__dict__.update(other.__dict__)
        true = sum(said == "holds" for said in there.values())
        paper.symbols.guess(f"chunks are counted from 0: so {true} claims are true, and fewer otherwise")
        found |= {k: ("chunks are counted from 1", True) for k in lost}
        return
    found |= {k: ("chunks are counted from 0", True) for k in gained}
    if len(gained) == len(lost):
        found |= {k: ("chunks are counted from 0", False) for k in lost}


def abbreviations(symbols: Symbols, paper: Paper) -> Iterator[Taken]:
    """Outputs beside others, of which the document has gradients, though it doesn't call them as outputs are called."""
    steps = symbols.steps
    names = {y.attrs[0] for e in paper.document.equations for x in (e.head, e.side) for y in walk(x) if y.op == "at"}
    said = paper.document.header.table("symbols")
    for n in steps.outputs if len(steps.outputs) > 1 else ():
        if n not in OUTPUTS and "d" + n in names and n not in map(name_of, said):
            before = paper.document.taken
            yield replace(before, text=f"{n} is an abbreviation", kinds=(*before.kinds, (n, "let")))


def true_when_turned(paper: Paper, verdicts: Sequence[Verdict]) -> dict[str, tuple[str, bool]]:
    """Which claims whose shapes don't fit are true where a vector is a row that was taken for a column, or a column for a row;
    of vectors of which the document doesn't say which they are."""
    wrong = {v.claim.id for v in verdicts if v.verdict == "fails" and v.counterexample and not v.counterexample.sides}
    found: dict[str, tuple[str, bool]] = {}
    for s in paper.parts:
        fixed = {core(x).attrs[0] for item in said_shapes(paper) for x in item.sides[:-1] if core(x).op == "at"}
        for n in [n for n in s.steps.given if n in s.shapes and n not in fixed and s.recurrence is not None]:
            shape = s.shapes[n]
            about = {i for i in wrong - found.keys() if mentions(paper, i, s.names.get(n, ""))}
            if shape.count("1") != 1 or not about or paper.again is None:
                continue
            text = f"{n} is a {'column' if shape[0] == '1' else 'row'}"
            other = paper.again(replace(paper.document.taken, text=text, shapes=((n, shape[::-1]),)))
            same = any(x.shapes == {**s.shapes, n: shape[::-1]} for x in other.parts)  # the recurrence fits as well
            there = truths(other, about) if same else {}
            found |= {k: (text, True) for k in about if there.get(k)}
    return found


def true_when_square(paper: Paper, verdicts: Sequence[Verdict]) -> dict[str, tuple[str, bool]]:
    """Which claims whose shapes don't fit are true where two sizes are the same, as tr(S_t) says of a state of which the document
    doesn't say that its sizes differ."""
    wrong = {v.claim.id for v in verdicts if v.verdict == "fails" and v.counterexample and not v.counterexample.sides}
    found: dict[str, tuple[str, bool]] = {}
    if not wrong or said_shapes(paper) or paper.again is None:
        return found
    for s in paper.parts:
        sizes = [str(d) for d in s.recurrence.dim_list] if s.recurrence is not None else []
        for one, other in combinations(sizes, 2):
            made = {
                n: tuple(one if d == other else d for d in shape) for n, shape in s.shapes.items() if other in shape
            }
            shapes = tuple((n, (shape[0], shape[1])) for n, shape in made.items())
            again = paper.again(replace(paper.document.taken, text=f"{one} = {other}", shapes=shapes))
            there = truths(again, wrong - found.keys())
            found |= {k: (f"{one} = {other}", True) for k, true in there.items() if true}
    return found


def said_shapes(paper: Paper) -> list[Item]:
    """What the document says of shapes."""
    facts = [*paper.document.facts, *(f for r in paper.document.rows for f in r.facts)]
    return [f for f in facts if f.sides[-1].op == "reals" and len(f.sides[-1].args) == 2]


def mentions(paper: Paper, claim: str, name: str) -> bool:
    """Whether a claim speaks of a quantity, or of a gradient by it."""
    statement = next(c.statement for c in paper.claims if c.id == claim)
    names = {y.attrs[0] for x in formulas_of(statement) for y in walk(x) if y.op == "at"}
    return bool(names & {name, f"d{name}", f"dlog_{name}"})


def adopt(paper: Paper, symbols: Symbols) -> None:
    """Give ambiguous quantities of a part the reading that is meant."""
    setting = symbols.setting
    groups: dict[tuple[str, ...], list[str]] = {}
    for q in setting.quantities.values():
        if q.alternatives:
            groups.setdefault(tuple(label for label, _ in q.alternatives), []).append(q.name)
    for labels, names in groups.items():
        about = [
            c
            for c in paper.claims
            if c.setting is setting
            and set(names) & set(used_names(c.statement, setting))
            and isinstance(c.statement, Equal)
        ]
        if len(about) < 2:
            continue
        true = [under(about, setting, names, k) for k in range(len(labels))]
        best = next(
            (k for k, mine in enumerate(true) if all(mine > other for m, other in enumerate(true) if m != k)), None
        )
        if best is None:
            continue
        for name in names:
            q = setting.quantities[name]
            setting.quantities[name] = replace(q, body=q.alternatives[best][1], alternatives=())
        symbols.guess(
            f"{labels[best]}: so {len(true[best])} of the claims about it are true, and no other reading makes more of them true"
        )


def under(claims: Sequence[Claim], setting: Setting, names: Sequence[str], k: int) -> set[str]:
    """Which claims are true under reading k of some quantities."""
    bodies = {n: setting.quantities[n].alternatives[k][1] for n in names}
    bare = Verifier(thorough=False)
    found = set()
    for c in claims:
        others = [b for _, b, _ in bare.readings(c)]
        try:
            if any(bare.decided(c.statement, setting, {**b, **bodies}).failure is None for b in others):
                found.add(c.id)
        except Exception:  # a claim that can't be judged tells nothing of readings
            continue
    return found
