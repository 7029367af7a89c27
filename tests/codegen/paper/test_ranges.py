r"""What a row says of the indices for which it is meant: ranges behind it, rows that say together what a symbol is, products
whose middle is left out, and what the document says of the last step."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkform.codegen.claims.verifier import Verifier
from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.readings import adopted
from chunkform.errors import LoadError

R = r"$$S_t = \lambda_t S_{t-1} + k_t v_t^\top, \quad S_0 = 0$$" + "\n" + r"$$o_t = S_t^\top q_t$$" + "\n"
DELTA = (
    r"$$A_t = I - \beta_t k_t k_t^\top$$" + "\n" + r"$$S_t = A_t S_{t-1} + \beta_t k_t v_t^\top, \quad S_0 = 0$$" + "\n"
)
DELTA += r"$$o_t = S_t^\top q_t$$" + "\n"


def rows(folder: Path, text: str) -> list[str]:
    """What becomes of each row: the bare verdict of a claim, or the row's kind."""
    path = folder / "paper.md"
    path.write_text(text, encoding="utf-8")
    paper = read_paper(path)
    _, verdicts = adopted(paper, lambda claims: [Verifier(thorough=False).judge(c) for c in claims])
    found = {id(v.claim): v.verdict for v in verdicts}
    return [found[id(r.claims[0])] if r.claims else r.kind for r in paper.document.rows]


@pytest.mark.parametrize(
    "row, verdict",
    [
        (r"dS_t = \lambda_{t+1} dS_{t+1} + q_t do_t^\top, \quad t = n-1, \ldots, 1", "holds"),
        (r"dS_t = \lambda_t dS_{t+1} + q_t do_t^\top, \quad t = n-1, \ldots, 1", "fails"),
        (r"o_t = \sum_{j=1}^t (\prod_{i=j+1}^t \lambda_i) (q_t^\top k_j) v_j \quad \text{for } j \le t", "holds"),
        (r"o_t = \sum_j (\lambda_t \cdots \lambda_{j+1}) (q_t^\top k_j) v_j, \quad j \le t", "holds"),
        (r"o_t = \sum_j (\lambda_t \cdots \lambda_{j+1}) (q_t^\top k_j) v_j, \quad j < t", "fails"),
        (r"do_t = 0 \quad \text{for } t > n", "not judged"),
    ],
)
def test_a_range_behind_a_row(tmp_path: Path, row: str, verdict: str) -> None:
    assert rows(tmp_path, R + f"$${row}$$")[-1] == verdict


PIECES = (
    r"$$M_{ij} = \prod_{s=j+1}^i \lambda_s, \quad i \ge j$$" + "\n",
    r"$$M_{ij} = 0, \quad i < j$$" + "\n",
    r"$$O = (Q K^\top \odot M) V$$",
)


@pytest.mark.parametrize(
    "more, verdicts",
    [
        ("".join(PIECES), ["definition", "definition", "holds"]),
        (PIECES[0] + PIECES[2], ["definition", "depends"]),  # on what it is elsewhere
        (PIECES[0] + PIECES[1].replace("0,", "1,") + PIECES[2], ["definition", "definition", "fails"]),
        ("".join(PIECES) + "\n$$M_{ij} = 1, \\quad j > i$$", ["definition", "definition", "holds", "fails"]),
    ],
)
def test_rows_under_conditions_say_together_what_a_symbol_is(tmp_path: Path, more: str, verdicts: list[str]) -> None:
    assert rows(tmp_path, R + more)[2:] == verdicts


@pytest.mark.parametrize(
    "row, verdict",
    [
        (r"S_t = \sum_{j=1}^t A_t \cdots A_{j+1} \beta_j k_j v_j^\top", "holds"),
        (r"S_t = \sum_{j=1}^t A_{j+1} \cdots A_t \beta_j k_j v_j^\top", "fails"),
        (r"S_t = \sum_{j=1}^t A_t \cdots A_j \beta_j k_j v_j^\top", "fails"),
        (r"S_t^\top = \sum_{j=1}^t \beta_j v_j k_j^\top A_{j+1}^\top \cdots A_t^\top", "holds"),
        (r"dS_t = \sum_{s=t}^{n} A_{t+1}^\top \cdots A_s^\top q_s do_s^\top, \quad dS_{n+1} = 0", "holds"),
        (r"dS_t = \sum_{s=t}^{n} A_s^\top \cdots A_{t+1}^\top q_s do_s^\top, \quad dS_{n+1} = 0", "fails"),
    ],
)
def test_a_product_of_which_two_factors_are_written(tmp_path: Path, row: str, verdict: str) -> None:
    assert rows(tmp_path, DELTA + f"$${row}$$")[-1] == verdict


def test_a_product_from_one_step_to_another_is_marked(tmp_path: Path) -> None:
    said = r"$$A_{t:s}^\times := \begin{cases} A_t A_{t-1} \cdots A_{s+1} & t > s \\ I & t = s \end{cases}$$" + "\n"
    right = r"$$S_t = \sum_{s=1}^t A_{t:s}^\times \beta_s k_s v_s^\top$$" + "\n"
    assert rows(tmp_path, DELTA + said + right + right.replace("{t:s}", "{t:s+1}"))[3:] == [
        "definition",
        "holds",
        "fails",
    ]


