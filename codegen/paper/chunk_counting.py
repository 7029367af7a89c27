"""Documents that count chunks from 0: chunk t holds the steps tC + 1 to tC + C. They are counted anew, from 1."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from chunkform.codegen.claims.indices import shifted
from chunkform.spec.language.formula import RANGED, Formula, rebuild, walk

from .counting import NEVER
from .document import Document, Equation
from .heads import indexed
from .row import Item


def first_chunks(document: Document) -> set[int]:
    """The numbers from which the document says that chunks are counted. What the text says of a letter tells nothing where the
    letter counts steps elsewhere."""
    letters, others = set(), set()
    found: set[int] = set()
    for r in document.rows:
        here = chunk_letters(r.equations)
        letters |= here
        others |= {y.attrs[0] for e in r.equations for y in walk(e.head) if y.op == "index"} - here
        found |= {n for c in r.conditions for n in starts_in(c, here)}
    ranges = document.header.table("indices")
    low = {str(said).partition("..")[0].strip() for names, said in ranges.items() if letters & set(names)}
    found |= {int(x) for x in low if x.isdigit()}
    found |= {n for item in document.facts for n in starts_in(item, letters - others)}
    return found & {0, 1}


def starts_in(item: Item, letters: Collection[str]) -> Iterator[int]:
    """The numbers from which an item says that letters go: t = 0, .., N - 1, t \\in \\{1, .., N\\} or 0 \\le t < N."""
    a, *others = item.sides
    if item.relations == ["range"] and indexed(a) in letters:
        yield from (int(str(x)) for x in others if x.op == "number" and str(x).isdigit())
    elif item.relations == ["in"] and indexed(a) in letters and others[0].op in ("tuple", "interval"):
        yield from (int(str(x)) for x in others[0].args[:1] if x.op == "number" and str(x).isdigit())
    else:
        for x, relation, y in zip(item.sides, item.relations, item.sides[1:]):
            low, high = (x, y) if relation in ("<", "<=") else (y, x)
            if relation in ("<", "<=", ">", ">=") and indexed(high) in letters and str(low).isdigit():
                yield int(str(low)) + (relation in ("<", ">"))


def tell_the_way(document: Document) -> bool:
    """Whether something would be another formula if chunks were counted from 0."""
    rows = (*document.extra, *document.rows)
    return any(
        of_row(x, letters) != x
        for r in rows
        for letters in [chunk_letters(r.equations)]
        for e in r.equations
        for x in (e.head, e.side)
    )


def chunk_letters(equations: Sequence[Equation]) -> set[str]:
    """The letters that count chunks in a row, as t in S_{[t]}."""
    nodes = (y for e in equations for x in (e.head, e.side) for y in walk(x))
    return {z.attrs[0] for y in nodes if of_chunks(y) for z in walk(y.args[0]) if indexed(z) and letter(z)}


def letter(x: Formula) -> bool:
    return x.op == "index" or (x.op in ("at", "size") and not x.args and x.attrs[0].islower())


def of_chunks(x: Formula) -> bool:
    return x.op == "at" and bool(x.args) and x.attrs[0].removesuffix("^").endswith("[]")


def count_chunks_from_one(document: Document) -> None:
    """Count a document's chunks from 1 that it counts from 0."""
    for r in (*document.extra, *document.rows):
        letters = chunk_letters(r.equations)
        for e in r.equations:
            e.head, e.side = of_row(e.head, letters), of_row(e.side, letters)
        for c in r.conditions:
            if {indexed(y) for x in c.sides for y in walk(x)} & letters:
                count_condition(c, letters)


def count_condition(c: Item, letters: Collection[str]) -> None:
    """Count a condition from 1: t < N, counted from 0, is t <= N."""
    sides = [at_chunk(x, letters) for x in c.sides]
    for k, said in enumerate(c.relations):
        above = {"<": k + 1, ">": k}.get(said, -1)
        if above >= 0 and c.sides[above].op != "number" and sides[above] != c.sides[above]:
            sides[above], c.relations[k] = c.sides[above], f"{said}="
    c.sides = sides


def of_row(x: Formula, letters: Collection[str]) -> Formula:
    """A formula with chunks counted from 1: where something is taken at a chunk letters stay and numbers grow by 1; elsewhere a
    letter is one less."""
    if letter(x) and x.attrs[0] in letters:
        return x - 1
    if of_chunks(x):
        return Formula("at", (at_chunk(x.args[0], letters), *(of_row(a, letters) for a in x.args[1:])), x.attrs)
    if x.op in RANGED and x.attrs[0] in letters:
        low, high, body = x.args
        return Formula(x.op, (at_chunk(low, letters), at_chunk(high, letters), of_row(body, letters)), x.attrs)
    if x.op == "compare" and {indexed(y) for y in walk(x)} & set(letters):
        return Formula(x.op, tuple(at_chunk(a, letters) for a in x.args), x.attrs)
    return rebuild(x, tuple(of_row(a, letters) for a in x.args))


def at_chunk(x: Formula, letters: Collection[str]) -> Formula:
    """The chunk that x is, or a bound of what counts chunks."""
    known = x.op in NEVER or any(indexed(y) in letters for y in walk(x))
    return x if known else shifted(x, 1)
