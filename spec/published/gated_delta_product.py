"""Gated DeltaProduct (arXiv 2502.10297): decay first, then two Householder steps."""

from chunkform.spec.language import Recurrence, normalize

r = Recurrence("gated_delta_product")
d, e = r.dims("d e")
q, a, b = r.inputs("q a b", d)
v1, v2 = r.inputs("v1 v2", e)
beta1, beta2 = r.inputs("beta1 beta2")
g = r.decay("g")
S = r.state("S", d, e)
k1, k2 = r.let("k1", normalize(a)), r.let("k2", normalize(b))
faded = r.let("faded", g * S.prev)
half = r.let("half", faded + beta1 * k1 * (v1 - faded.T * k1).T)
r.update(S, half + beta2 * k2 * (v2 - half.T * k2).T)
r.output("o", S.next.T * q)
