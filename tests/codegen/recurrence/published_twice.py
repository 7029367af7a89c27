"""Published recurrences of 2022 to 2026, each in two spellings: both have the form that docs/recurrences.md says."""

from __future__ import annotations

from collections.abc import Callable

from chunkform.spec.language import (
    Max,
    Recurrence,
    absolute,
    apply,
    cos,
    diag,
    dot,
    exp,
    eye,
    hadamard,
    log,
    logsigmoid,
    norm,
    ones,
    relu,
    sigmoid,
    sin,
    softmax,
    softplus,
    sqrt,
    total,
)


def longhorn_1() -> Recurrence:
    r = Recurrence("longhorn")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    x, b = r.inputs("x b", e)
    S = r.state("S", d, e)
    eps = sigmoid(b) / (1 + sigmoid(b) * dot(k, k))
    r.update(S, hadamard(1 - k**2 * eps.T, S.prev) + k * hadamard(eps, x).T)
    r.output("o", S.next.T * q)
    return r


def longhorn_2() -> Recurrence:
    r = Recurrence("longhorn")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    x, b = r.inputs("x b", e)
    S = r.state("S", d, e)
    eps = r.let("eps", 1 / (1 / sigmoid(b) + dot(k, k)))
    r.update(S, S.prev - diag(k**2) * S.prev * diag(eps) + k * hadamard(eps, x).T)
    r.output("o", S.next.T * q)
    return r


def titans_spelt_1() -> Recurrence:
    r = Recurrence("titans_spelt")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    al, et, th = r.inputs("al et th")
    V = r.state("V", e, d)
    M = r.state("M", e, d)
    r.update(V, sigmoid(et) * V.prev - sigmoid(th) * (M.prev * k - v) * k.T)
    r.update(M, (1 - sigmoid(al)) * M.prev + V.next)
    r.output("o", M.next * q)
    return r


def titans_spelt_2() -> Recurrence:
    r = Recurrence("titans_spelt")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    al, et, th = r.inputs("al et th")
    V = r.state("V", d, e)
    M = r.state("M", d, e)
    g = k * k.T * M.prev - k * v.T
    new = sigmoid(et) * V.prev - sigmoid(th) * g
    r.update(V, new)
    r.update(M, sigmoid(-al) * M.prev + new)
    r.output("o", M.next.T * q)
    return r


def gated_delta_product_1() -> Recurrence:
    r = Recurrence("gated_delta_product")
    d, e = r.dims("d e")
    q, k1, k2 = r.inputs("q k1 k2", d)
    v1, v2 = r.inputs("v1 v2", e)
    b1, b2, g = r.inputs("b1 b2 g")
    S = r.state("S", d, e)
    A = sigmoid(g) * S.prev
    n1, n2 = (k1 / norm(k1), k2 / norm(k2))
    B = A + 2 * sigmoid(b1) * n1 * (v1 - A.T * n1).T
    r.update(S, B + 2 * sigmoid(b2) * n2 * (v2 - B.T * n2).T)
    r.output("o", S.next.T * q)
    return r


def gated_delta_product_2() -> Recurrence:
    r = Recurrence("gated_delta_product")
    d, e = r.dims("d e")
    q, k1, k2 = r.inputs("q k1 k2", d)
    v1, v2 = r.inputs("v1 v2", e)
    b1, b2, g = r.inputs("b1 b2 g")
    S = r.state("S", d, e)
    n1, n2 = (k1 / norm(k1), k2 / norm(k2))
    h1 = eye(d) - 2 * sigmoid(b1) * n1 * n1.T
    h2 = eye(d) - 2 * sigmoid(b2) * n2 * n2.T
    r.update(S, h2 * (h1 * (sigmoid(g) * S.prev) + 2 * sigmoid(b1) * n1 * v1.T) + 2 * sigmoid(b2) * n2 * v2.T)
    r.output("o", S.next.T * q)
    return r


