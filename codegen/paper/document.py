"""A document read: every row of its displays as formulas, or with the reason why not, and what its letters are taken for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from chunkform.errors import LoadError
from chunkform.spec.language.formula import Formula, formula, walk

from .algorithms import carried
from .gradient_marks import gradient_marks
from .header import Header
from .heads import base_of
from .lexer import Token, expanded, tokens_of
from .parser import read_row
from .reader import Slip, Source, SourceRow, read_source
from .row import Fault, Item, Notation, Row, depth_of, spelled, split
from .superscripts import steps_above
from .words import FUNCTIONS, OPENING, RELATIONS


@dataclass
class Equation:
    """One side of a chain beside its first: head relation side, in a row. `first`: the head stands in the row itself."""

    head: Formula
    relation: str
    side: Formula
    first: bool
    row: ReadRow


@dataclass
class ReadRow:
    """A row, what was read of it, and what became of it: `kind` is claim, definition, recurrence, fact, condition, remark, or
    unread, with the reason."""

    source: SourceRow
    row: Row | None = None
    kind: str = "unread"
    reason: str = ""
    equations: list[Equation] = field(default_factory=list)
    conditions: list[Item] = field(default_factory=list)
    premised: bool = False  # a condition is on quantities, as v_t = 0
    facts: list[Item] = field(default_factory=list)
    claims: list = field(default_factory=list)
    left_out: list[tuple[Equation, str]] = field(default_factory=list)  # what isn't judged of it, and why

    @property
    def line(self) -> int:
        return self.source.line

    def leave_out(self, e: Equation, why: str) -> None:
        """Keep a formula as one that isn't judged, with the reason."""
        self.left_out.append((e, why))
        self.reason = why

    @property
    def beside(self) -> list[tuple[Equation, str]]:
        """What isn't judged of a row of which something else is a claim, a definition, or the recurrence."""
        return [] if self.kind == "not judged" else self.left_out


@dataclass(frozen=True)
class Taken:
    """One way to take what a document leaves open: kinds and shapes of symbols, where states start, and the way in words."""

    text: str = ""
    kinds: tuple[tuple[str, str], ...] = ()
    shapes: tuple[tuple[str, tuple[str, str]], ...] = ()
    fits: tuple[tuple[Formula, Formula], ...] = ()  # sides that fit, beside those of the recurrence
    rows: bool = False  # X_i, of a matrix X, is its row as it stands, and not as a column
    any_start: bool = False  # states start anywhere, whatever the document says
    chunks_from: int = 1  # the number of the first chunk, where the document doesn't say it


@dataclass
class Document:
    """A document's rows in order, its notation, and everything said of shapes in its text."""

    source: Source
    header: Header
    notation: Notation
    rows: list[ReadRow]
    facts: list[Item]
    extra: list[ReadRow] = field(default_factory=list)  # equations that the header adds
    taken: Taken = Taken()
    said: dict[str, Equation] = field(default_factory=dict)  # of what no display defines: what the text says that it is

    @property
    def bold(self) -> set[str]:
        """Names that are set bold somewhere."""
        return {n for r in self.rows if r.row is not None for n in r.row.bold}

    @property
    def slips(self) -> list[Slip]:
        return self.source.slips

    @property
    def equations(self) -> list[Equation]:
        return [e for r in (*self.extra, *self.rows) for e in r.equations]

    def part(self, header: Header, rows: list[ReadRow]) -> Document:
        """Some of the document's rows, under a header of their own."""
        extra = [r for r in self.extra if r.equations]
        notation = replace(self.notation, labels=header.labels | (self.notation.labels - self.header.labels))
        for tex in header.data.get("recurrence", []):
            tokens = expanded(tokens_of(str(tex)), self.source.macros)
            made = ReadRow(SourceRow(tokens, str(tex), 0, 0, 0, -1, ""))
            try:
                made.row = read_row(tokens, notation)
            except Fault as fault:
                raise LoadError(f"the header of {self.source.path}: {tex!r} can't be read: {fault}") from None
            sorted_out(made, None, [])
            extra.append(made)
        return Document(self.source, header, notation, rows, self.facts, extra, self.taken, self.said)


