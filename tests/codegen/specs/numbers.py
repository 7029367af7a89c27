"""Bare numbers and vectors of ones where others have inputs, and parameters and decays where others have something else."""

from chunkform.spec.language import Recurrence, diag, dot, ones, tanh

r = Recurrence("pulled_halfway", doc="A vector that is pulled half of the way towards its input.")
d = r.dims("d")
x = r.inputs("x", d)
lam = r.decay("lam")
h = r.state("h", d)
r.update(h, lam * h.prev + 0.5 * (x - h.prev))
r.output("y", h.next)
pulled_halfway = r

r = Recurrence(
    "ones_by_channel", doc="A key of ones, whose channels decay each in their own way, and a read with ones."
)
d, e = r.dims("d e")
q = r.inputs("q", d)
v = r.inputs("v", e)
alpha = r.decay("alpha", d)
S = r.state("S", d, e)
r.update(S, diag(alpha) * S.prev + ones(d) * v.T)
r.output("o", S.next.T * q)
r.output("sums", S.next.T * ones(d))
ones_by_channel = r

r = Recurrence(
    "decay_as_an_input",
    doc="A decay that an output is read with, so that terms of its gradient come from several sweeps.",
)
d, e = r.dims("d e")
k = r.inputs("k", d)
v, u = r.inputs("v u", e)
beta = r.decay("beta", e)
lam = r.decay("lam")
S, R = r.state("S", d, e), r.state("R", d, e)
r.update(R, lam * R.prev + k * v.T)
r.update(S, S.prev * diag(beta) - 0.01 * (S.prev * v) * v.T + k * u.T)
r.output("o", R.next * beta)
r.output("y", tanh(S.prev.T * k))
decay_as_an_input = r

r = Recurrence("signed_numbers", doc="Two states that are numbers, of either sign, and drive each other and a vector.")
d = r.dims("d")
x, a = r.inputs("x a", d)
c, s = r.inputs("c s")
lam = r.decay("lam")
g, n, h = r.state("g"), r.state("n"), r.state("h", d)
r.update(n, lam * n.prev + c * g.prev + s)
r.update(g, -c * g.prev / 2 + s * n.next + 1)
r.update(h, lam * h.prev + g.next * x)
r.output("y", h.next + n.prev * a)
signed_numbers = r

r = Recurrence(
    "slow_and_fast",
    doc="A parameter beside the state, in what is read and in what is written; a decay by the size of keys.",
)
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
W = r.parameter("W", d, e)
S = r.state("S", d, e)
r.update(S, S.prev / (1 + dot(k, k)) + k * (v - (W + S.prev).T * k).T)
r.output("o", (W + S.next).T * q)
slow_and_fast = r

r = Recurrence(
    "second_order",
    doc="Higher-order linear attention (arXiv 2510.27258), as the paper has it: a product of states is read.",
)
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam = r.decay("lam")
A, S, G = r.state("A", d, d), r.state("S", d, e), r.state("G", d, e)
r.update(A, lam * A.prev + k * k.T)
r.update(G, lam * G.prev + k * (k.T * S.prev))
r.update(S, lam * S.prev + q * v.T)
r.output("o", (q.T * ((A.next + A.next.T) * S.next - G.next)).T)
second_order = r

r = Recurrence(
    "little_weight_decay", doc="A thousandth of the state is taken away: what is written says little about it."
)
d = r.dims("d")
x = r.inputs("x", d)
lam = r.decay("lam")
h = r.state("h", d)
r.update(h, lam * h.prev + x - 0.001 * h.prev)
r.output("y", h.next)
little_weight_decay = r
