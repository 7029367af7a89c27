"""A delta rule in which every channel of the value decays and learns at its own rate: feedback differs between columns."""

from chunkform.spec.language import Recurrence, diag, hadamard

r = Recurrence("channel_delta_rule")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v, rate = r.inputs("v rate", e)
keep = r.decay("keep", e)
S = r.state("S", d, e)
r.update(S, S.prev * diag(keep) + k * hadamard(rate, v - S.prev.T * k).T)
r.output("o", S.next.T * q)
channel_delta_rule = r

r = Recurrence(
    "channel_rate", doc="The same with one decay for all, whose gradient is made from states at borders of chunks."
)
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v, rate = r.inputs("v rate", e)
g = r.decay("g")
S = r.state("S", d, e)
r.update(S, g * S.prev + k * hadamard(rate, v - g * S.prev.T * k).T)
r.output("o", S.next.T * q)
channel_rate = r
