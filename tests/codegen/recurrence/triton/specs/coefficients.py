"""What states are multiplied by, written in other ways than as a decay."""

from chunkform.spec.language import Recurrence, diag, exp, hadamard, sigmoid, softplus, sqrt

r = Recurrence("lower_bound")
d, e = r.dims("d e")
q, g = r.inputs("q g", d)
v = r.inputs("v", e)
lb = r.parameter("lb", d)
S = r.state("S", d, e)
f = r.let("f", sigmoid(lb) + hadamard(1 - sigmoid(lb), sigmoid(g)))
r.update(S, diag(f) * S.prev + (1 - f) * v.T)
r.output("o", S.next.T * q)

two = Recurrence("little_forgotten")
d, e = two.dims("d e")
q, k, g = two.inputs("q k g", d)
v = two.inputs("v", e)
b = two.inputs("b")
S = two.state("S", d, e)
n = two.state("n", d)
two.update(S, S.prev - 0.1 * sigmoid(b) * S.prev + k * v.T)
two.update(n, hadamard(sqrt(1 - exp(-1.5 * softplus(g))), n.prev) + k)
two.output("o", S.next.T * q)
two.output("m", n.next)
