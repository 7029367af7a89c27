"""Where a claim is true in every usual instance, but none took some branch: which those are, and where to draw numbers
that take them.

Numbers are drawn around the constants of the branching, and 0, at their scales. A branch that isn't taken even then is told in
the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import sympy

from chunkform.spec.language import Matrix, Recurrence
from chunkform.spec.language.claims import Quantity, Setting
from chunkform.spec.language.expression import Atom, Contraction
from chunkform.spec.language.formula import Formula, walk
from chunkform.spec.language.statements import Statement

from .branches import Around, Branching, Taken
from .scope import formulas_of, used_names

SEVERAL = 6  # constants that numbers are drawn around


def branchings(taken: Taken, statement: Statement, setting: Setting, bodies: Mapping[str, Formula]) -> list[Branching]:
    """Those of the statement, of its definitions, and of the recurrence where it is run for them."""
    if not taken:
        return []
    there = {y for x in formulas(statement, setting, bodies) for y in walk(x) if y.op in ("cases", "function")}
    runs = any(is_run(setting.quantities[name], setting.recurrence) for name in used_names(statement, setting))
    return [x for x in taken if (x.node in there if isinstance(x.node, Formula) else runs)]


def untaken(taken: Taken, there: list[Branching], setting: Setting) -> list[tuple[Branching, int]]:
    """The branches that no instance took."""
    r = setting.recurrence
    positive = {v.name for v in r.variables if v.is_decay} if r is not None else set()
    return [
        (x, branch)
        for x in there
        for branch in x.branches
        if branch not in taken[x] and not x.impossible(branch, positive)
    ]


def is_run(q: Quantity, r: Recurrence | None) -> bool:
    """Whether a quantity has its value from a run of the recurrence; inputs, and gradients by outputs, are given."""
    if r is None or q.kind not in ("spec", "gradient", "log gradient"):
        return False
    given = r.variables if q.kind == "spec" else r.outputs
    return q.source not in {x.name for x in given}


def formulas(statement: Statement, setting: Setting, bodies: Mapping[str, Formula]) -> Iterator[Formula]:
    yield from formulas_of(statement)
    for name in used_names(statement, setting):
        body = bodies.get(name, setting.quantities[name].body)
        if body is not None:
            yield body


def around(there: list[Branching], setting: Setting, bodies: Mapping[str, Formula]) -> Around:
    """The quantities that decide which branches are taken, with the constants beside them."""
    found: dict[str, set[Fraction]] = {}
    for branching in there:
        names: set[str] = set()
        constants: set[Fraction] = set()
        seen: set[Any] = set()
        if isinstance(branching.node, Formula):
            if branching.node.op == "cases":
                continue  # indices, and no numbers, decide
            formula_leaves(branching.node, setting, bodies, names, constants, seen)
        else:
            assert setting.recurrence is not None
            parts = (branching.node, *(branching.inside.args[1:] if branching.inside is not None else ()))
            for x in parts:
                term_leaves(x, setting.recurrence, names, constants, seen)
        for name in names:
            found.setdefault(name, set()).update(scales(constants))
    return tuple((name, tuple(sorted(found[name]))) for name in sorted(found))


def scales(constants: set[Fraction]) -> list[Fraction]:
    """The sizes of constants, those of one over them, as they may be factors, and the largest product."""
    sizes = {abs(c) for c in constants} - {0, 1}
    both = sorted(sizes | {1 / c for c in sizes}, key=lambda c: (max(c, 1 / c), c))
    whole = math.prod((max(c, 1 / c) for c in sizes), start=Fraction(1))
    return [*both[:SEVERAL], *([2 * whole] if len(sizes) > 1 else [])]


def formula_leaves(
    x: Formula, setting: Setting, bodies: Mapping[str, Formula], names: set, constants: set, seen: set
) -> None:
    """Collects what is given, and the numbers, of a formula and of what it speaks of."""
    for y in walk(x):
        if y.op == "number":
            constants.add(y.attrs[0])
        if y.op != "at" or y.attrs[0] in seen:
            continue
        seen.add(y.attrs[0])
        q = setting.quantities[y.attrs[0]]
        body = bodies.get(q.name, q.body)
        if body is not None:
            formula_leaves(body, setting, bodies, names, constants, seen)
        elif q.kind == "given":
            names.add(q.name)
        elif setting.recurrence is not None:
            leaf(q.source.partition(".")[0], setting.recurrence, names, constants, seen)


def term_leaves(x: object, r: Recurrence, names: set, constants: set, seen: set) -> None:
    """The same of a term of the recurrence."""
    if isinstance(x, Matrix):
        if x.op == "symbol":
            leaf(x.args[0].partition(".")[0], r, names, constants, seen)
        else:
            for a in x.args:
                term_leaves(a, r, names, constants, seen)
    elif isinstance(x, Contraction):
        term_leaves(x.matrix, r, names, constants, seen)
    elif isinstance(x, Atom):
        leaf(x.name.partition(".")[0], r, names, constants, seen)
    elif isinstance(x, sympy.Rational):
        constants.add(Fraction(int(x.p), int(x.q)))
    elif isinstance(x, sympy.Basic):
        for a in x.args[:1] if x.is_Pow and x.args[1].is_Rational else x.args:
            term_leaves(a, r, names, constants, seen)


def leaf(name: str, r: Recurrence, names: set, constants: set, seen: set) -> None:
    """An input, or a state, whose first value is given; a `let` stands for its term, and so does a first value that is a term."""
    if ("term", name) in seen:
        return
    seen.add(("term", name))
    body = next((x.term for x in (*r.lets, *r.outputs) if x.name == name), None)
    if body is None:
        body = next((s.initial for s in r.states if s.name == name), None)
    if body is None:
        names.add(name)
    else:
        term_leaves(body, r, names, constants, seen)
