"""From a document to claims: each of its rows becomes claims about its quantities, a definition, or is listed with the reason why
it isn't judged."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkform.errors import ChunkformError, LoadError
from chunkform.spec.language.claims import LENGTH, Claim, Quantity
from chunkform.spec.language.formula import (
    Formula,
    cases,
    compare,
    formula,
    free_indices,
    inverse,
    matrix,
    stack,
    substitute,
    walk,
)
from chunkform.spec.language.source import Source as Place
from chunkform.spec.language.statements import AtMost, Differs, Equal, Integral, Statement, Together

from .document import Document, Equation, ReadRow, read_document
from .header import Header, find_header, name_of
from .heads import indexed, is_inverse_of, key_of, sized
from .lexer import expanded, tokens_of
from .parser import read_row
from .quantities import plain_head, set_loss, symbols_of
from .reader import LARGEST
from .resolve import Resolver, statement_sides
from .row import Fault, Item
from .shapes import settled
from .special_cases import knows_its_chunks, says_nothing_of, unjudged
from .steps import base_of, core, flipped, index, letter_of, lower, safe
from .symbols import CHUNK, CHUNKS, Symbols, safe_in, says_of_an_input, size
from .words import FUNCTIONS

ENDINGS = (".tex", ".md", ".txt", ".ltx", ".markdown")


@dataclass
class Paper:
    """A document with the claims that it makes, in its order."""

    path: str
    document: Document
    parts: list[Symbols] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    of_row: dict[str, ReadRow] = field(default_factory=dict)

    @property
    def symbols(self) -> Symbols:
        """Those of the part with a recurrence, or of the first."""
        return next((s for s in self.parts if s.recurrence is not None), self.parts[0])

    @property
    def recurrence(self) -> Any:
        return self.symbols.recurrence

    @property
    def guesses(self) -> list[str]:
        return list(dict.fromkeys(g for s in self.parts for g in s.guesses))


def is_paper(target: object) -> bool:
    return isinstance(target, str | os.PathLike) and os.fspath(target).lower().endswith(ENDINGS)


def load_text(path: str | os.PathLike) -> str:
    """A document's text.

    Raises:
        LoadError: it can't be read.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise LoadError(f"can't read {path}: {error.strerror or error}") from error
    if len(data) > LARGEST:
        raise LoadError(f"{path} holds {len(data)} bytes; a document has at most {LARGEST}")
    return data.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n").replace("\x00", " ")


def read_paper(path: str | os.PathLike) -> Paper:
    """A document's claims.

    Raises:
        LoadError: it can't be read, or its header is wrong.
    """
    path = os.fspath(path)
    text = load_text(path)
    return paper_of(text, path, find_header(text, path))


def recurrence_of(path: str | os.PathLike) -> Any:
    """The recurrence that a document displays.

    Raises:
        LoadError: it displays none, or one that a spec can't say.
    """
    paper = read_paper(path)
    if paper.recurrence is None:
        why = (
            paper.symbols.refused or "no symbol is displayed with its value one step before, as in S_t = S_{t-1} + ..."
        )
        raise LoadError(f"{os.fspath(path)} has no recurrence: {why}")
    return paper.recurrence


def paper_of(text: str, path: str, header: Header) -> Paper:
    document = read_document(text, path, header)
    title = str(header.data.get("title", "")) or document.source.title
    paper = Paper(path, document)
    name = Path(path).stem if not title.isascii() else title
    starts = [(0, header), *header.parts]
    for (start, own), (stop, _) in zip(starts, [*starts[1:], (10**9, header)]):
        rows = [r for r in document.rows if start <= r.line < stop]
        if rows or not (header.parts or paper.parts):
            part = document.part(own, rows)
            symbols = symbols_of(part, part.equations, name)
            paper.parts.append(symbols)
            Builder(paper, part, symbols, title, [r for r in document.rows if r.line < start]).run()
    return paper


