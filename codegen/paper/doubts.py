"""Claims that are set aside once they were judged: nothing is called false for what the document says in a row that isn't
read, and what can't be decided isn't judged."""

from __future__ import annotations

from collections.abc import Sequence

from chunkform.codegen.claims.scope import used_names
from chunkform.codegen.claims.verdict import Verdict

from .paper import Paper
from .row import Fault, spelled
from .words import RELATIONS

OPEN = ("neither proved nor refuted", "says nothing: at no index", "can't be tried: it takes")  # of what isn't decided
NO_NUMBERS = ("the log of a number that isn't positive", "the root of a negative number", "the root of a non-square")


def without_doubtful(paper: Paper, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts but for those that are set aside; their rows say why."""
    unread = unread_heads(paper)
    kept = []
    for v in verdicts:
        why = doubt(paper, v, unread)
        if not why:
            kept.append(v)
            continue
        row = paper.of_row[v.claim.id]
        row.claims = [c for c in row.claims if c is not v.claim]
        row.leave_out(paper.equations[v.claim.id], why)
        row.kind = "claim" if row.claims else "not judged"
    paper.claims = [v.claim for v in kept]
    return kept


def doubt(paper: Paper, v: Verdict, unread: dict[str, int]) -> str:
    """Why a claim is set aside; nothing for others."""
    if v.verdict == "error" and v.error is not None and any(x in v.error.message for x in OPEN):
        return v.error.message.split(f"the claim {v.claim.id} ")[-1]
    if v.verdict == "fails" and v.counterexample is not None and v.counterexample.message in NO_NUMBERS:
        return f"no numbers were found at which both sides have a value, as {v.counterexample.message} is taken"
    misfit = v.counterexample is not None and not v.counterexample.sides
    if v.verdict != "fails" or not unread or misfit:
        return ""
    used = set(used_names(v.claim.statement, v.claim.setting))
    for s in paper.parts:
        for name, line in unread.items():
            if s.names.get(name, s.names.get(f"{name}/1")) in used:
                return f"line {line} says what {name} is, and can't be read"
    return ""


def unread_heads(paper: Paper) -> dict[str, int]:
    """Names that stand on the left of a row that can't be read, and of no other; with its line."""
    found: dict[str, int] = {}
    said = {n for s in paper.parts for n in (*s.defined.quantities, *s.steps.states, *s.steps.lets, *s.steps.outputs)}
    for r in paper.document.rows:
        if r.kind != "unread":
            continue
        texts = [t.text for t in r.source.tokens]
        end = next((k for k, x in enumerate(texts) if x in RELATIONS or x in ("_", "^", "(")), 0)
        try:
            name = spelled([t for t in r.source.tokens[:end] if t.text != "&"])
        except Fault:
            continue
        if name and name not in said:
            found.setdefault(name, r.line)
    return found
