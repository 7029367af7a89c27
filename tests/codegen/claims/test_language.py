"""The language of claims: each construct is judged by what it means, and what is written wrongly gets a sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from chunkform.codegen.claims.command import claims_of, judged
from chunkform.errors import ChunkformError, LoadError
from chunkform.spec.language import Recurrence, diag, hadamard
from chunkform.spec.language import formula as f
from chunkform.spec.language.claims import Document, Setting
from chunkform.spec.language.formula import (
    colsum,
    cumsum,
    gradient,
    hadamard_over,
    inner,
    product_down,
    product_over,
    revcumsum,
    rowsum,
    softmax,
    sum_over,
)
from chunkform.spec.language.notation import latex

DOCS = Path(__file__).parents[3] / "docs" / "claims.md"


def gated(names: str) -> tuple[Recurrence, Any]:
    """A state with a decay for each channel."""
    r = Recurrence("gated")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    a = r.decay("a", d)
    S = r.state("S", d, e)
    r.update(S, diag(a) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r, r.quantities(names)


def verdicts(r: Recurrence) -> dict[str, str]:
    return {v.claim.id: v.verdict for v in judged(r.claims, jobs=1)}


def test_products_over_a_range_of_entries_and_of_matrices_in_either_order() -> None:
    r, (t, i, j, k, v, a, S) = gated("t i j k v a S")
    decay = hadamard_over(j, i + 1, t, a(j))
    entries = sum_over(i, 1, t, hadamard(decay, k(i)) * v(i).T) + hadamard(hadamard_over(j, 1, t, a(j)), S(0))
    r.claim("entries", S(t), entries)
    r.claim("from the wrong step", S(t), f.substitute(entries, {i + 1: i}))
    r.claim("one over nothing", hadamard_over(j, 5, 4, a(j)), f.ones("d"))
    r.claim("the identity over nothing", product_over(j, 5, 4, diag(a(j))), f.eye("d"))
    assert verdicts(r) == {
        "entries": "holds",
        "from the wrong step": "fails",
        "one over nothing": "holds",
        "the identity over nothing": "holds",
    }


def delta(names: str) -> tuple[Recurrence, Any]:
    r = Recurrence("delta")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    r.update(S, S.prev + k * (v - S.prev.T * k).T)
    r.output("o", S.next.T * q)
    return r, r.quantities(names)


def test_matrices_are_multiplied_in_the_order_that_is_stated() -> None:
    r, (t, i, j, k, v, S) = delta("t i j k v S")
    step = f.eye("d") - k(j) * k(j).T

    def unrolled(order: Any) -> Any:
        return order(j, t, 1) * S(0) + sum_over(i, 1, t, order(j, t, i + 1) * k(i) * v(i).T)

    r.claim("latest first", S(t), unrolled(lambda j, high, low: product_down(j, high, low, step)))
    r.claim("earliest first", S(t), unrolled(lambda j, high, low: product_over(j, low, high, step)))
    assert verdicts(r) == {"latest first": "holds", "earliest first": "fails"}


def test_cumulative_sums_and_sums_over_columns() -> None:
    r, (q, k, dq, dk, dlog, v) = gated("q k dq dk dlog_a v")
    r.assume(final_loss=False)
    Q, K, dQ, dK, dA, V = (r.rows(x, y) for x, y in zip("Q K dQ dK dA V".split(), (q, k, dq, dk, dlog, v), strict=True))
    change = hadamard(Q, dQ) - hadamard(K, dK)
    r.claim("from each step on", dA, revcumsum(change))
    r.claim("up to each step", dA, cumsum(change))
    r.claim("both", cumsum(V) + revcumsum(V) - V, f.ones("n") * colsum(V))
    r.claim("columns", colsum(V), rowsum(V.T).T)
    assert verdicts(r) == {
        "from each step on": "holds",
        "up to each step": "fails",
        "both": "holds",
        "columns": "holds",
    }


def test_recursive_definitions_over_several_indices_and_backwards() -> None:
    r, (t, j, n, q, k, v, a, S, do, dS) = gated("t j n q k v a S do dS")
    r.assume(initial={"S": 0}, final_loss=False)
    A = r.recursive("A", (t, j), j, f.eye("d"), lambda A: diag(a(t)) * A(t - 1, j))
    G = r.recursive("G", t, n, q(n) * do(n).T, lambda after: diag(a(t + 1)) * after + q(t) * do(t).T, backwards=True)
    late = r.recursive("late", t, n, q(n) * do(n).T, lambda after: diag(a(t)) * after + q(t) * do(t).T, backwards=True)
    r.claim("over two", S(t), sum_over(j, 1, t, A(t, j) * k(j) * v(j).T))
    r.claim("backwards", dS(t), G(t))
    r.claim("backwards, a step off", dS(t), late(t))
    assert verdicts(r) == {"over two": "holds", "backwards": "holds", "backwards, a step off": "fails"}


def test_what_is_defined_by_itself_is_told() -> None:
    r, (t, q) = gated("t q")
    x = r.recursive("x", t, 1, q(1), lambda before: f.substitute(before, {t - 1: t}) + q(t))
    r.claim("circle", x(t), q(t))
    (found,) = judged(r.claims, jobs=1)
    assert found.verdict != "holds"
    shown = found.error.text() if found.error else found.counterexample.text()
    assert "defined by itself" in shown


def test_chunks_readings_given_and_carried_beside_a_recurrence_of_ones_own() -> None:
    r, (t, j, q, k, v, a, S, do, dS) = gated("t j q k v a S do dS")
    c, N = r.chunked()
    i = r.indices("i", 1, N)
    carried = r.carried("S", "dSc")
    w = r.given("w", "e")
    Si = r.ambiguous("Si", i, {"before chunk i": S((i - 1) * c), "after chunk i": S(i * c)})
    decay = hadamard_over(j, (i - 1) * c + 1, i * c, a(j))
    s = r.indices("s")
    own = sum_over(t, (i - 1) * c + 1, i * c, hadamard(hadamard_over(s, t + 1, i * c, a(s)), k(t)) * v(t).T)
    r.claim("state of a chunk", S(i * c), hadamard(decay, Si(i)) + own)
    r.claim("carried", dS(t), carried(t) + q(t) * do(t).T)
    r.claim("along", S(t) * w, diag(a(t)) * S(t - 1) * w + (v(t).T * w) * k(t))
    r.claim("not carried", dS(t), carried(t - 1) + q(t) * do(t).T)
    found = {v.claim.id: v for v in judged(r.claims, jobs=1)}
    assert {name: v.verdict for name, v in found.items()} == {
        "state of a chunk": "depends",
        "carried": "holds",
        "along": "holds",
        "not carried": "fails",
    }
    assert [(x.text, x.holds) for x in found["state of a chunk"].conditions if x.kind == "reading"] == [
        ("before chunk i", True),
        ("after chunk i", False),
    ]


def test_no_loss_on_the_last_state_and_an_initial_state_that_is_set() -> None:
    for assumed in ({}, {"initial": {"S": 0}, "final_loss": False}):
        r, (n, q, k, v, S, do, dS) = gated("n q k v S do dS")
        r.assume(**assumed)
        r.claim("last", dS(n), q(n) * do(n).T)
        r.claim("first", S(1), k(1) * v(1).T)
        assert set(verdicts(r).values()) == {"holds" if assumed else "depends"}
    r, S = gated("S")
    given = r.given("S0", "d", "e")
    r.assume(initial={"S": 2 * given})
    r.claim("given", S(0), 2 * given)
    r.claim("once", S(0), given)
    assert verdicts(r) == {"given": "holds", "once": "fails"}


def attention() -> tuple[Document, dict[str, Any]]:
    """softmax(Q K^T) V for n queries and m keys: claims without a recurrence."""
    made = Document("attention", "attention")
    s = Setting("attention")
    n, m, d, e = s.dims("n m d e")
    Q, K = s.given("Q", n, d), s.given("K", m, d)
    V, dO = s.given("V", m, e), s.given("dO", n, e)
    S = s.define("S", (), Q * K.T)
    P = s.define("P", (), softmax(S))
    O = s.define("O", (), P * V)
    loss = s.define("loss", (), inner(dO, O))
    dS = s.define("dS", (), hadamard(P, dO * V.T - rowsum(hadamard(dO, O)) * f.ones(m).T))
    return made, {**locals(), "claim": made.section("backward", s)}


def test_claims_without_a_recurrence_and_partial_gradients() -> None:
    made, x = attention()
    claim, loss, P, dO, V = x["claim"], x["loss"], x["P"], x["dO"], x["V"]
    claim("dV", "", gradient(loss, V), P.T * dO)
    claim("dP", "", gradient(loss, P), dO * V.T)
    claim("dS", "", gradient(loss, x["S"]), x["dS"])
    claim("dQ", "", gradient(loss, x["Q"]), x["dS"] * x["K"])
    claim("dQ wrong", "", gradient(loss, x["Q"]), x["dS"].T * x["K"])
    twice = x["s"].define("twice", (), inner(x["Q"], x["Q"]) * loss)
    claim("part", "", gradient(twice, x["Q"], holding=loss), 2 * loss * x["Q"])
    claim("whole", "", gradient(twice, x["Q"]), 2 * loss * x["Q"])
    found = {v.claim.id.split(".")[1]: v.verdict for v in judged(made.claims, jobs=1)}
    assert found == {
        **dict.fromkeys(("dV", "dP", "dS", "dQ", "part"), "holds"),
        "dQ wrong": "fails",
        "whole": "fails",
    }


@pytest.mark.parametrize("left", [True, False])
def test_a_quantity_where_its_value_is_meant_gets_a_sentence(left: bool) -> None:
    _, (t, S, do) = gated("t S do")
    with pytest.raises(ChunkformError, match=r"S has a value for each t: write S\(t\) for it, or another index"):
        _ = S * do(t) if left else do(t).T * S


FILE = """
from chunkform.spec.language import Recurrence
from chunkform.spec.language.formula import {imported}

