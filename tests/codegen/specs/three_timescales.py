"""A chain of three states, each a running mean of the one before, read jointly by the error that drives the first."""

from chunkform.spec.language import Recurrence

r = Recurrence("three_timescales")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
a, b, c = (r.decay(name) for name in ("a", "b", "c"))
g = r.inputs("g")
F = r.state("F", d, e)
M = r.state("M", d, e)
L = r.state("L", d, e)
r.update(F, a * F.prev + g * k * (v - (F.prev + M.prev + L.prev).T * k).T)
r.update(M, b * M.prev + (1 - b) * F.next)
r.update(L, c * L.prev + (1 - c) * M.prev)
r.output("o", (F.next + M.next).T * q)
r.output("p", L.prev.T * q)
