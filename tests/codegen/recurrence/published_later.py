"""Published recurrences of 2016 to 2026 again, as a reader writes them down; their other spellings are made mechanically."""

from __future__ import annotations

from collections.abc import Callable

import sympy

from chunkform.spec.language import (
    Max,
    Min,
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
    norm,
    normalize,
    ones,
    relu,
    sigmoid,
    silu,
    sin,
    softmax,
    softplus,
    tanh,
)


def attention(name: str) -> tuple:
    """A recurrence with queries, keys and values, and its dims."""
    r = Recurrence(name)
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    return r, d, e, q, k, r.inputs("v", e)


def gated_retention() -> Recurrence:
    """YOCO's: a gate of which a root is taken."""
    r, d, e, q, k, v = attention("gated_retention")
    g = r.inputs("g")
    S = r.state("S", d, e)
    r.update(S, sigmoid(g) ** sympy.Rational(1, 16) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


def gla() -> Recurrence:
    r, d, e, q, k, v = attention("gla")
    g = r.inputs("g", d)
    S = r.state("S", d, e)
    r.update(S, diag(sigmoid(g) ** sympy.Rational(1, 16)) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


def hedgehog() -> Recurrence:
    """A learned feature map: softmaxes of both signs."""
    r, d, e, q, k, v = attention("hedgehog")
    W = r.parameter("W", d, d)
    P, N = r.state("P", d, e), r.state("N", d, e)
    y, z = r.state("y", d), r.state("z", d)
    (kp, kn), (qp, qn) = ((softmax(W * x), softmax(-W * x)) for x in (k, q))
    for state, write in ((P, kp * v.T), (N, kn * v.T), (y, kp), (z, kn)):
        r.update(state, state.prev + write)
    r.output("o", (P.next.T * qp + N.next.T * qn) / (dot(y.next, qp) + dot(z.next, qn)))
    return r


def rebased() -> Recurrence:
    """Squares of scaled and shifted features."""
    r, d, e, q, k, v = attention("rebased")
    gq, bq, gk, bk = r.parameters("gq bq gk bk", d)
    S, z = r.state("S", d, e), r.state("z", d)
    a, b = (hadamard(gq, q) + bq) ** 2, (hadamard(gk, k) + bk) ** 2
    r.update(S, S.prev + b * v.T)
    r.update(z, z.prev + b)
    r.output("o", S.next.T * a / (dot(z.next, a) + 1))
    return r


def performer() -> Recurrence:
    r, d, e, q, k, v = attention("performer")
    m = r.dims("m")
    W = r.parameter("W", m, d)
    S, z = r.state("S", m, e), r.state("z", m)
    a, b = (exp(W * x - dot(x, x) / 2) for x in (q, k))
    r.update(S, S.prev + b * v.T)
    r.update(z, z.prev + b)
    r.output("o", S.next.T * a / dot(z.next, a))
    return r


def random_features() -> Recurrence:
    """RFA with its gate."""
    r, d, e, q, k, v = attention("random_features")
    m = r.dims("m")
    W, g = r.parameter("W", m, d), r.inputs("g")
    C, S = r.state("C", m, e), r.state("S", m, e)
    y, z = r.state("y", m), r.state("z", m)
    G = sigmoid(g)
    for state, write in ((C, cos(W * k) * v.T), (S, sin(W * k) * v.T), (y, cos(W * k)), (z, sin(W * k))):
        r.update(state, G * state.prev + (1 - G) * write)
    a, b = cos(W * q), sin(W * q)
    r.output("o", (C.next.T * a + S.next.T * b) / (1 + (dot(y.next, a) + dot(z.next, b)) ** 2))
    return r


def cosformer() -> Recurrence:
    """Features turned by how far the sequence is."""
    r, d, e, q, k, v = attention("cosformer")
    w = r.parameter("w")
    p, C, S = r.state("p"), r.state("C", d, e), r.state("S", d, e)
    r.update(p, p.prev + w)
    c, s = cos(p.next), sin(p.next)
    r.update(C, C.prev + c * relu(k) * v.T)
    r.update(S, S.prev + s * relu(k) * v.T)
    r.output("o", C.next.T * (c * relu(q)) + S.next.T * (s * relu(q)))
    return r


def flowformer() -> Recurrence:
    """Causal flow attention: what flows in and out of each step is conserved, and competes."""
    r, d, e, q, k, v = attention("flowformer")
    K, Q, KO, QI = (r.state(n, d) for n in ("K", "Q", "KO", "QI"))
    S, z = r.state("S", d, e), r.state("z")
    a, b = sigmoid(q), sigmoid(k)
    r.update(K, K.prev + b)
    r.update(Q, Q.prev + a)
    inward, outward = r.let("inward", dot(a, K.next)), r.let("outward", dot(b, Q.next))
    r.update(KO, KO.prev + b / outward)
    r.update(QI, QI.prev + a / inward)
    weight = r.let("weight", exp(dot(b, QI.next)))
    r.update(z, z.prev + weight)
    r.update(S, S.prev + b * (weight * v).T)
    r.output("o", sigmoid(dot(a, KO.next)) * (S.next.T * a) / inward / z.next)
    return r


def linear_roformer() -> Recurrence:
    """Queries and keys rotated by absolute angles."""
    r = Recurrence("linear_roformer")
    d, e = r.dims("d e")
    q, p, k, j = r.inputs("q p k j", d)
    v, a, th = r.inputs("v", e), r.decay("a"), r.parameter("th", d)
    at, A, B = r.state("at", d), r.state("A", d, e), r.state("B", d, e)
    r.update(at, at.prev + th)
    c, s = cos(at.next), sin(at.next)
    r.update(A, a * A.prev + (hadamard(c, k) - hadamard(s, j)) * v.T)
    r.update(B, a * B.prev + (hadamard(s, k) + hadamard(c, j)) * v.T)
    r.output("o", A.next.T * (hadamard(c, q) - hadamard(s, p)) + B.next.T * (hadamard(s, q) + hadamard(c, p)))
    return r


def mamba3_rotary() -> Recurrence:
    """Mamba-3 as its authors compute it: a trapezoid, of keys rotated by summed angles."""
    r = Recurrence("mamba3_rotary")
    d, e = r.dims("d e")
    B1, B2, C1, C2, th = r.inputs("B1 B2 C1 C2 th", d)
    x = r.inputs("x", e)
    dt, lam, A = r.inputs("dt lam A")
    at, S1, S2 = r.state("at", d), r.state("S1", d, e), r.state("S2", d, e)
    last1, last2, lastx = r.state("last1", d), r.state("last2", d), r.state("lastx", e)
    step, mix = softplus(dt), sigmoid(lam)
    a = exp(-step * exp(A))
    r.update(at, at.prev + step * th)
    c, s = cos(at.next), sin(at.next)
    b1, b2 = hadamard(c, B1) + hadamard(s, B2), hadamard(c, B2) - hadamard(s, B1)
    r.update(S1, a * S1.prev + (1 - mix) * step * a * last1.prev * lastx.prev.T + mix * step * b1 * x.T)
    r.update(S2, a * S2.prev + (1 - mix) * step * a * last2.prev * lastx.prev.T + mix * step * b2 * x.T)
    for state, value in ((last1, b1), (last2, b2), (lastx, x)):
        r.update(state, value)
    r.output("y", S1.next.T * (hadamard(c, C1) + hadamard(s, C2)) + S2.next.T * (hadamard(c, C2) - hadamard(s, C1)))
    return r


def decaying_fast_weights() -> Recurrence:
    r, d, e, q, k, v = attention("decaying_fast_weights")
    a, b = r.inputs("a", d), r.inputs("b", e)
    S = r.state("S", d, e)
    r.update(S, hadamard(sigmoid(a) * sigmoid(b).T, S.prev) + k * v.T)
    r.output("o", S.next.T * q)
    return r


def agalite() -> Recurrence:
    """Gates of both sides, and a normaliser with one of them."""
    r, d, e, q, k, v = attention("agalite")
    g, b = r.inputs("g", d), r.inputs("b", e)
    C, s = r.state("C", d, e), r.state("s", d)
    key, query = relu(k), relu(q)
    new = hadamard(sigmoid(g), key)
    r.update(C, diag(1 - sigmoid(g)) * C.prev * diag(1 - sigmoid(b)) + new * hadamard(sigmoid(b), v).T)
    r.update(s, hadamard(1 - sigmoid(g), s.prev) + new)
    r.output("o", C.next.T * query / (1 + dot(s.next, query)))
    return r


def rwkv5() -> Recurrence:
    r, d, e, q, k, v = attention("rwkv5")
    w, u = r.parameters("w u", d)
    S = r.state("S", d, e)
    r.output("o", (S.prev + diag(u) * k * v.T).T * q)
    r.update(S, diag(exp(-exp(w))) * S.prev + k * v.T)
    return r


def qrnn() -> Recurrence:
    r = Recurrence("qrnn")
    d = r.dims("d")
    z, f, o = r.inputs("z f o", d)
    c = r.state("c", d)
    r.update(c, hadamard(sigmoid(f), c.prev) + hadamard(1 - sigmoid(f), tanh(z)))
    r.output("h", hadamard(sigmoid(o), c.next))
    return r


def mlstm_sigmoid() -> Recurrence:
    """mLSTMsig: an input gate that is bounded, and no normaliser."""
    r, d, e, q, k, v = attention("mlstm_sigmoid")
    i, f = r.inputs("i f")
    C = r.state("C", d, e)
    r.update(C, sigmoid(f) * C.prev + sigmoid(i) * k * v.T)
    r.output("h", C.next.T * q / r.size(d) ** sympy.Rational(1, 2))
    return r


def xlstm7b() -> Recurrence:
    """mLSTM of the xLSTM of 7 billion parameters: gates that are capped."""
    r, d, e, q, k, v = attention("xlstm7b")
    i, f = r.inputs("i f")
    C, n, m = r.state("C", d, e), r.state("n", d), r.state("m")
    gain, forget = 15 * tanh(i / 15), logsigmoid(15 * tanh(f / 15))
    r.update(m, Max(forget + m.prev, gain))
    old, new = exp(forget + m.prev - m.next), exp(gain - m.next)
    r.update(C, old * C.prev + new * k * v.T)
    r.update(n, old * n.prev + new * k)
    r.output("h", C.next.T * q / Max(absolute(dot(n.next, q)), exp(-m.next)))
    return r


def delta_product() -> Recurrence:
    """DeltaProduct: three Householder matrices a step."""
    r = Recurrence("delta_product")
    d, e = r.dims("d e")
    q, k1, k2, k3 = r.inputs("q k1 k2 k3", d)
    v1, v2, v3 = r.inputs("v1 v2 v3", e)
    b1, b2, b3 = r.inputs("b1 b2 b3")
    S = r.state("S", d, e)
    x = S.prev
    for k, v, b in ((k1, v1, b1), (k2, v2, b2), (k3, v3, b3)):
        key, beta = normalize(k), 2 * sigmoid(b)
        x = (eye(d) - beta * key * key.T) * x + beta * key * v.T
    r.update(S, x)
    r.output("o", S.next.T * q)
    return r


def value_strengths() -> Recurrence:
    """Gated DeltaNet whose values are written with a strength for each channel."""
    r, d, e, q, k, v = attention("value_strengths")
    b, a = r.inputs("b", e), r.decay("a")
    S = r.state("S", d, e)
    key = k / norm(k)
    r.update(S, a * S.prev + key * hadamard(sigmoid(b), v - a * S.prev.T * key).T)
    r.output("o", S.next.T * q)
    return r


def residual_delta() -> Recurrence:
    """A second memory of what the first leaves, clipped."""
    r, d, e, q, k, v = attention("residual_delta")
    a, b, g = r.inputs("a b g")
    S, R = r.state("S", d, e), r.state("R", d, e)
    key = normalize(k)
    error = r.let("error", v - S.prev.T * key)
    r.update(S, sigmoid(a) * S.prev + sigmoid(b) * key * error.T)
    r.update(R, sigmoid(a) * R.prev + sigmoid(g) * key * (Max(Min(error, 1), -1) - R.prev.T * key).T)
    r.output("o", (S.next + R.next).T * q)
    return r


def momentum_transformer() -> Recurrence:
    """Heavy-ball momentum of a delta rule, by the last two states."""
    r, d, e, q, k, v = attention("momentum_transformer")
    b, g = r.inputs("b g")
    S, P = r.state("S", d, e), r.state("P", d, e)
    new = S.prev + sigmoid(g) * (S.prev - P.prev) + sigmoid(b) * k * (v - S.prev.T * k).T
    r.update(P, S.prev)
    r.update(S, new)
    r.output("o", S.next.T * q)
    return r


def momentum_mamba() -> Recurrence:
    r = Recurrence("momentum_mamba")
    c, n = r.dims("c n")
    x, dt = r.inputs("x dt", c)
    B, C = r.inputs("Bt Ct", n)
    A = r.parameter("A", c, n)
    keep, gain = r.parameters("keep gain")
    u, h = r.state("u", c, n), r.state("h", c, n)
    step = softplus(dt)
    r.update(u, sigmoid(keep) * u.prev + gain * hadamard(step, x) * B.T)
    r.update(h, hadamard(exp(-diag(step) * exp(A)), h.prev) + u.next)
    r.output("y", h.next * C)
    return r


def h3() -> Recurrence:
    """A shift of keys by one matrix, then sums of their products with values that decay."""
    r = Recurrence("h3")
    n, d, e = r.dims("n d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    A, b, c, lam = r.parameter("A", n, n), r.parameter("b", n), r.parameter("c", n), r.parameter("lam", d)
    x, S = r.state("x", n, d), r.state("S", d, e)
    r.update(x, A * x.prev / 4 + b * k.T)
    r.update(S, diag(sigmoid(lam)) * S.prev + (x.next.T * c) * v.T)
    r.output("o", S.next.T * q)
    return r


def s7() -> Recurrence:
    """A selective diagonal that is kept stable by its formula."""
    r = Recurrence("s7")
    n, p = r.dims("n p")
    u, w = r.inputs("u", p), r.inputs("w", n)
    B, C = r.parameter("Bt", n, p), r.parameter("Ct", p, n)
    x = r.state("x", n)
    r.update(x, hadamard(1 - 1 / (w**2 + sympy.Rational(1, 2)), x.prev) + B * u)
    r.output("y", C * x.next)
    return r


def pd_ssm() -> Recurrence:
    """A column one-hot matrix times a diagonal."""
    r = Recurrence("pd_ssm")
    n, p = r.dims("n p")
    P, g, u = r.inputs("P", n, n), r.inputs("g", n), r.inputs("u", p)
    B, C = r.parameter("Bt", n, p), r.parameter("Ct", p, n)
    x = r.state("x", n)
    r.update(x, P * hadamard(tanh(g), x.prev) / 4 + B * u)
    r.output("y", C * x.next)
    return r


def megalodon() -> Recurrence:
    """Megalodon's moving average: complex, with an angle for each channel."""
    r = Recurrence("megalodon")
    c, n = r.dims("c n")
    x = r.inputs("x", c)
    a, damp, b, er, ei = r.parameters("a damp b er ei", c, n)
    th = r.parameter("th", c)
    re, im = r.state("re", c, n), r.state("im", c, n)
    kept, new = 1 - hadamard(sigmoid(a), sigmoid(damp)), hadamard(sigmoid(a), b)
    co, si = diag(cos(th)), diag(sin(th))
    r.update(re, hadamard(kept, co * re.prev - si * im.prev) + diag(x) * co * new)
    r.update(im, hadamard(kept, si * re.prev + co * im.prev) + diag(x) * si * new)
    r.output("y", (hadamard(er, re.next) - hadamard(ei, im.next)) * ones(n))
    return r


def self_referential() -> Recurrence:
    """A matrix that makes the key by which it is written."""
    r = Recurrence("self_referential")
    d = r.dims("d")
    x, b = r.inputs("x", d), r.inputs("b")
    W = r.state("W", d, d)
    key = softmax(W.prev * x)
    r.update(W, W.prev + sigmoid(b) * (x - W.prev * key) * key.T)
    r.output("y", W.next * x)
    return r


def yaad() -> Recurrence:
    """Huber's loss: an error that is clipped."""
    r, d, e, q, k, v = attention("yaad")
    keep, rate, most = r.inputs("keep rate most")
    W = r.state("W", d, e)
    error, bound = W.prev.T * k - v, softplus(most)
    r.update(W, sigmoid(keep) * W.prev - sigmoid(rate) * k * Max(Min(error, bound), -bound).T)
    r.output("o", W.next.T * q)
    return r


def ttt_mlp() -> Recurrence:
    """TTT with a small network, without its norm."""
    r = Recurrence("ttt_mlp")
    d, h = r.dims("d h")
    q, k, v = r.inputs("q k v", d)
    rate, U = r.inputs("rate"), r.parameter("U", h, d)
    W1, W2 = r.state("W1", h, d), r.state("W2", d, h)
    z = r.let("z", W1.prev * k)
    error = r.let("error", W2.prev * silu(z) - v)
    slope = hadamard(sigmoid(z), 1 + hadamard(z, 1 - sigmoid(z)))
    r.update(W1, W1.prev - sigmoid(rate) * hadamard(slope, W2.prev.T * error) * k.T)
    r.update(W2, W2.prev - sigmoid(rate) * error * silu(z).T)
    r.output("o", W2.next * silu(W1.next * q + U * q))
    return r


def kalman_attention() -> Recurrence:
    """Kalman linear attention: a precision for each entry, which also weighs what is kept of it."""
    r, d, e, q, k, v = attention("kalman_attention")
    s, a, p = r.inputs("s", e), r.parameter("a"), r.parameter("p")
    L, E = r.state("L", d, e, initial=ones(d, e)), r.state("E", d, e)
    rho = r.let("rho", apply(lambda x: 1 / (sigmoid(a) ** 2 + softplus(p) * x), L.prev))
    r.update(E, sigmoid(a) * hadamard(rho, E.prev) + k * hadamard(softplus(s), v).T)
    r.update(L, hadamard(rho, L.prev) + k**2 * softplus(s).T)
    r.output("o", apply(lambda x, y: x / y, E.next, L.next).T * q)
    return r


LATER: dict[str, Callable[[], Recurrence]] = {
    f.__name__: f
    for f in (
        gated_retention, gla, hedgehog, rebased, performer, random_features, cosformer, flowformer, linear_roformer,
        mamba3_rotary, decaying_fast_weights, agalite, rwkv5, qrnn, mlstm_sigmoid, xlstm7b, delta_product,
        value_strengths, residual_delta, momentum_transformer, momentum_mamba, h3, s7, pd_ssm, megalodon,
        self_referential, yaad, ttt_mlp, kalman_attention,
    )
}  # fmt: skip
