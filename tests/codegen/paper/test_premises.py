"""Rows that are meant under a condition on quantities are judged under it, at the step that it speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkform.codegen.claims.verdict import Verdict
from chunkform.codegen.claims.verifier import Verifier
from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.readings import adopted
from chunkform.errors import ClaimError

R = "with $q_t, k_t \\in \\mathbb R^d$\n$$S_t = \\lambda_t S_{t-1} + k_t v_t^\\top$$\n$$o_t = S_t^\\top q_t$$\n"


def verdict(folder: Path, row: str) -> str:
    path = folder / "paper.md"
    path.write_text(f"{R}\n$${row}$$\n", encoding="utf-8")
    paper = read_paper(path)
    if not paper.claims:
        return paper.document.rows[-1].kind
    try:
        found = Verifier(effort=0).judge(paper.claims[0])
    except ClaimError:
        return "error"
    if found.verdict == "holds":
        assert any(c.kind == "where defined" for c in found.conditions)
    return found.verdict


@pytest.mark.parametrize(
    "row, expected",
    [
        (r"o_t = \sum_{j=1}^t (\prod_{i=j+1}^t \lambda_i) v_j k_j^\top q_t, \quad \text{provided } S_0 = 0", "holds"),
        (r"o_t = \sum_{j=1}^t (\prod_{i=j}^t \lambda_i) v_j k_j^\top q_t, \quad \text{provided } S_0 = 0", "fails"),
        (r"S_t^\top k_t = \lambda_t S_{t-1}^\top k_t + v_t, \quad \text{assuming } \|k_t\|^2 = 1", "holds"),
        (r"S_t^\top k_t = \lambda_t S_{t-1}^\top k_t + 2 v_t, \quad \text{assuming } k_t^\top k_t = 1", "fails"),
        (r"o_t = \lambda_t S_{t-1}^\top q_t + v_t \quad \text{if } k_t = q_t \text{ and } \|k_t\| = 1", "holds"),
        (r"o_t = \lambda_t S_{t-1}^\top q_t + v_t \quad \text{if } k_t = q_t", "fails"),
        (r"o_t = 2 S_{t-1}^\top q_t \quad \text{if } v_t = 0, \lambda_t = 2", "holds"),
        (r"o_t = S_{t-1}^\top q_t \quad \text{if } v_t = 0, \lambda_t = 2", "fails"),
        (r"d\log\lambda_t = \sum_{s=t}^n (q_s^\top dq_s - k_s^\top dk_s), \quad \text{if } dS_{n+1} = 0", "holds"),
        (r"d\log\lambda_t = \sum_{s=t}^n (q_s^\top dq_s + k_s^\top dk_s), \quad \text{if } dS_{n+1} = 0", "fails"),
        (
            r"dv_t = \sum_{s=t}^n (\prod_{i=t+1}^s \lambda_i) (q_s^\top k_t) do_s, \quad \text{if } \nabla_{S_{n+1}} L = 0",
            "holds",
        ),
        (
            r"dv_t = \sum_{s=t}^n (\prod_{i=t}^s \lambda_i) (q_s^\top k_t) do_s, \quad \text{if } \nabla_{S_{n+1}} L = 0",
            "fails",
        ),
        # numbers that are 0: a symbol of each is moved until they are
        (r"S_t^\top q_t = \lambda_t S_{t-1}^\top q_t \quad \text{if } k_t^\top q_t = 0", "holds"),
        (r"S_t^\top q_t = \lambda_t S_{t-1}^\top q_t \quad \text{if } k_t \perp q_t", "holds"),
        (r"S_t^\top q_t = \lambda_t S_{t-1}^\top q_t \quad \text{if } q_t^\top q_{t-1} = 0", "fails"),
        (r"S_t^\top k_{t-1} = \lambda_t S_{t-1}^\top k_{t-1} \quad \text{if } k_t^\top k_{t-1} = 0", "holds"),
        (r"S_t^\top k_{t-1} = S_{t-1}^\top k_{t-1} \quad \text{if } k_t^\top k_{t-1} = 0", "fails"),
        (r"k_t^\top S_t v_t = (k_t^\top k_t) (v_t^\top v_t) \quad \text{if } k_t^\top S_{t-1} v_t = 0", "holds"),
        (r"k_t^\top S_t v_t = k_t^\top k_t \quad \text{if } k_t^\top S_{t-1} v_t = 0, \|v_t\| = 1", "holds"),
        (r"k_t^\top S_t v_t = 1 \quad \text{if } k_t^\top S_{t-1} v_t = 0, \|v_t\| = 1", "fails"),
        (r"q_t^\top dq_t = \lambda_t q_t^\top S_{t-1} do_t \quad \text{if } k_t^\top q_t = 0", "holds"),
        (r"S_t = S_{t-1} \quad \text{if } \lambda_t S_{t-1} v_t = 0", "not judged"),
        (r"o_t = 0 \quad \text{if } k_t^\top S_t v_t = 0", "not judged"),
        # sizes that don't fit
        (r"o_t = S_t^\top q_t \quad \text{if } k_t^\top v_t = 0", "not judged"),
        (r"dk_t = dS_t v_t \quad \text{if } k_t^\top v_t < 1", "not judged"),
        (r"dk_t = dS_t v_t \quad \text{if } k_t \perp v_t", "not judged"),
        (r"dk_t = dS_t v_t \quad \text{if } k_t \ne v_t", "not judged"),
        # what is so at step t says nothing of the step before
        (r"S_t = \lambda_t \lambda_{t-1} S_{t-2} \quad \text{if } v_t = 0", "depends"),
        (r"S_t = \lambda_t \lambda_{t-1} S_{t-2} \quad \text{if } v_t = 0 \text{ for all } t", "holds"),
        (r"S_t = \lambda_t \lambda_{t-1} S_{t-2} \quad \text{if } v = 0", "holds"),
        (r"S_t = S_0 + \sum_{i=1}^t k_i v_i^\top \quad \text{if } \lambda_t = 1", "depends"),
        (r"S_t = S_0 + \sum_{i=1}^{t-1} k_i v_i^\top \quad \text{if } \lambda_t = 1", "fails"),
        (r"o_t = 0 \quad \text{if } o_{t-1} = 0", "not judged"),
        (r"o_t = S_{t-1}^\top q_t \quad \text{if } \lambda_t > 1", "not judged"),  # a decay is at most 1
        (r"\lambda_t^2 < \lambda_t \quad \text{if } \lambda_t < 1", "holds"),
        (r"\lambda_t^2 < \lambda_t \quad \text{if } \lambda_t \le 1", "error"),
        (r"\lambda_t^2 < \lambda_t \quad \text{for } 0 < \lambda_t < 1", "holds"),
        (r"\lambda_t^2 > \lambda_t \quad \text{if } \lambda_t \in (0, 1)", "fails"),
        (r"\lambda_t^2 \le \lambda_t / 2 \quad \text{if } \lambda_t \le \frac{1}{2}", "holds"),
        (r"\lambda_t^2 \le \lambda_t / 3 \quad \text{if } \lambda_t \le \frac{1}{2}", "fails"),
        (r"k_t^\top k_t \le 1 \quad \text{if } \|k_t\| \le 1", "error"),  # true, and not proved
        (r"k_t^\top k_t \ge 1 \quad \text{if } \|k_t\| \le 1", "fails"),
        (r"dk_t = dS_t v_t \quad \text{if } \lambda_t < 1", "holds"),
        (r"dk_t = 2 dS_t v_t \quad \text{if } \|k_t\| \le 1", "fails"),
        (r"dS_t = q_t do_t^\top, \quad t = n, \ldots, 1", "fails"),
        (r"o_t = \sum_j (\lambda_t \cdots \lambda_{j+1}) (k_j^\top q_t) v_j, \quad j \le t", "depends"),  # on S_0
        (r"o_t = \sum_j (\lambda_t \cdots \lambda_{j+1}) (k_j^\top q_t) v_j, \quad j < t", "fails"),
    ],
)
def test_a_row_is_judged_under_its_condition(tmp_path: Path, row: str, expected: str) -> None:
    assert verdict(tmp_path, row) == expected


def test_a_condition_on_a_parameter_is_so_at_every_step(tmp_path: Path) -> None:
    """There is one of it: it can't be another number at other steps."""
    path = tmp_path / "paper.md"
    step = "$$W_t = W_{t-1} - \\eta (W_{t-1} k_t - v_t) k_t^\\top, \\quad z_t = W_t q_t$$\n"
    row = "$$W_t k_t = v_t \\quad \\text{if } \\|k_t\\| = 1 \\text{ and } \\eta = 1$$\n"
    path.write_text(f"with $k_t \\in \\mathbb R^d$\n{step}{row}", encoding="utf-8")
    (claim,) = read_paper(path).claims
    assert Verifier(effort=0).judge(claim).verdict == "holds"


