"""Gated slot attention (Zhang et al. 2024, arXiv 2409.07146): two gated passes joined by a softmax over the slots."""

from chunkform.spec.language import Recurrence, diag, softmax

r = Recurrence("gsa")
d, e, m = r.dims("d e m")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
s = r.inputs("s", m)
g = r.decay("g", m)
K = r.state("K", d, m)
V = r.state("V", m, e)
r.update(K, K.prev * diag(g) + k * s.T)
r.update(V, diag(g) * V.prev + s * v.T)
r.output("o", V.next.T * softmax(K.next.T * q))
