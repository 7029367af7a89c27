"""`chunkform verify paper.md`: what it prints and writes, and how it ends."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import chunkform
from chunkform.codegen.commands.cli import app
from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.command import first_of, watch_papers
from chunkform.errors import ChunkformError

RIGHT = r"""# A sum with decay

$$
\begin{aligned}
\mathbf S_t &= \lambda_t \mathbf S_{t-1} + \mathbf k_t \mathbf v_t^\top, \\
\mathbf o_t &= \mathbf S_t^\top \mathbf q_t, \\
\mathbf{dq}_t &= \mathbf S_t \mathbf{do}_t.
\end{aligned}
$$
"""
WRONG = RIGHT + "\n$$\\mathbf{dv}_t = \\mathbf{dS}_t \\mathbf k_t$$\n"
DEPENDS = (
    RIGHT
    + "\n$$\\mathrm d\\log\\lambda_t = \\sum_{s=t}^n (\\mathbf q_s^\\top \\mathbf{dq}_s - \\mathbf k_s^\\top \\mathbf{dk}_s)$$\n"
)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["verify", *arguments])
    return int(ended.value.code or 0)


def written(folder: Path, text: str, name: str = "paper.md") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_exit_status_says_that_a_claim_fails_or_depends(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(written(tmp_path, RIGHT)) == 0
    assert run(written(tmp_path, WRONG)) == 1
    assert run(written(tmp_path, DEPENDS), "--strict") == 3
    assert run(written(tmp_path, RIGHT), "--strict") == 0
    assert run(str(tmp_path / "none.md")) == 2
    assert run(written(tmp_path, "No formula.", "words.md")) == 2
    assert "words.md displays no formula" in capsys.readouterr().err
    assert run("delta_rule", "--latex", str(tmp_path / "x.tex")) == 2
    capsys.readouterr()


def test_the_report_has_rows_in_order_with_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    target = tmp_path / "out.json"
    page = tmp_path / "out.html"
    bad = WRONG + "\n$$ \\mathbf q_t = \\frac{1 $$\n\n$$ \\mathbf k_t = \\wrong{x} $$\n"
    assert run(written(tmp_path, bad), "--json", str(target), "--html", str(page)) == 1
    rows = json.loads(target.read_text())
    assert [r["line"] for r in rows if r["verdict"]] == [7, 11]
    assert [r["verdict"] for r in rows if r["verdict"]] == ["holds", "fails"]
    assert [r["repair"]["formula"] for r in rows if r["verdict"] == "fails"] == ["dv(t) = dS(t).T * k(t)"]
    unread = {r["line"]: r["reason"] for r in rows if not r["verdict"] and r["kind"] == "not read"}
    assert "isn't known" in unread[15]
    text = page.read_text()
    assert text.count("<math") > 5
    assert "http" not in text.replace("http://www.w3.org", "")
    capsys.readouterr()


def test_a_long_row_is_cut_at_a_space_and_says_so() -> None:
    assert first_of("S_t = S_{t-1}") == "S_t = S_{t-1}"
    text = " ".join([r"\mathbf{S}"] * 20)
    assert first_of(text) == " ".join([r"\mathbf{S}"] * 10) + " .."


def test_a_copy_with_the_verdicts_keeps_every_formula(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    copy = tmp_path / "copy.md"
    path = written(tmp_path, WRONG)
    run(path, "--annotate", str(copy))
    again = read_paper(copy)
    before = read_paper(path)
    assert [c.statement for c in again.claims] == [c.statement for c in before.claims]
    assert "% fails: " in copy.read_text()
    tex = tmp_path / "copy.tex"
    source = (
        "\\documentclass{article}\n\\usepackage{amsmath}\n\\begin{document}\n"
        + WRONG.split("\n", 2)[2]
        + "\\end{document}\n"
    )
    run(written(tmp_path, source, "paper.tex"), "--annotate", str(tex))
    assert "\\refuted{}" in tex.read_text()
    assert [str(c.statement) for c in read_paper(tex).claims] == [str(c.statement) for c in before.claims]
    capsys.readouterr()


def test_the_appendix_is_a_document_with_numbered_formulas(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    target = tmp_path / "appendix.tex"
    run(written(tmp_path, WRONG), "--latex", str(target))
    text = target.read_text()
    assert text.count("\\begin{") == text.count("\\end{")
    assert text.count("{") == text.count("}")
    assert text.count("\\cfformula{") > 10
    assert "\\refstepcounter" in text
    assert "Corrections" in text
    capsys.readouterr()


def test_a_first_header_is_read_back_to_the_same_claims(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = written(tmp_path, WRONG)
    before = [str(c.statement) for c in read_paper(path).claims]
    assert run(path, "--header") == 0
    assert "guessed" in (tmp_path / "paper.toml").read_text()
    assert [str(c.statement) for c in read_paper(path).claims] == before
    assert run(path, "--header") == 2  # it isn't overwritten
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[symbols", r"isn't TOML: line 1, `\[symbols`"),
        ("steps = 'n'\nsymbols:\n  q: input d", "line 2, `symbols:`.*looks like YAML"),
        ("[symbols]\n" + r'"\lambda_t" = "decay"', "line 2.*single quotes"),
        ("colour = 1", "colour.*none of"),
        ("symbol = 'd'", "did you mean symbols"),
        ("symbols = 3", r"symbols is a table: `\[symbols\]`, and a line for each, got 3"),
        ("steps = 3", "steps is `steps = .*got 3"),
        ("[symbols]\nq = 'inputs d'", "inputs d.*did you mean input"),
        ("[symbols]\nq = 'input d e f'", "at most two dims"),
        ("[symbols]\nq = 'input d*e'", "at most two dims"),
        ("[indices]\ni = '1-n'", "a range such as"),
        ("[define]\nQ = 3", "text in quotes, got 3"),
        ("[readings]\nQ = 'K'", r"a table of their own, \[readings.'Q'\]"),
        ("[rows]\nfirst = 'x'", "number of a line"),
        ("recurrence = [1]", "a list of equations in quotes"),
        ("[[part]]\nrecurrence = []", "the line where it starts"),
        ("[define]\n'\\mathbf Q' = 'rows_t('", "mathbf Q|can't be read"),
    ],
)
def test_a_wrong_header_is_refused_with_what_it_says(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, RIGHT)
    (tmp_path / "paper.toml").write_text(text)
    with pytest.raises(ChunkformError, match=said):
        read_paper(path)


def test_a_header_in_a_comment_is_refused_with_its_line_in_the_document(tmp_path: Path) -> None:
    for name, comment in (("p.md", "<!-- chunkform\nsteps = n\n-->\n"), ("p.tex", "% chunkform\n% steps = n\n")):
        with pytest.raises(ChunkformError, match="line 2, `steps = n`"):
            read_paper(written(tmp_path, comment + RIGHT, name))


def test_a_document_has_one_header_and_it_is_toml(tmp_path: Path) -> None:
    path = written(tmp_path, '<!-- chunkform\nsteps = "n"\n-->\n' + RIGHT)
    (tmp_path / "paper.toml").write_text('steps = "n"')
    with pytest.raises(ChunkformError, match="keep one of them"):
        read_paper(path)
    path = written(tmp_path, RIGHT, "other.md")
    (tmp_path / "other.yaml").write_text("steps: n")
    with pytest.raises(ChunkformError, match="a header is TOML"):
        read_paper(path)


def test_watching_judges_again(tmp_path: Path) -> None:
    console = Console(record=True, file=io.StringIO())
    watch_papers([written(tmp_path, RIGHT)], console, every=0.01, rounds=1)
    assert "watching" in console.export_text()


def test_a_document_is_compiled_to_an_op(tmp_path: Path) -> None:
    import torch

    op = chunkform.compile(written(tmp_path, RIGHT))
    q, k, v = torch.randn(3, 1, 40, 2, 8).double()
    out, _ = op(k, v, q, log_lam=-torch.rand(1, 40, 2).double())
    assert out.shape == (1, 40, 2, 8)
    with pytest.raises(ChunkformError, match="no recurrence"):
        chunkform.compile(written(tmp_path, "# Nothing\n$$ x = y $$\n"))


def test_nothing_of_a_document_is_executed_or_opened(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = RIGHT + f"\n\\input{{{mark}}} \\immediate\\write18{{touch {mark}}}\n$$ x = \\input{{/etc/passwd}} $$\n"
    read_paper(written(tmp_path, text, "p.tex"))
    assert not mark.exists()


def test_a_part_keeps_what_was_defined_before_it(tmp_path: Path) -> None:
    """A mask that the first part of a document defines isn't the causal mask in its second part."""
    text = (
        "$$ M_{ij} = \\begin{cases} 2, & i \\ge j \\\\ 0, & i < j \\end{cases} $$\n\n"
        + RIGHT
        + "\n$$ \\mathrm{tril}(M) = 2 \\mathrm{tril}(\\mathbf 1 \\mathbf 1^\\top) $$\n"
    )
    (tmp_path / "paper.toml").write_text("[[part]]\nfrom = 1\n\n[[part]]\nfrom = 3\n")
    claims = [str(c.statement) for c in read_paper(written(tmp_path, text)).claims]
    assert any("M(i, j)" in c for c in claims), claims


def test_what_is_said_by_its_value_before_is_never_just_given(tmp_path: Path) -> None:
    """Else its own equation would be judged, and be false."""
    step = "\\lambda_t P_{t-1}^{-1} + u_t u_t^\\top"
    text = f"# p\n$$ P_t^{{-1}} = {step} $$\n$$ P_t = ({step})^{{-1}} $$\n"
    paper = read_paper(written(tmp_path, text))
    assert paper.claims == []
    assert all("value before" in r.reason or "isn't known" in r.reason for r in paper.document.rows)
