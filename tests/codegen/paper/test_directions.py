r"""Products that are written from their last index down, as authors of ordered products of matrices do, and sums likewise."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_ranges import rows

A = (
    r"$k_t \in \mathbb R^d$, $v_t \in \mathbb R^e$, $A_t \in \mathbb R^{d \times d}$" + "\n"
    r"$$S_t = A_t S_{t-1} + k_t v_t^\top, \quad S_0 = 0$$" + "\n" + r"$$o_t = S_t^\top q_t$$" + "\n"
)


def of(product: str) -> str:
    return rf"S_t = \sum_{{i=1}}^t \left({product} A_j\right) k_i v_i^\top"


@pytest.mark.parametrize(
    "row, verdict",
    [
        (of(r"\prod_{j=t}^{i+1}"), "holds"),
        (of(r"\prod_{j=i+1}^{\curvearrowleft t}"), "holds"),
        (of(r"\prod^{\curvearrowleft}_{j=i+1,\dots,t}"), "holds"),
        (of(r"\overleftarrow{\prod_{j=i+1}^{t}}"), "holds"),
        (of(r"\mathop{\overleftarrow{\prod}}\limits_{j=i+1}^{t}"), "holds"),
        (of(r"\overset{\leftarrow}{\prod}_{j=i+1}^{t}"), "holds"),
        (of(r"\prod_{t \ge j > i}"), "holds"),
        (of(r"\prod_{\substack{j > i \\ j \le t}}^{\leftarrow}"), "holds"),
        (of(r"\prod_{j = t, t-1, \ldots, i+1}"), "holds"),
        (r"S_t = \sum_{i=t}^{1} \prod_{j=t}^{i+1} A_j k_i v_i^\top", "holds"),
        (r"S_t = \sum_{i \in [t]} A_t \cdots A_{i+1} k_i v_i^\top", "holds"),
        (of(r"\prod_{j=i+1}^{t}"), "depends"),  # the order isn't said
        (of(r"\overrightarrow{\prod}_{j=i+1}^{t}"), "fails"),
        (of(r"\prod_{j=t}^{i}"), "fails"),
        (of(r"\prod_{j=i}^{t+1}"), "fails"),
        (of(r"\prod_{t \ge j \ge i}"), "fails"),
        (r"S_t^\top = \sum_{i=1}^t v_i k_i^\top \prod_{j=t}^{i+1} A_j^\top", "fails"),
        # the state at an earlier step: between bounds that don't lie so, the row says nothing
        (r"S_t = \prod_{j=t}^{s+1} A_j S_s + \sum_{i=s+1}^t \prod_{j=t}^{i+1} A_j k_i v_i^\top, \quad s < t", "holds"),
        (r"S_t = \prod_{j=t}^{s+1} A_j S_s + \sum_{i=s+1}^t \prod_{j=t}^{i+1} A_j k_i v_i^\top", "holds"),
        (r"S_t = A_t \cdots A_{s+1} S_s + \sum_{i=s+1}^t A_t \cdots A_{i+1} k_i v_i^\top", "holds"),
        (r"S_t = \prod_{j=t}^{s+1} A_j S_s + \sum_{i=s}^t \prod_{j=t}^{i+1} A_j k_i v_i^\top", "fails"),
    ],
)
def test_what_is_written_from_its_last_index_down(tmp_path: Path, row: str, verdict: str) -> None:
    assert rows(tmp_path, A + f"$${row}$$")[-1] == verdict


@pytest.mark.parametrize(
    "defined", [r"P_{t,i} = \prod_{j=t}^{i+1} A_j", r"P_{ij} = \prod_{s=i}^{j+1} A_s", r"P_{t:s} := A_t \cdots A_{s+1}"]
)
def test_a_definition_of_which_only_a_shift_tells_the_direction(tmp_path: Path, defined: str) -> None:
    use = [r"S_t = \sum_{i=1}^t P_{t,i} k_i v_i^\top", r"o_t = \sum_{i=1}^t v_i k_i^\top P_{t,i}^\top q_t"]
    assert rows(tmp_path, A + "".join(f"$${x}$$\n" for x in (defined, *use)))[2:] == ["definition", "holds", "holds"]
