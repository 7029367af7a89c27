"""Oja's rule for keys (Irie et al. 2022, arXiv 2202.07570): a delta rule on the other side of the state."""

from chunkform.spec.language import Recurrence

r = Recurrence("oja")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
W = r.state("W", d, e)
r.update(W, W.prev + beta * (k - W.prev * v) * v.T)
r.output("o", W.next.T * q)
