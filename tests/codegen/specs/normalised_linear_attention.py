"""Linear attention with its normaliser (Katharopoulos et al. 2020, arXiv 2006.16236)."""

from chunkform.spec.language import Recurrence, dot, exp

r = Recurrence("normalised_linear_attention")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
S = r.state("S", d, e)
z = r.state("z", d)
r.update(S, S.prev + exp(k) * v.T)
r.update(z, z.prev + exp(k))
r.output("o", S.next.T * exp(q) / dot(z.next, exp(q)))
