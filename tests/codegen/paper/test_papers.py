"""Papers as their authors write them: every right formula holds, and every planted mistake fails and is repaired.

A row of a document in documents/ that ends with `% wrong` is a planted mistake; the others are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkform.codegen.claims.command import judged
from chunkform.codegen.paper.build import read_paper

DOCUMENTS = Path(__file__).parent / "documents"
NAMES = sorted(p.name for p in DOCUMENTS.iterdir() if p.suffix in (".md", ".tex"))


@pytest.mark.parametrize("name", NAMES)
def test_right_formulas_hold_and_planted_mistakes_fail_and_are_repaired(name: str) -> None:
    path = DOCUMENTS / name
    paper = read_paper(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    wrong = {k for k, line in enumerate(lines, 1) if "% wrong" in line}
    assert not [(r.line, r.reason) for r in paper.document.rows if r.kind in ("unread", "not judged")]
    found = {v.claim.where.line: v for v in judged(paper.claims)}
    assert wrong <= set(found)
    bad = {
        line: v
        for line, v in found.items()
        if ((v.verdict == "fails") != (line in wrong) and v.verdict != "holds")
        or (v.verdict == "holds") == (line in wrong)
    }
    assert not bad, {line: (v.verdict, v.claim.latex) for line, v in bad.items()}
    assert len(wrong) == 5
    right = {str(v.claim.statement.sides[1]) for line, v in found.items() if line not in wrong}
    repaired = [line for line in wrong if found[line].repairs]
    assert len(repaired) >= 4, [found[line].claim.latex for line in wrong - set(repaired)]
    assert right
