"""Retention, transposed and scaled by a constant; starts at a matrix that is a parameter."""

from chunkform.spec.language import Recurrence, sqrt

r = Recurrence("scaled_retention")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
gamma = r.head_decay("gamma")
scale = r.constant("scale", 0.125)
start = r.parameter("start", e, d)
S = r.state("S", e, d, initial=start)
r.update(S, gamma * S.prev + v * k.T)
r.output("o", S.next * q * sqrt(scale))
