"""How many rows of a document became what, for people."""

from __future__ import annotations

from collections import Counter

from .document import Equation
from .paper import Paper


def kind_text(kind: str) -> str:
    return {"unread": "not read", "recurrence": "recurrence"}.get(kind, kind)


def counts(paper: Paper) -> Counter[str]:
    """Rows by what became of them."""
    return Counter("judged" if r.claims else r.kind for r in paper.document.rows)


def counts_text(paper: Paper) -> str:
    found = counts(paper)
    total = sum(found.values())
    read = total - found["unread"]
    parts = ", ".join(f"{n} {kind_text(k)}" for k, n in sorted(found.items(), key=lambda x: -x[1]))
    more = sum(len(r.beside) for r in paper.document.rows)
    beside = f"; beside them, {more} formula{'s' * (more > 1)} of these rows not judged" if more else ""
    return f"{total} rows, {read} read: {parts}{beside}"


def equation_text(e: Equation) -> str:
    """A formula as it is read, where it is one of several of a row."""
    return f"{e.head} {e.relation} {e.side}"
