"""Five published backward passes, as their authors derive them, and five mistakes planted in each.

A derivation is a function that makes a recurrence, or a setting, and returns its right rows and its planted ones; a planted
row has the name of the right row that it should be repaired to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chunkform.spec.language import Recurrence, diag, hadamard
from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import (
    cases,
    colsum,
    compare,
    exp,
    eye,
    gradient,
    hadamard_over,
    inner,
    inverse,
    log,
    matrix,
    ones,
    product_over,
    revcumsum,
    row,
    rowsum,
    stack,
    sum_over,
    tril,
    unit,
)


@dataclass(frozen=True)
class Derivation:
    """`right` and `planted`: rows by what is claimed, and by the kind of mistake."""

    setting: Setting
    right: dict[str, tuple[Any, Any]]
    planted: dict[str, tuple[str, Any]]  # the mistake -> (the row, its side with the mistake)


def gated_linear_attention() -> Derivation:
    """Yang et al. 2023, "Gated Linear Attention Transformers with Hardware-Efficient Training", section 4 and appendix C."""
    r = Recurrence("gla")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    alpha = r.decay("alpha", d)
    S = r.state("S", d, e)
    r.update(S, diag(alpha) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    t, i, j, q, k, v, alpha, S, o = r.quantities("t i j q k v alpha S o")
    do, dS, dq, dk, dv, dla = r.quantities("do dS dq dk dv dlog_alpha")
    r.assume(initial={"S": 0}, final_loss=False)
    n = r.quantities("n")
    b = r.define("b", t, hadamard_over(i, 1, t, alpha(i)))
    Q, K, V, O, B = (r.rows(x, y) for x, y in zip("QKVOB", (q, k, v, o, b), strict=True))
    dQ, dK, dV, dO = (r.rows(x, y) for x, y in zip(("dQ", "dK", "dV", "dO"), (dq, dk, dv, do), strict=True))
    dA = r.rows("dA", dla)
    P = r.define("P", (), tril(hadamard(Q, B) * (K / B).T))
    dP = r.define("dP", (), tril(dO * V.T))
    decay = hadamard_over(j, t + 1, i, alpha(j))
    right = {
        "O": (O, P * V),
        "dS": (dS(t), diag(alpha(t + 1)) * dS(t + 1) + q(t) * do(t).T),
        "dq": (dq(t), S(t) * do(t)),
        "dv": (dv(t), dS(t).T * k(t)),
        "dk unrolled": (dk(t), sum_over(i, t, n, v(t).T * do(i) * hadamard(decay, q(i)))),
        "dV": (dV, P.T * dO),
        "dQ": (dQ, hadamard(B, dP * (K / B))),
        "dK": (dK, (dP.T * hadamard(Q, B)) / B),
        "dA": (dA, revcumsum(hadamard(Q, dQ) - hadamard(K, dK))),
    }
    planted = {
        "sign": ("dA", revcumsum(hadamard(Q, dQ) + hadamard(K, dK))),
        "transpose": ("dV", P * dO),
        "index": ("dS", diag(alpha(t)) * dS(t + 1) + q(t) * do(t).T),
        "missing factor": ("dk unrolled", sum_over(i, t, n, v(t).T * do(i) * q(i))),
        "missing solve": ("dK", dP.T * hadamard(Q, B)),
    }
    return Derivation(r.setting, right, planted)


def gated_delta_rule() -> Derivation:
    """Yang et al. 2024, "Gated Delta Networks", with the backward pass of its chunk form over one chunk."""
    r = Recurrence("gated_deltanet")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    beta = r.inputs("beta")
    alpha = r.decay("alpha")
    S = r.state("S", d, e)
    u = r.let("u", beta * (v - alpha * S.prev.T * k))
    r.update(S, alpha * S.prev + k * u.T)
    r.output("o", S.next.T * q)
    t, i, j, q, k, v, beta, alpha, S, o, u = r.quantities("t i j q k v beta alpha S o u")
    do, dS, dq, dk, dv, dbeta, dalpha, du = r.quantities("do dS dq dk dv dbeta dalpha du")
    r.assume(initial={"S": 0}, final_loss=False)
    g = r.define("g", t, product_over(i, 1, t, alpha(i)))
    Q, K, V, O, U = (r.rows(x, y) for x, y in zip("QKVOU", (q, k, v, o, u), strict=True))
    dV, dO, dU = (r.rows(x, y) for x, y in zip(("dV", "dO", "dU"), (dv, do, du), strict=True))
    b = r.define("b", (), stack(t, "n", beta(t)))
    G = r.define("G", (), matrix(i, j, "n", "n", cases((compare(i, ">=", j), g(i) / g(j)), (None, 0))))
    M = r.define("M", (), inverse(eye("n") + diag(b) * tril(hadamard(K * K.T, G), -1)))
    A = r.define("A", (), hadamard(Q * K.T, G))
    read = v(t) - alpha(t) * S(t - 1).T * k(t)
    step = eye("d") - beta(t + 1) * k(t + 1) * k(t + 1).T
    right = {
        "U": (U, M * diag(b) * V),
        "O": (O, A * U),
        "dU": (dU, M.T * A.T * dO),
        "dV": (dV, diag(b) * M.T * A.T * dO),
        "dS": (dS(t), alpha(t + 1) * step * dS(t + 1) + q(t) * do(t).T),
        "dq": (dq(t), S(t) * do(t)),
        "dv": (dv(t), beta(t) * dS(t).T * k(t)),
        "dk": (dk(t), beta(t) * dS(t) * read - alpha(t) * beta(t) * S(t - 1) * dS(t).T * k(t)),
        "dbeta": (dbeta(t), read.T * dS(t).T * k(t)),
        "dalpha": (dalpha(t), inner(dS(t), S(t - 1) - beta(t) * k(t) * k(t).T * S(t - 1))),
    }
    planted = {
        "sign": ("dk", beta(t) * dS(t) * read + alpha(t) * beta(t) * S(t - 1) * dS(t).T * k(t)),
        "transpose": ("dv", beta(t) * dS(t) * k(t)),
        "index": ("dS", alpha(t + 1) * (eye("d") - beta(t) * k(t + 1) * k(t + 1).T) * dS(t + 1) + q(t) * do(t).T),
        "missing factor": ("dalpha", inner(dS(t), S(t - 1) - k(t) * k(t).T * S(t - 1))),
        "missing solve": ("dV", diag(b) * A.T * dO),
    }
    return Derivation(r.setting, right, planted)


def state_space_duality() -> Derivation:
    """Dao and Gu 2024, "Transformers are SSMs" (Mamba-2): the semiseparable form, and its gradients."""
    r = Recurrence("ssd")
    d, e = r.dims("d e")
    B, C = r.inputs("B C", d)
    x = r.inputs("x", e)
    delta = r.inputs("delta")
    a = r.decay("a")
    h = r.state("h", d, e)
    r.update(h, a * h.prev + B * (delta * x).T)
    r.output("y", h.next.T * C)
    t, i, j, s, n, B, C, x, delta, a, h, y = r.quantities("t i j s n B C x delta a h y")
    dy, dh, dB, dC, dx, ddelta, dla = r.quantities("dy dh dB dC dx ddelta dlog_a")
    r.assume(initial={"h": 0}, final_loss=False)
    w = r.given("w", "e")
    X = r.define("X", (), stack(t, "n", (delta(t) * x(t)).T))
    Y, Bs, Cs = (r.rows(name, of) for name, of in zip(("Y", "Bs", "Cs"), (y, B, C), strict=True))
    dY, dBs, dCs = (r.rows(name, of) for name, of in zip(("dY", "dBs", "dCs"), (dy, dB, dC), strict=True))
    one = product_over(s, j + 1, i, a(s))
    L = r.define("L", (), matrix(i, j, "n", "n", cases((compare(i, ">=", j), one), (None, 0))))
    F = r.define("F", (), matrix(i, j, "n", "n", cases((compare(i, "=", j + 1), a(i)), (None, 0))))
    M = r.define("M", (), hadamard(L, Cs * Bs.T))
    dM = r.define("dM", (), hadamard(L, dY * X.T))
    dHw = r.define("dHw", (), stack(t, "n", (dh(t) * w).T))
    decay = product_over(j, t + 1, i, a(j))
    pair = product_over(s, j + 1, i, a(s)) * (C(i).T * B(j)) * (delta(j) * dy(i).T * x(j))
    right = {
        "Y": (Y, M * X),
        "L": (L, inverse(eye("n") - F)),
        "dh": (dh(t), a(t + 1) * dh(t + 1) + C(t) * dy(t).T),
        "dHw": (dHw, inverse(eye("n") - F).T * diag(dY * w) * Cs),
        "dx": (dx(t), delta(t) * sum_over(i, t, n, decay * B(t).T * C(i) * dy(i))),
        "ddelta": (ddelta(t), x(t).T * dh(t).T * B(t)),
        "dB": (dBs, dM.T * Cs),
        "dC": (dCs, dM * Bs),
        "dlog a": (dla(t), sum_over(i, t, n, sum_over(j, 1, t - 1, pair))),
    }
    planted = {
        "sign": ("dlog a", -sum_over(i, t, n, sum_over(j, 1, t - 1, pair))),
        "transpose": ("dB", dM * Cs),
        "index": ("dlog a", sum_over(i, t, n, sum_over(j, 1, t, pair))),
        "missing factor": ("dx", delta(t) * sum_over(i, t, n, B(t).T * C(i) * dy(i))),
        "missing solve": ("dHw", diag(dY * w) * Cs),
    }
    return Derivation(r.setting, right, planted)


def flash_attention() -> Derivation:
    """Dao 2023, "FlashAttention-2": the backward pass from the logsumexp and the row sums D."""
    setting = Setting("flash_attention")
    n, d, e = setting.dims("n d e")
    m = n
    i, j = setting.indices("i", 1, n), setting.indices("j", 1, m)
    scale = setting.given("scale", domain="positive")
    q = setting.given("q", d, over=(i, 1, n))
    k = setting.given("k", d, over=(j, 1, m))
    V, dO = setting.given("V", m, e), setting.given("dO", n, e)
    Q = setting.define("Q", (), stack(i, n, q(i).T))
    K = setting.define("K", (), stack(j, m, k(j).T))
    S = setting.define("S", (), scale * Q * K.T)
    E = setting.define("E", (), exp(S))
    l = setting.define("l", (), rowsum(E))
    P = setting.define("P", (), inverse(diag(l)) * E)
    O = setting.define("O", (), P * V)
    loss = setting.define("loss", (), inner(dO, O))
    dP = setting.define("dP", (), dO * V.T)
    D = setting.define("D", (), rowsum(hadamard(dO, O)))
    dS = setting.define("dS", (), hadamard(P, dP - D * ones(m).T))
    right = {
        "P": (P, exp(S - log(l) * ones(m).T)),
        "dV": (gradient(loss, V), E.T * inverse(diag(l)) * dO),
        "dP": (gradient(loss, P), dP),
        "D": (D, rowsum(hadamard(P, dP))),
        "dS": (gradient(loss, S), hadamard(P, dP - D * ones(m).T)),
        "dQ": (gradient(loss, Q), scale * dS * K),
        "dK": (gradient(loss, K), scale * dS.T * Q),
        "dq": (
            gradient(loss, q(i)),
            scale * sum_over(j, 1, n, (row(P, i) * unit(n, j)) * (row(dP, i) * unit(n, j) - row(D, i)) * k(j)),
        ),
    }
    planted = {
        "sign": ("dS", hadamard(P, dP + D * ones(m).T)),
        "transpose": ("dK", scale * dS * Q),
        "index": (
            "dq",
            scale * sum_over(j, 1, n, (row(P, i) * unit(n, j)) * (row(dP, i) * unit(n, j) - row(D, j)) * k(j)),
        ),
        "missing factor": ("dQ", dS * K),
        "missing solve": ("dV", E.T * dO),
    }
    return Derivation(setting, right, planted)


def rwkv7() -> Derivation:
    """Peng et al. 2025, "RWKV-7": the generalised delta rule, with its solve over the steps."""
    r = Recurrence("rwkv7")
    d, e = r.dims("d e")
    q, k, a, b = r.inputs("q k a b", d)
    v = r.inputs("v", e)
    w = r.decay("w", d)
    S = r.state("S", e, d)
    u = r.let("u", S.prev * a)
    r.update(S, S.prev * diag(w) + u * b.T + v * k.T)
    r.output("o", S.next * q)
    t, i, q, k, a, b, v, w, S, u = r.quantities("t i q k a b v w S u")
    do, dS, dq, dk, da, db, dv, dw, du = r.quantities("do dS dq dk da db dv dw du")
    r.assume(initial={"S": 0}, final_loss=False)
    g = r.define("g", t, hadamard_over(i, 1, t, w(i)))
    before = r.define("before", t, hadamard_over(i, 1, t - 1, w(i)))
    Q, K, A, B, V, U, G, H = (r.rows(x, y) for x, y in zip("QKABVUGH", (q, k, a, b, v, u, g, before), strict=True))
    dV, dO, dU = (r.rows(x, y) for x, y in zip(("dV", "dO", "dU"), (dv, do, du), strict=True))
    N = r.define("N", (), tril(hadamard(A, H) * (B / G).T, -1))
    M = r.define("M", (), tril(hadamard(A, H) * (K / G).T, -1))
    QB = r.define("QB", (), tril(hadamard(Q, G) * (B / G).T))
    QK = r.define("QK", (), tril(hadamard(Q, G) * (K / G).T))
    right = {
        "U": (U, inverse(eye("n") - N) * M * V),
        "dU": (dU, inverse(eye("n") - N).T * QB.T * dO),
        "dV": (dV, QK.T * dO + M.T * dU),
        "dS": (dS(t), dS(t + 1) * diag(w(t + 1)) + dS(t + 1) * b(t + 1) * a(t + 1).T + do(t) * q(t).T),
        "dq": (dq(t), S(t).T * do(t)),
        "dv": (dv(t), dS(t) * k(t)),
        "dk": (dk(t), dS(t).T * v(t)),
        "da": (da(t), S(t - 1).T * dS(t) * b(t)),
        "db": (db(t), dS(t).T * S(t - 1) * a(t)),
        "dw": (dw(t), colsum(hadamard(S(t - 1), dS(t))).T),
    }
    planted = {
        "sign": ("dS", dS(t + 1) * diag(w(t + 1)) - dS(t + 1) * b(t + 1) * a(t + 1).T + do(t) * q(t).T),
        "transpose": ("da", S(t - 1) * dS(t) * b(t)),
        "index": ("db", dS(t).T * S(t) * a(t)),
        "missing factor": ("dS", dS(t + 1) + dS(t + 1) * b(t + 1) * a(t + 1).T + do(t) * q(t).T),
        "missing solve": ("dU", QB.T * dO),
    }
    return Derivation(r.setting, right, planted)


DERIVATIONS: dict[str, Callable[[], Derivation]] = {
    f.__name__: f for f in (gated_linear_attention, gated_delta_rule, state_space_duality, flash_attention, rwkv7)
}
