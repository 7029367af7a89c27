"""What a document says in one case only: inputs that are set to a number, and claims about functions that it doesn't define.
None of it says what a symbol is in other rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from chunkform.spec.language.formula import Formula, walk

from .document import Document, Equation
from .heads import base_of
from .row import Fault
from .steps import core, lower
from .symbols import Symbols
from .words import LOSSES


def special_case(s: Symbols, e: Equation) -> str:
    """Why an equation isn't judged that sets an input of the recurrence to a number, as in \\lambda_t = 1, or to another, as in
    k_t = q_t; nothing for others."""
    head = core(e.head)
    if s.recurrence is None or head.op != "at" or e.relation not in ("=", ":=") or not e.first:
        return ""
    name, other = head.attrs[0], core(e.side)
    inputs = {v.name for v in s.recurrence.variables}
    same = other.op == "at" and other.args == head.args and s.names.get(other.attrs[0]) in inputs
    if s.names.get(name) not in inputs or (any(y.op == "at" for y in walk(e.side)) and not same):
        return ""
    return f"it is a special case: {name} is an input of the recurrence, and other rows don't take it so"


def says_nothing_of(s: Symbols, parameters: Sequence[Formula], side: Formula) -> bool:
    """Whether f(S_t) = 0 is a claim about S_t, and no definition of f."""
    said = set(walk(side))
    of_steps = {*s.steps.states, *s.steps.lets, *s.steps.outputs, *s.steps.given}
    constant = not any(y.op in ("at", "index") for y in said)
    known = [p for p in parameters if p.op == "at" and (p.attrs[0] in of_steps or (constant and p.args))]
    return any(p not in said for p in known)


def says_the_loss(s: Symbols, document: Document, e: Equation) -> bool:
    """Whether a row says the gradient by an output, where the document displays a loss of its own."""
    head = core(e.head)
    by = core(head.args[1]) if head.op == "partial" else head
    name = by.attrs[0] if by.op == "at" else ""
    heads = [core(x.head) for x in document.equations]
    own = any(y.op == "at" and y.attrs[0] in LOSSES and not y.args for y in heads)
    return own and (name if head.op == "partial" else base_of(name)) in s.steps.outputs


def unjudged(s: Symbols, document: Document, e: Equation) -> str:
    """Why an equation isn't judged by what it is; nothing for others."""
    if e.relation in ("->", "=>", "<=>", "sampled", "propto", "not in"):
        return f"the relation {e.relation} isn't judged"
    if says_the_loss(s, document, e):
        return "it is the gradient of the loss that is displayed; judged is what holds for every loss"
    return special_case(s, e)


def knows_its_chunks(s: Symbols, document: Document, first: Collection[str], e: Equation) -> None:
    """Raise where a row speaks of chunks, and of a letter that may be their size, which nothing says."""
    nodes = [y for x in (e.head, e.side) for y in walk(x)]
    if document.header.data.get("chunk") or not any(y.op == "at" and y.attrs[0].endswith("[]") for y in nodes):
        return
    known = {*s.names, *s.ranges, *s.setting.sizes, *first}
    for y in nodes:
        letter = y.attrs[0] if y.op in ("at", "index", "size") and not y.args else ""
        if len(letter) == 1 and letter.isupper() and letter not in known and lower(letter) not in s.names:
            raise Fault(f'{letter} isn\'t known: if it is the size of a chunk, say chunk = "{letter}" in the header')
