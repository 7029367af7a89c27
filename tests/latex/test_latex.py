"""The LaTeX of every derivation compiles, and fits on A4; `make test-all` tries every spec of the repository."""

import re
import shutil
from fractions import Fraction
from pathlib import Path

import pytest
from shared.spec_files import read

from chunkform.codegen.commands.kinds import kind_of
from chunkform.codegen.ir.latex_page import Page, broken, escaped
from chunkform.codegen.ir.notation import Notation
from chunkform.codegen.ir.written import decimal, power_of_two, with_powers_of_two
from chunkform.spec.language import Declaration, Recurrence, catalogue, exp, hadamard, load, sigmoid

from . import tex

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "tests/codegen/specs",
    "tests/codegen/recurrence/triton/specs",
    "spec/published",
    "benchmarks/recurrent_form",
    "examples",
)
WIDEST = 10  # points that a line may be too wide


def document(r: Declaration) -> str:
    kind = kind_of(r)
    return kind.latex_document(kind.compile_spec(r))


def check(documents: dict[str, str], folder: Path) -> None:
    found = {name: problems for name, text in documents.items() if (problems := tex.problems(text))}
    assert found == {}
    if shutil.which("pdflatex") is None:
        pytest.skip("no LaTeX is installed (Debian: texlive-latex-base); the documents were read by tests/latex/tex.py")
    judged = tex.compiled(documents, folder)
    assert set(judged) == set(documents)
    assert {n: x for n, x in judged.items() if x[0] or x[1] > WIDEST} == {}


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    return {r.name: document(r) for r in catalogue(Declaration)}


def test_the_catalogue_compiles(documents, tmp_path):
    check(documents, tmp_path)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_spec_of_the_repository_compiles(folder, tmp_path):
    files = sorted(p for p in (ROOT / folder).glob("*.py") if "Recurrence" in p.read_text())
    specs = {f"{p.stem} {r.name}": r for p in files if p.stem not in ("demo", "report") for r in read(p)}
    check({name: document(r) for name, r in specs.items()}, tmp_path)


def awkward() -> Recurrence:
    """Two exponents on one thing, a long root and fraction, a small number, names that aren't letters, long lines."""
    r = Recurrence("awkward")
    d, e = r.dims("d e")
    q, k2v, β = r.inputs("q k2v β", d)
    v = r.inputs("v", e)
    a, b = r.inputs("a b")
    lam = r.decay("lam")
    V, S = r.state("V", d, e), r.state("S", d, e)
    key = r.let(
        "key", hadamard(β, k2v) / (k2v.T * k2v + β.T * β + a**2 + b**2 + 1e-6 + exp(a) + exp(b)) ** Fraction(1, 2)
    )
    gate = r.let("gate", sigmoid(a * (1 + b**2) / (1 + exp(a) + exp(b) + a**2 * b**2 + 0.9 * a**4)))
    r.update(V, gate * V.prev + key * v.T)
    r.update(S, lam * S.prev + V.next)
    r.output("o", S.next.T * q + V.next.T * key)
    return r


def test_an_awkward_spec_compiles(tmp_path):
    text = document(awkward())
    check({"awkward": text}, tmp_path)
    assert "1000000" not in text and "10^{-6}" in text


def test_the_reader_finds_what_latex_refuses():
    assert tex.problems(r"\cfformula{x^{+}^\top}") == ["line 1: two of ^ on one thing"]
    assert tex.problems(r"\cfformula{\frac{1}{2}") == ["line 1: a brace isn't closed"]
    assert tex.problems(r"\cfformula{\cfS_{t}}") == [r"line 1: nobody defines \cfS"]
    assert tex.problems(r"\cfformula{\left( x}") == [r"line 1: \left without \right"]


def test_letters_are_macros_that_an_author_may_define(documents):
    text = documents["gated_delta_rule"]
    assert r"\providecommand{\cfS}{\mathbf{S}}" in text and r"\providecommand{\cfalpha}{\alpha}" in text
    body = text.split(r"\subsection", 1)[1]
    assert r"\cfS_{t}" in body and r"\mathbf{S}" not in body
    for name in set(re.findall(r"\\(cf[a-zA-Z]+)", body)):
        assert rf"\providecommand{{\{name}}}" in text


def test_what_depends_on_a_state_keeps_its_name_in_every_form():
    """Also where a product takes its factors apart, and over the rows and the columns of a chunk."""
    text = document(load(ROOT / "spec/published/precond_gated_delta_rule.py")[0])
    body = text.split(r"\subsection*{Read-write form}")[1]
    assert r"\cfkey^\top" in body and r"\cfd \cfS_{t}^\top \cfkey_{t}" in body
    assert r"\log(" not in body


def test_a_letter_of_two_meanings_has_two_macros():
    page = Page()
    assert page.letter("lambda", r"\lambda", False) == r"\cflambda"
    assert page.letter("lambda", r"\boldsymbol{\lambda}", True) == r"\cflambdabold"
    assert page.letter("d", r"\mathbf{d}", True) == r"\cfdbold"  # \cfd is that of a gradient
    assert page.letter("k2v", r"\mathbf{k2v}", True) == r"\cfktwov"


def test_programs_and_attentions_are_mathematics(documents):
    for name in ("mesa_net", "mesa_neumann", "relay_nodes", "rotary_attention"):
        assert "verb" not in documents[name]
    assert r"(\cfH_t + \mathrm{diag}(\cflamb))^{-1} \cfq_t" in documents["mesa_net"]


@pytest.mark.parametrize(
    "value, plain, latex",
    [
        (Fraction(1, 10**6), "1e-6", "10^{-6}"),
        (Fraction(-1, 10**6), "-1e-6", "-10^{-6}"),
        (Fraction(3, 10**5), "3e-5", r"3 \cdot 10^{-5}"),
        (Fraction(9, 10), "0.9", "0.9"),
        (Fraction(1, 1000), "0.001", "0.001"),
        (Fraction(1, 2), None, None),
        (Fraction(1, 30), None, None),
        (Fraction(101366277027041, 250000000000000), "0.405465108108164", "0.405465108108164"),
    ],
)
def test_numbers_are_as_they_were_written(value, plain, latex):
    assert decimal(value, False) == plain and decimal(value, True) == latex
    assert Notation(False).const(value).text == (plain or f"{value.numerator}/{value.denominator}")


def test_only_long_terms_may_be_broken_between_factors():
    factor = r"\cfS_{t} \cfbreak \cfq_{t}"
    assert broken(f"x = {factor} + y") == r"x = \cfS_{t} \cfq_{t} + y"
    assert r"\cfbreak" in broken("x = " + r" \cfbreak ".join([factor] * 20))


def test_words_are_escaped():
    assert escaped("a_b & 50% {x}") == r"a\_b \& 50\% \{x\}"


@pytest.mark.parametrize(
    ("number", "plain", "tex"),
    [
        (Fraction(1, 2**126), "2^-126", "2^{-126}"),
        (-Fraction(2**126), "-2^126", "-2^{126}"),
        (Fraction(3, 2**126), None, None),
        (Fraction(1, 2**126 + 1), None, None),
        (Fraction(1, 1024), None, None),
    ],
)
def test_a_power_of_two_of_many_digits_is_written_as_one(number, plain, tex):
    assert (power_of_two(number, False), power_of_two(number, True)) == (plain, tex)


def test_so_it_is_within_a_number():
    assert with_powers_of_two(f"log({2**126}) + 0.{2**30} + {3**40}", False) == f"log(2^126) + 0.{2**30} + {3**40}"
