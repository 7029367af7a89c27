"""The parser reads back what formulas are printed as, in several styles, and whatever else it is given ends with a message."""

from __future__ import annotations

import random
import time

import pytest

from chunkform.codegen.paper.lexer import expanded, macros_of, tokens_of
from chunkform.codegen.paper.parser import read_row
from chunkform.codegen.paper.reader import read_source
from chunkform.codegen.paper.row import Fault, Notation

from .styles import STYLES, latex_of, random_formula

NOTATION = Notation(sizes=frozenset("n d c".split()), indices=frozenset("t i j".split()))


def read(tex: str, notation: Notation = NOTATION, preamble: str = ""):
    return read_row(expanded(tokens_of(tex), macros_of(preamble)), notation)


def sides(tex: str, notation: Notation = NOTATION) -> list[str]:
    return [str(x) for item in read(tex, notation).items for x in item.sides]


@pytest.mark.parametrize("style", range(len(STYLES)))
def test_what_is_printed_in_a_style_is_read_back_to_the_same_formula(style: int) -> None:
    for seed in range(1000):
        rng = random.Random(f"{style}/{seed}")
        x = random_formula(rng, rng.randrange(1, 5))
        tex = "y_t = " + latex_of(x, STYLES[style])
        row = read(tex)
        assert row.items[0].sides[1] == x, tex
        assert not row.slips, tex


@pytest.mark.parametrize(
    ("tex", "formula"),
    [
        (r"(\mathbf Q \mathbf K^\top) \odot \mathbf M", "(Q * K.T) o M"),
        (r"Q K^\top \odot M V", "(Q * K.T) o (M * V)"),
        (r"\alpha_t / \alpha_i \mathbf u_i", "(alpha(t) / alpha(i)) * u(i)"),
        (r"{\mathbf {d \bar Q}}_i", "dQbar(i)"),
        (r"\mathrm{d}\log\lambda_t", "dlog_lam(t)"),
        (r"\frac{\partial L}{\partial \mathbf q_t}", "partial(L, q(t))"),
        (r"\nabla_{\mathbf{q}_t} \mathcal{L}", "partial(Lcal, q(t))"),
        (r"{\partial E \over \partial x_i}", "partial(E, x(i))"),
        (r"\mathbf X^{-\top}", "(X^-1).T"),
        (r"\exp x^T Q^T K y / c", "exp(x.T * Q.T * K * y / c)"),
        (r"\exp(x) y", "exp(x) * y"),
        (r"\log a_t [:, \mathrm{None}] - \log b_t [\mathrm{None}, :]", "log(a(t))[:,None] - log(b(t))[None,:]"),
        (r"\mathbf S_{[t+1]}", "S[](t+1)"),
        (r"[\mathbf o_t^{(i-1)}]^\top", "o^(t, i-1).T"),
        (r"\operatorname{Tr}(A) + \text{softmax}(x)", "apply(A) + softmax(x)"),
        (r"\sum_{j < i} \sum_{s=1}^{j} a_{js}", "sum[j=unknown()..i - 1] sum[s=1..j] a(j, s)"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} x", "[1 2; 3 4] * x"),
        (r"W_Q x + d_{\text{model}}", "W_Q * x + d_model"),
        (r"e^{-\lambda_t}", "exp(-lam(t))"),
        (r"\|x\|^2", "norm(x)^2"),
        (r"k_t^\mathsf{T} {\bf q}_t^{\sf T} x^\frac{1}{2}", "k(t).T * q(t).T * sqrt(x)"),
        (r"k_{[t]}^{(i)\top} F_{t0}", "k[]^(t, i).T * F(t, 0)"),
        (r"k_{[t]}^{}", "k[](t)^1"),
        (r"\overrightarrow{\mathbf S_{[t]}}", "Sright[](t)"),
        (r"\sum_{j \in \{1, \dots, t\}} a_j", "sum[j=1..t] a(j)"),
        (r"\prod_{t \ge j > i} A_j", "prod[j=t..i + 1] A(j)"),
        (r"\prod_{j=i+1}^{\curvearrowleft t} A_j", "prod[j=t..i + 1] A(j)"),
    ],
)  # fmt: skip
def test_what_authors_write(tex: str, formula: str) -> None:
    assert sides(tex) == [formula]


