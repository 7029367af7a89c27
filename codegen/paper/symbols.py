"""What the symbols of a document are: what its header says, what its text and its definitions say, and what is guessed.

Each symbol ends as a quantity of a `Setting`, which claims are judged in; every guess is noted, to be shown and corrected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chunkform.spec.language.claims import LENGTH, Setting
from chunkform.spec.language.formula import (
    Formula,
    formula,
    walk,
)

from ..ir.step_program import PER_HEAD
from .document import Document, Equation
from .header import name_of
from .row import Item
from .shapes import ONES, SCALAR, Dims, Shape, assigned, settled, symbols_in
from .step_spec import build
from .steps import Steps, core, index, lower, safe

SCALARS = set(
    "alpha beta gamma delta epsilon eta theta lam nu rho sigma tau omega zeta chi iota pi upsilon ell".split()
)
CHUNK, CHUNKS = "c", "N"
POOL = "d e f g m p r u".split()
MATRIX_NAMES = set("Phi Psi Gamma Lambda Sigma Omega Theta Delta".split())


@dataclass
class Defined:
    """What formulas of a document define: functions, by their name and how many arguments they take, and quantities."""

    functions: dict[tuple[str, int], tuple[tuple[Formula, ...], Formula]] = field(default_factory=dict)
    quantities: dict[str, Equation] = field(default_factory=dict)


@dataclass
class Symbols:
    """The quantities of one part of a document. `rows` are names of matrices whose rows are another name's steps, `chunks` those
    of its chunks; `rowwise` are names that the document writes as rows, and the setting as columns."""

    setting: Setting
    steps: Steps
    refused: str = ""  # why the equations of a step make no recurrence
    names: dict[str, str] = field(default_factory=dict)  # of the document -> of the setting
    rowwise: set[str] = field(default_factory=set)
    shapes: dict[str, Shape] = field(default_factory=dict)
    arity: dict[str, int] = field(default_factory=dict)
    guesses: list[str] = field(default_factory=list)
    defined: Defined = field(default_factory=Defined)
    ranges: dict[str, tuple[Formula, Formula]] = field(default_factory=dict)
    loss: Formula | None = None
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def recurrence(self) -> Any:
        """What the equations of a step make, if anything."""
        return self.setting.recurrence

    @property
    def chunked(self) -> bool:
        """Are the steps cut into chunks?"""
        return LENGTH in self.setting.derived_sizes

    def guess(self, said: str) -> None:
        if said not in self.guesses:
            self.guesses.append(said)


def size(name: str) -> Formula:
    return Formula("size", (), (name,))


# --- shapes ---------------------------------------------------------------------------------------------------------


def declared(facts: Iterable[Item], steps_letter: str) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Shapes that the document states: of symbols as they stand, and of matrices that hold a row for each step."""
    fixed: dict[str, Shape] = {}
    stacked: dict[str, Shape] = {}
    stepwise: set[str] = set()  # symbols of which a shape is stated with an index: B_t in R^n, and B in R^{T x n}
    for item in facts:
        domain = item.sides[-1]
        if domain.op != "reals" or len(domain.args) > 2:
            continue
        sizes = [size_name(a) for a in domain.args]
        if any(s is None for s in sizes):
            continue
        for symbol in item.sides[:-1]:
            turned = symbol.op == "transpose"
            symbol = core(symbol)
            if symbol.op != "at":
                continue
            name = symbol.attrs[0]
            shape: Shape = (*map(str, sizes), "1", "1")[:2]  # type: ignore[assignment]
            if turned:
                shape = shape[::-1]
            if shape[0] == steps_letter and not symbol.args:
                stacked[name] = shape
            if symbol.args and name not in stepwise:
                fixed[name] = shape
                stepwise.add(name)
            fixed.setdefault(name, shape)
    return fixed, {n: s for n, s in stacked.items() if n not in stepwise}


def size_name(x: Formula) -> str | None:
    if x.op in ("size", "index"):
        return x.attrs[0]
    if x.op == "at" and not x.args:
        return x.attrs[0]
    if x.op == "number" and x.attrs[0] == 1:
        return "1"
    return None


