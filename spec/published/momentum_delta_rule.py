"""The delta rule with momentum: the correction goes into a velocity, which decays by itself."""

from chunkform.spec.language import Recurrence

r = Recurrence("momentum_delta_rule")
d, e = r.dims("d e")
q, k, p = r.inputs("q k p", d)
v = r.inputs("v", e)
beta, eta = r.inputs("beta eta")
alpha, mu = r.decay("alpha mu")
S = r.state("S", d, e)
M = r.state("M", d, e)
r.update(M, mu * M.prev - eta * k * (v - S.prev.T * p).T)
r.update(S, alpha * S.prev - beta * M.next)
r.output("o", S.next.T * q)
