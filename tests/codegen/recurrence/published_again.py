"""The recurrences of `published_specs.py` in another spelling each: other axes first, products written out, other functions."""

from __future__ import annotations

from chunkform.spec.language import (
    Max,
    Min,
    Recurrence,
    apply,
    cos,
    diag,
    dot,
    exp,
    eye,
    hadamard,
    log,
    normalize,
    ones,
    relu,
    sigmoid,
    sin,
    softplus,
    sqrt,
    tanh,
    total,
)


def mamba2() -> Recurrence:
    r = Recurrence("mamba2")
    n, p = r.dims("n p")
    B, C = r.inputs("Bt Ct", n)
    x, dt = r.inputs("x", p), r.inputs("dt")
    A, bias, D = r.parameters("A bias D")
    h = r.state("h", p, n)
    step = r.let("step", log(1 + exp(dt + bias)))
    r.update(h, h.prev / exp(exp(A) * step) + x * (step * B).T)
    r.output("y", h.next * C + D * x)
    return r


def mamba3() -> Recurrence:
    r = Recurrence("mamba3")
    d, e = r.dims("d e")
    B, C, th = r.inputs("Bt Ct th", d)
    x = r.inputs("x", e)
    dt, mix = r.inputs("dt mix")
    A = r.parameter("A")
    re, im = r.state("re", e, d), r.state("im", e, d)
    lastB, lastx = r.state("lastB", d), r.state("lastx", e)
    step = softplus(dt)
    a = exp(-step * exp(A))
    c, s = r.let("c", cos(step * th)), r.let("s", sin(step * th))
    before = r.let("before", sigmoid(-mix) * step * a * lastx.prev)
    r.update(re, a * (re.prev * diag(c) - im.prev * diag(s)) + before * (diag(c) * lastB.prev).T
             + sigmoid(mix) * step * x * B.T)  # fmt: skip
    r.update(im, a * (re.prev * diag(s) + im.prev * diag(c)) + before * (diag(s) * lastB.prev).T)
    r.update(lastB, B)
    r.update(lastx, x)
    r.output("y", re.next * C)
    return r


def mingru() -> Recurrence:
    r = Recurrence("mingru")
    d = r.dims("d")
    z, c = r.inputs("z c", d)
    h = r.state("h", d)
    made = relu(c) + sigmoid(Min(c, 0))
    r.update(h, h.prev + diag(sigmoid(z)) * (made - h.prev))
    r.output("y", h.next)
    return r


def minlstm() -> Recurrence:
    r = Recurrence("minlstm")
    d = r.dims("d")
    i, f, c = r.inputs("i f c", d)
    h = r.state("h", d)
    share = r.let("share", 1 / (1 + sigmoid(i) / sigmoid(f)))
    r.update(h, hadamard(share, h.prev) + hadamard(sigmoid(i) / (sigmoid(i) + sigmoid(f)), c))
    r.output("y", h.next)
    return r


def mingru_log() -> Recurrence:
    r = Recurrence("mingru_log")
    d = r.dims("d")
    z, c = r.inputs("z c", d)
    h = r.state("h", d)
    kept, new = h.prev - softplus(z), c - softplus(-z)
    r.update(h, new + softplus(kept - new))
    r.output("y", exp(h.next))
    return r


def deltanet_negative() -> Recurrence:
    r = Recurrence("deltanet_negative")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b, g = r.inputs("b g")
    S = r.state("S", d, e)
    key, beta = r.let("key", k / sqrt(dot(k, k))), r.let("beta", 1 + tanh(b / 2))
    decayed = sigmoid(-g) * S.prev
    r.update(S, decayed + beta * key * (v - decayed.T * key).T)
    r.output("o", S.next.T * q)
    return r


def comba() -> Recurrence:
    r = Recurrence("comba")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    a, b = r.decay("a"), r.inputs("b")
    less, weak = r.parameters("less weak")
    S = r.state("S", e, d)
    key, beta = normalize(k), sigmoid(b)
    r.update(S, S.prev * (a * (eye(d) - sigmoid(weak) * beta * key * key.T)) + beta * v * key.T)
    r.output("o", S.next * q - less * S.next * key)
    return r


