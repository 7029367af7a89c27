"""HGRN2 (Qin et al. 2024, arXiv 2404.07904): the key is one minus the forget gate."""

from chunkform.spec.language import Recurrence, diag

r = Recurrence("hgrn2")
d, e = r.dims("d e")
q = r.inputs("q", d)
i = r.inputs("i", e)
f = r.decay("f", d)
S = r.state("S", d, e)
r.update(S, diag(f) * S.prev + (1 - f) * i.T)
r.output("o", S.next.T * q)
