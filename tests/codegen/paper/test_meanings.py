"""What a row is for: a definition, a statement on an input, an abbreviation, or a claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkform.codegen.claims.verifier import Verifier
from chunkform.codegen.paper.build import read_paper
from chunkform.codegen.paper.readings import adopted

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


def test_what_a_constant_input_makes_is_judged_where_it_is_constant(tmp_path: Path) -> None:
    right = r"$$S_t = \sum_{j=1}^t \lambda^{t-j} k_j v_j^\top + \lambda^t S_0$$"
    wrong = right.replace("{t-j}", "{t-j+1}")
    general = (
        r"$$S_t = \lambda_t^2 S_{t-2} + \lambda_t k_{t-1} v_{t-1}^\top + k_t v_t^\top$$"  # true of a constant one only
    )
    text = DECAY + r"$$\lambda_t = \lambda$$" + "\n" + "\n".join((right, wrong, general))
    assert rows(tmp_path, text)[-3:] == ["holds", "fails", "fails"]


def test_the_count_of_columns_of_an_alignment_is_no_factor(tmp_path: Path) -> None:
    text = (
        r"\begin{subequations}\begin{alignat}{2} S_t &= \lambda_t S_{t-1} + k_t v_t^\top \\ o_t &= S_t^\top q_t"
        r"\end{alignat}\end{subequations}"
    )
    assert rows(tmp_path, f"$${text}$$") == ["recurrence", "recurrence"]


GATED = r"$$S_t = \mathrm{diag}(\alpha_t) S_{t-1} + k_t v_t^\top$$" + "\n" + r"$$o_t = S_t^\top q_t$$" + "\n"


@pytest.mark.parametrize("product", [r"\prod", r"\bigodot"])
@pytest.mark.parametrize("ratio", [r"k_j / b_j", r"k_j \oslash b_j"])
def test_a_product_over_columns_is_of_their_entries(tmp_path: Path, product: str, ratio: str) -> None:
    sums = rf"\sum_{{j=1}}^t v_j ((q_t \odot b_t)^\top ({ratio}))$$"
    text = GATED + rf"$$b_t = {product}_{{i=1}}^t \alpha_i$$" + "\n"
    text += rf"$$o_t = S_0^\top (q_t \odot b_t) + {sums}" + "\n" + rf"$$o_t = S_0^\top q_t + {sums}"
    assert rows(tmp_path, text)[-3:] == ["definition", "holds", "fails"]


def test_the_gradient_of_a_loss_that_is_displayed_is_not_judged(tmp_path: Path) -> None:
    text = DECAY + r"$$\mathcal L = \sum_t \|o_t - v_t\|^2$$" + "\n$$do_t = 2 (o_t - v_t)$$\n$$dq_t = S_t do_t$$"
    assert rows(tmp_path, text)[-3:] == ["definition", "not judged", "holds"]


@pytest.mark.parametrize(
    "row, verdict",
    [
        (r"d \log \lambda_t = \lambda_t d\lambda_t", "holds"),
        (r"\boxed{dq_t = S_t do_t}", "holds"),
        (r"\boxed{dq_t = S_{t-1} do_t}", "fails"),
        (r"dq_t = S_t do_t, \quad t = 1, \cdots, n", "holds"),
        (r"dq_t = S_t do_t \quad (t \ge 1)", "holds"),
    ],
)
def test_what_authors_write_around_a_formula(tmp_path: Path, row: str, verdict: str) -> None:
    assert rows(tmp_path, "with $q_t \\in \\mathbb R^d$\n" + DECAY + f"$${row}$$")[-1] == verdict


def test_what_is_commented_out_by_iffalse_is_not_read(tmp_path: Path) -> None:
    hidden = "\\iffalse\n$$dq_t = do_t$$\n\\else\n$$dq_t = S_t do_t$$\n\\fi\n\\iffalse $$dk_t = 0$$ \\fi\n"
    (tmp_path / "a.tex").write_text("\\begin{document}\n" + DECAY + hidden + "\\end{document}", encoding="utf-8")
    assert [c.latex for c in read_paper(tmp_path / "a.tex").claims] == ["dq_t = S_t do_t"]


RETENTION = r"""rows $Q_n, K_n \in \mathbb R^{1 \times d}$, $V_n \in \mathbb R^{1 \times e}$
$$S_n = \gamma S_{n-1} + K_n^\top V_n, \quad S_0 = 0$$
$$O_n = Q_n S_n$$
$$D_{nm} = \begin{cases} \gamma^{n-m}, & n \ge m \\ 0, & n < m \end{cases}$$
"""


def test_a_matrix_of_rows_has_them_as_its_rows(tmp_path: Path) -> None:
    right, wrong = r"$$O = (Q K^\top \odot D) V$$", r"$$O = (Q K^\top \odot D^\top) V$$"
    assert rows(tmp_path, RETENTION + right + "\n" + wrong)[-2:] == ["holds", "fails"]


@pytest.mark.parametrize(
    "row",
    [
        r"S_{iB} = \gamma^B S_{(i-1)B} + \sum_{j=1}^{B} \gamma^{B-j} K_{(i-1)B+j}^\top V_{(i-1)B+j}",
        r"S_{[i]} = \gamma^B S_{[i-1]} + \sum_{j=1}^{B} \gamma^{B-j} K_{(i-1)B+j}^\top V_{(i-1)B+j}",
    ],
)
def test_chunks_of_a_size_that_nothing_says_are_not_judged(tmp_path: Path, row: str) -> None:
    assert rows(tmp_path, RETENTION + f"$${row}$$")[-1] == "not judged"
    header = '<!-- chunkform\nchunk = "B"\n-->\n'
    assert rows(tmp_path, header + RETENTION + f"$${row}$$")[-1] != "not judged"


def test_a_product_that_is_said_step_by_step_as_well_is_no_state(tmp_path: Path) -> None:
    text = GATED + r"$$b_t = \prod_{i=1}^t \alpha_i$$" + "\n" + r"$$b_t = b_{t-1} \odot \alpha_t$$" + "\n"
    text += r"$$b_t = b_{t-1} \odot \alpha_{t-1}$$"
    assert rows(tmp_path, text) == ["recurrence", "recurrence", "definition", "holds", "fails"]


DELTA_NET = r"$$S_t = S_{t-1} (I - \beta_t k_t k_t^\top) + \beta_t v_t k_t^\top$$" + "\n" + "$$o_t = S_t q_t$$\n"


@pytest.mark.parametrize("named", ["P_j^t", "P_{j:t}", "P_{j,t}"])
def test_a_product_from_one_step_to_another_has_both_as_indices(tmp_path: Path, named: str) -> None:
    def at(j: str) -> str:
        return named.replace("j", "{" + j + "}" if named == "P_j^t" else j)

    text = DELTA_NET + rf"$${named} = \prod_{{i=j}}^t (I - \beta_i k_i k_i^\top)$$" + "\n"
    for first in ("i+1", "i"):
        text += rf"$$S_t = S_0 {at('1')} + \sum_{{i=1}}^t \beta_i v_i k_i^\top {at(first)}$$" + "\n"
    assert rows(tmp_path, text)[-3:] == ["definition", "holds", "fails"]


def test_a_sequence_is_defined_by_all_of_its_values_before(tmp_path: Path) -> None:
    text = DELTA_NET + r"$$w_t = \beta_t ( k_t - \sum_{i=1}^{t-1} w_i (k_i^\top k_t) )$$" + "\n"
    for sign in "-+":
        text += rf"$$\prod_{{i=1}}^t (I - \beta_i k_i k_i^\top) = I {sign} \sum_{{i=1}}^t w_i k_i^\top$$" + "\n"
    assert rows(tmp_path, text)[-3:] == ["definition", "holds", "fails"]


def test_a_gradient_by_what_a_second_form_writes(tmp_path: Path) -> None:
    """u_t stands in a second form of the update; one that is wrong says nothing of what the loss is of u_t."""
    second = r"$$S_t = \alpha_t S_{t-1} + u_t k_t^\top$$"
    backward = "\n$$du_t = dS_t k_t$$\n$$du_t = dS_t^\\top k_t$$\n" + r"$$dv_t = \beta_t dS_t k_t$$"
    assert rows(tmp_path, EXPANDED + WRITTEN + second + backward)[-4:] == ["holds", "holds", "fails", "holds"]
    wrong = second.replace("+", "-")
    assert rows(tmp_path, EXPANDED + WRITTEN + wrong + backward)[-4:] == ["fails", "definition", "fails", "holds"]


def judged_rows(folder: Path, text: str) -> list[str]:
    """The verdicts under the readings that are meant."""
    (folder / "paper.md").write_text(text, encoding="utf-8")
    judge = Verifier(effort=0).judge
    return [v.verdict for v in adopted(read_paper(folder / "paper.md"), lambda claims: [judge(c) for c in claims])[1]]


def test_an_abbreviation_with_gradients_is_no_output_where_that_makes_more_true(tmp_path: Path) -> None:
    text = DELTA + r"$$u_t = v_t - \alpha_t S_{t-1} k_t$$" + "\n$$dq_t = S_t^\\top do_t$$\n$$dv_t = du_t$$\n"
    text += r"$$dv_t = \beta_t dS_t k_t$$" + "\n" + r"$$dv_t = \alpha_t du_t$$"
    assert judged_rows(tmp_path, text) == ["holds", "holds", "holds", "fails"]


def test_a_vector_of_which_nothing_says_whether_it_is_a_row_is_tried_as_both(tmp_path: Path) -> None:
    text = "rows $q_t, k_t \\in \\mathbb R^{1 \\times d}$\n"
    text += r"$$S_t = \mathrm{diag}(a_t) S_{t-1} + k_t^\top v_t$$" + "\n$$o_t = q_t S_t$$\n"
    text += (
        r"$$da_t = (S_{t-1} \odot dS_t) \mathbf 1$$" + "\n" + r"$$da_t = ((S_{t-1} \odot dS_t) \mathbf 1)^\top$$" + "\n"
    )
    text += r"$$da_t = (S_t \odot dS_t) \mathbf 1$$" + "\n$$dq_t = S_t do_t^\\top$$"
    found = judged_rows(tmp_path, text)
    assert sorted(found[:2]) == ["depends", "holds"]
    assert found[2:] == ["fails", "fails"]


def test_a_capital_with_an_index_that_a_row_defines_is_no_row_of_a_matrix(tmp_path: Path) -> None:
    """G_t = \\sum g_s says what G_t is, though there is a g_t."""
    text = GATED.replace(r"\alpha_t", r"\exp(g_t)") + r"$$G_t = \sum_{s=1}^t g_s$$" + "\n"
    for later in (r"G_t - G_s", r"G_s - G_t"):
        text += rf"$$S_t = \mathrm{{diag}}(\exp(G_t)) S_0 + \sum_{{s=1}}^t (\exp({later}) \odot k_s) v_s^\top$$" + "\n"
    assert rows(tmp_path, text)[-3:] == ["definition", "holds", "fails"]


MEMORY = r"$$h_t = A_t h_{t-1} + B_t x_t, \qquad h_0 = 0$$" + "\n$$y_t = C_t h_t$$\n"


@pytest.mark.parametrize(
    "run, verdict",
    [
        (r"A_t A_{t-1} \cdots A_{s+1}", "holds"),
        (r"A_t A_{t-1} \cdots A_{s}", "fails"),
        (r"A_{s+1} A_{s+2} \cdots A_t", "fails"),
        (r"\prod_{r=s+1}^t A_r", "depends"),  # in the order of a product with its last factor first
        (r"\prod_{r=s}^t A_r", "fails"),
        (r"\left( \prod_{r=s+1}^t A_r \right)", "depends"),
    ],
)
def test_products_of_matrices_have_an_order(tmp_path: Path, run: str, verdict: str) -> None:
    text = MEMORY + rf"$$h_t = \sum_{{s=1}}^t {run} B_s x_s$$"
    assert judged_rows(tmp_path, text) == [verdict]
    # r is a size, and counts in a product
    sized = r"$A_t \in \mathbb R^{p \times p}$, $C_t \in \mathbb R^{r \times p}$" + "\n"
    assert judged_rows(tmp_path, sized + text) == [verdict]


def test_a_vector_that_the_recurrence_has_as_a_column_is_no_row(tmp_path: Path) -> None:
    """A transpose in the wrong place is a mistake, though nothing but the recurrence says that q_t is a column."""
    assert judged_rows(tmp_path, DECAY + r"$$dq_t = (S_t do_t)^\top$$" + "\n$$dq_t = S_t do_t$$") == ["fails", "holds"]


def test_an_output_that_nothing_reads_is_no_abbreviation_because_a_term_of_its_gradient_is_missing(
    tmp_path: Path,
) -> None:
    text = DECAY + r"$$z_t = S_{t-1}^\top k_t$$" + "\n$$dq_t = S_t do_t$$\n$$dk_t = dS_t v_t + S_{t-1} dz_t$$\n"
    assert judged_rows(tmp_path, text + "$$dk_t = dS_t v_t$$") == ["holds", "holds", "fails"]


def test_the_gradient_by_a_state_that_no_spec_can_say_goes_through_all_later_steps(tmp_path: Path) -> None:
    """It is no output's, whose gradient would be given; nor is what another output is made of."""
    start = "with $q_t, k_t \\in \\mathbb R^d$, $x_t \\in \\mathbb R^e$\n"
    solve = "(I + \\beta_t k_t k_t^\\top)^{-1}"
    step = f"$$S_t = (S_{{t-1}} + \\beta_t x_t k_t^\\top){solve}$$\n$$o_t = S_t q_t$$\n"
    right, wrong = f"$$dx_t = \\beta_t dS_t {solve} k_t$$\n", "$$dx_t = \\beta_t dS_t k_t$$\n"
    path = tmp_path / "paper.md"
    for output in ("$$dq_t = S_t^\\top do_t$$\n", ""):
        path.write_text(f"{start}{step}{right}{wrong}{output}", encoding="utf-8")
        found = [Verifier(thorough=False).judge(c).verdict for c in read_paper(path).claims]
        assert found == ["holds", "fails", "holds"][: 3 if output else 2]
    attention = "$$P_{ij} = \\exp(q_i^\\top k_j) / \\sum_l \\exp(q_i^\\top k_l)$$\n$$o_i = \\sum_j P_{ij} v_j$$\n"
    rows = "$$dP_{ij} = do_i^\\top v_j$$\n$$dv_j = \\sum_i P_{ij} do_i$$\n"
    path.write_text(f"with $q_t, k_t, v_t \\in \\mathbb R^d$\n{attention}{rows}", encoding="utf-8")
    assert [Verifier(thorough=False).judge(c).verdict for c in read_paper(path).claims] == ["holds", "holds"]


