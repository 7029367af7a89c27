"""Recurrences from papers, as a reader writes them down: the table of docs/recurrences.md is about these."""

from __future__ import annotations

from chunkform.spec.language import (
    Max,
    Min,
    Recurrence,
    absolute,
    cos,
    diag,
    dot,
    exp,
    eye,
    hadamard,
    log,
    logsigmoid,
    norm,
    normalize,
    ones,
    relu,
    sigmoid,
    sin,
    softmax,
    softplus,
    sqrt,
    tanh,
)


def mamba2() -> Recurrence:
    r = Recurrence("mamba2")
    n, p = r.dims("n p")
    B, C = r.inputs("Bt Ct", n)
    x, dt = r.inputs("x", p), r.inputs("dt")
    A, bias, D = r.parameters("A bias D")
    h = r.state("h", n, p)
    step = softplus(dt + bias)
    r.update(h, exp(-step * exp(A)) * h.prev + step * B * x.T)
    r.output("y", h.next.T * C + D * x)
    return r


def mamba3() -> Recurrence:
    """A rotation by th, and what is written is a mean of this step and the one before."""
    r = Recurrence("mamba3")
    d, e = r.dims("d e")
    B, C, th = r.inputs("Bt Ct th", d)
    x = r.inputs("x", e)
    dt, mix = r.inputs("dt mix")
    A = r.parameter("A")
    re, im = r.state("re", d, e), r.state("im", d, e)
    lastB, lastx = r.state("lastB", d), r.state("lastx", e)
    step = softplus(dt)
    a, c, s = exp(-step * exp(A)), cos(step * th), sin(step * th)
    early = (1 - sigmoid(mix)) * step * a
    r.update(re, a * (diag(c) * re.prev - diag(s) * im.prev) + early * hadamard(c, lastB.prev) * lastx.prev.T
             + sigmoid(mix) * step * B * x.T)  # fmt: skip
    r.update(im, a * (diag(s) * re.prev + diag(c) * im.prev) + early * hadamard(s, lastB.prev) * lastx.prev.T)
    r.update(lastB, B)
    r.update(lastx, x)
    r.output("y", re.next.T * C)
    return r


def mingru() -> Recurrence:
    r = Recurrence("mingru")
    d = r.dims("d")
    z, c = r.inputs("z c", d)
    h = r.state("h", d)
    made = Max(c, 0) + sigmoid(Min(c, 0))
    r.update(h, hadamard(1 - sigmoid(z), h.prev) + hadamard(sigmoid(z), made))
    r.output("y", h.next)
    return r


def minlstm() -> Recurrence:
    r = Recurrence("minlstm")
    d = r.dims("d")
    i, f, c = r.inputs("i f c", d)
    h = r.state("h", d)
    both = sigmoid(f) + sigmoid(i)
    r.update(h, hadamard(sigmoid(f) / both, h.prev) + hadamard(sigmoid(i) / both, c))
    r.output("y", h.next)
    return r


def mingru_log() -> Recurrence:
    """In log space."""
    r = Recurrence("mingru_log")
    d = r.dims("d")
    z, c = r.inputs("z c", d)
    h = r.state("h", d)
    r.update(h, log(exp(h.prev + logsigmoid(-z)) + exp(c + logsigmoid(z))))
    r.output("y", exp(h.next))
    return r


def deltanet_negative() -> Recurrence:
    r = Recurrence("deltanet_negative")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b, g = r.inputs("b g")
    S = r.state("S", e, d)
    key, beta = k / norm(k), 2 * sigmoid(b)
    r.update(S, exp(-softplus(g)) * S.prev * (eye(d) - beta * key * key.T) + beta * v * key.T)
    r.output("o", S.next * q)
    return r


def kda() -> Recurrence:
    r = Recurrence("kda")
    d, e = r.dims("d e")
    q, k, g = r.inputs("q k g", d)
    v = r.inputs("v", e)
    b = r.inputs("b")
    S = r.state("S", d, e)
    key = normalize(k)
    r.update(S, (eye(d) - sigmoid(b) * key * key.T) * diag(exp(-5 * sigmoid(g))) * S.prev + sigmoid(b) * key * v.T)
    r.output("o", S.next.T * q)
    return r


def comba() -> Recurrence:
    r = Recurrence("comba")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    a, b = r.decay("a"), r.inputs("b")
    less, weak = r.parameters("less weak")
    S = r.state("S", d, e)
    key, beta = normalize(k), sigmoid(b)
    r.update(S, a * (S.prev - sigmoid(weak) * beta * key * (S.prev.T * key).T) + beta * key * v.T)
    r.output("o", S.next.T * (q - less * key))
    return r


def rwkv6() -> Recurrence:
    r = Recurrence("rwkv6")
    d, e = r.dims("d e")
    q, k, w = r.inputs("r k w", d)
    v = r.inputs("v", e)
    u = r.parameter("u", d)
    S = r.state("S", d, e)
    r.output("o", (S.prev + diag(u) * k * v.T).T * q)
    r.update(S, diag(exp(-exp(w))) * S.prev + k * v.T)
    return r


