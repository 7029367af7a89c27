"""Gradient descent with momentum (Titans without forgetting, Behrouz et al. 2024, arXiv 2501.00663)."""

from chunkform.spec.language import Recurrence

r = Recurrence("momentum")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
theta = r.decay("theta")
eta = r.inputs("eta")
M = r.state("M", d, e)
S = r.state("S", d, e)
r.update(M, theta * M.prev - eta * k * (S.prev.T * k - v).T)
r.update(S, S.prev + M.next)
r.output("o", S.next.T * q)
