"""Momentum over errors that go through tanh: two states, each of which needs the other."""

from chunkform.spec.language import Recurrence, tanh

r = Recurrence("tanh_momentum")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam, mu = r.decay("lam mu")
M = r.state("M", d, e)
S = r.state("S", d, e)
r.update(M, mu * M.prev + k * (v - tanh(S.prev.T * k)).T)
r.update(S, lam * S.prev + M.next)
r.output("o", S.next.T * q)