def costs_of(name: str, bold: bool, turned: bool, count: int = 1) -> list[tuple[str, int]]:
    """The kinds that a symbol may be of, with what is said against each. `turned`: it is transposed, or on a diagonal; `count`:
    how many indices it has."""
    if count > 1:
        return [("scalar", 0), ("column", 3), ("row", 4), ("matrix", 4)]
    if count == 0 and name.split("_")[0] in ("d", "n"):
        return [("scalar", 0)]  # a size, as in the root of d
    if name == ONES:
        return [("column", 0), ("row", 1)]
    stem = name.removesuffix("bar").removesuffix("tilde").removesuffix("hat").removesuffix("'").split("_")[0]
    against = 4 if turned else 0
    if stem == "Delta" and count == 1 and not turned:  # the size of a step
        return [("scalar", 0), ("column", 1), ("matrix", 2), ("row", 3)]
    if (len(stem) == 1 and stem.isupper()) or stem in MATRIX_NAMES:
        return [("matrix", 0), ("column", 5), ("row", 5), ("scalar", 7 + against)]
    if len(stem) == 1 or stem in ("kappa", "mu", "phi", "psi", "xi") or (bold and stem in SCALARS):
        return [("column", 0), ("row", 1), ("scalar", 2 + against), ("matrix", 5)]
    if stem not in SCALARS:
        return [("matrix", 1), ("column", 1), ("scalar", 1 + against), ("row", 2)]
    return [("scalar", against), ("column", 1), ("row", 2), ("matrix", 5)]


def solved(
    equations: Sequence[tuple[Formula, Formula]],
    names: Sequence[str],
    fixed: dict[str, Shape],
    bold: set[str],
    states: Iterable[str] = (),
) -> tuple[dict[str, Shape], Dims] | None:
    ones = [ONES] if any(n == ONES for pair in equations for side in pair for n in symbols_in(side)) else []
    open_names = [n for n in [*names, *ones] if n not in fixed]
    turned = turned_in(equations)
    count: dict[str, int] = {}
    for y in (y for pair in equations for side in pair for y in walk(side) if y.op == "at"):
        count[y.attrs[0]] = max(count.get(y.attrs[0], 0), len(y.args))
    costs = {n: sorted(costs_of(n, n in bold, n in turned, count.get(n, 1)), key=lambda x: x[1]) for n in open_names}
    for n in states:  # what is written to at every step is a matrix as often as a vector, whatever it is called
        if n in costs and dict(costs[n]).get("matrix", 0) > 1:
            costs[n] = [("column", 1), ("matrix", 1), ("row", 2), ("scalar", 3)]
    return assigned(equations, costs, dict(fixed))


def turned_in(equations: Sequence[tuple[Formula, Formula]]) -> set[str]:
    """Symbols that are transposed, or on a diagonal: no scalars."""
    nodes = [y for pair in equations for side in pair for y in walk(side) if y.op in ("transpose", "diag")]
    return {core(y.args[0]).attrs[0] for y in nodes if core(y.args[0]).op == "at"}


def finished(shapes: dict[str, Shape], dims: Dims, hints: dict[str, str], avoid: Iterable[str]) -> dict[str, Shape]:
    """Shapes with names for the dims that stayed open; `hints` are names for what a symbol's dim is called."""
    for name, dim in hints.items():
        for d in shapes.get(name, ()):
            if dims.find(d).startswith("?"):
                dims.join(d, dim)
                break
    taken = {dims.find(d) for s in shapes.values() for d in s} | set(avoid)
    free = [p for p in POOL if p not in taken]
    for shape in shapes.values():
        for d in shape:
            if dims.find(d).startswith("?"):
                dims.join(d, free.pop(0) if free else f"d{dims.count}")
                dims.count += 1
    return {n: (dims.find(s[0]), dims.find(s[1])) for n, s in shapes.items()}


# --- a document's symbols -------------------------------------------------------------------------------------------


def spec_name(title: str) -> str:
    made = "".join(c if c.isalnum() and c.isascii() else "_" for c in title.lower()).strip("_")
    while "__" in made:
        made = made.replace("__", "_")
    return made if made[:1].isalpha() else f"paper_{made}".rstrip("_")


