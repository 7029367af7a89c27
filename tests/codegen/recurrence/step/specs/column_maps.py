"""Recurrences whose states go through a matrix column by column, and have no form over chunks."""

from chunkform.spec.language import Recurrence, cos, diag, dot, normalize, ones, sigmoid, sin, tanh

signed_corrected = r = Recurrence("signed_corrected")
d, e = r.dims("d e")
q, k, g = r.inputs("q k g", d)
v = r.inputs("v", e)
b = r.inputs("b")
S = r.state("S", d, e)
decayed, key = diag(tanh(g)) * S.prev, normalize(k)
r.update(S, decayed + sigmoid(b) * key * (v - decayed.T * key).T)
r.output("o", S.next.T * q)

momentum_corrected = r = Recurrence("momentum_corrected")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
eta, keep = r.decay("eta keep", d)
M, W = r.state("M", d, e), r.state("W", d, e)
key = normalize(k)
r.update(M, diag(eta) * M.prev - key * (W.prev.T * key - v).T / 2)
r.update(W, diag(keep) * W.prev + M.next)
r.output("o", W.next.T * q)

several_corrected = r = Recurrence("several_corrected")  # states that are transposed: rows go through matrices
d, e, m = r.dims("d e m")
q = r.inputs("q", d)
K, V = r.inputs("K", d, m), r.inputs("V", e, m)
a = r.decay("a")
S = r.state("S", e, d)
r.update(S, a * S.prev + (V - a * S.prev * K) * K.T / 8)
r.output("o", S.next * q)

rotated_corrected = r = Recurrence("rotated_corrected")
d, e = r.dims("d e")
q, k, th = r.inputs("q k th", d)
v = r.inputs("v", e)
a = r.decay("a")
A, B = r.state("A", d, e), r.state("B", e, d)
c, s, key = diag(cos(th)), diag(sin(th)), normalize(k)
turned = a * (c * A.prev - s * B.prev.T)
r.update(A, turned + key * (v - turned.T * key).T)
r.update(B, a * (A.prev.T * s + B.prev * c))
r.output("o", A.next.T * q)

vector_memory = r = Recurrence("vector_memory")  # a Legendre memory of one channel: a vector that goes through a matrix
n = r.dims("n")
u, C = r.inputs("u"), r.inputs("C", n)
A, B = r.parameter("A", n, n), r.parameter("B", n)
h = r.state("h", n)
r.update(h, h.prev - 0.2 * A * h.prev + B * u)
r.output("y", dot(C, h.next))

each_other = r = Recurrence(
    "each_other"
)  # two vectors and a number that are corrected by reads of each other, from a start
d = r.dims("d")
k, q, u = r.inputs("k q u", d)
a, b, c = r.state("a", d, initial=ones(d)), r.state("b", d), r.state("c")
r.update(a, 0.9 * a.prev - 0.2 * k * dot(k, b.prev) + u)
r.update(b, 0.8 * b.prev + 0.3 * q * dot(q, a.prev) + 0.1 * c.prev * u)
r.update(c, 0.5 * c.prev - 0.2 * dot(k, b.prev))
r.output("o", a.next + b.next)

corrected_from_a_start = r = Recurrence("corrected_from_a_start")
d, e = r.dims("d e")
k = r.inputs("k", d)
v = r.inputs("v", e)
w, A = r.parameter("w", d), r.parameter("A", d, e)
S = r.state("S", d, e, initial=A)
r.update(S, diag(tanh(w)) * S.prev - 0.1 * k * (S.prev.T * k).T + k * v.T)
r.output("o", S.next.T * k)