class Builder:
    """Builds the claims of one part of a document."""

    def __init__(
        self, paper: Paper, document: Document, symbols: Symbols, title: str, before: Sequence[ReadRow] = ()
    ) -> None:
        self.paper, self.title = paper, title
        self.document, self.s = document, symbols
        self.resolve = Resolver(self.s, self.define)
        self.busy: set[str] = set()
        self.said: set[tuple[str, int]] = set()  # functions that the header defines
        self.refused: dict[str, str] = {}
        self.constant: set[str] = set()  # what the document sets an input to at every step
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

    def run(self) -> None:
        self.ranges()
        self.functions()
        self.header_definitions()
        for n, e in list(self.s.definitions.items()):
            if n not in self.s.names:
                self.define(n, len(core(e.head).args))
        set_loss(self.s, self.document.equations, self.resolve)
        self.refused.clear()  # what is defined by gradients waits for the loss
        made = {id(e) for e in self.s.steps.equations} if self.s.recurrence is not None else set()
        for r in self.document.rows:
            self.judge_row(r, made)

    # --- what the header and the document define

    def ranges(self) -> None:
        """What indices run over: as the header says, and chunks where the document has them."""
        header = self.document.header
        chunk, chunks = str(header.data.get("chunk", "")), str(header.data.get("chunks", ""))
        bracketed = any(n.endswith("[]") for n in self.names)
        if (chunk or bracketed) and self.s.recurrence is not None:
            self.s.setting.chunked()
            self.s.chunked = True
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
                self.s.functions.setdefault(key, (parameters, e.side))
        for tex, said in self.document.header.table("define").items():
            if "(" in tex:
                head = self.parse(tex)
                if head.op == "apply":
                    self.said.add((head.attrs[0], len(head.args)))
                    self.s.functions[head.attrs[0], len(head.args)] = (head.args, self.parse(str(said)))

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
            raise LoadError(f"the header of {self.paper.path}: {tex!r} can't be read: {fault}") from None
        if len(row.items) != 1 or row.items[0].relations:
            raise LoadError(f"the header of {self.paper.path}: {tex!r} is no formula")
        return row.items[0].sides[0]

    def header_definitions(self) -> None:
        header = self.document.header
        for tex, said in header.table("define").items():
            if "(" not in tex:
                self.header_define(tex, {"": str(said)})
        for tex, readings in header.table("readings").items():
            if isinstance(readings, dict):
                self.header_define(tex, {str(k): str(v) for k, v in readings.items()})

    def header_define(self, tex: str, readings: dict[str, str]) -> None:
        head = self.parse(tex)
        if head.op == "eye":
            raise LoadError(f"the header of {self.paper.path}: {tex!r} is the identity")
        name = head.attrs[0] if head.op == "at" else name_of(tex)
        parameters = [letter_of(a) for a in head.args]
        if head.op != "at" or any(p is None or p[1] for p in parameters):
            raise LoadError(f"the header of {self.paper.path}: {tex!r} is no symbol with indices")
        bodies = {}
        try:
            for label, said in readings.items():
                (bodies[label],) = statement_sides((self.resolve(self.parse(said)),), self.s)
        except Fault as fault:
            if self.paper.document.header.parts:  # a part need not have what others have
                self.s.unknown[name] = fault.message
                return
            raise LoadError(f"the header of {self.paper.path}: {tex!r}: {fault}") from None
        self.add(name, tuple(index(p[0]) for p in parameters if p is not None), bodies)

    def add(self, name: str, parameters: tuple[Formula, ...], bodies: dict[str, Formula]) -> None:
        known = safe_in(self.s.setting, safe(name.partition("/")[0]))
        if len(bodies) == 1:
            self.s.setting.define(known, parameters, next(iter(bodies.values())))
        else:
            self.s.setting.ambiguous(known, parameters, bodies)
        key = f"{name}/1" if parameters and name in self.s.names else name  # X and X_k are two things
        self.s.names[key] = known
        self.s.arity[name] = len(parameters)

    def define(self, name: str, count: int) -> Quantity | Formula | None:
        """The quantity of a name that no header says anything of: as the document defines it, or as its letter suggests."""
        if name in self.busy or name in self.refused:
            return None
        self.busy.add(name)
        try:
            if self.suggested(name, count) or self.defined(name):
                known = self.s.names.get(key_of(name, count)) or self.s.names[name]
                q = self.s.setting.quantities[known]
                return q if q.parameters else Formula("at", (), (known,))
        except Fault as fault:
            self.refused[name] = fault.message
        finally:
            self.busy.discard(name)
        return None

    def suggested(self, name: str, count: int) -> bool:
        """Matrices whose rows are the steps, or the steps of a chunk, of a quantity that the recurrence has."""
        s = self.s
        if s.recurrence is None or name in self.several:
            return False
        plain = name.removesuffix("[]")
        prefix, stem = (
            ("d", plain[1:])
            if base_of(plain) and base_of(plain) != plain and plain[0] == "d" and lower(plain[1:]) in s.names
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
            self.add(key_of(name, 1), (i,), {"": stack(j, CHUNK, q(at).T)})
            s.guess(f"row j of {plain}_i is {prefix}{low} at step j of chunk i")
            return True
        if count == 0 or (count == 1 and not s.chunked):
            t = index("t")
            self.add(name, (), {"": stack(t, LENGTH, q(t).T)})
            s.guess(f"row t of {plain} is {prefix}{low}_t")
            return True
        return False

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
        if any(y.op == "at" and y.attrs[0] == name for y in walk(body)):
            return self.recursive(name)
        resolved = self.resolve(body)
        parameters = tuple(index(a.attrs[0]) for a in head.args)
        extra = free_indices(resolved) - {p.attrs[0] for p in parameters}
        if extra:
            raise Fault(f"{name} is defined with {', '.join(sorted(extra))}, which its left side doesn't have")
        (settled,) = statement_sides((resolved,), self.s)
        self.add(name, parameters, {"": settled})
        self.s.definitions[name] = e
        return True

    def recursive(self, name: str) -> bool:
        """A sequence that is defined by its value before, or whose inverse is: s_t^{-1} = ... s_{t-1}^{-1} ..."""
        found = self.recursion(name)
        starts = [
            e
            for e in self.document.equations
            for head in [core(e.head)]
            if head.op == "at"
            and head.attrs[0] == name
            and len(head.args) == 1
            and head.args[0].op == "number"
            and e.first
        ]
        if found is None or not starts:
            return False
        e, letter, inverted = found
        first = int(core(starts[0].head).args[0].attrs[0])
        own = safe_in(self.s.setting, safe(name) + ("inverse" if inverted else ""))
        shape = self.s.shapes.get(name)
        begin = self.resolve(flipped(starts[0]))
        (begin,) = settled((begin,), {}, shape[0] if shape else self.default_dim())
        begin = inverse(begin) if inverted else begin
        t = index(letter)
        marked = f"{name} before" if inverted else name
        self.s.names[marked] = own
        # while its own step is resolved, it is known by where it starts
        self.s.setting.quantities[own] = Quantity(
            own, "defined", parameters=(letter,), body=begin, start=(first, begin)
        )
        body = flipped(e) if not inverted else e.side
        if inverted:
            inside = {y: Formula("at", y.args[0].args, (marked,)) for y in walk(body) if is_inverse_of(y, name)}
            body = substitute(body, inside)
            if name in {y.attrs[0] for y in walk(body) if y.op == "at"}:
                return False
        (step,) = statement_sides((self.resolve(body),), self.s)
        self.s.setting.quantities[own] = Quantity(own, "defined", parameters=(letter,), body=step, start=(first, begin))
        if inverted:
            self.add(name, (t,), {"": inverse(Formula("at", (t,), (own,)))})
        self.s.definitions[name] = e
        return True

    def default_dim(self) -> str:
        return next((d for d in self.s.setting.sizes if d not in (LENGTH, CHUNK, CHUNKS)), LENGTH)

    def recursion(self, name: str) -> tuple[Equation, str, bool] | None:
        """The first equation that says a symbol, or its inverse, by its value before."""
        for e in self.document.equations:
            head = core(e.head)
            inverted = is_inverse_of(head, name)
            head = head.args[0] if inverted else head
            if (
                head.op != "at"
                or head.attrs[0] != name
                or len(head.args) != 1
                or not e.first
                or e.relation not in ("=", ":=")
            ):
                continue
            place = letter_of(head.args[0])
            if place is None or place[1]:
                continue
            before = index(place[0]) - 1
            if any(y.op == "at" and y.attrs[0] == name and y.args == (before,) for y in walk(e.side)):
                return e, place[0], inverted
        return None

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

    # --- rows

    def judge_row(self, r: ReadRow, made: set[int]) -> None:
        """The claims of a row."""
        if r.kind != "claim":
            return
        count = 0
        for e in r.equations:
            if id(e) in made:
                r.kind = "recurrence" if r.kind == "claim" else r.kind
                continue
            known = self.already(e)
            if known:
                r.kind = known if r.kind == "claim" else r.kind
                if known == "definition" and e.head.op == "apply" and self.said_in_header(e):
                    r.reason = r.reason or "the header says what it is"
                continue
            why = unjudged(self.s, self.document, e)
            if why:
                r.leave_out(e, why)
                continue
            if says_of_an_input(e, self.s):
                if e.side.op == "at":
                    self.constant.add(e.side.attrs[0])
                r.kind = "fact" if r.kind == "claim" else r.kind
                r.reason = r.reason or "it says what an input is like, which no computation can show"
                continue
            try:
                statement = self.statement(e, r)
            except Fault as fault:
                r.leave_out(e, fault.message)
                continue
            except RecursionError:
                r.leave_out(e, "its definitions go round in a circle")
                continue
            if statement is None:
                r.kind = "definition" if r.kind == "claim" else r.kind
                r.reason = r.reason or "it says again what is defined"
                continue
            count += 1
            claim = Claim(
                self.claim_id(r, count),
                statement,
                self.s.setting,
                self.title,
                r.source.section,
                r.source.text,
                where=Place(self.paper.path, r.line),
            )
            r.claims.append(claim)
            self.paper.claims.append(claim)
            self.paper.of_row[claim.id] = r
        if r.claims:
            r.kind = "claim"
        elif r.kind == "claim":
            r.kind = "not judged"

    def said_in_header(self, e: Equation) -> bool:
        return (e.head.attrs[0], len(e.head.args)) in self.said

    def already(self, e: Equation) -> str:
        """definition or recurrence, where an equation says what a symbol is or starts with."""
        head = core(e.head)
        if e.head.op == "apply":
            key = e.head.attrs[0], len(e.head.args)
            return "definition" if key in self.said or self.s.functions.get(key, ((), None))[1] is e.side else ""
        if head.op != "at" or not e.first:
            return ""
        name = head.attrs[0]
        if self.s.definitions.get(name) is e:
            return "definition"
        numbered = len(head.args) == 1 and head.args[0].op == "number"
        if numbered and (name in self.s.steps.initial or self.recursion(name) is not None):
            return "recurrence"
        return "definition" if self.is_definition(e) else ""

    def is_definition(self, e: Equation) -> bool:
        """Whether a row is what a quantity was defined by, or says the same again."""
        head = core(e.head)
        if head.op != "at" or e.relation not in ("=", ":="):
            return False
        try:
            left = self.resolve(head)
            if self.s.definitions.get(head.attrs[0]) is e:
                return True
            right = self.resolve(e.side.T if e.head.op == "transpose" else e.side)
        except (Fault, RecursionError):
            return False
        q = self.s.setting.quantities.get(left.attrs[0]) if left.op == "at" else None
        if (
            q is None
            or q.kind != "defined"
            or q.alternatives
            or q.start is not None
            or head.attrs[0] not in self.s.definitions
        ):
            return False
        (right,) = statement_sides((right,), self.s)
        mapping = {index(p): a for p, a in zip(q.parameters, left.args)}
        return q.body is not None and substitute(q.body, mapping) == right

    def claim_id(self, r: ReadRow, count: int) -> str:
        stem = Path(self.paper.path).stem
        same_line = [x for x in self.paper.document.rows if x.line == r.line]
        letter = "" if len(same_line) < 2 else "abcdefghijklmnopqrstuvwxyz"[min(same_line.index(r), 25)]
        return f"{stem}:{r.line}{letter}" + (f".{count}" if count > 1 else "")

    def statement(self, e: Equation, r: ReadRow) -> Statement | None:
        """What an equation states; None where it says what is defined."""
        relation = e.relation
        if e.side.op in ("integral", "infinity"):
            return self.integral(e)
        for y in (y for x in (e.head, e.side) for y in walk(x) if y.op == "at" and not y.args):
            if y.attrs[0] in self.constant:
                raise Fault(f"it is about the case in which {y.attrs[0]} is the same at every step, which isn't tried")
        knows_its_chunks(self.s, self.document, self.first, e)
        left = self.resolve(e.head)
        if relation == "in":
            if e.side.op not in ("interval", "tuple") or len(e.side.args) != 2:
                raise Fault("what is said to be in a set is read where the set is an interval")
            low, high = (self.resolve(y) for y in e.side.args)
            if e.head.op == "tuple":
                raise Fault("an interval in an interval isn't judged")
            return Together((AtMost(low, left), AtMost(left, high)))
        right = self.resolve(e.side)
        over = self.over(e, (left, right), r.conditions)
        sides = statement_sides((left, right), self.s)
        if sides[0] == sides[1]:
            return None
        match relation:
            case "<=" | "<":
                return AtMost(*sides, over=over)
            case ">=" | ">":
                return AtMost(sides[1], sides[0], over=over)
            case "!=":
                return Differs(*sides, over=over)
            case "~":
                raise Fault("an approximation isn't judged: say what grows in a claim in Python")
        return Equal(sides, over=over)

    def integral(self, e: Equation) -> Statement | None:
        """An integral of an exponential that is infinite, or isn't; or two that are equal, as their exponents are."""
        said = [x for x in self.document.equations if x.head == e.head and x.side.op == "integral"]
        known = next((x for x in said if x.row.source.display == e.row.source.display), None)
        known = known or (said[0] if said else None)
        if e.head.op == "integral" and e.side.op == "infinity":
            known = Equation(e.head, "=", e.head, True, e.row)
        if known is None or known.side.args[0].op != "exp":
            raise Fault("only whether an integral of exp(..) is finite is judged")
        if known is e:
            return None
        exponent, by = self.resolve(known.side.args[0].args[0]), self.resolve(known.side.args[1])
        if e.side.op == "infinity":
            return Integral(exponent, by, finite=e.relation == "!=")
        other = self.resolve(e.side.args[0].args[0]) if e.side.args[0].op == "exp" else exponent
        return Equal(statement_sides((exponent, other), self.s)) if other != exponent else None

    def over(self, e: Equation, sides: Sequence[Formula], conditions: Sequence[Item]) -> tuple:
        """The ranges of the indices that are free."""
        letters = sorted({i for x in sides for i in free_indices(x)})
        found: dict[str, tuple[Formula, Formula]] = {}
        for letter in letters:
            found[letter] = self.s.ranges.get(letter) or self.role(letter, e) or (formula(1), size(LENGTH))
        explicit: set[str] = set()
        for c in conditions:
            limits = self.limits(c, letters, found)
            if not limits and c.relations != ["range"] and not all(self.counts(x) for x in c.sides):
                raise Fault("its condition isn't one on indices, and isn't tried")
            for letter, low, high in limits:
                found[letter] = low, high
                explicit.add(letter)
        # without anything said, steps run over wherever both sides have a value
        if self.s.recurrence is not None and not self.s.chunked and not explicit and not self.s.ranges:
            return ()
        order = sorted(found, key=lambda i: (bool(free_indices(found[i][0]) | free_indices(found[i][1])), i))
        return tuple((i, *found[i]) for i in order)

    def counts(self, x: Formula) -> bool:
        """Whether a side of a condition is an index, a size or a number."""
        return x.op == "number" or indexed(x) not in ("", *self.s.setting.quantities)

    def role(self, letter: str, e: Equation) -> tuple[Formula, Formula] | None:
        """What an index runs over, by what it counts: chunks, or the steps of one."""
        if not self.s.chunked:
            return None
        for x in (e.head, e.side):
            for y in walk(x):
                if y.op != "at":
                    continue
                known = self.s.names.get(key_of(y.attrs[0], 1)) or self.s.names.get(y.attrs[0], "")
                q = self.s.setting.quantities.get(known)
                if q is None or not y.args:
                    continue
                if q.kind == "defined" and q.parameters[:1] == ("i",) and letter in free_indices(y.args[0]):
                    return formula(1), size(CHUNKS)
                if q.kind == "defined" and len(y.args) > 1 and letter in free_indices(y.args[1]):
                    return formula(1), size(CHUNK)
        return None

    def limits(
        self, c: Item, letters: Sequence[str], found: dict[str, tuple[Formula, Formula]]
    ) -> list[tuple[str, Formula, Formula]]:
        """What a condition says of the ranges of indices."""
        if c.relations == ["range"]:
            name = indexed(c.sides[0])
            return [(name, self.bound(c.sides[2]), self.bound(c.sides[1]))] if name in letters else []
        out = []
        for a, relation, b in zip(c.sides, c.relations, c.sides[1:]):
            name = indexed(a)
            if relation == "in" and b.op in ("interval", "tuple") and len(b.args) == 2 and name in letters:
                out.append((name, self.bound(b.args[0]), self.bound(b.args[1])))
                continue
            other = indexed(b)
            if other in letters and (name not in letters or relation in ("<", "<=")):
                a, b, name, relation = b, a, other, {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(relation, relation)
            if name not in letters:
                continue
            low, high = found[name]
            value = self.bound(b)
            match relation:
                case "<=":
                    out.append((name, low, value))
                case "<":
                    out.append((name, low, value - 1))
                case ">=":
                    out.append((name, value, high))
                case ">":
                    out.append((name, value + 1, high))
                case "=":
                    out.append((name, value, value))
        return out

    def bound(self, x: Formula) -> Formula:
        return self.resolve(sized(x)) if x.op != "infinity" else size(LENGTH)


def defines(e: Equation) -> bool:
    """Whether an equation may say what a symbol is: the symbol, with letters as indices, stands alone on its left."""
    head = core(e.head)
    return head.op == "at" and e.first and e.relation in ("=", ":=") and plain_head(head)
