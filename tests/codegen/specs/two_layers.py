"""States that read each other, and keys that are read from another state."""

from chunkform.spec.language import Recurrence, hadamard, sqrt, total

r = Recurrence("each_other", doc="Each of two states corrects the other's reads.")
d, e = r.dims("d e")
q, k, p = r.inputs("q k p", d)
v, w = r.inputs("v w", e)
lam, mu = r.decay("lam mu")
A, B = r.state("A", d, e), r.state("B", d, e)
r.update(A, lam * A.prev + k / 4 * (v - B.prev.T * k).T)
r.update(B, mu * B.prev + p / 4 * (w - A.prev.T * p).T)
r.output("o", (A.next + B.next).T * q)
each_other = r

r = Recurrence("summed_key", doc="A delta rule whose key is a decayed sum of keys.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
b = r.inputs("b")
c, g = r.decay("c"), r.decay("g")
z = r.state("z", d)
S = r.state("S", d, e)
r.update(z, g * z.prev + k)
r.update(S, c * S.prev + b * z.next / 8 * (v - S.prev.T * z.next / 8).T)
r.output("o", S.next.T * q)
summed_key = r

r = Recurrence("read_key", doc="What a delta rule reads with its own key is the key of another.")
d, m, e = r.dims("d m e")
q = r.inputs("q", m)
k = r.inputs("k", d)
c = r.inputs("c", m)
v = r.inputs("v", e)
A, B = r.state("A", d, m), r.state("B", m, e)
r.update(A, A.prev - k / 8 * (A.prev.T * k - c).T)
h = r.let("h", A.next.T * k / 8)
r.update(B, B.prev - h / 4 * (B.prev.T * h - v).T)
r.output("o", B.next.T * q)
read_key = r

r = Recurrence(
    "centred_sum", doc="A vector with a decay for each channel, read as it is, beside a sum that nothing reads."
)
d = r.dims("d")
z = r.inputs("z", d)
f = r.decay("f", d)
c, n = r.state("c", d), r.state("n", d)
r.update(c, hadamard(f, c.prev) + z)
r.update(n, n.prev + z)
r.output("o", (c.next - total(c.next) / r.size(d)) / sqrt(r.size(d)))
centred_sum = r

r = Recurrence("squared_read", doc="What is made of two reads of a square state for itself, over both of its axes.")
d = r.dims("d")
x, q = r.inputs("x q", d)
lam = r.decay("lam")
C = r.state("C", d, d)
r.update(C, lam * C.prev + x * x.T)
r.output("o", C.next * q - C.prev * x)
r.output("s", (q.T * C.next * q) ** 2)
squared_read = r
