"""The delta rule (Schlag et al. 2021, arXiv 2102.11174; in parallel: Yang et al. 2024, arXiv 2406.06484)."""

from .language import Recurrence

r = Recurrence("delta_rule", source="arXiv 2406.06484")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
S = r.state("S", d, e)
r.update(S, S.prev + beta * k * (v - S.prev.T * k).T)
r.output("o", S.next.T * q)
