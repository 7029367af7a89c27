r"""Mistakes in rows of a paper, and that the nearest true formula is what the row should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkform.codegen.claims.verifier import Verifier
from chunkform.codegen.paper.build import read_paper

CHANNELS = r"""with $q_t, k_t \in \mathbb R^d$, $v_t \in \mathbb R^e$, $\alpha_t \in (0,1)^d$
$$S_t = \mathrm{diag}(\alpha_t) S_{t-1} + k_t v_t^\top$$
$$o_t = S_t^\top q_t$$
"""
SOLVED = r"""with $q_t, k_t \in \mathbb R^d$, $x_t \in \mathbb R^e$
$$S_t = (S_{t-1} + \beta_t x_t k_t^T)(I + \beta_t k_t k_t^T)^{-1}$$
$$o_t = S_t q_t$$
"""
ROWS = {  # the row as stated, and as it should be
    "a transpose beside ones": (
        CHANNELS,
        r"d\alpha_t = (S_{t-1} \odot dS_t)^\top \mathbf 1",
        "dalpha(t) = (S(t-1) o dS(t)) * 1_{e}",
    ),
    "two shifts": (
        CHANNELS,
        r"dS_t = \mathrm{diag}(\alpha_t) dS_{t+1} + q_{t+1} do_t^\top",
        "dS(t) = diag(alpha(t+1)) * dS(t+1) + q(t) * do(t).T",
    ),
    "two shifts that leave the last step out": (
        CHANNELS,
        r"dS_t = \mathrm{diag}(\alpha_t) dS_t + q_t do_t^\top",
        "dS(t) = diag(alpha(t+1)) * dS(t+1) + q(t) * do(t).T",
    ),
    "another gradient in an inner product": (
        CHANNELS,
        r"q_t^\top dq_t = \langle o_t, dq_t \rangle",
        "q(t).T * dq(t) = inner(o(t), do(t))",
    ),
    "another gradient in a term": (
        CHANNELS,
        r"dS_t = \mathrm{diag}(\alpha_{t+1}) dS_{t+1} + q_t dq_t^\top",
        "dS(t) = diag(alpha(t+1)) * dS(t+1) + q(t) * do(t).T",
    ),
    "a missing inverse of a sum": (
        SOLVED,
        r"dS_t = dS_{t+1} (I + \beta_{t+1} k_{t+1} k_{t+1}^\top) + do_t q_t^\top",
        "dS(t) = dS(t+1) * (I_d + beta(t+1) * k(t+1) * k(t+1).T)^-1 + do(t) * q(t).T",
    ),
    "a missing inverse inside a product": (
        SOLVED,
        r"dx_t = \beta_t dS_t (I + \beta_t k_t k_t^\top) k_t",
        "dx(t) = beta(t) * dS(t) * (I_d + beta(t) * k(t) * k(t).T)^-1 * k(t)",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_mistake_is_repaired(tmp_path: Path, name: str) -> None:
    start, row, right = ROWS[name]
    path = tmp_path / "paper.md"
    path.write_text(f"{start}\n$${row}$$\n", encoding="utf-8")
    (claim,) = read_paper(path).claims
    found = Verifier().judge(claim)
    assert found.verdict == "fails"
    assert found.repaired == right


def test_no_repair_is_the_left_side_in_another_notation(tmp_path: Path) -> None:
    path = tmp_path / "paper.md"
    row = r"\langle q_t, dq_t \rangle = \langle S_t^\top q_t, dv_t \rangle"
    path.write_text(f"{CHANNELS}\n$${row}$$\n", encoding="utf-8")
    (claim,) = read_paper(path).claims
    found = Verifier().judge(claim)
    assert found.verdict == "fails"
    assert found.repaired not in (
        "inner(q(t), dq(t)) = q(t).T * dq(t)",
        "inner(q(t), dq(t)) = dq(t).T * q(t)",
        "inner(q(t), dq(t)) = inner(dq(t), q(t))",
    )
