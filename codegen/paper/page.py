"""The report of documents as a page: every row in order, typeset, with its verdict, or why it isn't judged."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from chunkform.codegen.claims.command import summary
from chunkform.codegen.claims.html_page import STYLE, shown_entry
from chunkform.codegen.claims.mathml import mathml
from chunkform.codegen.claims.verdict import Verdict

from .counts import counts_text, equation_text
from .paper import Paper


def page(found: Sequence[tuple[Paper, Sequence[Verdict]]]) -> str:
    """The whole page as text; nothing is loaded from anywhere."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>chunkform verify</title><style>{STYLE}</style></head><body>",
        "<h1>Formulas, judged</h1>",
    ]
    for paper, verdicts in found:
        by_claim = {id(v.claim): v for v in verdicts}
        parts.append(f"<h2>{escape(paper.document.source.title)}</h2>")
        parts.append(f"<p>{escape(counts_text(paper))}. {escape(summary(list(verdicts)))}.</p>")
        section = None
        for r in paper.document.rows:
            if r.source.section != section:
                section = r.source.section
                parts.append(f"<h3>{escape(section)}</h3>" if section else "")
            mine = [by_claim[id(c)] for c in r.claims if id(c) in by_claim]
            parts += [shown_entry(v) for v in mine]
            if not mine:
                parts.append(plain_row(r.source.text, r.line, r.kind, r.reason))
            parts += [plain_row(equation_text(e), r.line, "not judged", why) for e, why in r.beside]
        if paper.document.slips:
            slips = "".join(f"<li>{s.line}:{s.column}: {escape(s.message)}</li>" for s in paper.document.slips)
            parts.append(f"<h3>Slips</h3><ul>{slips}</ul>")
        if paper.guesses:
            guesses = "".join(f"<li>{escape(g)}</li>" for g in paper.guesses)
            parts.append(f"<h3>Guessed</h3><ul>{guesses}</ul>")
    return "\n".join(p for p in [*parts, "</body></html>"] if p) + "\n"


def plain_row(text: str, line: int, kind: str, reason: str) -> str:
    """A row that isn't judged."""
    try:
        shown = mathml(text)
    except Exception:  # what can't be typeset is shown as it stands
        shown = f"<code>{escape(text)}</code>"
    told = f'<p class="small">{escape(reason)}</p>' if reason else ""
    return f'<article class="formula"><header><span class="id">line {line}, {escape(kind)}</span></header>{shown}{told}</article>'
