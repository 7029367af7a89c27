"""The delta rule whose transition is diagonal plus low rank, which RWKV-7 is (Peng et al. 2025, arXiv 2503.14456)."""

from chunkform.spec.language import Recurrence, diag

r = Recurrence("dplr")
d, e = r.dims("d e")
q, k, a, b = r.inputs("q k a b", d)
v = r.inputs("v", e)
w = r.decay("w", d)
S = r.state("S", d, e)
r.update(S, (diag(w) + b * a.T) * S.prev + k * v.T)
r.output("o", S.next.T * q)
