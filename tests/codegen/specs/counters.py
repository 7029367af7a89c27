"""States that gain the same at each step, whatever the inputs: numbers, constants, functions of parameters."""

from chunkform.spec.language import Recurrence, diag, exp, ones, sigmoid

r = Recurrence("running_mean", doc="What is read, divided by the number of steps.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
S, n = r.state("S", d, e), r.state("n")
r.update(n, n.prev + 1)
r.update(S, S.prev + k * v.T)
r.output("o", S.next.T * q / n.next)
running_mean = r

r = Recurrence("decayed_count", doc="Counts that decay as the state does, for each channel.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
al = r.decay("al", d)
S, n = r.state("S", d, e), r.state("n", d)
r.update(n, diag(al) * n.prev + ones(d))
r.update(S, diag(al) * S.prev + k * v.T)
r.output("o", S.next.T * (q / n.next))
decayed_count = r

r = Recurrence("steady_writes", doc="A constant, and functions of parameters, are written at each step.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam = r.decay("lam")
u, w = r.parameter("u"), r.parameter("w", d)
c = r.constant("c", 0.5)
S, l, m, n = r.state("S", d, e), r.state("l"), r.state("m", d), r.state("n")
r.update(n, lam * n.prev + exp(u))
r.update(m, lam * m.prev + exp(w))
r.update(l, l.prev + c)
r.update(S, lam * S.prev + c * ones(d) * ones(e).T + k * v.T)
r.output("o", S.next.T * (q + m.next) / (1 + n.next**2 + l.next**2))
steady_writes = r

r = Recurrence(
    "moving_averages",
    doc="Values averaged over as many times as there are channels, and what they say already taken off.",
)
d, e = r.dims("d e")
q = r.inputs("q", d)
v = r.inputs("v", e)
b = r.inputs("b")
al = r.decay("al", d)
S = r.state("S", d, e)
r.update(S, diag(al) * S.prev + b * ones(d) * (v - S.prev.T * ones(d)).T)
r.output("o", S.next.T * q)
moving_averages = r

r = Recurrence("equal_keys", doc="One key for all: each channel of it is one.")
d, e = r.dims("d e")
q = r.inputs("q", d)
v = r.inputs("v", e)
b, lam = r.inputs("b"), r.decay("lam")
S = r.state("S", d, e)
r.update(S, lam * S.prev + ones(d) * (v - sigmoid(b) * lam * S.prev.T * ones(d)).T)
r.output("o", S.next.T * q)
equal_keys = r

r = Recurrence("kept", doc="A number that stays as it began, and is what is put out.")
x = r.inputs("x")
h = r.state("h")
r.update(h, h.prev)
r.output("o", h.next)
kept = r
