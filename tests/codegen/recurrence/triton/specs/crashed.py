"""Specs whose printed kernels once crashed, in their bare form: the interpreter runs them (test_interpreter.py)."""

from chunkform.spec.language import Recurrence, diag, dot, ones, sigmoid, softmax, tanh

r = Recurrence(
    "along_and_across",
    doc="A square state that a parameter is written to along one axis, and read with along the other.",
)
d = r.dims("d")
q, k = r.inputs("q k", d)
u = r.parameter("u", d)
lam = r.decay("lam")
S = r.state("S", d, d)
r.update(S, lam * S.prev + k * u.T)
r.output("o", dot(u, S.next * q))
along_and_across = r

r = Recurrence("other_axis", doc="Two square states, of which one decays by rows, and the other is read by columns.")
d = r.dims("d")
q, k, p = r.inputs("q k p", d)
b = r.inputs("b")
scale = r.parameter("scale")
lam = r.decay("lam")
alpha = r.decay("alpha", d)
S, A = r.state("S", d, d), r.state("A", d, d)
r.update(A, diag(alpha) * A.prev - 0.01 * ones(d) * (A.prev.T * ones(d)).T + scale * (1 - alpha) * alpha.T)
r.update(S, sigmoid(b) * S.prev - 0.01 * (S.prev * (b * (k + 0.5))) * (k + 0.5).T + q * (0.5 * lam * p).T)
r.output("o", S.prev * p + S.next.T * q)
r.output("z", dot(-0.25 * (1 - alpha), S.prev * softmax(q)) * b)
other_axis = r

r = Recurrence(
    "early_read", doc="A read that the backward walk needs, with terms of a decay's gradient that wait for another."
)
d, e = r.dims("d e")
k = r.inputs("k", d)
v = r.inputs("v", e)
b, c = r.inputs("b c")
u = r.parameter("u", d)
lam = r.decay("lam")
alpha, beta = r.decay("alpha", d), r.decay("beta", e)
h, S = r.state("h", d), r.state("S", d, e)
r.update(h, -0.5 * h.prev)
r.update(S, S.prev * diag(beta) + (1 - lam) * (0.5 * (1 - alpha)) * (dot(h.next, 0.3 * c * ones(d)) * 0.5 * beta).T)
r.output("o", h.prev.T * u + dot(k + 0.5, S.next * (0.5 * ones(e))) * b)
r.output("y", tanh(S.next.T * u))
r.output("z", S.next * v)
early_read = r

r = Recurrence(
    "left_alone", doc="A state that nothing is written to and nothing read of, with a decay for each channel."
)
d, e = r.dims("d e")
q = r.inputs("q", d)
v = r.inputs("v", e)
al = r.decay("al", e)
S, R = r.state("S", d, e), r.state("R", d, e)
r.update(S, S.prev * diag(al))
r.update(R, R.prev + q * v.T)
r.output("o", R.next.T * q)
left_alone = r

r = Recurrence(
    "beside_channels",
    doc="A delta rule that reads before its decay, read at borders as a state with a decay for each channel is.",
)
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
a, c = r.decay("a"), r.decay("c", d)
P, Q = r.state("P", d, e), r.state("Q", d, e)
r.update(P, diag(c) * P.prev + k * v.T)
r.update(Q, a * Q.prev + k * (v - Q.prev.T * k).T)
r.output("o", (P.next + Q.next).T * q)
beside_channels = r

r = Recurrence(
    "made_ahead",
    doc="A square state with a decay for each channel, of whose writes both sides are made before its kernels.",
)
d = r.dims("d")
q, k = r.inputs("q k", d)
c = r.decay("c", d)
S = r.state("S", d, d)
r.update(S, diag(c) * S.prev + dot(k, ones(d)) * k * softmax(q).T)
r.output("o", S.prev * q)
made_ahead = r

r = Recurrence(
    "corrected_values",
    doc="A delta rule whose decay is of each value channel: its gradient is read off states that only a later sweep leaves.",
)
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
al = r.decay("al", e)
S = r.state("S", d, e)
r.update(S, S.prev * diag(al) + k * (v + S.prev.T * k).T / 4)
r.output("o", S.next.T * q)
corrected_values = r
