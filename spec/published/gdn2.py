"""Gated DeltaNet 2: a delta rule with a decay, a gate for what is erased and one for what is written, for every channel."""

from chunkform.spec.language import Recurrence, diag, hadamard

r = Recurrence("gdn2")
d, e = r.dims("d e")
q, k, b = r.inputs("q k b", d)
v, w = r.inputs("v w", e)
g = r.decay("g", d)
S = r.state("S", d, e)
decayed = r.let("decayed", diag(g) * S.prev)
r.update(S, decayed + k * (hadamard(w, v) - decayed.T * hadamard(b, k)).T)
r.output("o", S.next.T * q)
