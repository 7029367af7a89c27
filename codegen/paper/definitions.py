"""What the symbols of a document stand for: as its header says, as the first row with one on its left defines it, or as its
letter suggests."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Sequence
from pathlib import Path

from chunkform.codegen.claims.instance import integer
from chunkform.errors import ChunkformError, LoadError
from chunkform.spec.language.claims import LENGTH, Quantity
from chunkform.spec.language.formula import (
    Formula,
    cases,
    compare,
    free_indices,
    matrix,
    stack,
    substitute,
    walk,
)

from .directions import limits_in, may_turn, turned_about
from .document import Document, Equation, ReadRow
from .header import header_path, in_comment, is_call, name_of
from .heads import base_of, key_of, sized
from .lexer import expanded, tokens_of
from .paper import Paper
from .parser import read_row
from .quantities import plain_head
from .recursions import Recursions
from .resolve import QuantityShapes, Resolver, fit, statement_sides
from .row import Fault
from .special_cases import says_nothing_of
from .steps import core, flipped, index, letter_of, lower
from .symbols import CHUNK, CHUNKS, Symbols, hold_steps_in_columns, safe_in, size
from .words import FUNCTIONS


class Definitions(Recursions):
    """Defines the symbols of one part of a document, each when it is asked for first."""

    def __init__(
        self, paper: Paper, document: Document, symbols: Symbols, title: str, before: Sequence[ReadRow] = ()
    ) -> None:
        self.paper, self.title = paper, title
        self.document, self.s = document, symbols
        self.resolve = Resolver(self.s, self.define)
        self.resolve.rows = document.taken.rows
        self.busy: set[str] = set()
        self.said: set[tuple[str, int]] = set()  # functions that the header defines
        self.refused: dict[str, str] = {}
        self.constant: dict[str, str] = {}  # what the document sets an input to at every step: which input
        equations = self.document.equations
        self.names = {y.attrs[0] for e in equations for x in (e.head, e.side) for y in walk(x) if y.op == "at"}
        self.first: dict[str, Equation] = {}
        self.several = {
            head.attrs[0] for e in equations for head in [core(e.head)] if head.op == "at" and len(head.args) > 1
        }
        for e in equations:
            if defines(e):
                self.first.setdefault(core(e.head).attrs[0], e)
        for e in (e for r in before for e in r.equations):  # what a part doesn't define is what it was before
            if defines(e) and core(e.head).attrs[0] not in self.several:
                self.first.setdefault(core(e.head).attrs[0], e)

    @property
    def by_columns(self) -> bool:
        return hold_steps_in_columns(self.document)

    @property
    def line(self) -> str:
        """Where a matrix holds a step."""
        return "column" if self.by_columns else "row"

    def ranges(self) -> None:
        """What indices run over: as the header says, and chunks where the document has them."""
        header = self.document.header
        chunk, chunks = str(header.data.get("chunk", "")), str(header.data.get("chunks", ""))
        bracketed = any(n.removesuffix("^").endswith("[]") for n in self.names)
        if (chunk or bracketed) and self.s.recurrence is not None:
            self.s.setting.chunked()
            self.s.names[chunk or "C"] = CHUNK
            self.s.names[chunks or "N"] = CHUNKS
            for name in ("c", "C"):
                self.s.names.setdefault(name, CHUNK)
        for letters, said in header.table("indices").items():
            low, _, high = str(said).partition("..")
            for letter in letters.replace(",", " ").split():
                self.s.ranges[letter] = (self.index_value(low), self.index_value(high))

    def index_value(self, text: str) -> Formula:
        x = self.parse(text)
        return self.resolve(sized(x))

    def functions(self) -> None:
        """Functions that the document defines by a formula in its arguments."""
        for e in self.document.equations:
            if e.head.op != "apply" or e.relation not in ("=", ":=") or any(y.op == "tuple" for y in walk(e.side)):
                continue
            name = e.head.attrs[0]
            parameters = e.head.args
            key = name, len(parameters)
            if (
                all(p.op in ("at", "index") for p in parameters)
                and name not in FUNCTIONS.values()
                and not says_nothing_of(self.s, parameters, e.side)
                and not self.says_itself(key, e.side)
            ):
                self.s.defined.functions.setdefault(key, (parameters, e.side))
        for tex, said in self.document.header.table("define").items():
            if is_call(tex):
                head = self.parse(tex)
                if head.op == "apply":
                    self.said.add((head.attrs[0], len(head.args)))
                    self.s.defined.functions[head.attrs[0], len(head.args)] = (head.args, self.parse(str(said)))

    @staticmethod
    def says_itself(key: tuple[str, int], x: Formula) -> bool:
        return any(y.op == "apply" and (y.attrs[0], len(y.args)) == key for y in walk(x))

    def parse(self, tex: str) -> Formula:
        """A formula of the header.

        Raises:
            LoadError: it can't be read.
        """
        try:
            said = re.sub(r"(?<![\\\w{])(" + "|".join(FUNCTIONS) + r")(?=[_(])", r"\\mathrm{\1}", tex)
            row = read_row(expanded(tokens_of(said), self.document.source.macros), self.document.notation)
        except (Fault, OverflowError) as fault:
            raise LoadError(f"{self.place(tex)}: {tex!r} can't be read: {fault}") from None
        if len(row.items) != 1 or row.items[0].relations:
            raise LoadError(f"{self.place(tex)}: {tex!r} is no formula")
        return row.items[0].sides[0]

    def place(self, tex: str) -> str:
        """The header, with the line in which something of it stands."""
        inside = in_comment(self.document.source.text)
        path = Path(self.paper.path) if inside is not None else header_path(self.paper.path)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        shown = {tex, tex.replace("\\", "\\\\")}  # in single quotes, and in double ones
        line = next((k for k, said in enumerate(lines, 1) if any(x in said for x in shown)), 0)
        return f"the header of {self.paper.path}" + (f", line {line}" if line else "")

    def header_definitions(self) -> None:
        header = self.document.header
        for tex, said in header.table("define").items():
            if not is_call(tex):
                self.header_define(tex, {"": str(said)})
        for tex, readings in header.table("readings").items():
            if isinstance(readings, dict):
                self.header_define(tex, {str(k): str(v) for k, v in readings.items()})

    def header_define(self, tex: str, readings: dict[str, str]) -> None:
        head = self.parse(tex)
        if head.op == "eye":
            raise LoadError(f"{self.place(tex)}: {tex!r} is the identity")
        name = head.attrs[0] if head.op == "at" else name_of(tex)
        parameters = [letter_of(a) for a in head.args]
        if head.op != "at" or any(p is None or p[1] for p in parameters):
            raise LoadError(f"{self.place(tex)}: {tex!r} is no symbol with indices")
        bodies = {}
        try:
            for label, said in readings.items():
                (bodies[label],) = statement_sides((self.resolve(self.parse(said)),), self.s)
        except Fault as fault:
            if self.paper.document.header.parts:  # a part need not have what others have
                self.s.unknown[name] = fault.message
                return
            raise LoadError(f"{self.place(tex)}: {tex!r}: {fault}") from None
        try:
            self.add(name, tuple(index(p[0]) for p in parameters if p is not None), bodies)
        except ChunkformError:
            raise LoadError(
                f"{self.place(tex)} defines {tex!r}, which the document's recurrence says already"
            ) from None

    def define(self, name: str, count: int) -> Quantity | Formula | None:
        """The quantity of a name that no header says anything of: as the document defines it, or as its letter suggests."""
        if name in self.busy or name in self.refused:
            return None
        self.busy.add(name)
        try:
            if self.suggested(name, count) or self.defined(name):
                known = self.s.names.get(key_of(name, count)) or self.s.names.get(name)
                if known is None:  # it is known with an index, and stands without
                    return None
                q = self.s.setting.quantities[known]
                return q if q.parameters else Formula("at", (), (known,))
        except Fault as fault:
            self.refused[name] = fault.message
            self.s.unknown.setdefault(name, fault.message)
        finally:
            self.busy.discard(name)
        return None

    def suggested(self, name: str, count: int) -> bool:
        """Matrices whose rows are the steps, or the steps of a chunk, of a quantity that the recurrence has."""
        s = self.s
        if s.chunked and name.endswith("[]^") and count == 2 and self.within_chunk(name):
            return True
        if s.recurrence is None or name in self.several:
            return False
        if s.chunked and name.endswith("[]") and self.rows_within_chunk(name):
            return True
        own = self.first.get(name)
        if own is not None and core(own.head).args and not s.chunked and not name.startswith("d"):
            return False  # G_t = .. says what G_t is, though there is a g_t
        if own is not None and not core(own.head).args and own.side.op == "columns of":
            return False  # K = [k_1 .. k_n]
        plain = name.removesuffix("[]")
        prefix, stem = (
            ("d", plain[1:])
            if base_of(plain)
            and base_of(plain) != plain
            and plain[0] == "d"
            and (lower(plain[1:]) in s.names or plain[1:] in s.steps.states)
            else ("", plain)
        )
        low = lower(stem)
        if stem in s.steps.states or low not in s.names or (low == stem and not name.endswith("[]")):
            if stem in s.steps.states and name.endswith("[]") and s.chunked:
                return self.chunk_state(name, prefix, stem)
            return False
        if low in s.steps.states:
            return self.chunk_state(name, prefix, low) if s.chunked and count == 1 else False
        try:
            q = s.setting.lookup(prefix + s.names[low])
        except ChunkformError:
            return False
        if not isinstance(q, Quantity):
            return False
        if s.chunked and count >= 1:
            i, j = index("i"), index("j")
            at = (i - 1) * size(CHUNK) + j
            rows = stack(j, CHUNK, self.as_row_of(q(at)))
            self.add(key_of(name, 1), (i,), {"": rows.T if self.by_columns else rows})
            s.guess(f"{self.line} j of {plain}_i is {prefix}{low} at step j of chunk i")
            return True
        if count == 0 or (count == 1 and not s.chunked):
            t = index("t")
            rows = stack(t, LENGTH, self.as_row_of(q(t)))
            self.add(name, (), {"": rows.T if self.by_columns else rows})
            s.guess(f"{self.line} t of {plain} is {prefix}{low}_t")
            return True
        return False

    def as_row_of(self, x: Formula) -> Formula:
        """A vector as a row of the matrix that holds one for each step."""
        rows, cols = self.resolve.shape(x)
        return x if rows == "1" or (rows.startswith("?") and not cols.startswith("?")) else x.T

    def within_chunk(self, name: str) -> bool:
        """k_{[i]}^r: a quantity at step r of chunk i; of a state, the one after that step."""
        s, stem = self.s, name.removesuffix("[]^")
        base = base_of(stem)
        known = s.names.get(stem) or (f"d{s.names[base]}" if base in s.names else "")
        try:
            q = s.setting.lookup(known) if known and s.recurrence is not None else None
        except ChunkformError:
            return False
        if not isinstance(q, Quantity) or q.kind in ("given", "defined"):
            return False
        i, r = index("i"), index("r")
        self.add(name, (i, r), {"": q((i - 1) * size(CHUNK) + r)})
        s.rowwise |= {name} if stem in s.rowwise or base in s.rowwise else set()
        s.guess(f"{stem}_[i]^r is {stem} at step r of chunk i")
        return True

    def rows_within_chunk(self, name: str) -> bool:
        """W_{[i]}, whose rows are the w_{[i]}^r that the document defines."""
        stem = name.removesuffix("[]")
        one = f"{stem[0].lower()}{stem[1:]}[]^"
        if one not in self.first or name in self.first:
            return False
        i, j = index("i"), index("j")
        row = self.resolve.at(Formula("at", (i, j), (one,)))
        self.add(key_of(name, 1), (i,), {"": stack(j, CHUNK, self.as_row_of(row))})
        self.s.guess(f"row j of {stem}_i is {one.removesuffix('[]^')} at step j of chunk i")
        return True

    def chunk_state(self, name: str, prefix: str, state: str) -> bool:
        """The state of a chunk, before or after it."""
        s = self.s
        i = index("i")
        shown = f"{name.removesuffix('[]')}_i"
        try:
            q = (
                s.setting.lookup(prefix + s.names[state])
                if not prefix
                else s.setting.carried(s.names[state], safe_in(s.setting, f"d{s.names[state]}handed"))
            )
        except ChunkformError:
            return False
        what = "the gradient by the state" if prefix else "the state"
        self.add(
            key_of(name, 1),
            (i,),
            {
                f"{shown} is {what} before chunk i": q((i - 1) * size(CHUNK)),
                f"{shown} is {what} after chunk i": q(i * size(CHUNK)),
            },
        )
        s.guess(f"{shown} is {what} before chunk i, or after it")
        return True

    def defined(self, name: str) -> bool:
        """A quantity as the first row that has it on its left defines it."""
        if self.recursive(name):
            return True
        e = self.first.get(name)
        said = self.document.said.get(name)
        if said is not None and (e is None or speaks_of(e, name)):
            e = said
            self.s.guess(f"{name} is what the text says of it in line {said.row.line}")
        if e is None:
            return self.mask(name)
        base = base_of(name)
        if (
            base
            and base in self.s.names
            and self.s.recurrence is not None
            and base not in self.s.steps.states
            and self.s.names[base] in [v.name for v in self.s.recurrence.variables]
        ):
            return False
        head = core(e.head)
        body = e.side.T if e.head.op == "transpose" else e.side
        if speaks_of(e, name):
            return self.recursive(name) or self.of_all_before(name, e, body)
        parameters = tuple(index(a.attrs[0]) for a in head.args)
        pieces = self.pieces_of(name, e)
        parts = [(c, self.resolve(flipped_to(x, head))) for x, c in pieces]
        resolved = cases(*parts) if parts else self.fitting((body,))[0]
        extra = free_indices(resolved) - {p.attrs[0] for p in parameters}
        if extra:
            raise Fault(f"{name} is defined with {', '.join(sorted(extra))}, which its left side doesn't have")
        (settled,) = statement_sides((resolved,), self.s)
        self.add(name, parameters, {"": settled} if pieces else self.both_ways(name, e, settled))
        self.s.defined.quantities[name] = e
        return True

    def fitting(self, sides: tuple[Formula, ...]) -> tuple[Formula, ...]:
        """The sides resolved. A vector or a matrix of which entries are defined, with no word on how many, as in D_{jl} =
        gamma^{j-l}, has an entry for each step; or for each step of a chunk, where that alone fits."""
        found = tuple(map(self.resolve, sides))
        if self.s.chunked and not fit(found, QuantityShapes(self.s)):
            self.resolve.gathers = CHUNK
            try:
                other = tuple(map(self.resolve, sides))
                return other if fit(other, QuantityShapes(self.s)) else found
            finally:
                self.resolve.gathers = LENGTH
        return found

    def pieces_of(self, name: str, first: Equation) -> list[tuple[Equation, Formula]]:
        """The rows that say what a quantity is, each under a condition on its indices, where there are several: M_{ij} = ..
        for i >= j, and M_{ij} = 0 for i < j."""
        head = core(first.head)
        found: list[tuple[Equation, Formula]] = []
        for e in self.document.equations:
            own = core(e.head)
            if defines(e) and own.attrs == head.attrs and len(own.args) == len(head.args):
                said = self.one_condition(e)
                if said is not None:
                    condition = substitute(said, dict(zip(own.args, head.args)))
                    found += [] if any(overlap(condition, c) for _, c in found) else [(e, condition)]
        return found if len(found) > 1 and found[0][0] is first else []

    def one_condition(self, e: Equation) -> Formula | None:
        """The condition on the indices of its head under which an equation stands, where it is one comparison."""
        said = [c for c in e.row.conditions if c.relations != ["range"]]
        letters = set(core(e.head).args)
        if len(said) != 1 or len(said[0].relations) != 1 or said[0].relations[0] not in COMPARED:
            return None
        left, right = (as_index(x) for x in said[0].sides)
        used = {y for x in (left, right) for y in walk(x) if y.op == "index"}
        return compare(left, said[0].relations[0], right) if used and used <= letters else None

    def both_ways(self, name: str, e: Equation, body: Formula) -> dict[str, Formula]:
        """What a quantity may be: where nothing but a shift tells which way a product runs, either way."""
        limits, tex = limits_in(e.row.conditions), e.row.source.text
        found = self.elsewhere(name, e, body)
        if len(found) > 1 or not may_turn(body, limits, tex):
            return found
        down = any(y.op == "product down" for y in walk(body))
        ways = (f"the product in {name} runs {'down' if down else 'up'}", f"it runs {'up' if down else 'down'}")
        return dict(zip(ways, (body, turned_about(body, limits, tex))))

    def elsewhere(self, name: str, e: Equation, body: Formula) -> dict[str, Formula]:
        """What a quantity with two indices may be where the condition on them isn't so under which it is defined."""
        condition = self.one_condition(e) if len(core(e.head).args) == 2 and self.resolve.is_scalar(body) else None
        if condition is None or {y for y in walk(condition) if y.op == "index"} != set(core(e.head).args):
            return {"": body}
        said = str(condition)
        return {
            f"{name} is 0 but for {said}": cases((condition, body), (None, 0)),
            f"{name} is so for all indices": body,
        }

    def mask(self, name: str) -> bool:
        """M, where nothing says what it is: the causal mask."""
        if name not in ("M", "Lmask", "mask"):
            return False
        dim = CHUNK if self.s.chunked else LENGTH
        if dim not in self.s.setting.sizes and dim not in self.s.setting.derived_sizes:
            return False
        i, j = index("i"), index("j")
        self.add(name, (), {"": matrix(i, j, dim, dim, cases((compare(i, ">=", j), 1), (None, 0)))})
        self.s.guess(f"{name} is the causal mask: 1 for i >= j, else 0")
        return True