r = Recurrence("plain")
d = r.dims("d")
x = r.inputs("x", d)
h = r.state("h", d)
r.update(h, h.prev + x)
r.output("y", h.next)
t, x, h, y = r.quantities("t x h y")
r.claim("wrong", y(t), {function}(x(t)))
r.claim("right", y(t), h(t))
"""


def test_an_unknown_function_gets_the_nearest_known_name(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    file.write_text(FILE.format(imported="cumsum", function="cumsm"))
    wrong, right = judged(claims_of([str(file)]), jobs=1)
    assert right.verdict == "holds"
    assert wrong.error is not None and "did you mean cumsum" in wrong.error.message
    file.write_text(FILE.format(imported="revcumsun", function="cumsum"))
    with pytest.raises(LoadError, match="did you mean revcumsum"):
        claims_of([str(file)])
    r, (t, q) = gated("t q")
    r.claim("function", q(t), f.entrywise("sigmoyd", q(t)))
    (found,) = judged(r.claims, jobs=1)
    assert found.error is not None and "did you mean sigmoid" in found.error.message


def test_an_unknown_quantity_gets_the_nearest_known_name() -> None:
    r, _ = gated("t")
    r.define("gamma", (), f.formula(1))
    with pytest.raises(ChunkformError, match="no quantity 'gama': did you mean gamma"):
        r.quantities("gama")
    with pytest.raises(ChunkformError, match="no state 's' to be carried"):
        r.carried("s", "dSc")


def test_ranges_are_printed() -> None:
    _, (t, i, a) = gated("t i a")
    assert str(product_down(i, t, 1, diag(a(i)))) == "prod[i=t..1] diag(a(i))"
    assert str(hadamard_over(i, 1, t, a(i))) == "hadamard[i=1..t] a(i)"
    assert latex(hadamard_over(i, 1, t, a(i))) == r"\bigodot_{i=1}^{t} \mathbf{a}_{i}"
    assert latex(product_down(i, t, 1, a(i))) == r"\prod_{i=t}^{1} \mathbf{a}_{i}"


def test_what_the_documentation_declares_can_be_claimed(tmp_path: Path) -> None:
    """The page's declarations, beside its own recurrence, and what they mean."""
    first, more, _ = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    recurrence = first[: first.index("# From here on")]
    claims = """
r.claim("backwards", dS(t), G(t))
r.claim("over two", S(t), sum_over(j, 1, t, A(t, j) * k(j) * v(j).T))
r.claim("carried", dS(t), dSc(t) + q(t) * do(t).T)
r.claim("left open", Si(i), S(i * c))
r.claim("given", (S(t) * w).T, w.T * S(t).T)
r.claim("rows", Q.T * Q, sum_over(t, 1, n, q(t) * q(t).T))
"""
    imports = "from chunkform.spec.language.formula import eye, sum_over\n"
    file = tmp_path / "more.py"
    file.write_text(recurrence + imports + more + claims)
    found = {v.claim.id: v.verdict for v in judged(claims_of([str(file)]), jobs=1)}
    assert found == {**dict.fromkeys(found, "holds"), "left open": "depends"} and len(found) == 6
