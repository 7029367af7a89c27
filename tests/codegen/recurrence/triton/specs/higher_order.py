"""Second-order linear attention: a matrix of one sweep serves two later ones, which other gradients need."""

from chunkform.spec.language import Recurrence

higher_order = r = Recurrence("higher_order")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
S, C, G = r.state("S", d, d), r.state("C", d, e), r.state("G", d, e)
r.update(G, G.prev + k * (k.T * C.prev))
r.update(S, S.prev + k * k.T)
r.update(C, C.prev + q * v.T)
r.output("o", (S.next * C.next - G.next).T * q)
