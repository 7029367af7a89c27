"""A delta rule whose read goes through tanh before it is compared with the value."""

from chunkform.spec.language import Recurrence, tanh

r = Recurrence("tanh_delta_rule")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
lam = r.decay("lam")
S = r.state("S", d, e)
r.update(S, lam * S.prev + beta * k * (v - tanh(S.prev.T * k)).T)
r.output("o", S.next.T * q)