def read_document(text: str, path: str, header: Header) -> Document:
    """The document's rows, read with what the whole of it says about its letters."""
    source = with_steps_counted(read_source(text, path), header)
    source.title = str(header.data.get("title", "")) or source.title
    notation = notation_of(source, header)
    notation = replace(notation, gradients=gradient_marks(source))
    notation = replace(notation, above=steps_above(source, notation))
    only = notation.labels - header.labels  # functions that are told apart by a number
    rows = [ReadRow(r) for r in source.rows]
    head: Formula | None = None
    display = -1
    chain: list[ReadRow] = []
    for r in rows:
        if r.source.display != display:
            display, head, chain = r.source.display, None, []
        if r.source.broken:
            r.reason = r.source.broken
            continue
        try:
            own = header.at(r.line)
            r.row = read_row(own.tokens_for(r.source), replace(notation, labels=own.labels | only))
        except Fault as fault:
            place = "" if fault.token is None else f" (column {source.place(fault.token.at)[1]})"
            r.reason = fault.message + place
            head = head if starts_with_relation(r.source.tokens) else left_side(r.source.tokens, notation)
            continue
        for message, token in r.row.slips:
            source.slip(message, token.at)
        head = sorted_out(r, head, chain)
    meant_in_one_case(rows, notation)
    read_programs(rows)
    return Document(source, header, notation, rows, list(inline_facts(source, notation)), starts_in(source, notation))


def starts_with_relation(tokens: list[Token]) -> bool:
    return bool(tokens) and tokens[0].text in RELATIONS


def read_programs(rows: list[ReadRow]) -> None:
    """Take the assignments of algorithms as equations; those of variables that take several values aren't judged."""
    own = [(r, e, r.source.program.loop) for r in rows if r.source.program is not None for e in r.equations]
    made, reasons = carried([(loop, e.head, e.side) for _, e, loop in own])
    for (r, e, _), (head, side), why in zip(own, made, reasons):
        e.head, e.side = head, side
        if r.source.program is not None and r.source.program.asked:
            why = "it is assigned where a condition of a program is so, which isn't judged"
        if why:
            r.equations = [x for x in r.equations if x is not e]
            r.kind, r.reason = ("claim" if r.equations else "not judged"), why


def meant_in_one_case(rows: list[ReadRow], notation: Notation) -> None:
    """Add what the sentence in front of a display says of quantities, as in `If $k_t^\\top k_t = 1$ then`, to the conditions of
    its rows, but for those that say what a symbol is: what a gradient of one that is there is, is no such thing."""
    known: set[str] = set()
    used: set[str] = set()
    for r in rows:
        heads = {x.attrs[0] for e in r.equations for x in [e.head] if e.first and x.op == "at"}
        new = {h for h in heads - known if base_of(h) not in used}
        if r.source.premises and r.equations and not new:
            said = [item for tokens in r.source.premises for item in premises_in(tokens, notation)]
            own = [(c.sides, c.relations) for c in r.conditions]
            r.conditions += [c for c in said if (c.sides, c.relations) not in own]  # the row may say it again
            r.premised |= bool(said)
            bind_premises([r])
        known |= heads
        used |= {y.attrs[0] for e in r.equations for x in (e.head, e.side) for y in walk(x) if y.op == "at"}


def premises_in(tokens: list[Token], notation: Notation) -> list[Item]:
    """The equations and inequalities on quantities in a formula of the text; none where it speaks of indices or of anything
    else."""
    try:
        items = read_row(tokens, notation).items
    except Fault:
        return []
    found = []
    for item in items:
        symbols = [y for x in item.sides for y in walk(x) if y.op == "at"]
        counts = is_condition(replace(item, words="if"), []) or any(x.op == "dots" for x in item.sides)
        compares = len(item.relations) == 1 and item.relations[0] in ("=", "<", "<=", ">", ">=", "!=", "perp")
        if not symbols or counts or not compares:
            return []
        found.append(replace(item, words="if"))
    return found