def rwkv6() -> Recurrence:
    r = Recurrence("rwkv6")
    d, e = r.dims("d e")
    q, k, w = r.inputs("r k w", d)
    v = r.inputs("v", e)
    u = r.parameter("u", d)
    S = r.state("S", e, d)
    decay = r.let("decay", exp(-exp(w)))
    r.output("o", S.prev * q + dot(q, hadamard(u, k)) * v)
    r.update(S, S.prev * diag(decay) + v * k.T)
    return r


def lru() -> Recurrence:
    r = Recurrence("lru")
    d = r.dims("d")
    x = r.inputs("x", d)
    nu, theta = r.parameters("nu theta", d)
    re, im = r.state("re", d), r.state("im", d)
    m = r.let("m", exp(-exp(nu)))
    a, b = diag(hadamard(m, cos(theta))), diag(hadamard(m, sin(theta)))
    r.update(re, a * re.prev - b * im.prev + hadamard(x, sqrt(1 - exp(-2 * exp(nu)))))
    r.update(im, b * re.prev + a * im.prev)
    r.output("y", re.next)
    return r


def s4d() -> Recurrence:
    r = Recurrence("s4d")
    c, n = r.dims("c n")
    x, dt = r.inputs("x dt", c)
    real, turn, Cr, Ci = r.parameters("real turn Cr Ci", c, n)
    re, im = r.state("re", n, c), r.state("im", n, c)
    step = r.let("step", softplus(dt))
    m = exp(-exp(real).T * diag(step))
    angle = turn.T * diag(step)
    r.update(
        re, hadamard(m, hadamard(cos(angle), re.prev) - hadamard(sin(angle), im.prev)) + ones(n) * hadamard(step, x).T
    )
    r.update(im, hadamard(m, hadamard(sin(angle), re.prev) + hadamard(cos(angle), im.prev)))
    r.output("y", hadamard(Cr.T, re.next).T * ones(n) - hadamard(Ci.T, im.next).T * ones(n))
    return r


def mega() -> Recurrence:
    r = Recurrence("mega")
    c, n = r.dims("c n")
    x = r.inputs("x", c)
    a, damp, b, eta = r.parameters("a damp b eta", c, n)
    h = r.state("h", c, n)
    share = sigmoid(a)
    r.update(h, h.prev - hadamard(hadamard(share, sigmoid(damp)), h.prev) + hadamard(x * ones(n).T, hadamard(share, b)))
    r.output("y", hadamard(eta, h.next) * ones(n))
    return r


def liquid_s4() -> Recurrence:
    r = Recurrence("liquid_s4")
    c, n = r.dims("c n")
    x, B = r.inputs("x", c), r.inputs("Bt", n)
    A = r.parameter("A", c, n)
    h = r.state("h", c, n)
    r.update(h, hadamard(tanh(A), h.prev) + diag(x) * h.prev * diag(B) / 4 + x * B.T)
    r.output("y", h.next * B)
    return r


def hgrn() -> Recurrence:
    r = Recurrence("hgrn")
    d = r.dims("d")
    c, g, th = r.inputs("c g th", d)
    u = r.parameter("u", d)
    re, im = r.state("re", d), r.state("im", d)
    lower = sigmoid(u)
    f = r.let("f", 1 - hadamard(1 - lower, sigmoid(-g)))
    a, b = r.let("a", hadamard(f, cos(th))), r.let("b", hadamard(f, sin(th)))
    r.update(re, hadamard(a, re.prev) - hadamard(b, im.prev) + hadamard(sigmoid(-u), sigmoid(-g), c))
    r.update(im, diag(b) * re.prev + diag(a) * im.prev)
    r.output("y", re.next)
    return r


def titans_channels() -> Recurrence:
    r = Recurrence("titans_channels")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    theta = r.inputs("theta")
    eta, keep = r.decay("eta keep", d)
    M, W = r.state("M", e, d), r.state("W", e, d)
    key = normalize(k)
    error = W.prev * key - v
    new = M.prev * diag(eta) - sigmoid(theta) * error * key.T
    r.update(M, new)
    r.update(W, W.prev * diag(keep) + new)
    r.output("o", W.next * q)
    return r


