"""Rows that hold in one case only, rows of several formulas, and marks in a copy of the document: nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chunkform.codegen.claims.verifier import Verifier
from chunkform.codegen.commands.cli import app
from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.paper import Paper

R = "$$S_t = \\lambda_t S_{t-1} + k_t v_t^\\top$$\n$$o_t = S_t^\\top q_t$$\n"
WITHOUT = "$$S_t = S_{t-1} + k_t v_t^\\top$$\n$$dS_t = dS_{t+1} + q_t do_t^\\top$$\n"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["verify", *arguments])
    return int(ended.value.code or 0)


def paper_of(folder: Path, text: str, name: str = "paper.md") -> Paper:
    (folder / name).write_text(text, encoding="utf-8")
    return read_paper(folder / name)


def verdicts(paper: Paper) -> list[str]:
    return [Verifier(thorough=False).judge(c).verdict for c in paper.claims]


@pytest.mark.parametrize(
    "row, verdict",
    [
        (r"o_t = S_{t-1}^\top q_t + v_t k_t^\top q_t \quad \text{when } \lambda_t = 1", "holds"),
        (r"\lambda_t = 1", ""),
        (r"k_t = q_t", ""),
        (r"o_t = \lambda_t S_{t-1}^\top q_t \quad \text{if } v_t = 0", "holds"),
        (r"o_t = S_{t-1}^\top q_t \quad \text{if } v_t = 0, \lambda_t = 1", "holds"),
        (r"\text{if } v_t = 0, \quad o_t = \lambda_t S_{t-1}^\top q_t", "holds"),
        (r"o_t = S_{t-1}^\top q_t \quad \text{provided that } S_0 = 0", "fails"),
    ],
)
def test_a_special_case_binds_its_own_row_only(tmp_path: Path, row: str, verdict: str) -> None:
    paper = paper_of(tmp_path, f"{R}{WITHOUT}\n$${row}$$\n\n$$dq_t = S_t do_t$$\n$$dk_t = dS_t v_t$$\n")
    assert {v.name for v in paper.recurrence.variables} == {"q", "k", "v", "lam"}
    assert verdicts(paper) == ["fails", "fails", *([verdict] if verdict else []), "holds", "holds"]
    assert paper.document.rows[4].kind == ("claim" if verdict else "not judged")


def test_every_formula_of_a_row_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = (
        R
        + "$$dk_t = \\mu_t dS_t q_t, \\quad dq_t = S_t do_t$$\n$$S_t = \\alpha_t S_{t-1}, \\quad o_t = S_t^\\top q_t$$\n"
    )
    (tmp_path / "paper.md").write_text(text, encoding="utf-8")
    out, copy = tmp_path / "out.json", tmp_path / "copy.md"
    run(str(tmp_path / "paper.md"), "--json", str(out), "--annotate", str(copy))
    assert "2 formulas of these rows not judged" in " ".join(capsys.readouterr().out.split())
    rows = [r for r in json.loads(out.read_text()) if r["line"] in (3, 4)]
    assert [(r["line"], r["verdict"]) for r in rows] == [(3, "holds"), (3, None), (4, "holds"), (4, None)]
    assert all("isn't known" in r["reason"] for r in rows if r["verdict"] is None)
    assert copy.read_text().count("% not judged\n") == 2
    assert "% holds" not in copy.read_text()


@pytest.mark.parametrize("row", [r"\det S_t = 1", r"\det(S_t) = 0", r"\mathrm{rank}(S_t) = 1", r"f(S_t) = 0"])
def test_a_function_that_is_not_known_is_not_defined_by_a_claim_about_it(tmp_path: Path, row: str) -> None:
    paper = paper_of(tmp_path, f"{R}\n$${row}$$\n")
    assert paper.document.rows[2].kind == "not judged"
    assert paper.document.rows[2].reason


ENDS = (
    "dq_t &= S_t do_t^{\\vphantom{\\top}} \\\\\n"
    "d\\lambda_t &= \\langle S_{t-1}, dS_t \\rangle \\\\ % as above\n"
    "dv_t &= k_t^\\T dS_t^\\T % with a slip\n"
)


def test_marks_stand_between_tokens(tmp_path: Path) -> None:
    text = (
        "\\newcommand{\\T}{\\top}\n\\begin{document}\n"
        + R
        + "\\begin{align}\n"
        + ENDS
        + "\\end{align}\n\\end{document}\n"
    )
    before = paper_of(tmp_path, text, "paper.tex")
    copy = tmp_path / "copy.tex"
    run(str(tmp_path / "paper.tex"), "--annotate", str(copy))
    marked = copy.read_text()
    assert "\\rangle\\verified{} \\\\ % as above\n" in marked
    assert "dS_t^\\T\\refuted{}" in marked
    assert [str(c.statement) for c in read_paper(copy).claims] == [str(c.statement) for c in before.claims]


def test_marks_in_markdown_leave_formulas_and_displays_whole(tmp_path: Path) -> None:
    text = R + "$$\nd\\lambda_t = \\langle S_{t-1}, dS_t \\rangle \n$$\n$$dq_t = dS_t^\\top$$\n"
    before = paper_of(tmp_path, text)
    copy = tmp_path / "copy.md"
    run(str(tmp_path / "paper.md"), "--annotate", str(copy))
    assert "\\rangle % holds" in copy.read_text()
    assert "^\\top % fails" in copy.read_text()
    assert "\n \n" not in copy.read_text()
    assert [str(c.statement) for c in read_paper(copy).claims] == [str(c.statement) for c in before.claims]


def test_without_a_recurrence_the_rest_is_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "paper.md").write_text("$$ (A + B)^2 = A^2 + B^2 $$\n", encoding="utf-8")
    copy = tmp_path / "copy.md"
    arguments = "--latex", str(tmp_path / "x.tex"), "--annotate", str(copy)
    assert run(str(tmp_path / "paper.md"), *arguments) == 1
    assert "has no recurrence" in " ".join(capsys.readouterr().out.split())
    assert copy.exists()


def test_a_long_row_that_is_false_ends_with_its_budget(tmp_path: Path) -> None:
    side = " + ".join(f"{k} S_t^\\top q_t + {k} v_t k_t^\\top q_t" for k in range(2, 60))
    paper = paper_of(tmp_path, f"{R}\n$$o_t = {side}$$\n")
    found = Verifier(effort=0.5).judge(paper.claims[0])
    assert found.verdict == "fails"
    assert found.search is not None
    assert not found.search.complete
    assert found.seconds < 5  # processor time; 20 where only evaluating counts
