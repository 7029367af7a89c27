"""What parameters that are matrices, one for each head, make of a step, and of what is read."""

from chunkform.spec.language import Recurrence, hadamard, sigmoid, tanh

r = Recurrence("mapped", doc="Keys and queries are maps of one input; so is the gate of what is read.")
d, e, n = r.dims("d e n")
x = r.inputs("x", n)
v = r.inputs("v", e)
K, Q = r.parameters("K Q", d, n)
G = r.parameter("G", n, e)
lam = r.decay("lam")
S = r.state("S", d, e)
r.update(S, lam * S.prev + K * x * v.T)
r.output("o", hadamard(sigmoid(G.T * x), S.next.T * (Q * tanh(x))))
mapped = r

r = Recurrence("nested", doc="Maps of maps, and of what is read: square, and turned.")
d = r.dims("d")
x = r.inputs("x", d)
U, W, V = r.parameters("U W V", d, d)
f = r.decay("f", d)
h = r.state("h", d)
a = r.let("a", tanh(W * x))
r.update(h, hadamard(f, h.prev) + hadamard(sigmoid(V.T * a), U * a))
r.output("o", U * hadamard(h.next, V * tanh(W.T * h.next)))
nested = r
