"""RWKV-6 "Finch" (Peng et al. 2024, arXiv 2404.05892): a decay for each channel, and a bonus for the current token."""

from chunkform.spec.language import Recurrence, diag, hadamard

r = Recurrence("rwkv6")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
w = r.decay("w", d)
u = r.parameter("u", d)
S = r.state("S", d, e)
r.output("o", (S.prev + hadamard(u, k) * v.T).T * q)
r.update(S, diag(w) * S.prev + k * v.T)