def abc() -> Recurrence:
    r = Recurrence("abc")
    d, e, m = r.dims("d e m")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    w = r.inputs("w", m)
    top, z = r.state("top", m), r.state("z", m, initial=ones(m))
    K, V = r.state("K", d, m), r.state("V", e, m)
    r.update(top, apply(Max, top.prev, w))
    a, b = r.let("a", exp(top.prev - top.next)), r.let("b", exp(w - top.next))
    r.update(z, hadamard(a, z.prev) + b)
    r.update(K, K.prev * diag(a) + k * b.T)
    r.update(V, V.prev * diag(a) + v * b.T)
    weights = exp(K.next.T * q / z.next)
    r.output("o", V.next * (weights / total(weights) / z.next))
    return r


def s4() -> Recurrence:
    r = Recurrence("s4")
    n = r.dims("n")
    u = r.inputs("u")
    rate, P, Q, B, C = r.parameters("rate P Q Bt Ct", n)
    h = r.state("h", n)
    r.update(h, (diag(exp(-exp(rate))) - P * Q.T / 4) * h.prev + B * u)
    r.output("y", C.T * h.next)
    return r


def s5() -> Recurrence:
    r = Recurrence("s5")
    n, p = r.dims("n p")
    x = r.inputs("x", p)
    nu, theta = r.parameters("nu theta", n)
    Br, Bi = r.parameters("Br Bi", n, p)
    Cr, Ci = r.parameters("Cr Ci", p, n)
    re, im = r.state("re", n), r.state("im", n)
    a, b = diag(exp(-exp(nu))) * diag(cos(theta)), diag(hadamard(exp(-exp(nu)), sin(theta)))
    r.update(re, a * re.prev - b * im.prev + Br * x)
    r.update(im, b * re.prev + a * im.prev + Bi * x)
    r.output("y", Cr * re.next - Ci * im.next)
    return r


def linoss() -> Recurrence:
    r = Recurrence("linoss")
    d = r.dims("d")
    x = r.inputs("x", d)
    A, dt = r.parameters("A dt", d)
    y, z = r.state("y", d), r.state("z", d)
    step, stiff = r.let("step", sigmoid(dt)), r.let("stiff", relu(A))
    less = r.let("less", 1 / (1 + hadamard(step, step, stiff)))
    new = hadamard(less, z.prev) + hadamard(less, step, x) - hadamard(less, step, stiff, y.prev)
    r.update(z, new)
    r.update(y, y.prev + diag(step) * new)
    r.output("o", y.next)
    return r


def omega() -> Recurrence:
    r = Recurrence("omega")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    a, g, h = r.inputs("a g h")
    S = r.state("S", e, d)
    lastk, lastv = r.state("lastk", d), r.state("lastv", e)
    G, H = r.let("G", sigmoid(g)), r.let("H", sigmoid(h))
    transition = sigmoid(a) * eye(d) - G * k * k.T - H * lastk.prev * lastk.prev.T
    r.update(S, S.prev * transition + G * v * k.T + H * lastv.prev * lastk.prev.T)
    r.update(lastk, k)
    r.update(lastv, v)
    r.output("o", S.next * q)
    return r


def atlas() -> Recurrence:
    r = Recurrence("atlas")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    a, g, eta = r.inputs("a g eta")
    M, S = r.state("M", e, d), r.state("S", e, d)
    lastk, lastv = r.state("lastk", d), r.state("lastv", e)
    G = r.let("G", sigmoid(g))
    gradient = (S.prev * k - v) * k.T + (S.prev * lastk.prev - lastv.prev) * lastk.prev.T
    new = sigmoid(eta) * M.prev - G * gradient
    r.update(M, new)
    r.update(S, (1 - sigmoid(-a)) * S.prev + new)
    r.update(lastk, k)
    r.update(lastv, v)
    r.output("o", S.next * q)
    return r


def mimo_delta() -> Recurrence:
    r = Recurrence("mimo_delta")
    d, e, m = r.dims("d e m")
    q, K = r.inputs("q", d), r.inputs("K", d, m)
    V = r.inputs("V", e, m)
    a = r.decay("a")
    S = r.state("S", e, d)
    r.update(S, a * S.prev * (eye(d) - K * K.T / 8) + V * K.T / 8)
    r.output("o", S.next * q)
    return r


AGAIN = {
    f.__name__: f
    for f in (
        mamba2, mamba3, mingru, minlstm, mingru_log, deltanet_negative, comba, rwkv6, lru, s4d, mega, liquid_s4, hgrn, abc,
        titans_channels, s4, s5, linoss, omega, atlas, mimo_delta,
    )
}  # fmt: skip
