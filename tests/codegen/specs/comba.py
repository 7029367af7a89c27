"""Comba (Hu et al. 2025, arXiv 2506.02475): a closed-loop delta rule that also corrects the query."""

from chunkform.spec.language import Recurrence

r = Recurrence("comba")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta, feedback = r.inputs("beta feedback")
alpha = r.decay("alpha")
correction = r.parameter("correction")
S = r.state("S", d, e)
p = r.let("p", feedback * k)
r.update(S, alpha * S.prev + beta * k * (v - S.prev.T * p).T)
r.output("o", S.next.T * (q - correction * k))
