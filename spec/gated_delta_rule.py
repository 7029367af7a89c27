"""The gated delta rule (Yang et al. 2024, arXiv 2412.06464): decay, then the delta rule."""

from .language import Recurrence

r = Recurrence("gated_delta_rule", source="arXiv 2412.06464")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
alpha = r.decay("alpha")
S = r.state("S", d, e)
r.update(S, alpha * S.prev + beta * k * (v - alpha * S.prev.T * k).T)
r.output("o", S.next.T * q)
