"""Chunks that are counted from 0, or from 1, in documents that say it and that don't."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .test_ranges import rows

TEXT = r"""
$q_t, k_t \in \mathbb R^d$, $v_t \in \mathbb R^e$, $\gamma_t \in (0, 1)$.
$$S_t = \gamma_t S_{t-1} + k_t v_t^\top$$
$$o_t = S_t^\top q_t$$
Chunks have $C$ steps, and $S_{[t]}$ is the state before chunk $t$.
"""
DEFINED = r"$$F_{[t]}^r = \prod_{i=tC+1}^{tC+r} \gamma_i$$" + "\n"
NEXT = r"S_{[t+1]} = F_{[t]}^C S_{[t]} + \sum_{r=1}^C \frac{F_{[t]}^C}{F_{[t]}^r} k_{[t]}^r (v_{[t]}^r)^\top"
LONG = NEXT.replace("F_{[t]}^C S", r"(\prod_{i=tC+1}^{tC+C} \gamma_i) S")
DECAYED = r"\sum_{i=tC+1}^{tC+C} (\prod_{j=i+1}^{tC+C} \gamma_j) k_i v_i^\top"
STEPS = r"S_{[t+1]} = (\prod_{i=tC+1}^{tC+C} \gamma_i) S_{[t]} + " + DECAYED
INNER = r"(k_{[t]}^r)^\top q_{[t]}^r = k_{tC+r}^\top q_{tC+r}"
WRONG = NEXT.replace(r"\frac{F_{[t]}^C}{F_{[t]}^r}", "F_{[t]}^r")


def from_one(text: str) -> str:
    return text.replace("tC", "(t-1)C")


def verdicts(folder: Path, *claims: str, defined: str = DEFINED) -> list[str]:
    return rows(folder, TEXT + defined + "".join(f"$${x}$$\n" for x in claims))[-len(claims) :]


@pytest.mark.parametrize("count", [str, from_one])
def test_either_way_right_rows_hold_and_a_wrong_one_fails(tmp_path: Path, count: Callable[[str], str]) -> None:
    claims = (count(x) for x in (NEXT, LONG, STEPS, WRONG))
    assert verdicts(tmp_path, *claims, defined=count(DEFINED)) == ["holds", "holds", "holds", "fails"]


def test_a_row_that_is_counted_otherwise_than_the_others_depends(tmp_path: Path) -> None:
    assert verdicts(tmp_path, NEXT, LONG, from_one(STEPS)) == ["holds", "holds", "depends"]
    others = [from_one(NEXT), from_one(LONG)]
    assert verdicts(tmp_path, *others, INNER, defined=from_one(DEFINED)) == ["holds", "holds", "depends"]


def test_where_nothing_tells_both_depend(tmp_path: Path) -> None:
    assert verdicts(tmp_path, STEPS, from_one(STEPS), defined="") == ["depends", "depends"]


@pytest.mark.parametrize(
    "said, found",
    [
        (r", \quad t = 0, \ldots, N - 1", "holds"),
        (r", \quad t = 1, \ldots, N - 1", "fails"),
        (r", \quad 0 \le t < N", "holds"),
    ],
)
def test_what_a_row_says_of_its_chunks_is_taken(tmp_path: Path, said: str, found: str) -> None:
    assert verdicts(tmp_path, NEXT + said, LONG + said) == [found, found]
