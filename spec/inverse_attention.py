"""Inverse attention, the stable form: given o, find the v that linear attention would have read."""

from .language import Recurrence

r = Recurrence("inverse_attention", source="Inverse attention")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
o = r.inputs("o", e)
lam = r.decay("lam")
s = r.state("s", d, e)
v = r.let("w", o - lam * s.prev.T * q)
r.update(s, lam * s.prev + (1 - lam) * k * v.T)
r.output("v", v)
