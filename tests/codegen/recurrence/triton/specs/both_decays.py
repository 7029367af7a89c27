"""Matrix states whose rows and whose columns both decay: 2-D gating."""

from chunkform.spec.language import Recurrence, diag, exp, hadamard, sigmoid, softplus

both_decays = r = Recurrence("both_decays")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)

a, b = r.decay("a", d), r.decay("b", e)
S = r.state("S", d, e)
r.update(S, diag(a) * S.prev * diag(b) + k * v.T)
r.output("o", S.next.T * q)

both_decays_early = r = Recurrence("both_decays_early")
d, e = r.dims("d e")
q, k, g = r.inputs("q k g", d)
v, w = r.inputs("v w", e)
c = r.decay("c")
S = r.state("S", e, d)
r.update(S, c * diag(sigmoid(w)) * (S.prev + v * k.T) * diag(exp(-softplus(g))))
r.output("o", S.prev * q + S.next * hadamard(q, g))

both_decays_square = r = Recurrence("both_decays_square")
d = r.dims("d")
q, k, v = r.inputs("q k v", d)
a = r.decay("a", d)
S = r.state("S", d, d)
r.update(S, diag(a) * S.prev * diag(a) + k * v.T)
r.output("o", S.next.T * q)
r.output("p", S.next * q)
