"""The gated delta rule with a preconditioner: a running mean of squared keys scales the key that is written with."""

import math

from chunkform.spec.language import Recurrence, absolute, exp, hadamard, log

r = Recurrence("precond_gated_delta_rule")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
beta, rate = r.inputs("beta rate")
g, forget = r.decay("g forget")
center = r.parameter("center")
A = r.state("A", d)
S = r.state("S", d, e)
r.update(A, forget * A.prev + rate * k**2)
off = r.let("off", log(A.next + 1e-6) - center)
key = r.let("key", hadamard(k, exp(-math.log(1.5) * off / (1 + absolute(off)))))
r.update(S, g * S.prev + beta * key * (v - g * S.prev.T * k).T)
r.output("o", S.next.T * q)
