"""The five documents, read from their own LaTeX: what is read of them, and that the page that says so is as it should be."""

from __future__ import annotations

from collections import Counter

from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.counts import counts
from chunkform.codegen.paper.report import COMMAND, FOLDER, PAGE, page


def test_the_page_of_the_documents_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"run: {COMMAND}"


def test_most_rows_of_the_documents_are_read() -> None:
    found: Counter[str] = Counter()
    for path in sorted(FOLDER.glob("*.txt")):
        found += counts(read_paper(path))
    assert sum(found.values()) == 202
    assert found["unread"] <= 3
    assert found["judged"] >= 100
    assert sum(found.values()) - found["unread"] - found["not judged"] >= 150


def test_a_bracket_that_closes_nothing_is_told_as_a_slip() -> None:
    slips = [s for path in sorted(FOLDER.glob("*.txt")) for s in read_paper(path).document.slips]
    assert [(s.line, s.message) for s in slips] == [(168, "] closes nothing"), (122, "( is never closed")]