def test_a_row_with_a_term_for_the_first_state_is_not_true_because_that_is_zero(tmp_path: Path) -> None:
    """gamma^{t-1} S_0 is wrong, though a document says S_0 = 0."""
    path = tmp_path / "paper.md"
    rest = "\\sum_{s=1}^t \\gamma^{t-s} k_s v_s^\\top"
    rows = f"$$S_t = \\gamma^{{t-1}} S_0 + {rest}$$\n$$S_t = \\gamma^t S_0 + {rest}$$\n$$S_t = {rest}$$\n"
    start = "$S_0 = 0$\n$$S_t = \\gamma S_{t-1} + k_t v_t^\\top$$\n$$o_t = S_t^\\top q_t$$\n"
    path.write_text(start + rows, encoding="utf-8")
    verifier = Verifier(thorough=False)
    _, found = adopted(read_paper(path), lambda claims: [verifier.judge(c) for c in claims])
    assert [v.verdict for v in found] == ["depends", "holds", "holds"]
    assert [c.text for c in found[0].conditions] == ["S(0) = 0"]


def rows_of(folder: Path, text: str, effort: float = 3) -> list[Verdict]:
    path = folder / "paper.md"
    path.write_text(f"{R}\n{text}\n", encoding="utf-8")
    verifier = Verifier(effort=effort)
    return [verifier.judge(c) for c in read_paper(path).claims]


