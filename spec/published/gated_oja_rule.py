"""Oja's rule with a decay for each channel of the value: keys are corrected by what is read for a value."""

from chunkform.spec.language import Recurrence, diag

r = Recurrence("gated_oja_rule")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
g = r.decay("g", e)
S = r.state("S", d, e)
decayed = r.let("decayed", S.prev * diag(g))
r.update(S, decayed + beta * (k - decayed * v) * v.T)
r.output("o", S.next.T * q)
