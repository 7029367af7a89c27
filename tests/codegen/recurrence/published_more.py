"""More published recurrences of 1992 to 2026, each in two spellings: both have the form that docs/recurrences.md says."""

from __future__ import annotations

from collections.abc import Callable

from chunkform.spec.language import (
    Max,
    Min,
    Recurrence,
    diag,
    dot,
    exp,
    eye,
    hadamard,
    ones,
    relu,
    sigmoid,
    softmax,
    tanh,
    total,
)

Spelling = Callable[[bool], Recurrence]


def second_order_attention(again: bool) -> Recurrence:
    """Higher-order linear attention, of second order, masked."""
    r = Recurrence("second_order_attention")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    S, C, G = r.state("S", d, d), r.state("C", d, e), r.state("G", d, e)
    r.update(G, G.prev + (k * k.T * C.prev if again else k * (C.prev.T * k).T))
    r.update(S, S.prev + k * k.T)
    r.update(C, C.prev + q * v.T)
    r.output("o", (C.next.T * (S.next * q) - G.next.T * q) if again else (S.next * C.next - G.next).T * q)
    return r


def infini_attention(again: bool) -> Recurrence:
    """Infini-attention's memory, which reads what it has before it writes what is left."""
    r = Recurrence("infini_attention")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    M, z = r.state("M", d, e), r.state("z", d, initial=0.1 * ones(d))
    a, b = (relu(x) + exp(Min(x, 0)) if again else Max(x, 0) + exp(Min(x, 0)) for x in (q, k))
    r.output("o", M.prev.T * a / dot(z.prev, a))
    part = b / dot(z.prev, b)
    r.update(M, (eye(d) - b * part.T) * M.prev + b * v.T if again else M.prev + b * (v - M.prev.T * part).T)
    r.update(z, z.prev + b)
    return r


def error_free_attention(again: bool) -> Recurrence:
    """Error-free linear attention: the delta rule's differential equation, solved for a step."""
    r = Recurrence("error_free_attention")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b = r.inputs("b")
    S = r.state("S", d, e)
    power = r.let("power", dot(k, k))
    rate = (1 - exp(-sigmoid(b) * power)) / power
    r.update(
        S, S.prev + rate * k * (v - S.prev.T * k).T if again else (eye(d) - rate * k * k.T) * S.prev + rate * k * v.T
    )
    r.output("o", S.next.T * q)
    return r


def rwkv4(again: bool) -> Recurrence:
    """RWKV-4 with its running maximum, and a bonus for this step."""
    r = Recurrence("rwkv4")
    d = r.dims("d")
    gate, k, v = r.inputs("gate k v", d)
    w, u = r.parameters("w u", d)
    a, b, m = r.state("a", d), r.state("b", d), r.state("m", d, initial=-1e30 * ones(d))
    top = r.let("top", (u + k) + relu(m.prev - u - k) if again else Max(m.prev, u + k))
    old, now = exp(m.prev - top), exp(u + k - top)
    r.output("y", hadamard(sigmoid(gate), (hadamard(old, a.prev) + hadamard(now, v)) / (hadamard(old, b.prev) + now)))
    r.update(m, Max(k, m.prev - exp(w)) if again else Max(m.prev - exp(w), k))
    old, now = r.let("old", exp(m.prev - exp(w) - m.next)), r.let("now", exp(k - m.next))
    r.update(a, diag(old) * a.prev + diag(now) * v if again else hadamard(old, a.prev) + hadamard(now, v))
    r.update(b, hadamard(old, b.prev) + now)
    return r


def slstm(again: bool) -> Recurrence:
    """sLSTM with its stabiliser, without the weights by which it reads its last output."""
    r = Recurrence("slstm")
    d = r.dims("d")
    z, i, f, o = r.inputs("z i f o", d)
    c, n, m = r.state("c", d), r.state("n", d), r.state("m", d)
    r.update(m, i + relu(f + m.prev - i) if again else Max(f + m.prev, i))
    gain, keep = r.let("gain", exp(i - m.next)), r.let("keep", exp(f + m.prev - m.next))
    r.update(c, hadamard(keep, c.prev) + hadamard(gain, tanh(z)))
    r.update(n, hadamard(keep, n.prev) + gain)
    r.output("h", hadamard(sigmoid(o), c.next) / n.next if again else hadamard(sigmoid(o), c.next / n.next))
    return r


