"""Several corrections a step in other ways than those of delta products."""

from chunkform.spec.language import Recurrence, diag, hadamard

r = Recurrence("product_of_other_keys", doc="Each correction reads with another key than it writes with.")
d, e = r.dims("d e")
q, k1, k2, p1, p2 = r.inputs("q k1 k2 p1 p2", d)
v = r.inputs("v", e)
c = r.inputs("c")
g, h = r.decay("g h")
S = r.state("S", d, e)
half = r.let("half", g * (S.prev + k1 * (v - S.prev.T * p1).T))
r.update(S, h * half + k2 * (c * v - c * h * half.T * p2).T)
r.output("o", S.next.T * q)
product_of_other_keys = r

r = Recurrence("channel_delta_product", doc="A decay for each channel, then two corrections; a query with weights.")
d, e = r.dims("d e")
q, k1, k2 = r.inputs("q k1 k2", d)
v1, v2 = r.inputs("v1 v2", e)
b1, b2 = r.inputs("b1 b2")
al = r.decay("al", d)
weight = r.parameters("weight", d)
S = r.state("S", d, e)
faded = r.let("faded", diag(al) * S.prev)
half = r.let("half", faded + b1 * k1 * (v1 - faded.T * k1).T)
r.update(S, half + b2 * k2 * (v2 - half.T * k2).T)
r.output("o", S.next.T * hadamard(weight, q))
channel_delta_product = r
