"""What is true at a point where much is true fails, and is told; what an author could mean without saying so depends."""

from __future__ import annotations

from typing import Any

import pytest

from chunkform.codegen.claims.command import judged
from chunkform.codegen.claims.verdict import Verdict
from chunkform.spec.language import Max, Recurrence, absolute, relu
from chunkform.spec.language.claims import Document, Setting
from chunkform.spec.language.formula import Formula, gradient, inner, product_over, sum_over


def decayed() -> tuple[Recurrence, Any]:
    r = Recurrence("decayed")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    lam = r.decay("lam")
    S = r.state("S", d, e)
    r.update(S, lam * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r, r.quantities


def judge(name: str) -> Verdict:
    """The verdict on one of several claims about a decayed sum."""
    r, names = decayed()
    t, i, n, q, k, v, lam, S, o = names("t i n q k v lam S o")
    do, dS, dk, dq = names("do dS dk dq")
    j = Formula("index", (), ("j",))
    sides = {
        "decay of 1": (dk(t), (lam(t) ** 4 + 1 - lam(t) ** 9) * dS(t) * v(t)),
        "vector of 0": (dq(t), S(t) * do(t) + (k(t).T * k(t)) * q(t)),
        "two the same": (dq(t), S(t) * do(t) + (k(t).T * k(t) - q(t).T * q(t)) ** 3 * q(t)),
        "no initial state": (o(t), sum_over(i, 1, t, product_over(j, i + 1, t, lam(j)) * (k(i).T * q(t)) * v(i))),
        "no loss on the last state": (dS(n), q(n) * do(n).T),
        "a wrong term of the initial state": (
            S(2),
            2 * lam(1) * lam(2) * S(0) + lam(2) * k(1) * v(1).T + k(2) * v(2).T,
        ),
        "a wrong term of the last gradient": (
            lam(n) * inner(dS(n), S(n - 1)) - inner(q(n) * do(n).T, lam(n) * S(n - 1)),
            2 * lam(n) * (inner(dS(n), S(n - 1)) - inner(q(n) * do(n).T, S(n - 1))),
        ),
    }
    (found,) = judged([r.claim(name, *sides[name])], jobs=1)
    return found


@pytest.mark.parametrize("name,point", [("decay of 1", "lam = 1"), ("vector of 0", "k = 0"), ("two the same", "k = q")])
def test_what_is_true_at_a_trivial_point_fails_and_the_point_is_told(name: str, point: str) -> None:
    found = judge(name)
    assert found.verdict == "fails"
    assert (point, "trivial") in [(c.text, c.kind) for c in found.conditions]


@pytest.mark.parametrize(
    "name,condition",
    [("no initial state", "S(0) = 0"), ("no loss on the last state", "there is no loss on S(n)")],
)
def test_what_an_author_could_mean_depends(name: str, condition: str) -> None:
    found = judge(name)
    assert found.verdict == "depends"
    assert (condition, "condition") in [(c.text, c.kind) for c in found.conditions]


@pytest.mark.parametrize("name", ["a wrong term of the initial state", "a wrong term of the last gradient"])
def test_whoever_has_a_term_for_it_does_not_mean_that_there_is_none(name: str) -> None:
    found = judge(name)
    assert found.verdict == "fails"
    assert "trivial" in {c.kind for c in found.conditions}


def matrices(*sides: Any) -> Verdict:
    made = Document("matrices", "m")
    s = Setting("matrices")
    n = s.dims("n")
    A, W, x, y = s.given("A W", n, n), s.given("V", n, n), s.given("x", n), s.given("y", n)
    claim = made.section("one", s)
    (found,) = judged([claim("one", "", *sides[0](A[0], W, x, y))], jobs=1)
    return found


def test_a_symmetric_matrix_may_be_meant_but_a_forgotten_transpose_is_a_slip() -> None:
    quadratic = matrices(lambda A, W, x, y: (gradient(x.T * A * x, x), 2 * A * x))
    assert quadratic.verdict == "depends"
    assert quadratic.conditions[0].text == "A symmetric"
    forgotten = matrices(lambda A, W, x, y: (gradient(y.T * W * x, x), W * y))
    assert forgotten.verdict == "fails"
    assert {(c.text, c.kind) for c in forgotten.conditions} == {("V symmetric", "trivial"), ("V = I", "trivial")}


def test_what_is_true_for_the_identity_fails() -> None:
    found = matrices(lambda A, W, x, y: (gradient(y.T * W * x, x), W * W * W.T * W * W * W * W * y))
    assert found.verdict == "fails"
    assert [c.text for c in found.conditions] == ["V = I"]


def test_a_condition_that_is_told_is_enough_whatever_branch_is_taken() -> None:
    """The normaliser starts at 0 as well, though max(|n q|, 1) is 1 for small numbers."""
    r = Recurrence("mlstm")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v, f = r.inputs("v", e), r.decay("f")
    C, n = r.state("C", e, d), r.state("n", d)
    r.update(C, f * C.prev + v * k.T)
    r.update(n, f * n.prev + k)
    r.output("h", (C.next * q) / Max(absolute(n.next.T * q), 1))
    t, s, j, q, k, v, f, h, n, C = r.quantities("t s j q k v f h n C")
    decays = product_over(j, s + 1, t, f(j))
    above = sum_over(s, 1, t, decays * (k(s).T * q(t)) * v(s))
    below = sum_over(s, 1, t, decays * (k(s).T * q(t)))
    first = product_over(j, 1, t, f(j)) * (C(0) * q(t))

    def largest(x: Formula) -> Formula:
        return absolute(x) + relu(1 - absolute(x))

    r.claim("both", h(t), above / largest(below))
    r.claim("the matrix", h(t), above / largest(n(t).T * q(t)))
    r.claim("the normaliser", h(t), (above + first) / largest(below))
    found = {v.claim.id.split(".")[-1]: v for v in judged(list(r.claims), effort=0)}
    meant = {name: [c.text for c in v.conditions if c.kind == "condition"] for name, v in found.items()}
    assert {v.verdict for v in found.values()} == {"depends"}
    assert meant == {"both": ["C(0) = 0 and n(0) = 0"], "the matrix": ["C(0) = 0"], "the normaliser": ["n(0) = 0"]}


def test_as_many_conditions_are_told_as_it_takes() -> None:
    r = Recurrence("three")
    d = r.dims("d")
    k, lam = r.inputs("k", d), r.decay("lam")
    a, b, c, other = (r.state(name, d) for name in ("a", "b", "c", "other"))
    for x in (a, b, c, other):
        r.update(x, lam * x.prev + k)
    r.output("o", a.next + 2 * b.next + 3 * c.next + 0 * other.next)
    t, s, j, k, lam, o = r.quantities("t s j k lam o")
    r.claim("sum", o(t), 6 * sum_over(s, 1, t, product_over(j, s + 1, t, lam(j)) * k(s)))
    (found,) = judged(list(r.claims), effort=0)
    assert found.verdict == "depends"
    assert [c.text for c in found.conditions] == ["a(0) = 0 and b(0) = 0 and c(0) = 0"]
