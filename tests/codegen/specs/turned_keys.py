"""Queries and keys that are turned by sums of angles, of which `cos` and `sin` alone are taken."""

from chunkform.spec.language import Recurrence, cos, hadamard, sin

r = Recurrence("turned_keys")
d, e = r.dims("d e")
q, k, th = r.inputs("q k th", d)
v = r.inputs("v", e)
a = r.decay("a")
at, A, B = r.state("at", d), r.state("A", d, e), r.state("B", d, e)
r.update(at, at.prev + th)
c, s = cos(at.next), sin(at.next)
r.update(A, a * A.prev + hadamard(c, k) * v.T)
r.update(B, a * B.prev + hadamard(s, k) * v.T)
r.output("o", A.next.T * hadamard(c, q) + B.next.T * hadamard(s, q))