def left_side(tokens: list[Token], notation: Notation) -> Formula | None:
    """What stands before the first relation of a row that can't be read: the rows behind may go on from it."""
    end = next((k for k, t in enumerate(tokens) if t.text in RELATIONS and depth_of(tokens[:k]) == 0), 0)
    try:
        items = read_row(tokens[:end], notation).items if end else []
    except Fault:
        return None
    return items[0].sides[0] if len(items) == 1 and not items[0].relations else None


def sorted_out(r: ReadRow, head: Formula | None, chain: list[ReadRow]) -> Formula | None:
    """What a row states: equations, facts about shapes, conditions. Returns the head of the chain that it leaves."""
    assert r.row is not None
    items = r.row.items
    starts = True
    k = 0
    while k < len(items):
        item = items[k]
        if is_range(items, k):
            r.conditions.append(Item([item.sides[0], items[k + 2].sides[0], item.sides[1]], ["range"]))
            k += 3
            continue
        k += 1
        goes_on = starts and r.row.goes_on
        starts = False
        if goes_on and head is None:
            r.reason = "it goes on with a relation, and nothing stands before it"
            continue
        sides, relations = list(item.sides), list(item.relations)
        if goes_on and head is not None:
            sides, relations = [head, *sides], [r.row.goes_on, *relations]
        if not relations:
            if k < len(items) and items[k].relations[:1] == ["in"]:  # x, y in R^d
                r.facts.append(Item([item.sides[0], *items[k].sides[1:]], ["in"]))
            elif not goes_on and len(items) == 1:
                r.reason = "it states nothing: there is no relation in it"
            continue
        while relations and relations[-1] == "in" and sides[-1].op in ("reals", "integers"):
            r.facts.append(Item([sides[-2], sides[-1]], ["in"]))
            sides.pop()
            relations.pop()
        if not relations:
            continue
        limits = bool(r.equations) and set(relations) <= {"<=", "<", ">=", ">"}  # such as |x| <= c
        if not goes_on and (limits or is_condition(item, r.equations) or is_premise(item, r, k < len(items))):
            r.conditions.append(item)
            continue
        if not goes_on:
            head = sides[0]
            chain.clear()
        left = with_entries(sides[0])
        for n, (relation, side) in enumerate(zip(relations, sides[1:])):
            r.equations.append(Equation(left, relation, side, n == 0 and not goes_on, r))
            if relation not in ("=", ":="):  # of a <= b = c, c is what b is
                left = head = side
    say_what_it_is(r, chain)
    bind_premises([r, *chain])
    return head


def say_what_it_is(r: ReadRow, chain: list[ReadRow]) -> None:
    """The kind of a row, by what it states; conditions of its own are those of the chain before it."""
    if r.equations:
        r.kind = "claim"
        chain.append(r)
    elif r.conditions:
        r.kind = "condition"
        for other in chain:  # a range behind a chain is meant for all of it
            other.conditions += r.conditions
            other.premised |= r.premised
    elif r.facts:
        r.kind = "fact"
    elif not r.reason:
        r.kind = "remark"


def bind_premises(rows: list[ReadRow]) -> None:
    """What is so in one case only says nothing of what a symbol is."""
    for e in (e for r in rows if r.premised for e in r.equations):
        e.first = False


PREMISES = {"if", "when", "whenever", "provided", "assuming", "unless", "for", "given"}


def is_premise(item: Item, r: ReadRow, more: bool) -> bool:
    """Whether an item says of quantities when the equations of its row hold: `if v_t = 0`, or `, \\lambda_t = 1` behind it."""
    constant = len(item.sides) == 2 and not any(y.op == "at" for y in walk(item.sides[1]))
    if (item.words.split() or [""])[0].lower() in PREMISES:
        found = bool(r.equations) or more or set(item.relations) == {"="}
    else:
        found = r.premised and bool(r.equations) and constant and item.words in ("", "and")
    r.premised |= found
    return found


