r"""What the text between displays says of symbols that no display defines."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_ranges import rows

R = r"$$S_t = \lambda_t S_{t-1} + k_t v_t^\top, \quad S_0 = 0$$" + "\n" + r"$$o_t = S_t^\top q_t$$" + "\n"
MASKED = r"$$O = ((Q K^\top) \odot D) V$$"
PRODUCT = r"\prod_{r=s+1}^t \lambda_r"


@pytest.mark.parametrize(
    "text, row, verdict",
    [
        (r"With $G_t = \partial \mathcal L / \partial S_t$,", r"dv_t = G_t^\top k_t", "holds"),
        (r"With \(G_t := \frac{\partial L}{\partial S_t}\),", r"dv_t = G_t k_t", "fails"),
        (r"With $G_t = \partial L / \partial S_t$,", r"G_t = \lambda_{t+1} G_{t+1} + q_t do_t^\top", "holds"),
        (r"With $G_t = \partial L / \partial S_t$,", r"G_t = \lambda_t G_{t+1} + q_t do_t^\top", "fails"),
        (r"Write $P_t = S_t do_t$, where $\lambda_t \in (0, 1]$.", "dq_t = P_t", "holds"),
        (r"If $P_t = S_t do_t$, then", "dq_t = P_t", "not judged"),
        (r"Here $P_t = S_t do_t$ once, and $P_t = 2 S_t do_t$ elsewhere.", "dq_t = P_t", "not judged"),
        (rf"Let $D_{{ts}} = {PRODUCT}$ for $s \le t$ and $0$ otherwise.", MASKED.strip("$"), "holds"),
        (rf"Let $D_{{ts}} = {PRODUCT}$ if $s \le t$, and zero otherwise.", MASKED.strip("$"), "holds"),
        (rf"Let $D_{{ts}} = {PRODUCT}$ for $s < t$ and $0$ otherwise.", MASKED.strip("$"), "fails"),
        (rf"Let $D_{{ts}} = {PRODUCT}$ for all $s \le t$.", MASKED.strip("$"), "depends"),
    ],
)
def test_what_the_text_says(tmp_path: Path, text: str, row: str, verdict: str) -> None:
    """A definition in the text counts as one in a display, with the condition that its sentence has; a case is
    none, and of two that differ neither is taken."""
    assert rows(tmp_path, f"{R}\n{text}\n$${row}$$\n")[-1] == verdict


def test_displays_come_first(tmp_path: Path) -> None:
    """What a display defines isn't what the text calls by the same letter."""
    text = f"{R}\nIn short $P_t = q_t do_t^\\top$.\n$$P_t = S_t do_t$$\n$$dq_t = P_t$$\n"
    assert rows(tmp_path, text)[-2:] == ["definition", "holds"]


def test_what_the_step_reads_is_a_part_of_it(tmp_path: Path) -> None:
    """An error that a sentence behind the update says is no input: what depends on the state has its gradient."""
    text = r"""
For $q_t, k_t \in \mathbb{R}^d$, $v_t \in \mathbb{R}^e$ and $g_t \in (0, 1)$,
$$ M_t = g_t M_{t-1} + k_t u_t^\top $$
$$ y_t = M_t^\top q_t $$
where $u_t = v_t - M_{t-1}^\top k_t$. Put $A_t = g_t I - k_t k_t^\top$ and $\Lambda_t = \frac{\partial L}{\partial M_t}$; then
$$ M_t = A_t M_{t-1} + k_t v_t^\top $$
$$ \Lambda_t = A_{t+1} \Lambda_{t+1} + q_t\, dy_t^\top $$
$$ dv_t = \Lambda_t^\top k_t $$
$$ dk_t = \Lambda_t u_t $$
"""
    assert rows(tmp_path, text) == ["recurrence", "recurrence", "holds", "holds", "holds", "fails"]
