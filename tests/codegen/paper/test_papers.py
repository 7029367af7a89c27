"""Papers as their authors write them: every right formula holds, and every planted mistake fails and is repaired.

A row of a document in documents/ that ends with `% wrong` is a planted mistake; the others are right. Repairs of all of them, a
minute's work, are looked for by `python tests/codegen/paper/test_papers.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chunkform.codegen.claims.command import judged
from chunkform.codegen.claims.verifier import Verifier
from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.paper import Paper
from chunkform.codegen.paper.readings import adopted

DOCUMENTS = Path(__file__).parent / "documents"
OTHERS = DOCUMENTS / "others"
NAMES = sorted(p.name for p in DOCUMENTS.iterdir() if p.suffix in (".md", ".tex"))
QUICK = ("gla.md", "flash_attention.tex", "gated_delta.tex", "momentum.md")


def planted(name: str) -> set[int]:
    lines = (DOCUMENTS / name).read_text(encoding="utf-8").splitlines()
    return {k for k, line in enumerate(lines, 1) if "% wrong" in line}


def bare(claims: list) -> list:
    verifier = Verifier(thorough=False)
    return [verifier.judge(c) for c in claims]


def verdicts(paper: Paper, judge=bare) -> dict:
    _, found = adopted(paper, judge)
    return {v.claim.where.line: v for v in found}


def repaired(name: str) -> tuple[int, int, list[str]]:
    """How many planted mistakes a document has, how many of them are repaired, and those that aren't."""
    found = verdicts(read_paper(DOCUMENTS / name), judged)
    wrong = planted(name)
    left = [found[line].claim.latex for line in sorted(wrong) if not found[line].repairs]
    return len(wrong), len(wrong) - len(left), left


@pytest.mark.parametrize("name", NAMES)
def test_right_formulas_hold_and_planted_mistakes_fail(name: str) -> None:
    paper = read_paper(DOCUMENTS / name)
    assert not [(r.line, r.reason) for r in paper.document.rows if r.kind in ("unread", "not judged")]
    found = verdicts(paper)
    wrong = planted(name)
    assert len(wrong) == 5
    assert wrong <= set(found)
    assert len(found) >= len(wrong) + 3
    bad = {line: v for line, v in found.items() if v.verdict != ("fails" if line in wrong else "holds")}
    assert not bad, {line: (v.verdict, v.claim.latex) for line, v in bad.items()}


@pytest.mark.parametrize("name", sorted(p.name for p in OTHERS.iterdir()))
def test_what_other_authors_write_is_judged_right_or_told_not_to_be_judged(name: str) -> None:
    """Rows with `% wrong` fail, those with `% depends` are true under a condition, and all others that are judged hold."""
    paper = read_paper(OTHERS / name)
    lines = (OTHERS / name).read_text(encoding="utf-8").splitlines()
    assert all(r.reason for r in paper.document.rows if r.kind in ("unread", "not judged"))
    found = {line: v.verdict for line, v in verdicts(paper).items()}
    meant = {line: marked(lines[line - 1]) for line in found}
    assert {line: v for line, v in found.items() if v not in meant[line]} == {}
    assert {k for k, text in enumerate(lines, 1) if "% wrong" in text} <= set(found)
    assert sum(v == ("holds",) for v in meant.values()) >= (1 if name == "normaliser.md" else 3)


def marked(line: str) -> tuple[str, ...]:
    """The verdicts that a row may have: the bare one of what depends on a condition is that it fails."""
    return ("fails",) if "% wrong" in line else ("depends", "fails") if "% depends" in line else ("holds",)


@pytest.mark.parametrize("name", QUICK)
def test_planted_mistakes_are_repaired(name: str) -> None:
    many, fixed, left = repaired(name)
    assert fixed >= many - 1, left


if __name__ == "__main__":
    for each in NAMES:
        print(each, *repaired(each), file=sys.stdout, flush=True)
