"""`r.same_as(other)`: judged as the other claims of a spec are."""

from __future__ import annotations

from pathlib import Path

import chunkform

HEAD = """
from chunkform.spec.language import Recurrence, eye
r = Recurrence("{name}")
d, e = r.dims("d e")
{q}, k = r.inputs("{q} k", d)
v, b = r.inputs("v", e), r.inputs("b")
S = r.state("S", d, e)
r.update(S, {update})
r.output("o", S.next.T * {q})
"""
CORRECTION = "S.prev + b * k * (v - S.prev.T * k).T"


def verdicts(folder: Path, update: str, claim: str, query: str = "q"):
    published = HEAD.format(name="published", q=query, update="(eye(d) - b * k * k.T) * S.prev + b * k * v.T")
    (folder / "published.py").write_text(published)
    (folder / "mine.py").write_text(HEAD.format(name="mine", q="q", update=update) + claim)
    return chunkform.verify(str(folder / "mine.py"))


def test_two_spellings_of_a_file_beside_it(tmp_path: Path) -> None:
    (found,) = verdicts(tmp_path, CORRECTION, 'r.same_as("published.py", {"q": "query"})', "query")
    assert (found.claim.id, found.verdict) == ("same as published", "holds")


def test_numbers_show_a_difference(tmp_path: Path) -> None:
    (found,) = verdicts(tmp_path, CORRECTION.replace("v -", "v +"), 'r.same_as("published.py")')
    assert found.verdict == "fails" and found.counterexample is not None
    (left, mine), (right, theirs) = found.counterexample.sides
    assert (left, right) == ("o of mine", "o of published") and mine != theirs


def test_names_that_are_missing_are_told(tmp_path: Path) -> None:
    (found,) = verdicts(tmp_path, CORRECTION, 'r.same_as("published.py")', "query")
    assert found.verdict == "error" and found.error is not None
    assert "published has no 'q', as mine has" in found.error.message


def test_what_holds_no_recurrence_is_refused(tmp_path: Path) -> None:
    (found,) = verdicts(tmp_path, CORRECTION, 'r.same_as("softmax_attention")')
    assert found.error is not None and "softmax_attention holds several recurrences, or none" in found.error.message