def is_range(items: list[Item], k: int) -> bool:
    """t = 1, \\ldots, n."""
    return (
        k + 2 < len(items)
        and items[k].relations == ["="]
        and [x.op for x in items[k + 1].sides] == ["dots"]
        and not items[k + 2].relations
    )


def is_condition(item: Item, before: list[Equation]) -> bool:
    """Whether an item says when the equation before it holds: a comparison of indices."""
    if not before and item.words not in ("if", "for", "when", "where"):
        return False
    bare = [x for x in item.sides if x.op in ("at", "index", "size", "number", "add", "negative", "tuple", "interval")]
    indices = all(
        y.op in ("index", "size", "number", "add", "negative", "tuple", "interval") or (y.op == "at" and not y.args)
        for x in bare
        for y in walk(x)
    )
    if len(bare) == len(item.sides) and indices and set(item.relations) <= {"<=", "<", ">=", ">", "!="}:
        return True
    letters = [x.attrs[0] for x in item.sides if x.op in ("at", "index") and not x.args]
    small = all(len(x) == 1 and x.islower() for x in letters)
    return len(bare) == len(item.sides) and indices and small and bool(letters) and set(item.relations) <= {"=", "in"}


# --- the letter that counts steps -----------------------------------------------------------------------------------

COUNTING = "tsijlpurm"  # letters that count, in the order in which one is taken


def with_steps_counted(source: Source, header: Header) -> Source:
    """The document with a letter of its own for steps, where it counts them with n, as in S_n = S_{n-1} + .. or
    w_n = \\sum_{t=1}^{n-1} ..: elsewhere n says how many there are."""
    rows = [r.tokens for r in source.rows]
    if "n" in header.sizes or not (any(map(counts_steps, rows)) or sums_to_its_own_step(rows)):
        return source
    readings = [*(r.tokens for r in source.rows), *source.inline]
    used = {t.text for tokens in readings for t in tokens if t.kind == "letter"}
    letter = next((x for x in COUNTING if x not in used), "")
    if not letter:
        return source
    for tokens in readings:
        tokens[:] = [replace(t, text=letter) if t.kind == "letter" and t.text == "n" else t for t in tokens]
    return source


def counts_steps(tokens: list[Token]) -> bool:
    """Whether a row has a name at n on its left, and the same name at n - 1 behind."""
    texts = [t.text for t in tokens]
    at = next((k for k, t in enumerate(texts) if t in RELATIONS), 0)
    head = [x for x in texts[:at] if x != "&"]
    start = next((k for k, x in enumerate(head) if x == "_"), 0)
    if not start or "".join(head[start:]) not in ("_n", "_{n}"):
        return False
    before = [*head[:start], "_", "{", "n", "-", "1", "}"]
    return any(texts[k : k + len(before)] == before for k in range(at, len(texts)))


def sums_to_its_own_step(rows: list[list[Token]]) -> bool:
    """Whether n is an index of what two rows say by sums up to it, or to the step before, and the end of no other sum."""
    found = 0
    for tokens in rows:
        texts = [t.text for t in tokens if t.text not in ("{", "}")]
        if {("n", "times"), ("times", "n")} & set(pairwise(texts)):  # of a matrix
            return False
        at = next((k for k, t in enumerate(texts) if t in RELATIONS), 0)
        ends = sum((a, b) == ("^", "n") for a, b in pairwise(texts[at:]))
        own = any((a, b) == ("_", "n") for a, b in pairwise(texts[:at]))
        if ends and not own and at:
            return False
        found += bool(ends)
    return found > 1


# --- what the whole document says about its letters -----------------------------------------------------------------


