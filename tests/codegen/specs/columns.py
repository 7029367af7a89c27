"""What is written to the columns of a state, in other ways than the catalogue's."""

from chunkform.spec.language import Recurrence, ones, sigmoid

r = Recurrence("squashed", doc="What is written is a function that isn't zero at zero.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
b = r.inputs("b")
al = r.decay("al")
S = r.state("S", d, e)
r.update(S, al * S.prev + b * k * (sigmoid(v) - al * S.prev.T * k).T)
r.output("o", S.next.T * q)
squashed = r

r = Recurrence("pulled", doc="Each column is drawn towards the same.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
b = r.inputs("b")
al = r.decay("al")
S = r.state("S", d, e)
r.update(S, al * S.prev + b * k * (ones(e) - al * S.prev.T * k).T)
r.output("o", v + S.next.T * q)
pulled = r
