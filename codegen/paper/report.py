"""What becomes of the rows of the five documents, read from their own LaTeX: docs/verdicts/papers.md. `python -m
chunkform.codegen.paper.report` writes it anew."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from chunkform.codegen.claims.verifier import Verifier
from chunkform.spec.language.claims import Claim

from .build import Paper, read_paper
from .counts import counts, kind_text

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "codegen" / "paper" / "five"
PAGE = ROOT / "docs" / "verdicts" / "papers.md"
COMMAND = "python -m chunkform.codegen.paper.report"
KINDS = ("judged", "definition", "recurrence", "fact", "condition", "not judged", "unread")


def page() -> str:
    """The page as text: a table of all documents, and one of each."""
    papers = [read_paper(p) for p in sorted(FOLDER.glob("*.txt"))]
    lines = [
        "# The five documents, read from their LaTeX",
        "",
        f"<!-- written by `{COMMAND}`; do not edit -->",
        "",
        "What [reading a paper](../papers.md) makes of the rows of the [five documents](README.md), with one header a "
        "document (`tests/codegen/paper/five`). A definition says what a symbol is, and can't be false; the claims that use "
        "it are judged.",
        "",
        f"| document | rows | read | {' | '.join(kind_text(k) for k in KINDS)} |",
        f"|{'---|' * (3 + len(KINDS))}",
    ]
    totals: Counter[str] = Counter()
    for p in papers:
        found = counts(p)
        totals += found
        lines.append(row_of(p.document.source.title, found))
    lines += [row_of("all", totals), ""]
    for p in papers:
        lines += document_lines(p)
    return "\n".join(lines).rstrip() + "\n"


def row_of(title: str, found: Counter[str]) -> str:
    total = sum(found.values())
    return f"| {title} | {total} | {total - found['unread']} | {' | '.join(str(found[k]) for k in KINDS)} |"


def document_lines(paper: Paper) -> list[str]:
    """A document's rows: those that are judged with their verdicts, and what keeps others from it."""
    lines = [f"## {paper.document.source.title}", "", "| line | verdict | formula |", "|---|---|---|"]
    verifiers: dict[int, Verifier] = {}
    for r in paper.document.rows:
        for c in r.claims:
            verifier = verifiers.setdefault(id(c.setting), Verifier(thorough=False))
            lines.append(f"| {r.line} | {verdict_of(verifier, c)} | `{shown(c)}` |")
    reasons: dict[str, list[int]] = {}
    for r in paper.document.rows:
        if not r.claims and r.kind in ("unread", "not judged"):
            reasons.setdefault(r.reason, []).append(r.line)
    if reasons:
        lines += ["", "Not judged:", ""]
        lines += [
            f"- {'line' if len(x) == 1 else 'lines'} {', '.join(map(str, x))}: {why}" for why, x in reasons.items()
        ]
    return [*lines, ""]


def verdict_of(verifier: Verifier, claim: Claim) -> str:
    try:
        return verifier.judge(claim).verdict
    except Exception:  # as `verify` reports it
        return "error"


def shown(c: Claim) -> str:
    sides = getattr(c.statement, "sides", None)
    return (" = ".join(str(s) for s in sides) if sides else c.latex).replace("|", "\\|").replace("`", "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
