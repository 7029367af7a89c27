"""An mLSTM cell without a stabiliser: what is read is divided by a sum that may be small beside its terms."""

from sympy import Max

from chunkform.spec.language import Recurrence, dot, exp, sigmoid

r = Recurrence("bounded_normaliser")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
i, f = r.inputs("i f")
C = r.state("C", d, e)
n = r.state("n", d)
r.update(C, sigmoid(f) * C.prev + exp(i) * k * v.T)
r.update(n, sigmoid(f) * n.prev + exp(i) * k)
r.output("o", C.next.T * q / Max(abs(dot(n.next, q)), 1))
