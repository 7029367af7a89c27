"""How many rows of a document became what, for people."""

from __future__ import annotations

from collections import Counter

from .build import Paper


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
    return f"{total} rows, {read} read: {parts}"
