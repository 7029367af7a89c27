"""How much is kept depends on how well the state knows the value."""

from chunkform.spec.language import Recurrence, dot, sigmoid

r = Recurrence("surprise_gate")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
S = r.state("S", d, e)
r.update(S, sigmoid(dot(S.prev.T * k, v)) * S.prev + k * v.T)
r.output("o", S.next.T * q)