def defines(e: Equation) -> bool:
    """Whether an equation may say what a symbol is: the symbol, with letters as indices, stands alone on its left."""
    head = core(e.head)
    return head.op == "at" and e.first and e.relation in ("=", ":=") and plain_head(head)


COMPARED = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


def speaks_of(e: Equation, name: str) -> bool:
    """Whether a symbol stands in what an equation says that its left side is."""
    return any(y.op == "at" and y.attrs[0] == name for y in walk(e.side))


def overlap(a: Formula, b: Formula) -> bool:
    """Whether two comparisons of indices are both so somewhere."""
    letters = sorted(free_indices(a) | free_indices(b))
    sizes = {y.attrs[0]: 5 for c in (a, b) for y in walk(c) if y.op == "size"}
    for values in itertools.product(range(7), repeat=len(letters)):
        env = dict(zip(letters, values))
        if all(COMPARED[c.attrs[0]](*(integer(x, env, sizes) for x in c.args)) for c in (a, b)):
            return True
    return False


def as_index(x: Formula) -> Formula:
    """x with bare letters as indices."""
    if x.op == "at" and not x.args:
        return index(x.attrs[0])
    return Formula(x.op, tuple(as_index(a) for a in x.args), x.attrs) if x.args else x


def flipped_to(e: Equation, head: Formula) -> Formula:
    """What an equation says of its head, with the indices of another head."""
    return substitute(flipped(e), dict(zip(core(e.head).args, head.args)))
