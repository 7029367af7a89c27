"""Retention (Sun et al. 2023, arXiv 2307.08621): a decay that is constant in time, one per head."""

from .language import Recurrence

r = Recurrence("retention", source="arXiv 2307.08621")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
gamma = r.head_decay("gamma")
S = r.state("S", d, e)
r.update(S, gamma * S.prev + k * v.T)
r.output("o", S.next.T * q)
