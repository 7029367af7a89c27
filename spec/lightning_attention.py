"""Lightning attention with data-dependent decay: one decay per head and step."""

from .language import Recurrence

r = Recurrence("lightning_attention", source="Lightning Attention with Data-Dependent Decay")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam = r.decay("lam")
S = r.state("S", d, e)
r.update(S, lam * S.prev + k * v.T)
r.output("o", S.next.T * q)
