"""Delta rules whose solved writes, coefficients and reads stand to each other in other ways than those of the catalogue."""

from chunkform.spec.language import Recurrence

r = Recurrence("two_scalars", doc="A write with two coefficients.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
a, b = r.inputs("a b")
al = r.decay("al")
S = r.state("S", d, e)
r.update(S, al * S.prev + a * b * k * (v - al * S.prev.T * k).T)
r.output("o", S.next.T * q)
two_scalars = r

r = Recurrence("late_decay", doc="The decay comes after the write.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
b = r.inputs("b")
al = r.decay("al")
S = r.state("S", d, e)
r.update(S, al * (S.prev + b * k * (v - S.prev.T * k).T))
r.output("o", S.next.T * q)
late_decay = r

r = Recurrence(
    "other_key", doc="What is written is corrected by a read with another key, with a coefficient of its own."
)
d, e = r.dims("d e")
q, k, p = r.inputs("q k p", d)
v = r.inputs("v", e)
b, c = r.inputs("b c")
al = r.decay("al")
S = r.state("S", d, e)
r.update(S, al * S.prev + b * k * (v - c * S.prev.T * p).T)
r.output("o", S.prev.T * q)
other_key = r

r = Recurrence("residual", doc="The correction is an output as well.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
b = r.inputs("b")
al = r.decay("al")
S = r.state("S", d, e)
r.update(S, al * S.prev + b * k * (v - al * S.prev.T * k).T)
r.output("o", S.next.T * q)
r.output("u", b * (v - al * S.prev.T * k))
residual = r

r = Recurrence("both_sides", doc="The state is read from both sides.")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v, w = r.inputs("v w", e)
b = r.inputs("b")
al = r.decay("al")
S = r.state("S", d, e)
r.update(S, al * S.prev + b * k * (v - al * S.prev.T * k).T)
r.output("o", S.next.T * q)
r.output("x", S.next * w)
both_sides = r
