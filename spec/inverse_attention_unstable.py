"""Inverse attention, the first form: it divides by q.k, and its states explode."""

from .language import Recurrence, dot

r = Recurrence("inverse_attention_unstable", source="Inverse attention")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
o = r.inputs("o", e)
lam = r.decay("lam")
s = r.state("s", d, e)
v = r.let("w", (o - lam * s.prev.T * q) / dot(q, k))
r.update(s, lam * s.prev + k * v.T)
r.output("v", v)
