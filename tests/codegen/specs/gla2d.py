"""2-D gating: a state whose rows and columns decay, each at a rate of its own."""

from chunkform.spec.language import Recurrence, diag

r = Recurrence("gla2d")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)

a = r.decay("a", d)
b = r.decay("b", e)
S = r.state("S", d, e)
r.update(S, diag(a) * S.prev * diag(b) + k * v.T)
r.output("o", S.next.T * q)
