"""Linear attention whose state is kept between -1 and 1, entry by entry."""

from chunkform.spec.language import Recurrence, tanh

r = Recurrence("bounded_state")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam = r.decay("lam")
S = r.state("S", d, e)
r.update(S, lam * tanh(S.prev) + k * v.T)
r.output("o", S.next.T * q)
