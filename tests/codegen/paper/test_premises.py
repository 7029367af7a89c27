"""Rows that are meant under a condition on quantities are judged under it, at the step that it speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkform.codegen.claims.verifier import Verifier
from chunkform.codegen.paper.build import read_paper

R = "with $q_t, k_t \\in \\mathbb R^d$\n$$S_t = \\lambda_t S_{t-1} + k_t v_t^\\top$$\n$$o_t = S_t^\\top q_t$$\n"


def verdict(folder: Path, row: str) -> str:
    path = folder / "paper.md"
    path.write_text(f"{R}\n$${row}$$\n", encoding="utf-8")
    paper = read_paper(path)
    if not paper.claims:
        return paper.document.rows[-1].kind
    found = Verifier(effort=0).judge(paper.claims[0])
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
        # what is so at step t says nothing of the step before
        (r"S_t = \lambda_t \lambda_{t-1} S_{t-2} \quad \text{if } v_t = 0", "depends"),
        (r"S_t = \lambda_t \lambda_{t-1} S_{t-2} \quad \text{if } v_t = 0 \text{ for all } t", "holds"),
        (r"S_t = \lambda_t \lambda_{t-1} S_{t-2} \quad \text{if } v = 0", "holds"),
        (r"S_t = S_0 + \sum_{i=1}^t k_i v_i^\top \quad \text{if } \lambda_t = 1", "depends"),
        (r"S_t = S_0 + \sum_{i=1}^{t-1} k_i v_i^\top \quad \text{if } \lambda_t = 1", "fails"),
        (r"o_t = 0 \quad \text{if } o_{t-1} = 0", "not judged"),
        (r"o_t = S_{t-1}^\top q_t \quad \text{if } \lambda_t > 1", "not judged"),
    ],
)
def test_a_row_is_judged_under_its_condition(tmp_path: Path, row: str, expected: str) -> None:
    assert verdict(tmp_path, row) == expected
