"""Gated slot attention (Zhang et al. 2024, arXiv 2409.07146): two gated passes joined by a softmax over the slots."""

from chunkform.spec.language import Recurrence, diag, softmax

r = Recurrence("gated_slot_attention")
d, e, m = r.dims("d e m")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
a = r.decay("a", m)
K = r.state("K", m, d)
V = r.state("V", m, e)
r.update(K, diag(a) * K.prev + (1 - a) * k.T)
r.update(V, diag(a) * V.prev + (1 - a) * v.T)
p = r.let("p", softmax(K.next * q))
r.output("o", V.next.T * p)