@pytest.mark.parametrize(
    "rows",
    [
        "$$H_t = (\\lambda_t H_{t-1} + f(k_t, k_{t-1}))^{-1}$$\n$$o_t = H_t q_t$$\n",
        "$$H_0 = g(k_1, k_2)$$\n$$H_t = (\\lambda_t H_{t-1} + k_t k_t^\\top)^{-1}$$\n$$o_t = H_t q_t$$\n",
    ],
)
def test_a_state_of_a_function_that_is_not_known_is_not_judged(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "paper.md"
    path.write_text(f"{rows}$$o_t = 2 H_t q_t$$\n", encoding="utf-8")
    paper = read_paper(path)
    assert not paper.claims
    assert "isn't known" in paper.document.rows[-1].reason


def test_a_side_that_becomes_a_scalar_late_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "paper.md"
    step = "$$k_t = \\mathrm{diag}(\\alpha_t) k_{t-1} + k_t v_t^\\top, \\quad o_t = k_t^\\top q_t$$\n"
    row = "$$o_t = \\sum_{i=1}^t ((q_t \\odot b_t)^\\top \\frac{k_i}{b_{i-1}}) v_i, \\quad \\text{if } k_0 = 0$$\n"
    path.write_text(step + row, encoding="utf-8")
    assert read_paper(path).symbols.refused.startswith("the update of k reads k.next before it is known")
