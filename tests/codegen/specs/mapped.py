"""Keys and queries are maps of one input, through a matrix for each head; so is the gate of what is read."""

from chunkform.spec.language import Recurrence, hadamard, sigmoid, tanh

r = Recurrence("mapped")
d, e, n = r.dims("d e n")
x = r.inputs("x", n)
v = r.inputs("v", e)
K, Q = r.parameters("K Q", d, n)
G = r.parameter("G", n, e)
lam = r.decay("lam")
S = r.state("S", d, e)
r.update(S, lam * S.prev + K * x * v.T)
r.output("o", hadamard(sigmoid(G.T * x), S.next.T * (Q * tanh(x))))
