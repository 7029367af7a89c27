"""Comba (Hu et al. 2025, arXiv 2506.02475): a delta rule that reads with another key than it writes with."""

from chunkform.spec.language import Recurrence

r = Recurrence("comba")
d, e = r.dims("d e")
q, k, p = r.inputs("q k p", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
g = r.decay("g")
S = r.state("S", d, e)
r.update(S, g * S.prev + beta * k * (v - g * S.prev.T * p).T)
r.output("o", S.next.T * q)
