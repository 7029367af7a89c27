"""Transitions as papers print them: a matrix of which the state is multiplied, and means of the state and what is new."""

from chunkform.spec.language import Recurrence, diag, eye, normalize, sigmoid

r = Recurrence("householder", doc="The delta rule as I - b k k^T, which has a name of its own, on the state's left.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
b = r.inputs("b")
S = r.state("S", d, e)
key, beta = r.let("key", normalize(k)), r.let("beta", sigmoid(b))
A = r.let("A", eye(d) - beta * key * key.T)
r.update(S, A * S.prev + beta * key * v.T)
r.output("o", S.next.T * q)
householder = r

r = Recurrence(
    "two_reflections", doc="Two such matrices, one with a decay, on the right of a state that is transposed."
)
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
b = r.inputs("b")
g = r.decay("g")
S = r.state("S", e, d)
key, other = r.let("key", normalize(k)), r.let("other", normalize(q))
r.update(S, S.prev * ((g * eye(d) - sigmoid(b) * key * key.T) * (eye(d) - other * other.T / 2)) + v * k.T)
r.output("o", S.next * q)
product = r

r = Recurrence("diagonal_plus_rank_one", doc="A decay for each channel in the same matrix.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
b = r.inputs("b")
w = r.decay("w", d)
S = r.state("S", d, e)
key = r.let("key", normalize(k))
r.update(S, (diag(w) - sigmoid(b) / 2 * key * key.T) * S.prev + k * v.T)
r.output("o", S.next.T * q)
diagonal = r

r = Recurrence("towards_new", doc="The state moves towards what is new; an output reads it before and after at once.")
d, e = r.dims("d e")
q, k, p = r.inputs("q k p", d)
v, u = r.inputs("v u", e)
b = r.inputs("b")
S = r.state("S", d, e)
r.update(S, S.prev + sigmoid(b) * (k * v.T + p * u.T - S.prev))
r.output("o", (b * S.next + S.prev).T * q)
mean = r
