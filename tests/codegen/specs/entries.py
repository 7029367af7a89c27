"""Published recurrences whose states are multiplied entry by entry: signs, rotations, decays for each entry, any rank."""

from chunkform.spec.language import Recurrence, cos, diag, dot, exp, hadamard, sin, tanh

gla_signed = r = Recurrence("gla_signed")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)

g = r.inputs("g", d)
S = r.state("S", d, e)
r.update(S, diag(tanh(g)) * S.prev + k * v.T)
r.output("o", S.next.T * q)

mamba3_mimo = r = Recurrence("mamba3_mimo")
d, e, m = r.dims("d e m")
B, C = r.inputs("B C", d, m)
X = r.inputs("X", e, m)
a = r.decay("a")
S = r.state("S", d, e)
r.update(S, a * S.prev + B * X.T)
r.output("Y", S.next.T * C)

gateloop = r = Recurrence("gateloop")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)

th = r.inputs("th", d)
a = r.decay("a", d)
S1 = r.state("S1", d, e)
S2 = r.state("S2", d, e)
re, im = hadamard(a, cos(th)), hadamard(a, sin(th))
r.update(S1, diag(re) * S1.prev - diag(im) * S2.prev + k * v.T)
r.update(S2, diag(re) * S2.prev + diag(im) * S1.prev)
r.output("o", S1.next.T * q)

mamba3_complex = r = Recurrence("mamba3_complex")
d, e = r.dims("d e")

B1, B2, C1, C2, th = r.inputs("B1 B2 C1 C2 th", d)
x = r.inputs("x", e)
a = r.decay("a")
S1 = r.state("S1", d, e)
S2 = r.state("S2", d, e)
c, s = diag(cos(th)), diag(sin(th))
r.update(S1, a * (c * S1.prev - s * S2.prev) + B1 * x.T)
r.update(S2, a * (s * S1.prev + c * S2.prev) + B2 * x.T)
r.output("y", S1.next.T * C1 + S2.next.T * C2)

mamba1 = r = Recurrence("mamba1")
c, n = r.dims("c n")
x, dt = r.inputs("x dt", c)
B, C = r.inputs("B C", n)
A = r.parameter("A", c, n)
D = r.parameter("D", c)
h = r.state("h", c, n)
r.update(h, hadamard(exp(-diag(dt) * A), h.prev) + hadamard(dt, x) * B.T)
r.output("y", h.next * C + hadamard(D, x))

longhorn_published = r = Recurrence("longhorn_published")
d, e = r.dims("d e")

q, k = r.inputs("q k", d)
x, beta = r.inputs("x beta", e)
S = r.state("S", d, e)
eps = r.let("eps", beta / (1 + beta * dot(k, k)))
r.update(S, hadamard(1 - (k**2) * eps.T, S.prev) + k * hadamard(eps, x).T)
r.output("o", S.next.T * q)
