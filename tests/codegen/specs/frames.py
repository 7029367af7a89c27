"""States in a frame that moves with them: that turn into each other, or whose channels have numbers of either sign."""

from chunkform.spec.language import Recurrence, cos, diag, exp, hadamard, normalize, sin, softplus, tanh

turned_delta_rule = r = Recurrence("turned_delta_rule")  # corrections of what is read of a state that has turned
d, e = r.dims("d e")
q, k, th = r.inputs("q k th", d)
v = r.inputs("v", e)
a = r.decay("a", d)
A, B = r.state("A", d, e), r.state("B", d, e)
c, s, key = diag(hadamard(a, cos(th))), diag(hadamard(a, sin(th))), normalize(k)
turned = c * A.prev - s * B.prev
r.update(A, turned + key * (v - turned.T * key).T)
r.update(B, s * A.prev + c * B.prev)
r.output("o", A.next.T * q)

turned_values = r = Recurrence("turned_values")  # and a read before the step
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v, th = r.inputs("v th", e)
a = r.decay("a")
A, B = r.state("A", d, e), r.state("B", d, e)
c, s = diag(cos(th)), diag(sin(th))
r.update(A, a * (A.prev * c - B.prev * s) + k * v.T)
r.update(B, a * (A.prev * s + B.prev * c))
r.output("o", A.next.T * q)
r.output("p", B.prev.T * q)

turned_heads = r = Recurrence("turned_heads")  # one angle for all channels, which decay each at its own rate
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v, th = r.inputs("v", e), r.inputs("th")
a = r.decay("a", d)
A, B = r.state("A", d, e), r.state("B", d, e)
c, s = cos(th) * diag(a), sin(th) * diag(a)
r.update(A, c * A.prev - s * B.prev + k * v.T)
r.update(B, s * A.prev + c * B.prev)
r.output("o", A.next.T * q)

turned_back = r = Recurrence("turned_back")  # the other way round, by angles that are parameters times a step
d, e = r.dims("d e")
q, k, dt = r.inputs("q k dt", d)
v = r.inputs("v", e)
nu, w = r.parameter("nu", d), r.parameter("w", d)
A, B = r.state("A", d, e), r.state("B", d, e)
size, angle = exp(-hadamard(softplus(dt), exp(nu))), hadamard(dt, w)
c, s = diag(hadamard(size, cos(angle))), diag(hadamard(size, sin(angle)))
r.update(A, c * A.prev + s * B.prev + k * v.T)
r.update(B, c * B.prev - s * A.prev)
r.output("o", A.next.T * q + B.next.T * k)

turned_square = r = Recurrence("turned_square")  # both of whose axes are read
d = r.dims("d")
q, k, v, th = r.inputs("q k v th", d)
a = r.decay("a")
A, B = r.state("A", d, d), r.state("B", d, d)
c, s = diag(cos(th)), diag(sin(th))
r.update(A, a * (c * A.prev - s * B.prev) + k * v.T)
r.update(B, a * (s * A.prev + c * B.prev))
r.output("o", A.next.T * q)
r.output("p", B.next * q)

signed_delta_rule = r = Recurrence("signed_delta_rule")  # a correction beside such numbers
d, e = r.dims("d e")
q, k, g = r.inputs("q k g", d)
v = r.inputs("v", e)
S = r.state("S", d, e)
kept = diag(tanh(g)) * S.prev
r.update(S, kept + normalize(k) * (v - kept.T * normalize(k)).T)
r.output("o", S.next.T * q)

signed_values = r = Recurrence("signed_values")  # on the value's side, read before the step as well
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v, g = r.inputs("v g", e)
a = r.decay("a")
S = r.state("S", d, e)
r.update(S, a * S.prev * diag(cos(g)) + k * v.T)
r.output("o", S.next.T * q)
r.output("p", S.prev.T * q)

gates_to_zero = r = Recurrence("gates_to_zero")  # never below 0, but perhaps 0; two writes
d, e = r.dims("d e")
q, k, l = r.inputs("q k l", d)
v, u = r.inputs("v u", e)
z = r.inputs("z", d, domain=(0, 1))
S = r.state("S", d, e)
r.update(S, diag(1 - z) * S.prev + k * v.T + l * u.T)
r.output("o", S.next.T * q + S.next.T * l)

signed_before = r = Recurrence("signed_before")  # what is written before a state is multiplied
d, e = r.dims("d e")
q, k, g = r.inputs("q k g", d)
v = r.inputs("v", e)
S = r.state("S", d, e)
r.update(S, diag(tanh(g)) * (S.prev + k * v.T))
r.output("o", S.next.T * q)
