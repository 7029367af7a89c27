"""The five documents, read from their own LaTeX: what is read of them, and that the pages that say so are as they should be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from chunkform.codegen.claims.command import claims_of, judged
from chunkform.codegen.claims.derived_claims import left_out
from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.counts import counts
from chunkform.codegen.paper.paper import Paper
from chunkform.codegen.paper.report import COMMAND, DOCUMENTS, FOLDER, index, letters_of, pages, rows_about


@pytest.fixture(scope="module")
def papers() -> list[Paper]:
    return [read_paper(path) for path in sorted(DOCUMENTS.glob("*.txt"))]


def test_the_table_of_rows_is_up_to_date() -> None:
    assert (FOLDER / "README.md").read_text(encoding="utf-8").startswith("\n".join(index())), f"run: {COMMAND}"


@pytest.mark.long
def test_the_verdicts_on_the_documents_are_what_is_found_today() -> None:
    found = pages(judged(claims_of(())), left_out())
    there = {p.name: p.read_text(encoding="utf-8") for p in FOLDER.glob("*.md")}
    assert found.keys() == there.keys()
    assert [name for name in found if found[name] != there[name]] == [], f"run: {COMMAND}"


def test_most_rows_of_the_documents_are_read(papers: list[Paper]) -> None:
    found: Counter[str] = Counter()
    for paper in papers:
        found += counts(paper)
    assert sum(found.values()) == 202
    assert found["unread"] <= 3
    assert found["judged"] >= 100
    assert sum(found.values()) - found["unread"] - found["not judged"] >= 150


def test_a_bracket_that_closes_nothing_is_told_as_a_slip(papers: list[Paper]) -> None:
    slips = [s for paper in papers for s in paper.document.slips]
    assert [(s.line, s.message) for s in slips] == [(168, "] closes nothing"), (122, "( is never closed")]


def test_every_row_has_a_place_on_the_pages(papers: list[Paper]) -> None:
    for paper in papers:
        page = (FOLDER / f"{Path(paper.path).stem}.md").read_text(encoding="utf-8")
        for r in paper.document.rows:
            assert f"### Line {r.line}: " in page or f"### Line {r.line}, " in page


def test_what_is_stated_by_hand_is_found_among_the_rows(papers: list[Paper]) -> None:
    assert letters_of(r"\left( \mathbf a_t &= b_t \right), \\") == letters_of("(a_t = b_t)")
    found = rows_about(papers[0], r"\mathbf s_t=\lambda_t \mathbf s_{t-1}+(1-\lambda_t)\mathbf k_t \mathbf v_t^\top")
    assert {47, 57, 76} <= {r.line for r in found}
