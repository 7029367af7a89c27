"""RWKV-7 "Goose" (Peng et al. 2025, arXiv 2503.14456): S is value x key, and its transition diagonal plus rank one."""

from chunkform.spec.language import Recurrence, diag, hadamard, normalize, sigmoid

r = Recurrence("rwkv7")
d, e = r.dims("d e")
q, k, kappa, a = r.inputs("q k kappa a", d)
v = r.inputs("v", e)
w = r.decay("w", d)
S = r.state("S", e, d)
removal = r.let("removal", normalize(kappa))
rate = r.let("rate", sigmoid(a))
r.update(S, S.prev * diag(w) - S.prev * removal * hadamard(rate, removal).T + v * k.T)
r.output("o", S.next * q)
