"""Gradients without a letter for the loss: a nabla that stands alone, and a delta of which the text says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_ranges import rows

R = r"""
$q_t, k_t \in \mathbb R^d$, $v_t \in \mathbb R^e$, $\gamma_t \in (0, 1)$.
$$S_t = \gamma_t S_{t-1} + k_t v_t^\top$$
$$o_t = S_t^\top q_t$$
"""
GRADIENTS = [r"d v_t = d S_t^\top k_t", r"d q_t = S_t d o_t", r"d k_t = d S_t v_t", r"d v_t = d S_t k_t"]
SAID = [
    r"We write $\delta X$ for the gradient of the loss by $X$.",
    r"Let $\delta \mathbf x = \partial L / \partial \mathbf x$ denote gradients.",
]


def with_nabla(row: str) -> str:
    out = row
    for name in ("S_t", "v_t", "q_t", "k_t", "o_t"):
        out = out.replace(f"d {name}", rf"\nabla_{{{name}}}")
    return out


def displays(claims: list[str]) -> str:
    return "".join(f"$${x}$$\n" for x in claims)


def test_a_nabla_alone_is_a_gradient_of_the_loss(tmp_path: Path) -> None:
    assert rows(tmp_path, R + displays([with_nabla(x) for x in GRADIENTS]))[2:] == ["holds"] * 3 + ["fails"]


def test_a_nabla_with_its_loss_is_read_beside(tmp_path: Path) -> None:
    claims = [with_nabla(GRADIENTS[0]), r"\nabla_{q_t} \mathcal L = S_t \nabla_{o_t} \mathcal L"]
    assert rows(tmp_path, R + displays(claims))[2:] == ["holds", "holds"]


@pytest.mark.parametrize("said", SAID)
def test_a_delta_is_a_gradient_where_the_text_says_so(tmp_path: Path, said: str) -> None:
    claims = [x.replace("d ", r"\delta ") for x in GRADIENTS]
    assert rows(tmp_path, R + said + "\n" + displays(claims))[2:] == ["holds"] * 3 + ["fails"]


@pytest.mark.parametrize("said", ["", r"Its gradients are taken by an error $\delta_t$."])
def test_a_delta_that_is_a_symbol_stays_one(tmp_path: Path, said: str) -> None:
    claims = [
        r"\delta_t = v_t - S_t^\top k_t",
        r"o_t \delta_t^\top = S_t^\top q_t \delta_t^\top",
        r"\delta_t = v_t - S_t k_t",
    ]
    assert rows(tmp_path, R + said + "\n" + displays(claims))[2:] == ["recurrence", "holds", "fails"]
