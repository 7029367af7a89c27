"""Decays that may be zero or negative: state tracking needs eigenvalues of either sign."""

from chunkform.spec.language import Recurrence, cos, normalize, sigmoid, tanh

ssd = r = Recurrence("ssd_signed")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
g = r.inputs("g")
S = r.state("S", d, e)
r.update(S, tanh(g) * S.prev + k * v.T)
r.output("o", S.next.T * q)

delta = r = Recurrence("delta_rule_signed")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
g, beta = r.inputs("g beta")
S = r.state("S", d, e)
key = normalize(k)
r.update(S, cos(g) * S.prev + 2 * sigmoid(beta) * key * (v - S.prev.T * key).T)
r.output("o", S.next.T * q)