def steps_letter(document: Document) -> str:
    """The letter for the number of steps: the first size of matrices, where it isn't a size of anything else; or n."""
    firsts: dict[str, int] = {}
    others: set[str] = set()  # sizes of vectors, and of a matrix the second
    for item in document.facts + [f for r in document.rows for f in r.facts]:
        domain = item.sides[-1]
        if domain.op == "reals" and len(domain.args) == 2:
            name = size_name(domain.args[0])
            if name and all(core(s).op == "at" and not core(s).args for s in item.sides[:-1]):
                firsts[name] = firsts.get(name, 0) + 1
        if domain.op == "reals" and domain.args:
            others.add(size_name(domain.args[-1]) or "")
    counted = [x for x in sorted(firsts, key=lambda x: -firsts[x]) if x not in others]
    for name in ("n", "T", "L", "N"):
        if name in firsts or name in {b for _, _, b in plain_matrices(document)}:
            return name
    return counted[0] if counted else "n"


def plain_matrices(document: Document) -> list[tuple[str, str, str]]:
    """Symbols without an index that the document says to be matrices, with their sizes."""
    found = []
    for item in document.facts + [f for r in document.rows for f in r.facts]:
        domain = item.sides[-1]
        if domain.op == "reals" and len(domain.args) == 2:
            sizes = [size_name(a) or "" for a in domain.args]
            plain = (core(s) for s in item.sides[:-1])
            found += [(s.attrs[0], *sizes) for s in plain if s.op == "at" and not s.args]
    return found


def hold_steps_in_columns(document: Document) -> bool:
    """Whether a document's matrices have a column for each step: it displays K = [k_1 .. k_n], or says that K is over d x n."""
    sides = [e.side for e in document.equations if core(e.head).op == "at" and not core(e.head).args]
    if any(x.op in ("rows of", "columns of") for x in sides):
        return not any(x.op == "rows of" for x in sides)
    letter = steps_letter(document)
    over = [(a, b) for name, a, b in plain_matrices(document) if lower(name) != name]
    return bool(over) and all(b == letter != a for a, b in over)


def said_kinds(document: Document) -> tuple[dict[str, str], dict[str, Shape]]:
    """What the header says of symbols: kinds and shapes."""
    kinds: dict[str, str] = {}
    shapes: dict[str, Shape] = {}
    for tex, said in document.header.table("symbols").items():
        kind, *dims = str(said).split()
        name = name_of(tex)
        kinds[name] = kind
        if kind not in ("function", "label", "loss", "size", "unknown", "skip") and (
            dims or kind in ("decay", "slow", "input", "positive", "given", "parameter")
        ):
            shapes[name] = (dims + ["1", "1"])[0], (dims + ["1", "1"])[1]
    return kinds, shapes


