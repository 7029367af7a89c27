"""Several recurrences in one file: states that set each other's gates, square states, scalar states."""

from chunkform.spec.language import Recurrence, absolute, diag, dot, exp, hadamard, sigmoid, tanh

r = Recurrence("nesterov", doc="Gradient descent with momentum, the gradient taken ahead.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
theta, alpha = r.decay("theta alpha")
eta = r.inputs("eta")
M, S = r.state("M", d, e), r.state("S", d, e)
r.update(M, theta * M.prev - eta * k * ((S.prev + theta * M.prev).T * k - v).T)
r.update(S, alpha * S.prev + M.next)
r.output("o", S.next.T * q)
nesterov = r

r = Recurrence("normalised_delta_rule", doc="A delta rule whose output is divided by a normaliser state.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta = r.inputs("beta")
lam = r.decay("lam")
S, n = r.state("S", d, e), r.state("n", d)
r.update(n, lam * n.prev + k)
r.update(S, lam * S.prev + beta * k * (v - S.prev.T * k).T)
r.output("o", S.next.T * q / (1 + absolute(dot(n.next, q))))
normalised_delta_rule = r

r = Recurrence("running_scale", doc="Keys divided by the running norm of the keys, a scalar state.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam = r.decay("lam")
n, S = r.state("n", initial=1), r.state("S", d, e)
r.update(n, lam * n.prev + dot(k, k))
r.update(S, lam * S.prev + k * v.T / n.next)
r.output("o", S.next.T * q)
running_scale = r

r = Recurrence("gated_by_a_state", doc="The decay of each channel is a function of another state.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam = r.decay("lam")
n, S = r.state("n", d), r.state("S", d, e)
r.update(n, lam * n.prev + k)
r.update(S, diag(sigmoid(n.next)) * S.prev + k * v.T)
r.output("o", S.next.T * q)
gated_by_a_state = r

r = Recurrence("slstm", doc="An sLSTM cell without its stabiliser: two vector states (arXiv 2405.04517).")
d = r.dims("d")
z, i, f, o = r.inputs("z i f o", d)
c, n = r.state("c", d), r.state("n", d)
r.update(c, hadamard(sigmoid(f), c.prev) + hadamard(exp(i), tanh(z)))
r.update(n, hadamard(sigmoid(f), n.prev) + exp(i))
r.output("h", hadamard(sigmoid(o), c.next / n.next))
slstm = r

r = Recurrence("projected", doc="A vector state that is read through a matrix.")
d = r.dims("d")
x, g = r.inputs("x g", d)
f = r.decay("f", d)
U = r.parameter("U", d, d)
h = r.state("h", d)
r.update(h, hadamard(f, h.prev) + hadamard(1 - f, x))
r.output("o", U * h.next + hadamard(tanh(g), h.prev))
projected = r

r = Recurrence("read_twice", doc="A square state, read from both sides, one read with the other.")
d = r.dims("d")
q, k = r.inputs("q k", d)
b = r.inputs("b")
lam = r.decay("lam")
S = r.state("S", d, d)
r.update(S, lam * S.prev + b * k * k.T)
r.output("o", S.next.T * (S.next * q))
read_twice = r

r = Recurrence("square_delta_rule", doc="A delta rule with one decay for each channel, on a square state.")
d = r.dims("d")
q, k, v = r.inputs("q k v", d)
b = r.inputs("b")
al = r.decay("al", d)
S = r.state("S", d, d)
r.update(S, diag(al) * S.prev + b * k * (v - S.prev.T * k).T)
r.output("o", S.next.T * q)
square_delta_rule = r

r = Recurrence("shared_decay", doc="Two states with one decay for each channel.")
d, e = r.dims("d e")
q, k, p = r.inputs("q k p", d)
v, w = r.inputs("v w", e)
al = r.decay("al", d)
S, M = (r.state(name, d, e) for name in "SM")
r.update(S, diag(al) * S.prev + k * v.T)
r.update(M, diag(al) * M.prev + p * w.T)
r.output("o", S.next.T * q + M.next.T * k)
shared_decay = r

r = Recurrence("three_corrections", doc="Three delta rules a step, a decay between the first two.")
d, e = r.dims("d e")
q, a, b, c = r.inputs("q a b c", d)
u, v, w = r.inputs("u v w", e)
g, h = r.decay("g h")
S = r.state("S", d, e)
one = r.let("one", g * S.prev + a * (v - S.prev.T * a).T)
two = r.let("two", h * one + b * (u - one.T * b).T)
r.update(S, two + c * (w - two.T * c).T)
r.output("o", S.next.T * q)
three_corrections = r

r = Recurrence("gru", doc="A gated recurrent unit: its gate is a function of the state.")
d = r.dims("d")
x = r.inputs("x", d)
U = r.parameter("U", d, d)
h = r.state("h", d)
gate = r.let("gate", sigmoid(x + U * h.prev))
r.update(h, hadamard(1 - gate, h.prev) + hadamard(gate, x))
r.output("o", h.next)
gru = r