def aaren(again: bool) -> Recurrence:
    """Attention as a recurrent network: one query for all steps."""
    r = Recurrence("aaren")
    d, e = r.dims("d e")
    q = r.parameter("q", d)
    k = r.inputs("k", d)
    v = r.inputs("v", e)
    a, c, m = r.state("a", e), r.state("c"), r.state("m", initial=-1e30)
    s = r.let("s", total(hadamard(q, k)) if again else dot(q, k))
    r.update(m, s + relu(m.prev - s) if again else Max(m.prev, s))
    r.update(a, a.prev * exp(m.prev - m.next) + v * exp(s - m.next))
    r.update(c, c.prev * exp(m.prev - m.next) + exp(s - m.next))
    r.output("o", a.next / c.next)
    return r


def turing_memory(again: bool) -> Recurrence:
    """A neural Turing machine's memory: erased, and added to, at an address."""
    r = Recurrence("turing_memory")
    m, e = r.dims("m e")
    w, q = r.inputs("w q", m)
    erase, v = r.inputs("erase v", e)
    M = r.state("M", m, e)
    at = softmax(w)
    kept = M.prev - diag(at) * M.prev * diag(sigmoid(erase))
    r.update(M, (kept if again else hadamard(M.prev, 1 - at * sigmoid(erase).T)) + at * v.T)
    r.output("o", M.next.T * softmax(q))
    return r


def legendre_memory(again: bool) -> Recurrence:
    """LMU's memory: one matrix for all steps, of each channel."""
    r = Recurrence("legendre_memory")
    n, c = r.dims("n c")
    u = r.inputs("u", c)
    q = r.inputs("q", n)
    A, B = r.parameter("A", n, n), r.parameter("B", n)
    h = r.state("h", n, c)
    r.update(h, h.prev + A * h.prev / 10 + B * u.T if again else (eye(n) + 0.1 * A) * h.prev + B * u.T)
    r.output("y", h.next.T * q)
    return r


def kalman_filter(again: bool) -> Recurrence:
    """A Kalman filter whose gain is given: a vector that goes through a matrix."""
    r = Recurrence("kalman_filter")
    n, m = r.dims("n m")
    y = r.inputs("y", m)
    F, K, H = r.parameter("F", n, n), r.parameter("K", n, m), r.parameter("H", m, n)
    s = r.state("s", n)
    guess = 0.3 * F * s.prev
    r.update(s, (eye(n) - 0.3 * K * H) * guess + 0.3 * K * y if again else guess + 0.3 * K * (y - H * guess))
    r.output("o", s.next)
    return r


def gated_both_ways(again: bool) -> Recurrence:
    """GLA with gates of both sides, the product of which gates each entry."""
    r = Recurrence("gated_both_ways")
    d, e = r.dims("d e")
    q, k, a = r.inputs("q k a", d)
    v, b = r.inputs("v b", e)
    S = r.state("S", d, e)
    rows, columns = sigmoid(a), sigmoid(b)
    kept = diag(rows) * S.prev * diag(columns) if again else hadamard(rows * columns.T, S.prev)
    r.update(S, kept + hadamard(1 - rows, k) * hadamard(1 - columns, v).T)
    r.output("o", S.next.T * q)
    return r


def _both(f: Spelling) -> tuple[Callable[[], Recurrence], Callable[[], Recurrence]]:
    return (lambda: f(False)), (lambda: f(True))


MORE: dict[str, tuple[Callable[[], Recurrence], Callable[[], Recurrence]]] = {
    f.__name__: _both(f)
    for f in (
        second_order_attention, infini_attention, error_free_attention, rwkv4, slstm, aaren, turing_memory,
        legendre_memory, kalman_filter, gated_both_ways,
    )
}  # fmt: skip