def notation_of(source: Source, header: Header) -> Notation:
    """Functions, sizes and index letters, found in a first reading of all rows."""
    readings = [r.tokens for r in source.rows if not r.broken] + source.inline
    first = Notation(
        sizes=header.sizes,
        functions=header.functions,
        upper=header.upper,
        maps=frozenset(maps_in(readings) - header.names),
        names=header.names,
        labels=header.labels,
    )
    first = replace(first, upper=first.upper | set(raised_indices(readings, first)))
    functions = set(header.functions) | {n for r in source.rows for n in defined_functions(r.tokens)}
    sizes = set(header.sizes)
    indices: Counter[str] = Counter()
    names: set[str] = set(header.names)
    labels: dict[str, set[str]] = {}
    shifts: set[str] = set()  # letters of steps, as in S_{t-1}: no sizes, though K_t may be over d x t
    counts = Counter(b.text for ts in readings for a, b, c in zip(ts, ts[1:], ts[2:]) if (a.text, c.text) == ("{", "-"))
    for tokens in readings:
        try:
            row = read_row(tokens, first)
        except Fault:
            continue
        for k, item in enumerate(row.items):
            if is_range(row.items, k) and row.items[k + 2].sides[0].op == "at":
                sizes |= {n for n in row.items[k + 2].sides[0].attrs if n.isupper() or n == "n"}
            sizes |= {x for x in end_of_gradients(item) if not counts.get(x)}
            for side in item.sides:
                for y in walk(side):
                    if y.op in ("sum", "product over", "hadamard over") and y.args[1].op == "size":
                        sizes |= {n for n in y.args[1].attrs if n.isupper() or n == "n"}
                    if y.op in ("rows of", "columns of"):  # K = [k_1 .. k_n]
                        last = {z.attrs[0] for z in walk(y.args[-1]) if z.op == "index"}
                        sizes |= last & {"n", "N", "T", "L"}
                    if y.op == "reals":
                        sizes |= {
                            z.attrs[0] for a in y.args for z in walk(a) if z.op == "size" and len(z.attrs[0]) <= 9
                        }
                    elif y.op == "at":
                        names.add(y.attrs[0])
                        indices.update(z.attrs[0] for a in y.args for z in walk(a) if z.op == "index")
                        shifts |= {z.args[0].attrs[0] for z in y.args if z.op == "add" and z.args[0].op == "index"}
                        labels.setdefault(y.attrs[0], set()).update(
                            "number" if a.op == "number" else "letter" for a in y.args
                        )
    only_numbered = {n for n, kinds in labels.items() if kinds == {"number"} and n in functions}
    sizes -= shifts & set("tsij")
    sizes = {s for s in sizes if s.isidentifier() and (s not in header.names or s in header.sizes)}
    return Notation(
        functions=frozenset(functions),
        sizes=frozenset(sizes),
        labels=header.labels | frozenset(only_numbered),
        indices=frozenset(),
        upper=first.upper,
        maps=first.maps,
        names=frozenset(names - {"I"} if "I" not in header.names else names),
    )


def with_entries(head: Formula) -> Formula:
    """M_{ij}, of (M)_{ij}: what a row says of the entries of a matrix is what it says of the symbol with two more indices."""
    if head.op != "entry" or head.args[0].op != "at" or len(head.args) != 3:
        return head
    indices = (*head.args[0].args, *head.args[1:])
    return Formula("at", indices, head.args[0].attrs) if all(a.op == "index" for a in indices) else head


def end_of_gradients(item: Item) -> set[str]:
    """n, of dS_{n+1} = 0: behind the last step there is no gradient."""
    left, right = (item.sides[0], item.sides[-1]) if item.sides else (Formula("unknown"),) * 2
    if left.op != "at" or not left.attrs[0].startswith("d") or len(left.args) != 1 or right != formula(0):
        return set()
    (at,) = left.args
    past = at.op == "add" and at.args[0].op == "index" and at.args[1:] == (formula(1),)
    return {at.args[0].attrs[0]} & {"n", "N", "T", "L"} if past else set()


def raised_indices(readings: list[list[Token]], notation: Notation) -> Iterator[str]:
    """Names with an index above, as a row that defines one shows: P_j^t = \\prod_{i=j}^t A_i."""
    for tokens in readings:
        if not any(t.text == "^" for t in tokens):
            continue
        try:
            items = read_row(tokens, notation).items
        except Fault:
            continue
        for item in (x for x in items if x.relations[:1] in (["="], [":="])):
            head, side = item.sides[:2]
            letter = head.args[1] if head.op == "power" else head
            if head.op != "power" or head.args[0].op != "at" or letter.op not in ("at", "index") or letter.args:
                continue
            counted = [a for y in walk(side) for a in (y.args if y.op == "at" else y.args[:2] if y.op in OVER else ())]
            if head.args[0].args and any(z.attrs == letter.attrs for a in counted for z in walk(a)):
                yield head.args[0].attrs[0]


