"""Linear attention with a decay for each value channel."""

from .language import Recurrence, diag

r = Recurrence("value_decay_attention")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.decay("beta", e)
S = r.state("S", d, e)
r.update(S, S.prev * diag(beta) + k * v.T)
r.output("o", S.next.T * q)
