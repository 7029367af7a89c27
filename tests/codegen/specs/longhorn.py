"""Longhorn (Liu et al. 2024, arXiv 2407.14207): the closed form of an online regression step, with the full state matrix."""

from chunkform.spec.language import Recurrence, dot

r = Recurrence("longhorn")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
x = r.inputs("x", e)
beta = r.inputs("beta")
S = r.state("S", e, d)
eps = r.let("eps", beta / (1 + beta * dot(k, k)))
r.update(S, S.prev - eps * (S.prev * k) * k.T + eps * x * k.T)
r.output("o", S.next * q)