def test_what_is_repaired_under_a_condition_is_true_there(tmp_path: Path) -> None:
    """And brings in nothing that is 0 there, as 1 - lambda_t."""
    rows = (
        (r"S_t = 2 S_{t-1} + k_t v_t^\top", "S(t) = S(t-1) + k(t) * v(t).T"),
        (
            r"o_t = S_{t-1}^\top q_t + q_t^\top k_t v_t + v_t",
            "o(t) = S(t-1).T * q(t) + q(t).T * k(t) * v(t)",
        ),
    )
    text = "".join(f"$${row} \\quad \\text{{if }} \\lambda_t = 1$$\n" for row, _ in rows)
    found = rows_of(tmp_path, text)
    assert [v.verdict for v in found] == ["fails", "fails"]
    assert [v.repaired for v in found] == [right for _, right in rows]


def test_a_condition_whose_sizes_do_not_fit_is_told(tmp_path: Path) -> None:
    path = tmp_path / "paper.md"
    path.write_text(f"{R}\n$$dk_t = dS_t v_t \\quad \\text{{if }} k_t^\\top v_t = 0$$\n", encoding="utf-8")
    reason = read_paper(path).document.rows[-1].reason
    assert reason.startswith("its condition k(t).T * v(t) = 0 isn't tried: can't multiply 1 x d by e x 1")


def test_a_sentence_says_when_a_gradient_is_what_is_displayed_first(tmp_path: Path) -> None:
    """Also where the row is the first one about the gradient; and for all steps, where it says so."""
    row = r"$$dS_t = dS_{t+1} + q_t do_t^\top$$"
    for said, verdict in (("", "depends"), (" for all $t$", "holds"), (" at each step", "holds")):
        (found,) = rows_of(tmp_path, f"If $\\lambda_t = 1${said}, then\n{row}", effort=0)
        assert found.verdict == verdict, said
    (found,) = rows_of(tmp_path, f"We have\n{row}", effort=0)
    assert found.verdict == "fails"
