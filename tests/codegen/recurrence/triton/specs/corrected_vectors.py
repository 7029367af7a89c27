"""Vectors that are corrected by numbers which are read of them: S4's diagonal plus rank one, and two that correct each other."""

from chunkform.spec.language import Recurrence, dot, exp, hadamard, normalize, sigmoid

diagonal_plus_rank_one_vector = r = Recurrence("diagonal_plus_rank_one_vector")
n = r.dims("n")
u = r.inputs("u")
rate, left, right, into, out = r.parameters("rate left right into weights", n)
h = r.state("h", n)
r.update(h, hadamard(exp(-exp(rate)), h.prev) - left * dot(right, h.prev) / 4 + into * u)
r.output("y", dot(out, h.next))

vector_delta_rule = r = Recurrence("vector_delta_rule")
d = r.dims("d")
k, q = r.inputs("k q", d)
v, b = r.inputs("v b")
a = r.decay("a")
h = r.state("h", d)
key = normalize(k)
r.update(h, a * (h.prev + sigmoid(b) * key * (v - dot(key, h.prev))))
r.output("y", hadamard(q, h.next))

vectors_each_other = r = Recurrence("vectors_each_other")
d = r.dims("d")
k, q = r.inputs("k q", d)
a = r.decay("a", d)
g, h = r.state("g", d), r.state("h", d)
r.update(g, g.prev / 2 + k * (1 - dot(q, h.prev)))
r.update(h, hadamard(a, h.prev) - q * dot(k, g.next) / 4)
r.output("y", g.next + h.prev)

vector_two_corrections = r = Recurrence("vector_two_corrections")
d = r.dims("d")
k, q, w = r.inputs("k q w", d)
v, b = r.inputs("v b")
a = r.decay("a", d)
h = r.state("h", d)
first = hadamard(a, h.prev) + k * (v - dot(k, h.prev)) / 4
r.update(h, first - w * (sigmoid(b) - dot(w, first)) / 4)
r.output("y", dot(q, h.next) + dot(k, h.prev))
