"""True formulas one edit away are found: a solve or its transpose, a defined quantity for a given one, an inner product too
few or too many, a product over a range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkform.codegen.claims.command import judged
from chunkform.spec.language import Recurrence, diag, hadamard
from chunkform.spec.language.claims import Document, Setting
from chunkform.spec.language.formula import (
    cases,
    compare,
    cumsum,
    eye,
    gradient,
    hadamard_over,
    inner,
    inverse,
    matrix,
    product_over,
    revcumsum,
    stack,
    sum_over,
    tril,
)


def solved() -> dict[str, tuple[Any, Any, Any]]:
    """P = (I - L)^-1 B V with a loss <dO, P>: (left, as stated, what is right)."""
    s = Setting("solved")
    n, e = s.dims("n e")
    A, B = s.given("A B", n, n)
    V, dO = s.given("V dO", n, e)
    L = s.define("L", (), tril(A, -1))
    X = s.define("X", (), B * V)
    P = s.define("P", (), inverse(eye(n) - L) * X)
    loss = s.define("loss", (), inner(dO, P))
    return {
        "setting": (s, None, None),
        "transposed solve": (gradient(loss, X), dO, inverse(eye(n) - L).T * dO),
        "solve inside": (gradient(loss, V), B.T * dO, B.T * inverse(eye(n) - L).T * dO),
        "solve on the wrong side": (P, X.T * inverse(eye(n) - L), inverse(eye(n) - L) * X),
        "defined for given": (gradient(loss, A), tril(inverse(eye(n) - L).T * dO * V.T, -1), "tril"),
    }


def made(name: str) -> tuple[str, str]:
    """(the repair of a claim about `solved`, what it should be)."""
    rows = solved()
    document = Document("solved", "s")
    left, stated, right = rows[name]
    claim = document.section("one", rows["setting"][0])(name, "", left, stated)
    (found,) = judged([claim], jobs=1)
    assert found.verdict == "fails"
    wanted = right if isinstance(right, str) else f"{left} = {right}"
    return found.repaired, wanted


@pytest.mark.parametrize("name", ["transposed solve", "solve inside"])
def test_a_missing_solve_is_found(name: str) -> None:
    repaired, wanted = made(name)
    assert repaired == wanted


def test_a_defined_quantity_for_a_given_one_is_found() -> None:
    """dA = tril(M^T dO P^T, -1), where P is defined and V given."""
    repaired, _ = made("defined for given")
    assert repaired.endswith("= tril(((I_n - L)^-1).T * dO * P.T, -1)")


def scanned(stated: Callable[..., tuple[Any, Any]]) -> str:
    """The repair of a claim about a sum with one decay g a step and one for each channel a."""
    r = Recurrence("scanned")
    d, e = r.dims("d e")
    k = r.inputs("k", d)
    v = r.inputs("v", e)
    g, a = r.decay("g"), r.decay("a", d)
    H = r.state("H", d, e)
    W = r.state("W", d, e)
    r.update(H, g * H.prev + k * v.T)
    r.update(W, diag(a) * W.prev + k * v.T)
    r.output("o", H.next.T * k + W.next.T * k)
    r.assume(initial={"H": 0, "W": 0})
    names = "t i j k v g a H W dH dW dlog_g dlog_a"
    values = dict(zip(names.split(), r.quantities(names), strict=True))
    r.claim("one", *stated(**values))
    (found,) = judged(r.claims, jobs=1)
    assert found.verdict == "fails"
    return found.repaired


def test_an_inner_product_too_few_is_found() -> None:
    assert scanned(lambda t, g, dlog_g, **_: (dlog_g(t), g(t))) == "dlog_g(t) = inner(dH(t), H(t-1)) * g(t)" or (
        scanned(lambda t, g, dlog_g, **_: (dlog_g(t), g(t))) == "dlog_g(t) = inner(H(t-1), dH(t)) * g(t)"
    )


def test_an_inner_product_in_the_place_of_another_is_found() -> None:
    product = scanned(lambda t, g, H, dH, dlog_g, **_: (dlog_g(t), g(t) * (dH(t).T * H(t - 1))))
    assert product == "dlog_g(t) = g(t) * inner(dH(t), H(t-1))"
    entries = scanned(lambda t, g, H, dH, dlog_g, **_: (dlog_g(t), g(t) * hadamard(dH(t), H(t - 1))))
    assert entries == "dlog_g(t) = g(t) * inner(dH(t), H(t-1))"


def test_an_inner_product_too_many_is_found() -> None:
    def stated(t: Any, i: Any, j: Any, g: Any, k: Any, v: Any, H: Any, **_: Any) -> tuple[Any, Any]:
        decay = product_over(j, i + 1, t, g(j))
        return H(t), sum_over(i, 1, t, decay * (k(i).T * k(i)) * k(i) * v(i).T)

    assert scanned(stated) == "H(t) = sum[i=1..t] (prod[j=i + 1..t] g(j)) * k(i) * v(i).T"


def test_a_missing_product_over_a_range_is_found() -> None:
    repaired = scanned(lambda t, i, k, v, H, **_: (H(t), sum_over(i, 1, t, k(i) * v(i).T)))
    assert repaired == "H(t) = sum[i=1..t] (prod[j=i + 1..t] g(j)) * k(i) * v(i).T"
    repaired = scanned(lambda t, i, k, v, W, **_: (W(t), sum_over(i, 1, t, k(i) * v(i).T)))
    assert repaired == "W(t) = sum[i=1..t] ((hadamard[j=i + 1..t] a(j)) o k(i)) * v(i).T"


def test_bounds_of_a_product_over_a_range_are_edited() -> None:
    def stated(low: int) -> Any:
        return lambda t, i, j, k, v, a, W, **_: (
            W(t),
            sum_over(i, 1, t, hadamard(hadamard_over(j, i + low, t, a(j)), k(i)) * v(i).T),
        )

    assert (
        scanned(stated(0)) == scanned(stated(2)) == "W(t) = sum[i=1..t] ((hadamard[j=i + 1..t] a(j)) o k(i)) * v(i).T"
    )


def test_a_cumulative_sum_from_the_other_end_is_found() -> None:
    s = Setting("sums")
    n = s.dims("n")
    x, w = s.given("x", n), s.given("w", n)
    loss = s.define("loss", (), w.T * cumsum(x))
    (found,) = judged([Document("sums", "s").section("one", s)("one", "", gradient(loss, x), cumsum(w))], jobs=1)
    assert found.repaired.endswith(f"= {revcumsum(w)}")


def chunked(name: str) -> str:
    """The repair of a claim about retention over chunks, with decays as powers."""
    r = Recurrence("retention")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    g = r.head_decay("g")
    S = r.state("S", d, e)
    r.update(S, g * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    j, q, k, v, g, S, o = r.quantities("j q k v g S o")
    c, N = r.chunked()
    i, s = r.indices("i", 1, N), r.indices("s")
    Q, K, V, O = (
        r.define(x, i, stack(j, c, of((i - 1) * c + j).T)) for x, of in zip("QKVO", (q, k, v, o), strict=True)
    )
    D = r.define("D", (), matrix(j, s, c, c, cases((compare(j, ">=", s), g ** (j - s)), (None, 0))))
    xi = r.define("xi", (), stack(j, c, g**j))
    zeta = r.define("zeta", (), stack(j, c, g ** (c - j)))
    Sc = r.define("Sc", i, S((i - 1) * c))
    own = hadamard(Q(i) * K(i).T, D) * V(i)
    sides = {
        "a vector of decays": (O(i), own + Q(i) * Sc(i)),
        "the other decays": (O(i), own + diag(zeta) * Q(i) * Sc(i)),
        "a power": (Sc(i + 1), g * Sc(i) + K(i).T * diag(zeta) * V(i)),
        "a matrix": (O(i), own + diag(xi) * Sc(i)),
    }
    r.claim(name, *sides[name])
    (found,) = judged(r.claims, jobs=1)
    assert found.verdict == "fails"
    return found.repaired


def test_decays_that_are_powers_are_found() -> None:
    right = "O(i) = ((Q(i) * K(i).T) o D) * V(i) + diag(xi) * Q(i) * Sc(i)"
    assert chunked("a vector of decays") == chunked("the other decays") == right
    assert chunked("a power") == "Sc(i+1) = g^c * Sc(i) + K(i).T * diag(zeta) * V(i)"


def test_a_matrix_that_is_missing_from_a_product_is_found() -> None:
    assert chunked("a matrix") == "O(i) = ((Q(i) * K(i).T) o D) * V(i) + diag(xi) * Q(i) * Sc(i)"


def test_a_square_that_is_missing_below_is_found() -> None:
    s = Setting("quotient")
    n = s.dims("n")
    x, k = s.given("x"), s.given("k", n)
    y = s.define("y", (), x / (1 + x * k.T * k))
    claim = Document("quotient", "q").section("one", s)
    found = judged([claim("one", "", gradient(y, x), 1 / (1 + x * k.T * k))], jobs=1)[0]
    assert found.repaired.endswith("= 1 / (1 + x * k.T * k)^2")
    found = judged([claim("two", "", gradient(y, x), (1 + x * k.T * k) ** 2)], jobs=1)[0]
    assert found.repaired.endswith("= 1 / (1 + x * k.T * k)^2")
