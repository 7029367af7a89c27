"""Running means of running means: nothing is read before it is written, and vectors are added as matrices are."""

from chunkform.spec.language import Recurrence, diag

r = Recurrence("averages_of_averages")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
g = r.inputs("g")
a, b = r.decay("a"), r.head_decay("b")
F, G = r.state("F", d, e), r.state("G", d, e)
m, n = r.state("m", d), r.state("n", d)
r.update(F, a * F.prev + k * v.T)
r.update(G, b * G.prev + g * F.next)
r.update(m, a * m.prev + k)
r.update(n, n.prev + (1 - a) * m.next)
r.output("o", (F.prev + 2 * G.next).T * q)
r.output("z", q.T * n.next)
averages = r

r = Recurrence("momentum_beside_channels", doc="A state with a decay for each channel, beside two that momentum ties.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
eta = r.inputs("eta")
a, c = r.decay("a"), r.decay("c", d)
P = r.state("P", d, e)
M, S = r.state("M", d, e), r.state("S", d, e)
r.update(P, diag(c) * P.prev + k * v.T)
r.update(M, a * M.prev - eta * k * (S.prev.T * k - v).T)
r.update(S, S.prev + M.next)
r.output("o", (P.next + S.next).T * q)
momentum_beside_channels = r

r = Recurrence(
    "vector_momentum", doc="A key that momentum makes: the gradient of m reads itself, with nothing but a decay."
)
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
a, b = r.decay("a"), r.decay("b")
m, s = r.state("m", d), r.state("s", d)
S = r.state("S", d, e)
r.update(m, a * m.prev + k)
r.update(s, b * s.prev + m.next)
r.update(S, a * S.prev + s.next * v.T)
r.output("o", S.next.T * q)
vector_momentum = r