def test_no_loss_of_the_last_state_is_said_by_a_row(tmp_path: Path) -> None:
    text = R + r"$$dS_n = q_n do_n^\top$$" + "\n" + "$$dS_t = q_t do_t^\\top$$\n"
    assert rows(tmp_path, text)[2:] == ["fails", "fails"]
    assert rows(tmp_path, text + "$$dS_{n+1} = 0$$")[2:] == ["holds", "fails", "fact"]


def test_nothing_is_false_for_a_symbol_of_which_a_row_is_not_read(tmp_path: Path) -> None:
    read, unread = (
        r"$$M_{ij} = \prod_{s=j+1}^i \lambda_s$$",
        r"$$M = \begin{pmatrix} 1 & \\ \lambda_2 & \ddots \end{pmatrix}$$",
    )
    claim = "\n" + r"$$O = (Q K^\top \odot M) V$$" + "\n" + r"$$O = Q K^\top V$$"
    assert rows(tmp_path, R + unread + claim)[2:] == ["unread", "not judged", "fails"]
    assert rows(tmp_path, R + read + r" for $i \ge j$" + claim)[-2:] == ["fails", "fails"]


def test_a_definition_says_that_formulas_with_it_would_be_true_if_it_started_a_step_later(tmp_path: Path) -> None:
    path = tmp_path / "paper.md"
    said = r"$$P_{ij} = \prod_{s=j}^i \lambda_s$$" + "\n"
    with_it = r"$$S_t = \sum_{j=1}^t P_{tj} k_j v_j^\top$$" + "\n" + r"$$o_t = \sum_{j=1}^t P_{tj} (k_j^\top q_t) v_j$$"
    for first, told in ((said, "2 would be true with prod[s=j + 1..i] lam(s)"), (said.replace("s=j", "s=j+1"), "")):
        path.write_text(R + first + with_it, encoding="utf-8")
        paper = read_paper(path)
        adopted(paper, lambda claims: [Verifier(thorough=False).judge(c) for c in claims])
        assert told in paper.document.rows[2].reason and bool(told) == ("fail" in paper.document.rows[2].reason)


@pytest.mark.parametrize(
    "row, verdict",
    [
        (r"1 - \lambda_t k_t^\top q_t \in [1 - \lambda_t, 1 + \lambda_t], \quad |k_t^\top q_t| \le 1", "holds"),
        (r"1 - \lambda_t k_t^\top q_t \in [1 - \lambda_t, 1], \quad |k_t^\top q_t| \le 1", "fails"),
        (r"[\lambda_t^2, \lambda_t (2 - \lambda_t)] \in [\lambda_t^2, 1]", "holds"),
        (r"[\lambda_t^2, \lambda_t (2 - \lambda_t)] \in [0, \lambda_t]", "fails"),
    ],
)
def test_intervals(tmp_path: Path, row: str, verdict: str) -> None:
    assert rows(tmp_path, R + f"$${row}$$")[-1] == verdict


def test_a_trace_says_that_a_state_is_square(tmp_path: Path) -> None:
    path = tmp_path / "paper.md"
    right = r"$$\operatorname{tr}(S_t) = \lambda_t \operatorname{tr}(S_{t-1}) + k_t^\top v_t$$"
    for row, verdict in ((right, "depends"), (right.replace("+ k", "- k"), "fails")):
        path.write_text(R + row, encoding="utf-8")
        _, (found,) = adopted(read_paper(path), lambda claims: [Verifier(effort=0).judge(c) for c in claims])
        assert found.verdict == verdict
        assert ("d = e" in [c.text for c in found.conditions]) == (verdict == "depends")


def test_a_derivative_by_an_entry(tmp_path: Path) -> None:
    text = r"with $W \in \mathbb R^{m \times d}$, $x \in \mathbb R^d$, $r \in \mathbb R^m$: $$E = r^\top W x$$" + "\n"
    for side, verdict in (("r_i x_j", "holds"), ("r_j x_i", "fails")):
        assert rows(tmp_path, text + r"$$\frac{\partial E}{\partial W_{ij}} = " + f"{side}$$")[-1] == verdict


def test_the_header_says_why_rows_are_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "paper.md"
    path.write_text(f'<!-- chunkform\n[remarks]\n"6-7" = "prose"\n-->\n{R}$$d \\text{{ for width}}$$', encoding="utf-8")
    assert [r.reason for r in read_paper(path).document.rows][-1] == "prose"


@pytest.mark.parametrize(
    "text",
    [  # a state of chunks that stands without its index, and shapes that speak of each other in a circle
        R + r"$$O_{[i]} = Q_{[i]} S_{[i]} + S_{[]}$$",
        r"$$f = x A y + A B$$ $$g = B x y^\top A$$ $$A B = y x$$ $$x^\top y = B A$$",
    ],
)
def test_what_fits_nothing_is_told_and_stops_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "paper.md"
    path.write_text(text, encoding="utf-8")
    assert all(r.reason for r in read_paper(path).document.rows if r.kind in ("unread", "not judged"))


def test_what_a_header_defines_wrongly_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "paper.md"
    path.write_text(f"<!-- chunkform\n[define]\nQ = 'rows_t(q_t)'\nZ = '\\frac{{1'\n-->\n{R}", encoding="utf-8")
    with pytest.raises(LoadError, match="line 4"):
        read_paper(path)
