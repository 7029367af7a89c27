"""From a document to claims: each of its rows becomes claims about its quantities, a definition, or is listed with the reason why
it isn't judged."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from chunkform.errors import LoadError
from chunkform.spec.language.claims import Claim, Setting
from chunkform.spec.language.formula import formula, substitute, walk
from chunkform.spec.language.source import Source as Place

from .chunk_counting import count_chunks_from_one, first_chunks
from .counting import recounted
from .document import Equation, ReadRow, Taken, read_document
from .header import Header, find_header
from .paper import Paper
from .premises import Under, says_the_end
from .quantities import set_loss, symbols_of
from .reader import LARGEST
from .resolve import statement_sides
from .row import Fault, Item
from .said import part_of_the_step, said_in_text
from .special_cases import unjudged
from .statements import Statements
from .steps import core, index
from .symbols import says_of_an_input

ENDINGS = (".tex", ".md", ".txt", ".ltx", ".markdown")


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


def paper_of(text: str, path: str, header: Header, taken: Taken = Taken()) -> Paper:  # noqa: B008
    document = read_document(text, path, header)
    document.taken = taken
    document.said = said_in_text(document.source, document.notation)
    document.extra += part_of_the_step(document.said, document.equations)
    title = str(header.data.get("title", "")) or document.source.title
    paper = Paper(path, document, again=lambda other: paper_of(text, path, header, other))
    name = Path(path).stem if not title.isascii() else title
    starts = [(0, header), *header.parts]
    for (start, own), (stop, _) in zip(starts, [*starts[1:], (10**9, header)]):
        rows = [r for r in document.rows if start <= r.line < stop]
        if rows or not (header.parts or paper.parts):
            part = document.part(own, rows)
            counted = recounted(part)
            if (first_chunks(part) or {taken.chunks_from}) == {0}:
                count_chunks_from_one(part)
                counted.append("chunks are counted from 0 in the document, and from 1 here")
            symbols = symbols_of(part, part.equations, name)
            for said in counted:
                symbols.guess(said)
            paper.parts.append(symbols)
            Builder(paper, part, symbols, title, [r for r in document.rows if r.line < start]).run()
    for r in document.rows:
        if r.kind in ("unread", "not judged"):
            r.reason = header.remark(r.line) or r.reason
    return paper


class Builder(Statements):
    """Builds the claims of one part of a document."""

    def run(self) -> None:
        self.ranges()
        self.functions()
        self.header_definitions()
        self.sequences()
        for n, e in list(self.s.defined.quantities.items()):
            if n not in self.s.names:
                self.define(n, len(core(e.head).args))
        set_loss(self.s, self.document.equations, self.resolve)
        self.refused.clear()  # what is defined by gradients waits for the loss
        self.open_decays()
        self.ends = {id(e) for e in self.document.equations if says_the_end(self.s, e)}
        if self.ends:
            self.s.setting.assume(final_loss=False)
        made = {id(e) for e in self.s.steps.equations} if self.s.recurrence is not None else set()
        for r in self.document.rows:
            self.judge_row(r, made)

    def open_decays(self) -> None:
        """Note the decays that the document says to be less than 1."""
        items = [*self.document.facts, *(Item([e.head, e.side], [e.relation]) for e in self.document.equations)]
        for item in items:
            *symbols, bound = item.sides
            inside = item.relations == ["in"] and bound.op in ("interval", "tuple") and len(bound.args) == 2
            below = item.relations == ["<"] and bound == formula(1)
            closed = bound.op == "interval" and bound.attrs[-1] in ("]", "rbrack")
            if below or (inside and bound.args[1] == formula(1) and not closed):
                names = [
                    core(y).attrs[0]
                    for x in symbols
                    for y in (x.args if x.op == "tuple" else (x,))
                    if core(y).op == "at"
                ]
                self.s.setting.below_one |= {self.s.names[n] for n in names if n in self.s.names}
        bodies = [*self.s.steps.states.values(), *self.s.steps.lets.values(), *self.s.steps.outputs.values()]
        roots = [y.args[0] for x in bodies for y in walk(x) if y.op in ("log", "sqrt") and y.args[0].op == "at"]
        for name in {self.s.names[y.attrs[0]] for y in roots if y.attrs[0] in self.s.names}:
            self.s.setting.lookup(name)
            known = self.s.setting.quantities[name]
            self.s.setting.quantities[name] = replace(known, domain="positive") if known.domain == "real" else known

    def judge_row(self, r: ReadRow, made: set[int]) -> None:
        """The claims of a row."""
        if r.kind != "claim":
            return
        count = 0
        for e in r.equations:
            if id(e) in made:
                r.kind = "recurrence" if r.kind == "claim" else r.kind
                continue
            if id(e) in self.ends:
                r.kind = "fact" if r.kind == "claim" else r.kind
                r.reason = r.reason or "it says that the loss takes nothing of the last state but through outputs"
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
                if e.side.op == "at" and e.relation in ("=", ":="):
                    self.constant[e.side.attrs[0]] = core(e.head).attrs[0]
                r.kind = "fact" if r.kind == "claim" else r.kind
                r.reason = r.reason or "it says what an input is like, which no computation can show"
                continue
            try:
                statement = self.statement(e, r)
                under = self.meant_under(e, r)
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
                self.setting_under(under),
                self.title,
                r.source.section,
                r.source.text,
                where=Place(self.paper.path, r.line),
            )
            self.s.setting.shown += getattr(statement, "sides", ())
            r.claims.append(claim)
            self.paper.claims.append(claim)
            self.paper.of_row[claim.id] = r
            self.paper.equations[claim.id] = e
        if r.claims:
            r.kind = "claim"
        elif r.kind == "claim":
            r.kind = "not judged"

    def setting_under(self, under: Under) -> Setting:
        """The part's setting, or one for all claims under the same condition."""
        if not under.premises.text:
            return self.s.setting
        key = f"{under.premises.text} at {under.premises.step}"
        return self.paper.settings.setdefault((self.s.setting, key), under.of(self.s.setting))

    def said_in_header(self, e: Equation) -> bool:
        return (e.head.attrs[0], len(e.head.args)) in self.said

    def already(self, e: Equation) -> str:
        """definition or recurrence, where an equation says what a symbol is or starts with."""
        head = core(e.head)
        if e.head.op == "apply":
            key = e.head.attrs[0], len(e.head.args)
            return (
                "definition" if key in self.said or self.s.defined.functions.get(key, ((), None))[1] is e.side else ""
            )
        if head.op != "at" or not e.first:
            return ""
        name = head.attrs[0]
        first = self.s.defined.quantities.get(name)
        if first is not None and (first is e or any(x is e for x, _ in self.pieces_of(name, first))):
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
            if self.s.defined.quantities.get(head.attrs[0]) is e:
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
            or head.attrs[0] not in self.s.defined.quantities
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
