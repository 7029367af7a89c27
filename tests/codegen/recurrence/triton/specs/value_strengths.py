"""Delta rules that write each channel of a value with a strength of its own: a triangular system for each."""

from chunkform.spec.language import Recurrence, diag, hadamard, normalize, sigmoid, tanh


def gated() -> Recurrence:
    r = Recurrence("value_strengths")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v, b = r.inputs("v b", e)
    g = r.decay("g")
    S = r.state("S", d, e)
    kept, key = g * S.prev, normalize(k)
    r.update(S, kept + key * hadamard(sigmoid(b), v - kept.T * key).T)
    r.output("o", S.next.T * q)
    return r


def of_channels() -> Recurrence:
    """Beside a decay for each channel of keys, and by a number that every step has."""
    r = Recurrence("value_strengths_of_channels")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b = r.parameter("b", e)
    a, n = r.decay("a", d), r.inputs("n")
    S = r.state("S", d, e)
    kept, key = diag(a) * S.prev, normalize(k)
    r.update(S, kept + sigmoid(n) * key * hadamard(tanh(b), v - kept.T * key).T)
    r.output("o", S.next.T * q)
    return r


def square() -> Recurrence:
    """A state of one dim, whose other axis is written; nothing decays."""
    r = Recurrence("value_strengths_square")
    d = r.dims("d")
    q, k, v, b = r.inputs("q k v b", d)
    S = r.state("S", d, d)
    key = normalize(k)
    r.update(S, S.prev + hadamard(sigmoid(b), v - S.prev * key) * key.T)
    r.output("o", S.next * q)
    return r


def momentum() -> Recurrence:
    """States that are added to each other."""
    r = Recurrence("value_strengths_momentum")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v, b = r.inputs("v b", e)
    lam, mu = r.decay("lam mu")
    M, S = r.state("M", d, e), r.state("S", d, e)
    key = normalize(k)
    r.update(M, mu * M.prev + key * hadamard(sigmoid(b), v - S.prev.T * key).T)
    r.update(S, lam * S.prev + M.next)
    r.output("o", S.next.T * q)
    return r


value_strengths, value_strengths_of_channels = gated(), of_channels()
value_strengths_square, value_strengths_momentum = square(), momentum()
