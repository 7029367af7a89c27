"""Kimi delta attention (Kimi Linear, arXiv 2510.26692): a decay for each key channel, then the delta rule."""

from .language import Recurrence, diag

r = Recurrence("kimi_delta_attention", source="arXiv 2510.26692")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
alpha = r.decay("alpha", d)
S = r.state("S", d, e)
decayed = r.let("decayed", diag(alpha) * S.prev)
r.update(S, decayed + beta * k * (v - decayed.T * k).T)
r.output("o", S.next.T * q)
