"""Linear attention (Katharopoulos et al. 2020, arXiv 2006.16236): a state that only adds."""

from .language import Recurrence

r = Recurrence("linear_attention", source="arXiv 2006.16236")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
S = r.state("S", d, e)
r.update(S, S.prev + k * v.T)
r.output("o", S.next.T * q)
