"""Documents that don't say the shapes of their symbols: nothing is called false for what was guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkform.codegen.claims.verifier import Verifier
from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.readings import adopted

R = r"$$h_t = A_t h_{t-1} + \Delta_t B_t x_t$$" + "\n" + r"$$y_t = C_t^\top h_t$$" + "\n"
DECLARED = r"Here $x_t \in \mathbb R^f$, $B_t \in \mathbb R^{d \times f}$ and $A_t \in \mathbb R^{d \times d}$." + "\n"


def verdict_of(folder: Path, text: str) -> str:
    """The verdict of a document's last claim, with its evidence."""
    path = folder / "paper.md"
    path.write_text(text, encoding="utf-8")
    _, verdicts = adopted(read_paper(path), lambda claims: [Verifier(effort=0.1).judge(c) for c in claims])
    return verdicts[-1].verdict


@pytest.mark.parametrize(
    "row, verdict",
    [
        (r"h_t = A_t h_{t-1} + \Delta_t x_t B_t", "depends"),
        (r"h_t = \sum_{i=1}^t \Delta_i x_i A_t \cdots A_{i+1} B_i", "depends"),
        (r"dB_t = \Delta_t x_t dh_t", "depends"),
        (r"dB_t = \Delta_t dh_t x_t^\top", "holds"),
        (r"h_t = A_t h_{t-1} - \Delta_t x_t B_t", "fails"),
        (r"dB_t = \Delta_t x_t h_t", "fails"),
        (r"dx_t = \Delta_t dh_t B_t", "depends"),
        (r"dh_t = dh_{t+1} A_{t+1} + C_t dy_t", "depends"),  # A may be a number
    ],
)
def test_a_formula_that_fits_other_shapes_only_depends_on_them(tmp_path: Path, row: str, verdict: str) -> None:
    assert verdict_of(tmp_path, R + f"$${row}$$") == verdict


def test_shapes_that_are_declared_stay_as_they_are(tmp_path: Path) -> None:
    assert verdict_of(tmp_path, DECLARED + R + r"$$h_t = A_t h_{t-1} + \Delta_t x_t B_t$$") == "fails"