def rwkv7_spelt_1() -> Recurrence:
    r = Recurrence("rwkv7_spelt")
    d, e = r.dims("d e")
    q, k, kk, a, w = r.inputs("q k kk a w", d)
    v = r.inputs("v", e)
    S = r.state("S", e, d)
    n = kk / norm(kk)
    r.update(S, S.prev * (diag(exp(-exp(-0.5) * sigmoid(w))) - n * hadamard(sigmoid(a), n).T) + v * k.T)
    r.output("o", S.next * q)
    return r


def rwkv7_spelt_2() -> Recurrence:
    r = Recurrence("rwkv7_spelt")
    d, e = r.dims("d e")
    q, k, kk, a, w = r.inputs("q k kk a w", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    n = kk / norm(kk)
    r.update(S, diag(exp(-exp(-0.5) * sigmoid(w))) * S.prev - hadamard(sigmoid(a), n) * (S.prev.T * n).T + k * v.T)
    r.output("o", S.next.T * q)
    return r


def kda_spelt_1() -> Recurrence:
    r = Recurrence("kda_spelt")
    d, e = r.dims("d e")
    q, k, g = r.inputs("q k g", d)
    v = r.inputs("v", e)
    b = r.inputs("b")
    S = r.state("S", d, e)
    P = diag(sigmoid(g)) * S.prev
    r.update(S, P + sigmoid(b) * k * (v - P.T * k).T)
    r.output("o", S.next.T * q)
    return r


def kda_spelt_2() -> Recurrence:
    r = Recurrence("kda_spelt")
    d, e = r.dims("d e")
    q, k, g = r.inputs("q k g", d)
    v = r.inputs("v", e)
    b = r.inputs("b")
    S = r.state("S", d, e)
    be = sigmoid(b)
    r.update(S, (eye(d) - be * k * k.T) * diag(1 - sigmoid(-g)) * S.prev + be * k * v.T)
    r.output("o", S.next.T * q)
    return r


def ttt_linear_1() -> Recurrence:
    r = Recurrence("ttt_linear")
    d = r.dims("d")
    q, k, v = r.inputs("q k v", d)
    eta = r.inputs("eta")
    W = r.state("W", d, d)
    err = W.prev * k - (v - k)
    r.update(W, W.prev - sigmoid(eta) * err * k.T)
    r.output("o", q + W.next * q)
    return r


def ttt_linear_2() -> Recurrence:
    r = Recurrence("ttt_linear")
    d = r.dims("d")
    q, k, v = r.inputs("q k v", d)
    eta = r.inputs("eta")
    W = r.state("W", d, d)
    s = sigmoid(eta)
    r.update(W, W.prev * (eye(d) - s * k * k.T) + s * (v - k) * k.T)
    r.output("o", (W.next + eye(d)) * q)
    return r


def rg_lru_1() -> Recurrence:
    r = Recurrence("rg_lru")
    d = r.dims("d")
    x, ri, ii = r.inputs("x ri ii", d)
    L = r.parameter("L", d)
    h = r.state("h", d)
    a = exp(-8 * hadamard(softplus(L), sigmoid(ri)))
    r.update(h, hadamard(a, h.prev) + hadamard(sqrt(1 - a**2), hadamard(sigmoid(ii), x)))
    r.output("y", h.next)
    return r


def rg_lru_2() -> Recurrence:
    r = Recurrence("rg_lru")
    d = r.dims("d")
    x, ri, ii = r.inputs("x ri ii", d)
    L = r.parameter("L", d)
    h = r.state("h", d)
    la = r.let("la", 8 * hadamard(sigmoid(ri), log(sigmoid(-L))))
    r.update(h, diag(exp(la)) * h.prev + hadamard(hadamard(sqrt(1 - exp(2 * la)), sigmoid(ii)), x))
    r.output("y", h.next)
    return r


def gated_slot_attention_1() -> Recurrence:
    r = Recurrence("gated_slot_attention")
    d, e, m = r.dims("d e m")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    g = r.inputs("g", m)
    K = r.state("K", m, d)
    V = r.state("V", m, e)
    a = sigmoid(g)
    r.update(K, diag(a) * K.prev + (1 - a) * k.T)
    r.update(V, diag(a) * V.prev + (1 - a) * v.T)
    r.output("o", V.next.T * softmax(K.next * q))
    return r


def gated_slot_attention_2() -> Recurrence:
    r = Recurrence("gated_slot_attention")
    d, e, m = r.dims("d e m")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    g = r.inputs("g", m)
    K = r.state("K", d, m)
    V = r.state("V", e, m)
    a = r.let("a", exp(-softplus(-g)))
    r.update(K, K.prev * diag(a) + k * (1 - a).T)
    r.update(V, V.prev * diag(a) + v * (1 - a).T)
    s = K.next.T * q
    w = exp(s)
    r.output("o", V.next * w / total(w))
    return r


def mlstm_spelt_1() -> Recurrence:
    r = Recurrence("mlstm_spelt")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    f, i = r.inputs("f i")
    C = r.state("C", d, e)
    n = r.state("n", d)
    m = r.state("m")
    r.update(m, Max(logsigmoid(f) + m.prev, i))
    F_, I = (exp(logsigmoid(f) + m.prev - m.next), exp(i - m.next))
    r.update(C, F_ * C.prev + I * k * v.T)
    r.update(n, F_ * n.prev + I * k)
    r.output("o", C.next.T * q / Max(absolute(dot(n.next, q)), exp(-m.next)))
    return r


def mlstm_spelt_2() -> Recurrence:
    r = Recurrence("mlstm_spelt")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    f, i = r.inputs("f i")
    C = r.state("C", e, d)
    n = r.state("n", d)
    m = r.state("m")
    lf = r.let("lf", -softplus(-f))
    mt = r.let("mt", i + relu(lf + m.prev - i))
    r.update(m, mt)
    F_ = r.let("F", exp(lf + m.prev - mt))
    I = r.let("I", exp(i - mt))
    r.update(C, F_ * C.prev + v * (I * k).T)
    r.update(n, F_ * n.prev + I * k)
    r.output("o", C.next * q / Max(absolute(n.next.T * q), exp(-mt)))
    return r


def path_linear_1() -> Recurrence:
    r = Recurrence("path_linear")
    d, e = r.dims("d e")
    q, k, w = r.inputs("q k w", d)
    v = r.inputs("v", e)
    b, f = r.inputs("b f")
    S = r.state("S", d, e)
    n = w / norm(w)
    r.update(S, sigmoid(f) * (S.prev - 2 * sigmoid(b) * n * (n.T * S.prev)) + k * v.T)
    r.output("o", S.next.T * q)
    return r


def path_linear_2() -> Recurrence:
    r = Recurrence("path_linear")
    d, e = r.dims("d e")
    q, k, w = r.inputs("q k w", d)
    v = r.inputs("v", e)
    b, f = r.inputs("b f")
    S = r.state("S", d, e)
    H = eye(d) - 2 * sigmoid(b) * w * w.T / dot(w, w)
    r.update(S, sigmoid(f) * H * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


def regla_1() -> Recurrence:
    r = Recurrence("regla")
    d, e = r.dims("d e")
    q, k, g, u = r.inputs("q k g u", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    G, U = (sigmoid(g), sigmoid(u))
    f = r.let("f", hadamard(1 - U, G**2) + hadamard(U, 1 - (1 - G) ** 2))
    r.update(S, diag(f) * S.prev + hadamard(1 - f, k) * v.T)
    r.output("o", S.next.T * q)
    return r


def regla_2() -> Recurrence:
    r = Recurrence("regla")
    d, e = r.dims("d e")
    q, k, g, u = r.inputs("q k g u", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    G, U = (sigmoid(g), sigmoid(u))
    f = G**2 + 2 * hadamard(U, hadamard(G, 1 - G))
    r.update(S, hadamard(f * ones(e).T, S.prev) + (k - hadamard(f, k)) * v.T)
    r.output("o", S.next.T * q)
    return r


def oja_1() -> Recurrence:
    r = Recurrence("oja")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b, g = r.inputs("b g")
    S = r.state("S", d, e)
    n = v / norm(v)
    P = sigmoid(g) * S.prev
    r.update(S, P + sigmoid(b) * (k - P * n) * n.T)
    r.output("o", S.next.T * q)
    return r


def oja_2() -> Recurrence:
    r = Recurrence("oja")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b, g = r.inputs("b g")
    S = r.state("S", e, d)
    n = v / norm(v)
    B = sigmoid(b)
    r.update(S, sigmoid(g) * (eye(e) - B * n * n.T) * S.prev + B * n * k.T)
    r.output("o", S.next * q)
    return r


def lightnet_1() -> Recurrence:
    r = Recurrence("lightnet")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    m = r.state("m", d)
    S = r.state("S", d, e)
    r.update(m, log(exp(m.prev) + exp(k)))
    r.update(S, diag(exp(m.prev - m.next)) * S.prev + exp(k - m.next) * v.T)
    r.output("o", S.next.T * q)
    return r


def lightnet_2() -> Recurrence:
    r = Recurrence("lightnet")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    m = r.state("m", d)
    S = r.state("S", d, e)
    a = r.let("a", sigmoid(m.prev - k))
    r.update(m, k + softplus(m.prev - k))
    r.update(S, diag(a) * S.prev + (1 - a) * v.T)
    r.output("o", S.next.T * q)
    return r


def least_squares_1() -> Recurrence:
    r = Recurrence("least_squares")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    g = r.inputs("g")
    P = r.state("P", d, d, initial=eye(d))
    W = r.state("W", d, e)
    lam = sigmoid(g + 3)
    Pk = P.prev * k
    K = Pk / (lam + dot(k, Pk))
    r.update(P, (P.prev - K * Pk.T) / lam)
    r.update(W, W.prev + K * (v - W.prev.T * k).T)
    r.output("o", W.next.T * q)
    return r


def least_squares_2() -> Recurrence:
    r = Recurrence("least_squares")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    g = r.inputs("g")
    P = r.state("P", d, d, initial=eye(d))
    W = r.state("W", d, e)
    lam = sigmoid(g + 3)
    K = r.let("K", P.prev * k / (lam + k.T * P.prev * k))
    r.update(P, (eye(d) - K * k.T) * P.prev / lam)
    r.update(W, (eye(d) - K * k.T) * W.prev + K * v.T)
    r.output("o", W.next.T * q)
    return r


def rodimus_1() -> Recurrence:
    r = Recurrence("rodimus")
    d, e = r.dims("d e")
    q, k, g, tau = r.inputs("q k g tau", d)
    v, b = r.inputs("v b", e)
    S = r.state("S", d, e)
    G = softplus(g)
    t = sigmoid(tau)
    r.update(
        S, diag(exp(-hadamard(G, t))) * S.prev + hadamard(apply(lambda a, c: a**c, G, t), k) * hadamard(sigmoid(b), v).T
    )
    r.output("o", S.next.T * q)
    return r


def rodimus_2() -> Recurrence:
    r = Recurrence("rodimus")
    d, e = r.dims("d e")
    q, k, g, tau = r.inputs("q k g tau", d)
    v, b = r.inputs("v b", e)
    S = r.state("S", d, e)
    G = softplus(g)
    t = sigmoid(tau)
    r.update(S, diag(exp(-hadamard(G, t))) * S.prev + hadamard(exp(hadamard(t, log(G))), k) * hadamard(sigmoid(b), v).T)
    r.output("o", S.next.T * q)
    return r


def metala_1() -> Recurrence:
    r = Recurrence("metala")
    d, e = r.dims("d e")
    q, g = r.inputs("q g", d)
    v = r.inputs("v", e)
    w = r.parameter("w", e)
    lb = r.parameter("lb", d)
    S = r.state("S", d, e)
    f = sigmoid(lb) + hadamard(1 - sigmoid(lb), sigmoid(g))
    r.update(S, diag(f) * S.prev + (1 - f) * v.T)
    r.output("o", S.next.T * q + sigmoid(dot(q, 1 - f)) * hadamard(w, v))
    return r


def metala_2() -> Recurrence:
    r = Recurrence("metala")
    d, e = r.dims("d e")
    q, g = r.inputs("q g", d)
    v = r.inputs("v", e)
    w = r.parameter("w", e)
    lb = r.parameter("lb", d)
    S = r.state("S", d, e)
    k = r.let("k", hadamard(sigmoid(-lb), 1 - sigmoid(g)))
    r.update(S, S.prev - diag(k) * S.prev + k * v.T)
    r.output("o", S.next.T * q + sigmoid(q.T * k) * diag(w) * v)
    return r


def xpos_1() -> Recurrence:
    r = Recurrence("xpos")
    d, e = r.dims("d e")
    q, w = r.inputs("q w", d)
    k, j = r.inputs("k j", d)
    v = r.inputs("v", e)
    th = r.parameter("th", d)
    a = r.parameter("a")
    A = r.state("A", d, e)
    B = r.state("B", d, e)
    g = sigmoid(a)
    c, s = (cos(th), sin(th))
    r.update(A, g * (diag(c) * A.prev - diag(s) * B.prev) + k * v.T)
    r.update(B, g * (diag(s) * A.prev + diag(c) * B.prev) + j * v.T)
    r.output("o", A.next.T * q + B.next.T * w)
    return r


def xpos_2() -> Recurrence:
    r = Recurrence("xpos")
    d, e = r.dims("d e")
    q, w = r.inputs("q w", d)
    k, j = r.inputs("k j", d)
    v = r.inputs("v", e)
    th = r.parameter("th", d)
    a = r.parameter("a")
    A = r.state("A", e, d)
    B = r.state("B", e, d)
    g = sigmoid(a)
    C, S = (g * diag(cos(th)), g * diag(sin(th)))
    r.update(A, A.prev * C - B.prev * S + v * k.T)
    r.update(B, A.prev * S + B.prev * C + v * j.T)
    r.output("o", A.next * q + B.next * w)
    return r


def mamba_1() -> Recurrence:
    r = Recurrence("mamba")
    c, n = r.dims("c n")
    x, dt = r.inputs("x dt", c)
    B, C = r.inputs("Bt Ct", n)
    A = r.parameter("A", c, n)
    h = r.state("h", c, n)
    r.update(h, hadamard(exp(-diag(softplus(dt)) * exp(A)), h.prev) + hadamard(softplus(dt), x) * B.T)
    r.output("y", h.next * C)
    return r


def mamba_2() -> Recurrence:
    r = Recurrence("mamba")
    c, n = r.dims("c n")
    x, dt = r.inputs("x dt", c)
    B, C = r.inputs("Bt Ct", n)
    A = r.parameter("A", c, n)
    h = r.state("h", n, c)
    s = r.let("s", log(1 + exp(dt)))
    r.update(h, hadamard(exp(-hadamard(ones(n) * s.T, exp(A).T)), h.prev) + B * hadamard(s, x).T)
    r.output("y", h.next.T * C)
    return r


TWICE: dict[str, tuple[Callable[[], Recurrence], Callable[[], Recurrence]]] = {
    "longhorn": (longhorn_1, longhorn_2),
    "titans_spelt": (titans_spelt_1, titans_spelt_2),
    "gated_delta_product": (gated_delta_product_1, gated_delta_product_2),
    "rwkv7_spelt": (rwkv7_spelt_1, rwkv7_spelt_2),
    "kda_spelt": (kda_spelt_1, kda_spelt_2),
    "ttt_linear": (ttt_linear_1, ttt_linear_2),
    "rg_lru": (rg_lru_1, rg_lru_2),
    "gated_slot_attention": (gated_slot_attention_1, gated_slot_attention_2),
    "mlstm_spelt": (mlstm_spelt_1, mlstm_spelt_2),
    "path_linear": (path_linear_1, path_linear_2),
    "regla": (regla_1, regla_2),
    "oja": (oja_1, oja_2),
    "lightnet": (lightnet_1, lightnet_2),
    "least_squares": (least_squares_1, least_squares_2),
    "rodimus": (rodimus_1, rodimus_2),
    "metala": (metala_1, metala_2),
    "xpos": (xpos_1, xpos_2),
    "mamba": (mamba_1, mamba_2),
}
