"""What is written and read isn't zero where nothing is loaded: a decay is one there, as ones are."""

from chunkform.spec.language import Recurrence, diag, dot, exp, ones

r = Recurrence("decays_written", doc="The decay of a state is what is written to it, and read with.")
d, e = r.dims("d e")
a, b = r.decay("a", d), r.decay("b", e)
S = r.state("S", d, e)
r.update(S, S.prev * diag(b) + a * b.T)
r.output("o", S.next.T * a)
written = r

r = Recurrence("decays_corrected", doc="A delta rule whose key and value are decays.")
d, e = r.dims("d e")
a, b, g = r.decay("a", d), r.decay("b", e), r.decay("g", d)
S = r.state("S", d, e)
r.update(S, diag(g) * S.prev + a / r.size(d) * (b - S.prev.T * diag(g) * a).T)
r.output("o", S.next.T * a)
corrected = r

r = Recurrence("decays_added", doc="Momentum of them.")
d, e = r.dims("d e")
a, b = r.decay("a", d), r.decay("b", e)
mu, lam = r.decay("mu"), r.decay("lam")
M, S = r.state("M", d, e), r.state("S", d, e)
r.update(M, mu * M.prev + a * b.T)
r.update(S, lam * S.prev + M.next)
r.output("o", S.next.T * a)
added = r

r = Recurrence("ones_read", doc="A number of each write is a sum over an axis that its decays don't run along.")
d, e = r.dims("d e")
q = r.inputs("q", d)
b = r.decay("b", e)
S = r.state("S", d, e)
r.update(S, S.prev * diag(b) + (q + 1) * (1 - b).T)
r.output("o", S.next.T * ones(d))
read = r

r = Recurrence("ones_written", doc="All columns get the same, and are added up.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
a = r.decay("a", d)
S = r.state("S", d, e)
r.update(S, diag(a) * S.prev + exp(-dot(v, v)) * k * ones(e).T)
r.output("o", S.next.T * q)
r.output("u", S.prev * ones(e))
ones_of_columns = r
