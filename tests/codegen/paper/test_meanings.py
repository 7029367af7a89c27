"""What a row is for: a definition, a statement on an input, an abbreviation, or a claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkform.codegen.claims.verifier import Verifier
from chunkform.codegen.paper.build import read_paper

DECAY = r"$$S_t = \lambda_t S_{t-1} + k_t v_t^\top$$" + "\n" + r"$$o_t = S_t^\top q_t$$" + "\n"
DELTA = r"$$S_t = \alpha_t S_{t-1} + \beta_t (v_t - \alpha_t S_{t-1} k_t) k_t^\top$$" + "\n" + "$$o_t = S_t q_t$$\n"
EXPANDED = (
    r"$$S_t = \alpha_t S_{t-1} (I - \beta_t k_t k_t^\top) + \beta_t v_t k_t^\top$$" + "\n" + "$$o_t = S_t q_t$$\n"
)
WRITTEN = r"$$u_t = \beta_t (v_t - \alpha_t S_{t-1} k_t)$$" + "\n"
PARTIAL = r"$$\frac{\partial L}{\partial v_t} = \beta_t \frac{\partial L}{\partial S_t} k_t$$" + "\n"
PARTIAL += r"$$\frac{\partial L}{\partial q_t} = S_t^\top \frac{\partial L}{\partial o_t}$$"


def rows(folder: Path, text: str) -> list[str]:
    """What becomes of each row: the verdict of a claim, or the row's kind."""
    path = folder / "paper.md"
    path.write_text(text, encoding="utf-8")
    paper = read_paper(path)
    judge = Verifier(thorough=False).judge
    return [judge(r.claims[0]).verdict if r.claims else r.kind for r in paper.document.rows]


@pytest.mark.parametrize(
    "text, last",
    [
        (DECAY + r"$$z_t = S_{t-1}^\top k_t$$" + "\n$$dk_t = dS_t v_t$$", ["holds"]),
        (DELTA + WRITTEN + r"$$dv_t = \beta_t dS_t k_t$$" + "\n$$dv_t = dS_t k_t$$", ["holds", "fails"]),
        (DELTA + WRITTEN + "$$du_t = dS_t k_t$$\n" + r"$$dv_t = \beta_t du_t$$", ["holds", "holds"]),
        (EXPANDED + WRITTEN + PARTIAL, ["holds", "holds"]),
        (  # of what has a gradient that is given, a loss takes
            DECAY + r"$$z_t = S_{t-1}^\top k_t$$" + "\n$$dq_t = S_t do_t$$\n$$dk_t = dS_t v_t + S_{t-1} dz_t$$",
            ["holds", "holds"],
        ),
    ],
)
def test_what_abbreviates_is_no_output(tmp_path: Path, text: str, last: list[str]) -> None:
    assert rows(tmp_path, text)[-len(last) :] == last


def test_the_header_says_what_is_an_output(tmp_path: Path) -> None:
    row = DECAY + r"$$z_t = S_{t-1}^\top k_t$$" + "\n$$dk_t = dS_t v_t$$"
    for kind, verdict in (("output", "fails"), ("let", "holds")):
        header = f'<!-- chunkform\n[symbols]\nz_t = "{kind}"\n-->\n'
        assert rows(tmp_path, header + row)[-1] == verdict


@pytest.mark.parametrize(
    "row",
    [
        r"\lambda_t \in (0,1)",
        r"\lambda_t \in (0, \tfrac12)",
        r"0 < \lambda_t \le 1",
        r"\lambda_t \le 1",
        r"\lambda_t = \lambda, \quad t = 1, \ldots, n",
    ],
)
def test_what_an_input_is_like_is_assumed(tmp_path: Path, row: str) -> None:
    assert rows(tmp_path, DECAY + f"$${row}$$")[-1] == "fact"
    behind = DECAY.replace(r"v_t^\top", rf"v_t^\top, \quad {row}", 1)
    assert rows(tmp_path, behind) == ["recurrence", "recurrence"]


def test_what_a_constant_input_makes_is_not_judged(tmp_path: Path) -> None:
    row = r"$$S_t = \sum_{j=1}^t \lambda^{t-j} k_j v_j^\top + \lambda^t S_0$$"
    assert rows(tmp_path, DECAY + r"$$\lambda_t = \lambda$$" + "\n" + row)[-1] == "not judged"


def test_the_count_of_columns_of_an_alignment_is_no_factor(tmp_path: Path) -> None:
    text = (
        r"\begin{subequations}\begin{alignat}{2} S_t &= \lambda_t S_{t-1} + k_t v_t^\top \\ o_t &= S_t^\top q_t"
        r"\end{alignat}\end{subequations}"
    )
    assert rows(tmp_path, f"$${text}$$") == ["recurrence", "recurrence"]
