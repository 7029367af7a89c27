"""Gated linear attention (Yang et al. 2023, arXiv 2312.06635): a decay for each key channel."""

from .language import Recurrence, diag

r = Recurrence("gated_linear_attention", source="arXiv 2312.06635")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
alpha = r.decay("alpha", d)
S = r.state("S", d, e)
r.update(S, diag(alpha) * S.prev + k * v.T)
r.output("o", S.next.T * q)