def test_macros_of_the_author_are_expanded() -> None:
    preamble = r"\newcommand{\bq}[1]{\mathbf{q}_{#1}} \def\T{^\top} \DeclareMathOperator{\dg}{diag} \newcommand\x[2][t]{#2_{#1}}"
    row = read(r"\bq{t}\T \dg(\x{a}) \x[t-1]{S}", preamble=preamble)
    assert str(row.items[0].sides[0]) == "q(t).T * diag(a(t)) * S(t-1)"


def test_an_unbalanced_bracket_is_the_authors_slip_and_the_row_is_read() -> None:
    row = read(r"y_t = - \left( \mathbf S_{t-1} \mathbf k_t]\right)^\top")
    assert str(row.items[0].sides[1]) == "-(S(t-1) * k(t)).T"
    ((message, token),) = row.slips
    assert "closes nothing" in message
    assert token.text == "]"
    row = read(r"y = [a (b + c] d = e")
    assert [str(x) for x in row.items[0].sides] == ["y", "(a * b + c) * d", "e"]


def test_a_macro_that_calls_itself_ends_with_a_message() -> None:
    source = read_source("\\newcommand{\\a}{\\b \\b}\\newcommand{\\b}{\\a \\a}\n$$ \\a = 1 $$\n\n$$ x = y $$", "p.tex")
    assert "calls itself" in source.rows[0].broken or "expands" in source.rows[0].broken
    assert not source.rows[1].broken


def test_code_is_passed_over_and_math_fences_are_read() -> None:
    text = "```math\na = b\n```\n\n```python\nx = '$$ y = z $$'\n```\n\n`$$ u = v $$`\n\n<!-- $$ c = d $$ -->\n$$ e = f $$\n"
    assert [r.text for r in read_source(text, "a.md").rows] == ["a = b", "e = f"]


PIECES = (
    r"\frac { } { ( ) [ ] \left \right ^ _ & \\ \sum \prod _{i=1} ^{n} \mathbf{ \bar \begin{aligned} \end{aligned} ' ^\top "
    r"\begin{cases} \end{cases} \over \partial \nabla \exp \log d q t \lambda = \le \in \mathbb{R} , ; . $$ \[ \] | \| \langle "
    r"\rangle \text{if} \sqrt \int \operatorname \begin{matrix} \vdots \end{matrix} ^{-1} 1 0.5 \newcommand \def % # \odot "
    r"\mathrm{None} :"
).split()


def test_whatever_it_is_given_it_ends_with_a_message() -> None:
    started = time.process_time()
    for seed in range(1000):
        rng = random.Random(seed)
        if seed % 3 == 0:
            text = bytes(rng.randrange(256) for _ in range(300)).decode("latin1")
        elif seed % 3 == 1:
            text = " ".join(rng.choice(PIECES) for _ in range(rng.randrange(60)))
        else:
            tex = latex_of(random_formula(rng, 4), rng.choice(STYLES))
            text = (
                tex[: rng.randrange(len(tex) + 1)]
                + rng.choice(["", "{", "}", "\\", ")", "^", "&"])
                + tex[rng.randrange(len(tex)) :]
            )
        source = read_source(f"# T\n$$\n{text}\n$$\n", rng.choice(["a.md", "a.tex"]))
        for row in source.rows:
            try:
                read_row(row.tokens, NOTATION)
            except Fault as fault:
                assert fault.message
    assert time.process_time() - started < 60


@pytest.mark.parametrize(
    "text",
    ["(" * 5000, "{" * 5000 + "}" * 5000, r"\frac{" * 3000, r"\bar" * 4000, "x^{" * 2000, r"\mathbf{" * 800 + "x"],
)
def test_deep_nesting_ends_with_a_message(text: str) -> None:
    started = time.process_time()
    with pytest.raises(Fault):
        read(f"y = {text}")
    assert time.process_time() - started < 10


def test_letters_of_exponents_count_what_they_count_in_the_row() -> None:
    assert sides(r"o_i = \sum_{j=1}^i \gamma^{i-j} v_j") == ["o(i)", "sum[j=1..i] gamma^(i - j) * v(j)"]


def test_what_a_map_or_a_function_makes_has_scripts() -> None:
    maps = Notation(maps=frozenset({"phi"}), functions=frozenset({"f"}))
    assert sides(r"y = \phi(q_t)^\top \phi(k_t)", maps)[1] == "phi_q(t).T * phi_k(t)"
    assert [x.op for item in read(r"y = f(W; k_t, v_t)^\top", maps).items for x in item.sides] == ["at", "transpose"]