def rwkv7() -> Recurrence:
    r = Recurrence("rwkv7")
    d, e = r.dims("d e")
    q, k, kk, a, g = r.inputs("r k kk a g", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    w, kappa = exp(-0.606531 * sigmoid(g)), normalize(kk)
    r.update(S, (diag(w) - kappa * hadamard(sigmoid(a), kappa).T).T * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


def lru() -> Recurrence:
    r = Recurrence("lru")
    d = r.dims("d")
    x = r.inputs("x", d)
    nu, theta = r.parameters("nu theta", d)
    re, im = r.state("re", d), r.state("im", d)
    m = exp(-exp(nu))
    r.update(
        re, hadamard(m, hadamard(cos(theta), re.prev) - hadamard(sin(theta), im.prev)) + hadamard(sqrt(1 - m**2), x)
    )
    r.update(im, hadamard(m, hadamard(sin(theta), re.prev) + hadamard(cos(theta), im.prev)))
    r.output("y", re.next)
    return r


def s4d() -> Recurrence:
    r = Recurrence("s4d")
    c, n = r.dims("c n")
    x, dt = r.inputs("x dt", c)
    real, turn, Cr, Ci = r.parameters("real turn Cr Ci", c, n)
    re, im = r.state("re", c, n), r.state("im", c, n)
    step = diag(softplus(dt))
    m = exp(-step * exp(real))
    co, si = hadamard(m, cos(step * turn)), hadamard(m, sin(step * turn))
    r.update(re, hadamard(co, re.prev) - hadamard(si, im.prev) + step * x * ones(n).T)
    r.update(im, hadamard(si, re.prev) + hadamard(co, im.prev))
    r.output("y", (hadamard(Cr, re.next) - hadamard(Ci, im.next)) * ones(n))
    return r


def mega() -> Recurrence:
    r = Recurrence("mega")
    c, n = r.dims("c n")
    x = r.inputs("x", c)
    a, damp, b, eta = r.parameters("a damp b eta", c, n)
    h = r.state("h", c, n)
    r.update(h, hadamard(1 - hadamard(sigmoid(a), sigmoid(damp)), h.prev) + diag(x) * hadamard(sigmoid(a), b))
    r.output("y", hadamard(eta, h.next) * ones(n))
    return r


def liquid_s4() -> Recurrence:
    r = Recurrence("liquid_s4")
    c, n = r.dims("c n")
    x, B = r.inputs("x", c), r.inputs("Bt", n)
    A = r.parameter("A", c, n)
    h = r.state("h", c, n)
    r.update(h, hadamard(tanh(A) + x * B.T / 4, h.prev) + x * B.T)
    r.output("y", h.next * B)
    return r


def hgrn() -> Recurrence:
    r = Recurrence("hgrn")
    d = r.dims("d")
    c, g, th = r.inputs("c g th", d)
    u = r.parameter("u", d)
    re, im = r.state("re", d), r.state("im", d)
    f = r.let("f", sigmoid(u) + hadamard(1 - sigmoid(u), sigmoid(g)))
    r.update(re, hadamard(f, hadamard(cos(th), re.prev) - hadamard(sin(th), im.prev)) + hadamard(1 - f, c))
    r.update(im, hadamard(f, hadamard(sin(th), re.prev) + hadamard(cos(th), im.prev)))
    r.output("y", re.next)
    return r


def mlstm() -> Recurrence:
    r = Recurrence("mlstm")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    i, f = r.inputs("i f")
    C, n, m = r.state("C", d, e), r.state("n", d), r.state("m")
    r.update(m, Max(logsigmoid(f) + m.prev, i))
    forget, gain = exp(logsigmoid(f) + m.prev - m.next), exp(i - m.next)
    key = k / sqrt(r.size(d))
    r.update(C, forget * C.prev + gain * key * v.T)
    r.update(n, forget * n.prev + gain * key)
    r.output("h", C.next.T * q / Max(absolute(n.next.T * q), 1))
    return r


def abc() -> Recurrence:
    r = Recurrence("abc")
    d, e, m = r.dims("d e m")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    w = r.inputs("w", m)
    top, z = r.state("top", m), r.state("z", m, initial=ones(m))
    K, V = r.state("K", m, d), r.state("V", m, e)
    r.update(top, Max(top.prev, w))
    a, b = r.let("a", exp(top.prev - top.next)), r.let("b", exp(w - top.next))
    r.update(z, hadamard(a, z.prev) + b)
    r.update(K, diag(a) * K.prev + b * k.T)
    r.update(V, diag(a) * V.prev + b * v.T)
    r.output("o", V.next.T * (softmax(K.next * q / z.next) / z.next))
    return r


def titans() -> Recurrence:
    r = Recurrence("titans")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    theta = r.inputs("theta")
    eta, keep = r.decay("eta keep")
    M, W = r.state("M", d, e), r.state("W", d, e)
    key = normalize(k)
    r.update(M, eta * M.prev - sigmoid(theta) * key * (W.prev.T * key - v).T)
    r.update(W, keep * W.prev + M.next)
    r.output("o", W.next.T * q)
    return r


def titans_channels() -> Recurrence:
    r = Recurrence("titans_channels")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    theta = r.inputs("theta")
    eta, keep = r.decay("eta keep", d)
    M, W = r.state("M", d, e), r.state("W", d, e)
    key = normalize(k)
    r.update(M, diag(eta) * M.prev - sigmoid(theta) * key * (W.prev.T * key - v).T)
    r.update(W, diag(keep) * W.prev + M.next)
    r.output("o", W.next.T * q)
    return r


def s4() -> Recurrence:
    """S4's diagonal plus rank one, of one channel."""
    r = Recurrence("s4")
    n = r.dims("n")
    u = r.inputs("u")
    rate, P, Q, B, C = r.parameters("rate P Q Bt Ct", n)
    h = r.state("h", n)
    r.update(h, hadamard(exp(-exp(rate)), h.prev) - P * dot(Q, h.prev) / 4 + B * u)
    r.output("y", dot(C, h.next))
    return r


def s5() -> Recurrence:
    r = Recurrence("s5")
    n, p = r.dims("n p")
    x = r.inputs("x", p)
    nu, theta = r.parameters("nu theta", n)
    Br, Bi = r.parameters("Br Bi", n, p)
    Cr, Ci = r.parameters("Cr Ci", p, n)
    re, im = r.state("re", n), r.state("im", n)
    m = exp(-exp(nu))
    r.update(re, hadamard(m, hadamard(cos(theta), re.prev) - hadamard(sin(theta), im.prev)) + Br * x)
    r.update(im, hadamard(m, hadamard(sin(theta), re.prev) + hadamard(cos(theta), im.prev)) + Bi * x)
    r.output("y", Cr * re.next - Ci * im.next)
    return r


def linoss() -> Recurrence:
    """LinOSS, the implicit scheme: an oscillator for each channel."""
    r = Recurrence("linoss")
    d = r.dims("d")
    x = r.inputs("x", d)
    A, dt = r.parameters("A dt", d)
    y, z = r.state("y", d), r.state("z", d)
    step, stiff = sigmoid(dt), relu(A)
    r.update(z, (z.prev - hadamard(hadamard(step, stiff), y.prev) + hadamard(step, x)) / (1 + hadamard(step**2, stiff)))
    r.update(y, y.prev + hadamard(step, z.next))
    r.output("o", y.next)
    return r


def omega() -> Recurrence:
    """OmegaNet, whose gradient step is of the last two tokens."""
    r = Recurrence("omega")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    a, g, h = r.inputs("a g h")
    S = r.state("S", d, e)
    lastk, lastv = r.state("lastk", d), r.state("lastv", e)
    now, before = k * (S.prev.T * k - v).T, lastk.prev * (S.prev.T * lastk.prev - lastv.prev).T
    r.update(S, sigmoid(a) * S.prev - sigmoid(g) * now - sigmoid(h) * before)
    r.update(lastk, k)
    r.update(lastv, v)
    r.output("o", S.next.T * q)
    return r


def atlas() -> Recurrence:
    """Atlas without its polynomials: momentum of the same gradients."""
    r = Recurrence("atlas")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    a, g, eta = r.inputs("a g eta")
    M, S = r.state("M", d, e), r.state("S", d, e)
    lastk, lastv = r.state("lastk", d), r.state("lastv", e)
    now, before = k * (S.prev.T * k - v).T, lastk.prev * (S.prev.T * lastk.prev - lastv.prev).T
    r.update(M, sigmoid(eta) * M.prev - sigmoid(g) * (now + before))
    r.update(S, sigmoid(a) * S.prev + M.next)
    r.update(lastk, k)
    r.update(lastv, v)
    r.output("o", S.next.T * q)
    return r


def mimo_delta() -> Recurrence:
    """A delta rule that corrects several keys at once (Mamba-3's MIMO, gated DeltaNet's read)."""
    r = Recurrence("mimo_delta")
    d, e, m = r.dims("d e m")
    q, K = r.inputs("q", d), r.inputs("K", d, m)
    V = r.inputs("V", e, m)
    a = r.decay("a")
    S = r.state("S", d, e)
    r.update(S, a * S.prev + K * (V - a * S.prev.T * K).T / 8)
    r.output("o", S.next.T * q)
    return r


SPECS = {
    f.__name__: f
    for f in (
        mamba2, mamba3, mingru, minlstm, mingru_log, deltanet_negative, kda, comba, rwkv6, rwkv7, lru, s4d, mega, liquid_s4,
        hgrn, mlstm, abc, titans, titans_channels, s4, s5, linoss, omega, atlas, mimo_delta,
    )
}  # fmt: skip
