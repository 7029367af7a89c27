"""Two states in sequence: the second's keys are the softmax of what the first reads."""

from chunkform.spec.language import Recurrence, softmax

r = Recurrence("stacked")
d, e, m = r.dims("d e m")
q, k = r.inputs("q k", d)
c = r.inputs("c", m)
v = r.inputs("v", e)
lam, mu = r.decay("lam"), r.decay("mu")
A = r.state("A", d, m)
B = r.state("B", m, e)
r.update(A, lam * A.prev + k * c.T)
key = r.let("key", softmax(A.next.T * k))
r.update(B, mu * B.prev + key * v.T)
r.output("o", B.next.T * softmax(A.next.T * q))
