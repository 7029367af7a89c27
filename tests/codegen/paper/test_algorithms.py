"""Algorithms are read assignment by assignment, and what their loops carry are sequences."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chunkform.codegen.paper.algorithms import assignments
from chunkform.codegen.paper.build import read_paper

LOOP = r"""\begin{algorithmic}
\State $R \gets 0$
\For{%s}
  \State $R \gets \gamma R + q_t$
  \State $y_t \gets R$
\EndFor
\end{algorithmic}"""


@pytest.mark.parametrize(
    "says, first, before",
    [
        (r"$t = 1, \ldots, n$", "R(0)", "R(t-1)"),
        (r"$t = n, \ldots, 1$", "R(n+1)", "R(t+1)"),
        (r"$t = n$ \textbf{down to} $1$", "R(n+1)", "R(t+1)"),
        (r"$t \gets 1$ \textbf{to} $n$", "R(0)", "R(t-1)"),
    ],
)
def test_what_a_loop_carries_is_a_sequence(tmp_path: Path, says: str, first: str, before: str) -> None:
    path = tmp_path / "paper.tex"
    path.write_text(LOOP % says, encoding="utf-8")
    found = [(str(e.head), str(e.side)) for e in read_paper(path).document.equations]
    assert found == [(first, "0"), ("R(t)", f"gamma * {before} + q(t)"), ("y(t)", "R(t)")]


def test_a_variable_that_is_assigned_twice_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "paper.tex"
    path.write_text(LOOP.replace("\\EndFor", "\\State $R \\gets 2 R$ \\EndFor") % "$t = 1, .., n$", encoding="utf-8")
    rows = read_paper(path).document.rows
    assert {r.kind for r in rows} == {"not judged"}
    assert all("takes several values" in r.reason for r in rows)


@pytest.mark.parametrize("cut", range(20, len(LOOP), 17))
def test_a_truncated_algorithm_is_read_without_a_fault(cut: int) -> None:
    assert all(x.start < x.end for x in assignments(LOOP[:cut] + "\\end{algorithmic}"))


def test_a_program_of_open_braces_takes_no_long_time() -> None:
    for piece in ("\\If{$x$", "\\For{", "\\If{$x$}{", "$a \\gets b$ \\For{$t = 1$}"):
        text = "\\begin{algorithm}" + piece * (45_000 // len(piece)) + "\\end{algorithm}"
        start = time.process_time()
        list(assignments(text))
        assert time.process_time() - start < 5
