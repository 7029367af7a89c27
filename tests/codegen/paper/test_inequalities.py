"""Inequalities that a document displays: entry by entry where a side is no number, and never true by a symbol's name alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkform.codegen.claims.command import judged
from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.readings import adopted

R = "$$S_t = \\lambda_t S_{t-1} + k_t v_t^\\top$$\n$$o_t = S_t^\\top q_t$$\n"


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (r"S_t \le S_{t-1}", "fails"),
        (r"S_t \ge S_{t-1}", "fails"),
        (r"dS_t \ge 0", "fails"),
        (r"q_t^\top k_t \ge 0", "fails"),
        (r"o_t < q_t", "fails"),
        (r"\lambda_t \le \lambda_{t-1}", "fails"),
        (r"\exp(q_t^\top k_t) \le 1", "fails"),
        (r"k_t^\top k_t \ge 0", "holds"),
        (r"\lambda_t^2 \le \lambda_t", "holds"),
        (r"k_t^\top k_t > 0", "fails"),  # it is 0 where k_t is
        (r"\|k_t\|^2 \ge 0", "holds"),
        (r"\|S_t\|_F \ge 0", "holds"),
        (r"\|k_t\|^2 > 0", "fails"),
        (r"q_t^\top S_t S_t^\top q_t \ge 0", "holds"),
        (r"\exp(q_t^\top k_t) > 0", "holds"),
        (r"\lambda_t^2 < \lambda_t", "depends"),  # a decay may be 1, as far as this document says
        (r"\lambda_t^2 < 2 \lambda_t", "holds"),
        (r"\lambda_t < \lambda_t", "fails"),
        (r"(\lambda_t - \lambda_{t-1})^2 > 0", "fails"),
        (r"(\lambda_t - \lambda_{t-1})^2 \ge 0", "holds"),
        (r"q_t^\top S_t o_t \ge 0", "not judged"),  # true, and not proved
    ],
)
def test_an_inequality_is_refuted_proved_or_not_judged(tmp_path: Path, row: str, verdict: str) -> None:
    path = tmp_path / "paper.md"
    path.write_text(f"{R}\n$${row}$$\n", encoding="utf-8")
    paper = read_paper(path)
    _, verdicts = adopted(paper, judged)
    row = paper.document.rows[-1]
    assert [v.verdict for v in verdicts] == ([verdict] if row.claims else [])
    if verdict == "not judged":
        assert row.kind == verdict and "neither proved nor refuted" in row.reason
    if verdict == "fails":
        assert verdicts[0].counterexample is not None


def test_a_decay_that_is_said_to_be_less_than_one_is(tmp_path: Path) -> None:
    for said, verdict in ((r"\lambda_t \in (0, 1)", "holds"), (r"\lambda_t \in (0, 1]", "depends")):
        path = tmp_path / "paper.md"
        path.write_text(f"With ${said}$:\n{R}\n$$\\lambda_t^2 < \\lambda_t$$\n", encoding="utf-8")
        _, (found,) = adopted(read_paper(path), judged)
        assert found.verdict == verdict
