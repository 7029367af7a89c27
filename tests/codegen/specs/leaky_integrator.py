"""A leaky integrator of outer products: the leak and the gain sum to one."""

from chunkform.spec.language import Recurrence, eye, sigmoid

r = Recurrence("leaky_integrator")
d = r.dims("d")
q, k = r.inputs("q k", d)
b = r.inputs("b")
S = r.state("S", d, d, initial=eye(d) / 2)
leak = r.let("leak", sigmoid(b))
r.update(S, (1 - leak) * S.prev + leak * k * k.T)
r.output("o", S.next * q)