OVER = ("sum", "product over", "product down", "hadamard over")
MAPS = {"phi": "phi", "varphi": "phi", "psi": "psi", "sigma": "sigma", "Phi": "Phi", "Psi": "Psi"}


def maps_in(readings: list[list[Token]]) -> set[str]:
    """Greek letters that stand for maps: whenever they occur, they are applied to something in brackets."""
    applied: set[str] = set()
    alone: set[str] = set()
    for tokens in readings:
        for t, after in zip(tokens, [*tokens[1:], None]):
            if t.kind == "command" and t.text in MAPS:
                (applied if after is not None and after.text == "(" else alone).add(MAPS[t.text])
    return applied - alone


def defined_functions(tokens: list[Token]) -> Iterator[str]:
    """f, where a row is f(x, y) = ...: a name with names in brackets, and then a relation."""
    for k, t in enumerate(tokens):
        if t.text in RELATIONS:
            return
        if t.text == "(" and k:
            end = next((i for i in range(k, len(tokens)) if tokens[i].text == ")"), None)
            if end is None:
                return
            after = tokens[end + 1].text if end + 1 < len(tokens) else ""
            before = [x for x in tokens[:k] if x.text not in ("&", "quad")]
            arguments = split(tokens[k + 1 : end], ",")
            name, numbered = _stem(before)
            if (
                name
                and name not in FUNCTIONS
                and (RELATIONS.get(after) or after == ":")
                and all(_stem(a)[0] for a in arguments)
            ):
                yield name + numbered
                if numbered:
                    yield name
            return
        if t.text in OPENING and t.text not in ("{", "("):
            return


def _stem(tokens: list[Token]) -> tuple[str, str]:
    """The name that tokens spell, without indices, and the number below it."""
    numbered = ""
    for k, t in enumerate(tokens):
        if t.text == "_" and k:
            content = [x for x in tokens[k + 1 :] if x.text not in "{}"]
            if any(x.text in "^" or x.text in OPENING for x in content):
                return "", ""
            numbered = "".join(x.text for x in content) if all(x.kind == "number" for x in content) else ""
            tokens = tokens[:k]
            break
    name = spelled(tokens)
    if name is None and len(tokens) == 2 and tokens[0].kind == "letter" and tokens[1].kind == "number":
        name = tokens[0].text + tokens[1].text
    return name or "", numbered


def starts_in(source: Source, notation: Notation) -> list[ReadRow]:
    """What the text says of where a sequence starts, such as h_0 = 0."""
    found = []
    for tokens in source.inline:
        try:
            row = read_row(tokens, notation)
        except Fault:
            continue
        if len(row.items) != 1 or row.items[0].relations != ["="] or row.goes_on:
            continue
        head, side = row.items[0].sides
        if head.op == "at" and [str(a) for a in head.args] == ["0"] and side.op in ("number", "eye", "product"):
            made = ReadRow(SourceRow(tokens, "", 0, 0, 0, -1, ""), row)
            made.equations.append(Equation(head, "=", side, True, made))
            found.append(made)
    return found


def inline_facts(source: Source, notation: Notation) -> Iterator[Item]:
    """Facts about shapes in the text, such as Q, K \\in R^{n x d}."""
    for tokens in source.inline:
        if not any(t.text in ("in", "=") for t in tokens):
            continue
        try:
            row = read_row(tokens, notation)
        except Fault:
            continue
        waiting: list[Formula] = []
        for item in row.items:
            if item.relations and item.relations[-1] == "in":
                yield Item([*waiting, item.sides[-2], item.sides[-1]], ["in"])
                waiting = []
            elif not item.relations:
                waiting.append(item.sides[0])
            else:
                waiting = []
