"""Published recurrences in words that authors might as well have chosen, each with the form that it has in its paper's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

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
    logsigmoid,
    ones,
    relu,
    sigmoid,
    sin,
    softmax,
    softplus,
    sqrt,
    tanh,
)  # fmt: skip

Make = Callable[[], Recurrence]
OTHER_WORDS: dict[str, tuple[str, Make]] = {}


def form(family: str) -> Callable[[Make], Make]:
    """The family that a spec is to have."""

    def noted(make: Make) -> Make:
        OTHER_WORDS[make.__name__] = family, make
        return make

    return noted


def base(name: str, keys: str = "q k") -> tuple[Any, ...]:
    """A matrix with queries, keys and values."""
    r = Recurrence(name)
    d, e = r.dims("d e")
    return r, d, e, r.inputs(keys, d), r.inputs("v", e), r.state("S", d, e)


@form("chunk-parallel")
def gla_tanh_gate() -> Recurrence:
    r, d, _, (q, k), v, S = base("gla_tanh_gate")
    g = r.inputs("g", d)
    r.update(S, diag((1 + tanh(g / 2)) / 2) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def gla_one_minus() -> Recurrence:
    r, d, e, (q, k), v, S = base("gla_one_minus")
    g = r.inputs("g", d)
    r.update(S, S.prev - hadamard(sigmoid(-g) * ones(e).T, S.prev) + k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def gla_quotient() -> Recurrence:
    r, d, _, (q, k), v, S = base("gla_quotient")
    g = r.inputs("g", d)
    r.update(S, diag(1 / (1 + exp(-g))) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def gla_logsig() -> Recurrence:
    r, d, e, (q, k), v, S = base("gla_logsig")
    g = r.inputs("g", d)
    r.update(S, diag(exp(-softplus(-g) / 16)) * S.prev + diag(k) * ones(d, e) * diag(v))
    r.output("o", (q.T * S.next).T)
    return r


@form("chunk-parallel")
def gla_root16() -> Recurrence:
    r, d, _, (q, k), v, S = base("gla_root16")
    g = r.inputs("g", d)
    r.update(S, diag(sigmoid(g) ** sympy.Rational(1, 16)) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def delta_householder() -> Recurrence:
    r, d, _, (q, k), v, S = base("delta_householder")
    b = r.inputs("b")
    kn = k / sqrt(dot(k, k))
    r.update(S, (eye(d) - sigmoid(b) * kn * kn.T) * S.prev + sigmoid(b) * kn * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def delta_row() -> Recurrence:
    r, _, _, (q, k), v, S = base("delta_row")
    b = r.inputs("b")
    row = r.let("row", k.T * S.prev)
    r.update(S, S.prev - b * k * row + b * k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def delta_next_read() -> Recurrence:
    r, _, _, (q, k), v, S = base("delta_next_read")
    b, g = r.inputs("b"), r.decay("g")
    u = r.let("u", b * (v - g * (k.T * S.prev).T))
    r.update(S, g * S.prev + k * u.T)
    r.output("o", g * S.prev.T * q + dot(k, q) * u)
    return r


@form("chunk-parallel")
def delta_gate_distributed() -> Recurrence:
    r, _, _, (q, k), v, S = base("delta_gate_distributed")
    b, g = r.inputs("b"), r.inputs("g")
    r.update(S, sigmoid(g) * (S.prev - sigmoid(b) * k * (k.T * S.prev)) + sigmoid(b) * k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def kda_matrix() -> Recurrence:
    r, d, _, (q, k), v, S = base("kda_matrix")
    b, a = r.inputs("b"), r.decay("a", d)
    r.update(S, (eye(d) - b * k * k.T) * diag(a) * S.prev + b * k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def comba_matrix() -> Recurrence:
    r, d, _, (q, k, p), v, S = base("comba_matrix", keys="q k p")
    b, g = r.inputs("b"), r.decay("g")
    r.update(S, g * (eye(d) - b * k * p.T) * S.prev + b * k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def product_matrix() -> Recurrence:
    r, d, e, (q, k, l), v, S = base("product_matrix", keys="q k l")
    b, c = r.inputs("b c")
    w = r.inputs("w", e)
    r.update(S, (eye(d) - c * l * l.T) * ((eye(d) - b * k * k.T) * S.prev + b * k * v.T) + c * l * w.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def oja_matrix() -> Recurrence:
    r, _, e, (q, k), v, S = base("oja_matrix")
    b, g = r.inputs("b"), r.decay("g", e)
    r.update(S, S.prev * diag(g) * (eye(e) - b * v * v.T) + b * k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def momentum_inlined() -> Recurrence:
    r, d, e, (q, k, p), v, S = base("momentum_inlined", keys="q k p")
    b, c = r.inputs("b c")
    al, mu = r.decay("al mu")
    M = r.state("M", d, e)
    new = mu * M.prev + c * k * (p.T * S.prev - v.T)
    r.update(M, new)
    r.update(S, al * S.prev - b * new)
    r.output("o", S.next.T * q)
    return r


@form("strata")
def mlstm_where() -> Recurrence:
    r, d, _, (q, k), v, S = base("mlstm_where")
    i, f = r.inputs("i f")
    n, m = r.state("n", d), r.state("m")
    lf = -softplus(-f)
    r.update(m, lf + m.prev + relu(i - lf - m.prev))
    r.update(S, exp(lf + m.prev - m.next) * S.prev + exp(i - m.next) * k * v.T)
    r.update(n, exp(lf + m.prev - m.next) * n.prev + exp(i - m.next) * k)
    r.output("o", S.next.T * q / Max(absolute(dot(n.next, q)), 1))
    return r


@form("strata")
def mlstm_abs() -> Recurrence:
    r, d, _, (q, k), v, S = base("mlstm_abs")
    i, f = r.inputs("i f")
    n, m = r.state("n", d), r.state("m")
    lf = logsigmoid(f)
    a = lf + m.prev
    r.update(m, (a + i + absolute(a - i)) / 2)
    r.update(S, exp(lf + m.prev - m.next) * S.prev + exp(i - m.next) * k * v.T)
    r.update(n, exp(lf + m.prev - m.next) * n.prev + exp(i - m.next) * k)
    r.output("o", S.next.T * q / Max(absolute(dot(n.next, q)), exp(-m.next)))
    return r


@form("strata")
def mlstm_ratio() -> Recurrence:
    r, d, _, (q, k), v, S = base("mlstm_ratio")
    i, f = r.inputs("i f")
    n, m = r.state("n", d), r.state("m")
    lf = logsigmoid(f)
    r.update(m, Max(lf + m.prev, i))
    w = r.let("w", exp(-m.next))
    r.update(S, w * (sigmoid(f) * exp(m.prev) * S.prev + exp(i) * k * v.T))
    r.update(n, w * (sigmoid(f) * exp(m.prev) * n.prev + exp(i) * k))
    r.output("o", S.next.T * q / Max(absolute(dot(n.next, q)), exp(-m.next)))
    return r


@form("chunk-parallel")
def hgrn_lerp() -> Recurrence:
    r = Recurrence("hgrn_lerp")
    d = r.dims("d")
    x, f = r.inputs("x f", d)
    h = r.state("h", d)
    r.update(h, h.prev + hadamard(1 - sigmoid(f), x - h.prev))
    r.output("o", h.next)
    return r


@form("chunk-parallel")
def rg_lru_root() -> Recurrence:
    r = Recurrence("rg_lru_root")
    d = r.dims("d")
    x, g = r.inputs("x g", d)
    lam = r.parameter("lam", d)
    h = r.state("h", d)
    loga = -8 * hadamard(softplus(lam), sigmoid(g))
    r.update(h, hadamard(exp(loga), h.prev) + hadamard(sqrt(1 - exp(2 * loga)), x))
    r.output("o", h.next)
    return r


@form("chunk-parallel")
def rg_lru_power() -> Recurrence:
    r = Recurrence("rg_lru_power")
    d = r.dims("d")
    x, g = r.inputs("x g", d)
    lam = r.parameter("lam", d)
    h = r.state("h", d)
    a = sigmoid(lam)
    r.update(h, hadamard(apply(lambda u, w: u ** (8 * sigmoid(w)), a, g), h.prev) + x)
    r.output("o", h.next)
    return r


@form("chunk-parallel")
def gsa_t() -> Recurrence:
    r = Recurrence("gsa_t")
    d, e, m = r.dims("d e m")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    g = r.inputs("g", m)
    K, V = r.state("K", m, d), r.state("V", m, e)
    f = sigmoid(g)
    r.update(K, diag(f) * K.prev + (1 - f) * k.T)
    r.update(V, V.prev + hadamard((1 - f) * ones(e).T, ones(m) * v.T - V.prev))
    r.output("o", V.next.T * softmax(K.next * q))
    return r


@form("chunk-parallel")
def mamba2_euler() -> Recurrence:
    r = Recurrence("mamba2_euler")
    n, p = r.dims("n p")
    B, Cc = r.inputs("B C", n)
    x = r.inputs("x", p)
    raw = r.inputs("raw")
    h = r.state("h", p, n)
    r.update(h, h.prev / (1 + exp(raw)) + x * B.T)
    r.output("y", h.next * Cc)
    return r


@form("chunk-parallel")
def dplr_two_reads() -> Recurrence:
    r, d, e, (q, k, a, b), v, S = base("dplr_two_reads", keys="q k a b")
    w = r.inputs("w", d)
    y = r.let("y", S.prev.T * a)
    r.update(S, hadamard(sigmoid(w) * ones(e).T, S.prev) + b * y.T + k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def rwkv6_next() -> Recurrence:
    r, d, _, (q, k), v, S = base("rwkv6_next")
    w, u = r.decay("w", d), r.parameter("u", d)
    r.output("o", S.prev.T * q + dot(hadamard(q, u), k) * v)
    r.update(S, diag(w) * S.prev + k * v.T)
    return r


@form("chunk-parallel")
def gdn2_masks() -> Recurrence:
    r, d, e, (q, k, b), v, S = base("gdn2_masks", keys="q k b")
    w = r.inputs("w", e)
    g = r.decay("g", d)
    r.update(S, diag(g) * S.prev - k * hadamard(b, k).T * diag(g) * S.prev + k * hadamard(w, v).T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def value_strength_matrix() -> Recurrence:
    r, _, e, (q, k), v, S = base("value_strength_matrix")
    b, g = r.inputs("b", e), r.decay("g")
    r.update(S, g * S.prev - g * k * (k.T * S.prev) * diag(b) + k * hadamard(b, v).T)
    r.output("o", S.next.T * q)
    return r


@form("strata")
def rotation_matrix() -> Recurrence:
    r, d, e, (q, k), v, S = base("rotation_matrix")
    I, th, a = r.state("I", d, e), r.inputs("th", d), r.decay("a")
    c, s = cos(th), sin(th)
    r.update(S, a * hadamard(c * ones(e).T, S.prev) - a * hadamard(s * ones(e).T, I.prev) + k * v.T)
    r.update(I, a * (hadamard(s * ones(e).T, S.prev) + hadamard(c * ones(e).T, I.prev)))
    r.output("o", S.next.T * q)
    return r


@form("segment-parallel")
def rank_m_sum() -> Recurrence:
    r = Recurrence("rank_m_sum")
    d, e, m = r.dims("d e m")
    q = r.inputs("q", d)
    K, V = r.inputs("K", d, m), r.inputs("V", e, m)
    S = r.state("S", d, e)
    g = r.inputs("g")
    r.update(S, sigmoid(g) * S.prev + (V * K.T).T)
    r.output("o", S.next.T * q)
    return r


@form("strata")
def signs_one_minus_two() -> Recurrence:
    r, d, _, (q, k), v, S = base("signs_one_minus_two")
    g = r.inputs("g", d)
    r.update(S, diag(1 - 2 * sigmoid(g)) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("segment-parallel")
def mamba_outer() -> Recurrence:
    r, d, e, (q, k), x, S = base("mamba_outer")
    A, dt = r.parameter("A", d, e), softplus(r.inputs("dt", e))
    r.update(S, hadamard(exp(-hadamard(exp(A), ones(d) * dt.T)), S.prev) + k * hadamard(dt, x).T)
    r.output("o", S.next.T * q)
    return r


@form("scan")
def rwkv4_relu() -> Recurrence:
    r = Recurrence("rwkv4_relu")
    d = r.dims("d")
    k, v = r.inputs("k v", d)
    w = r.parameter("w", d)
    a, b, m = r.state("a", d), r.state("b", d), r.state("m", d)
    dec = -exp(w)
    r.update(m, k + relu(dec + m.prev - k))
    r.update(a, hadamard(exp(dec + m.prev - m.next), a.prev) + hadamard(exp(k - m.next), v))
    r.update(b, hadamard(exp(dec + m.prev - m.next), b.prev) + exp(k - m.next))
    r.output("o", apply(lambda x, y: x / y, a.next, b.next))
    return r


@form("chunk-parallel")
def oja_read_let() -> Recurrence:
    r, _, e, (q, k), v, S = base("oja_read_let")
    b, g = r.inputs("b"), r.decay("g", e)
    P = r.let("P", S.prev * diag(g))
    u = r.let("u", P * v)
    r.update(S, P - b * u * v.T + b * k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def rwkv7_ab() -> Recurrence:
    r, d, _, (q, k, p, a), v, S = base("rwkv7_ab", keys="q k p a")
    w = r.decay("w", d)
    n = p / sqrt(dot(p, p))
    r.update(S, diag(w) * S.prev + (-hadamard(sigmoid(a), n)) * (n.T * S.prev) + k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def gdp_three_lets() -> Recurrence:
    r, d, e, _, v, S = base("gdp_three_lets")
    k1, k2 = r.inputs("k1 k2", d)
    q2 = r.inputs("q2", d)
    b1, b2 = r.inputs("b1 b2")
    g = r.decay("g")
    w = r.inputs("w", e)
    A = r.let("A", (eye(d) - b1 * k1 * k1.T) * (g * S.prev) + b1 * k1 * v.T)
    r.update(S, (eye(d) - b2 * k2 * k2.T) * A + b2 * k2 * w.T)
    r.output("o", S.next.T * q2)
    return r


@form("chunk-parallel")
def normalised_next() -> Recurrence:
    r, d, _, (q, k), v, S = base("normalised_next")
    z = r.state("z", d)
    f = r.inputs("f")
    r.update(S, (1 - sigmoid(f)) * S.prev + sigmoid(f) * k * v.T)
    r.update(z, (1 - sigmoid(f)) * z.prev + sigmoid(f) * k)
    r.output("o", S.next.T * q / dot(z.next, q))
    return r


@form("chunk-parallel")
def gate_softmax() -> Recurrence:
    r, d, _, (q, k), v, S = base("gate_softmax")
    f = r.inputs("f", d)
    r.update(S, diag(softmax(f)) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def signed_tanh_quot() -> Recurrence:
    r, _, _, (q, k), v, S = base("signed_tanh_quot")
    g = r.inputs("g")
    r.update(S, ((1 - exp(-g)) / (1 + exp(-g))) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("chunk-parallel")
def both_axes_three() -> Recurrence:
    r, d, e, (q, k), v, S = base("both_axes_three")
    a, b = r.inputs("a", d), r.inputs("b", e)
    r.update(S, hadamard(sigmoid(a) * ones(e).T, hadamard(ones(d) * sigmoid(b).T, S.prev)) + k * v.T)
    r.output("o", S.next.T * q)
    return r


@form("strata")
def mimo_two_vectors() -> Recurrence:
    r, d, e, (q, k, l), v, S = base("mimo_two_vectors", keys="q k l")
    w = r.inputs("w", e)
    a = r.inputs("a", d)
    r.update(S, diag(tanh(a)) * S.prev + k * v.T + l * w.T)
    r.output("o", S.next.T * q)
    return r


@form("segment-parallel")
def delta_rank_m() -> Recurrence:
    r = Recurrence("delta_rank_m")
    d, e, m = r.dims("d e m")
    q = r.inputs("q", d)
    K, V = r.inputs("K", d, m), r.inputs("V", e, m)
    S = r.state("S", d, e)
    b = r.inputs("b")
    r.update(S, S.prev - b * K * (K.T * S.prev) + b * K * V.T)
    r.output("o", S.next.T * q)
    return r


@form("scan")
def kalman() -> Recurrence:
    r = Recurrence("kalman")
    z = r.inputs("z")
    p = r.state("p", domain=(0, 10))
    qn = r.parameter("qn", sign="positive")
    pr = p.prev + qn
    r.update(p, pr * (1 - pr / (pr + 1)))
    r.output("o", p.next * z)
    return r


@form("scan")
def minlse() -> Recurrence:
    r = Recurrence("minlse")
    d = r.dims("d")
    a, b = r.inputs("a b", d)
    h = r.state("h", d)
    r.update(h, h.prev + a + softplus(b - h.prev - a))
    r.output("o", h.next)
    return r


@form("scan")
def decayed_max_chain() -> Recurrence:
    r = Recurrence("decayed_max_chain")
    d = r.dims("d")
    a, b = r.inputs("a b", d)
    h = r.state("h", d)
    r.update(h, Max(Max(hadamard(sigmoid(a), h.prev), b), a))
    r.output("o", h.next)
    return r


@form("strata")
def xlstm_shift() -> Recurrence:
    r, d, _, (q, k), v, S = base("xlstm_shift")
    i, f = r.inputs("i f")
    m = r.state("m")
    n = r.state("n", d)
    r.update(m, Max(f + m.prev, i))
    D = r.let("D", m.prev - m.next)
    r.update(S, exp(f + D) * S.prev + exp(i - m.next) * k * v.T)
    r.update(n, exp(f + D) * n.prev + exp(i - m.next) * k)
    r.output("o", S.next.T * q / Max(absolute(n.next.T * q), 1))
    return r
