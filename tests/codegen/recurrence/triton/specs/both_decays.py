"""Matrix states whose rows and columns decay, otherwise than in 2-D gating: before a step writes; both alike; as parameters."""

from chunkform.spec.language import Recurrence, diag, exp, hadamard, sigmoid, softplus

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

both_decays_per_head = r = Recurrence("both_decays_per_head")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v, b = r.inputs("v b", e)
w = r.parameter("w", d)
S, z = r.state("S", d, e), r.state("z", d)
rows = exp(-exp(w))
r.update(S, 0.9 * diag(rows) * S.prev * diag(sigmoid(b)) + k * v.T)
r.update(z, hadamard(rows, z.prev) + k)
r.output("o", S.next.T * q + z.next.T * q * v)
