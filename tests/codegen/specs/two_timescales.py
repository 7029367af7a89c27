"""A delta rule over two memories, one fast and one slow, that share one error."""

from chunkform.spec.language import Recurrence

r = Recurrence("two_timescales")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta, gamma = r.inputs("beta gamma")
fast, slow = r.decay("fast"), r.head_decay("slow")
F = r.state("F", d, e)
G = r.state("G", d, e)
error = r.let("error", v - (fast * F.prev + slow * G.prev).T * k)
r.update(F, fast * F.prev + beta * k * error.T)
r.update(G, slow * G.prev + gamma * k * error.T)
r.output("o", (F.next + G.next).T * q)
