"""Several corrections a step in other ways than those of delta products."""

from chunkform.spec.language import Recurrence

r = Recurrence("product_of_other_keys", doc="Each correction reads with another key than it writes with.")
d, e = r.dims("d e")
q, k1, k2, x1, x2 = r.inputs("q k1 k2 x1 x2", d)
v = r.inputs("v", e)
c = r.inputs("c")
g, h = r.decay("g h")
S = r.state("S", d, e)
half = r.let("half", g * (S.prev + k1 * (v - S.prev.T * x1).T))
r.update(S, h * half + k2 * (c * v - c * h * half.T * x2).T)
r.output("o", S.next.T * q)
product_of_other_keys = r
