"""Oja's rule in the key: y = W^T k and W + beta (k - W y) y^T. Quadratic in what it reads."""

from chunkform.spec.language import Recurrence

r = Recurrence("oja_subspace")
d = r.dims("d")
q, k = r.inputs("q k", d)
beta = r.inputs("beta")
W = r.state("W", d, d)
y = r.let("y", W.prev.T * k)
r.update(W, W.prev + beta * (k - W.prev * y) * y.T)
r.output("o", W.next.T * q)
