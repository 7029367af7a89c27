"""A delta rule whose read is brought to length one before it is compared with the value, as TTT layers do."""

from chunkform.spec.language import Recurrence, normalize

r = Recurrence("normalised_delta_rule")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
S = r.state("S", d, e)
r.update(S, S.prev + beta * k * (v - normalize(S.prev.T * k)).T)
r.output("o", S.next.T * q)