def with_recurrence(
    document: Document,
    equations: Sequence[Equation],
    steps: Steps,
    name: str,
    kinds: dict[str, str],
    fixed: dict[str, Shape],
    stacked: dict[str, Shape],
    letter: str,
) -> Symbols:
    names = [*steps.given, *steps.states, *steps.lets]
    pairs = [(core_at(n), body) for n, body in (*steps.lets.items(), *steps.states.items())]
    pairs += [(core_at(n, 0), body) for n, body in steps.initial.items()]
    pairs += [(core_at(n), body) for n, body in steps.outputs.items() if n not in names]
    ordered = sorted((n for n in dict.fromkeys(names)), key=lambda n: n in steps.lets)
    known = {n: s for n, s in fixed.items() if n in names or n in steps.outputs}
    outputs = [n for n in steps.outputs if n not in names]
    found = Symbols(Setting(name), steps)
    more = document.taken.fits
    tried = ((pairs + list(more), known),) * bool(more) + ((pairs, known), (pairs, {}))
    solutions = (solved(p, [*ordered, *outputs], said, document.bold, steps.states) for p, said in tried)
    solution = next((x for x in solutions if x is not None), None)
    if solution is None:
        found.refused = "the shapes of the step's equations don't fit: " + ", ".join(
            str(e.row.line) for e in steps.equations
        )
        return found
    hints = {n: s[1] for m, s in stacked.items() for n in (lower(m),) if s[1] != "1"}
    shapes = finished(solution[0], solution[1], hints, [*names, *outputs, LENGTH])
    try:
        r = build(name, with_eyes(steps, shapes), shapes, kinds, document.source.title)
    except Exception as error:
        where = getattr(error, "where", None)  # a place in the code that builds it, and not in the document
        found.refused = str(error).removeprefix(f"{where}: ")
        return found
    found.shapes = shapes
    found.setting = Setting(name, r)
    for n in (*steps.given, *steps.states, *steps.lets, *steps.outputs):
        found.names[n] = safe(n)
        found.arity[n] = 1
        if shapes.get(n, SCALAR)[0] == "1" and shapes.get(n, SCALAR) != SCALAR:
            found.rowwise.add(n)
    for v in r.variables:
        for n in steps.given:
            if safe(n) == v.name:
                found.arity[n] = 0 if v.kind in PER_HEAD else 1
                if n not in kinds:
                    what = {"decay": "a decay", "parameter": "a parameter"}.get(v.kind, "an input")
                    found.guess(f"{n} is {what}{shape_words(shapes.get(n, SCALAR))}")
    for n in steps.states:
        found.guess(f"{n} is a state{shape_words(shapes[n])}")
    if letter and letter != LENGTH:
        found.names[letter] = LENGTH
    for n, kind in kinds.items():
        if n not in found.names and kind in ("given", "positive", "symmetric", "matrix", "slow"):
            found.names[n] = safe_in(found.setting, safe(n))
            found.setting.given(found.names[n], *fixed.get(n, SCALAR), domain=DOMAINS.get(kind, "real"))
    return found


DOMAINS = {"decay": "decay", "positive": "positive", "symmetric": "symmetric", "matrix": "matrix", "slow": "slow decay"}


def with_eyes(steps: Steps, shapes: dict[str, Shape]) -> Steps:
    """The steps with the dims of identities."""

    def done(n: str, body: Formula, at: int | None = None) -> Formula:
        if n not in shapes:
            return settled((body,), shapes, "d")[0]
        return settled((core_at(n, at), body), shapes, shapes[n][0])[1]

    initial = {}
    for n, body in steps.initial.items():
        if body.op == "number":
            initial[n] = body
        elif not any(
            y.op == "at" and y.args for y in walk(body)
        ):  # what is read at a step isn't known before the first
            initial[n] = done(n, body, 0)
    return replace(
        steps,
        states={n: done(n, b) for n, b in steps.states.items()},
        lets={n: done(n, b) for n, b in steps.lets.items()},
        outputs={n: done(n, b) for n, b in steps.outputs.items()},
        initial=initial,
    )


def core_at(name: str, at: int | None = None) -> Formula:
    return Formula("at", (index("t") if at is None else formula(at),), (name,))


def shape_words(shape: Shape) -> str:
    dims = [d for d in shape if d != "1"]
    return "" if not dims else f" over {' x '.join(dims)}"


def says_of_an_input(e: Equation, found: Symbols) -> bool:
    """Whether a row says where an input lies, as in 0 < lam_t <= 1, or that it is constant: what is assumed."""
    if found.recurrence is None:
        return False
    inputs = {n for n in found.steps.given if n in found.names}

    def of_numbers(x: Formula) -> bool:
        return all(y.op not in ("at", "index", "size", "apply", "unknown") for y in walk(x))

    sides = [core(e.head), core(e.side)]
    bare = [x.op == "at" and x.attrs[0] in inputs for x in sides]
    if e.relation in ("in", "not in"):
        members = e.head.args if e.head.op == "tuple" else (core(e.head),)
        return all(x.op == "at" and x.attrs[0] in inputs for x in members) and of_numbers(e.side)
    if e.relation in ("<", "<=", ">", ">=", "!="):
        return any(b and of_numbers(other) for b, other in zip(bare, reversed(sides)))
    constant = (sides[1].op == "at" and not sides[1].args) or of_numbers(sides[1])
    return e.relation in ("=", ":=") and e.first and bare[0] and bool(sides[0].args) and constant


def safe_in(setting: Setting, name: str) -> str:
    while name in setting.quantities or name in setting.sizes:
        name += "1"
    return name
