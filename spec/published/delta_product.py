"""DeltaProduct (Siems et al. 2025, arXiv 2502.10297): two Householder steps per token, the second reads what the first wrote."""

from chunkform.spec.language import Recurrence

r = Recurrence("delta_product")
d, e = r.dims("d e")
q, k1, k2 = r.inputs("q k1 k2", d)
v1, v2 = r.inputs("v1 v2", e)
beta1, beta2 = r.inputs("beta1 beta2")
S = r.state("S", d, e)
half = r.let("half", S.prev + beta1 * k1 * (v1 - S.prev.T * k1).T)
r.update(S, half + beta2 * k2 * (v2 - half.T * k2).T)
r.output("o", S.next.T * q)
