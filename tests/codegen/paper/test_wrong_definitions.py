"""A definition that is one slip from right says so, where the formulas with it fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkform.codegen.claims.verifier import Verifier
from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.readings import adopted
from chunkform.codegen.paper.wrong_definitions import WOULD

PAPER = r"""Let $q_t, k_t \in \mathbb R^d$, $v_t \in \mathbb R^e$, and $S_0 = 0$.
$$ S_t = S_{t-1} + \beta_t (v_t - S_{t-1} k_t) k_t^\top $$
$$ o_t = S_t q_t $$
$$ w_t = \beta_t ( k_t - \sum_{i=1}^{t-1} w_i (k_i^\top k_t) ) $$
$$ T = ( I + \mathrm{tril}(\mathrm{diag}(\beta) K K^\top, -1) )^{-1} \mathrm{diag}(\beta) $$
$$ M_{ij} = \mathbb 1[i \ge j] $$
$$ W = T K $$
$$ O = (Q K^\top \odot M) T V $$
$$ \prod_{i=1}^t (I - \beta_i k_i k_i^\top) = I - \sum_{i=1}^t w_i k_i^\top $$
$$ O^\top = V^\top T^\top (K Q^\top \odot M^\top) $$
"""
SLIPS = {
    4: ((r"( k_t - \sum", r"( k_t + \sum"),),
    5: ((", -1) )^{-1}", ", -1) )"), (", -1)", ")"), ("I + ", "I - "), ("K K^\\top", "K^\\top K")),
    6: ((r"i \ge j", "i > j"), (r"i \ge j", r"i \le j")),
}


@pytest.mark.parametrize("line, right, wrong", [(n, *pair) for n, pairs in SLIPS.items() for pair in pairs])
def test_a_definition_one_slip_from_right_says_so(tmp_path: Path, line: int, right: str, wrong: str) -> None:
    lines = PAPER.splitlines()
    assert right in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(right, wrong)
    path = tmp_path / "paper.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    told = marked(path)
    two_slips = wrong in ("K^\\top K", r"i \le j")
    assert set(told) == (set() if two_slips else {line}), told


def test_a_right_definition_is_not_doubted(tmp_path: Path) -> None:
    path = tmp_path / "paper.md"
    path.write_text(PAPER, encoding="utf-8")
    assert marked(path) == {}


def marked(path: Path) -> dict[int, str]:
    paper, verifier = read_paper(path), Verifier(thorough=False)
    adopted(paper, lambda claims: [verifier.judge(c) for c in claims])
    return {r.line: r.reason for r in paper.document.rows if WOULD in r.reason}
