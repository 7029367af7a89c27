"""An mLSTM cell (Beck et al. 2024, arXiv 2405.04517) with a smooth lower bound for the normaliser."""

from chunkform.spec.language import Recurrence, dot, exp, sigmoid

r = Recurrence("mlstm")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
i, f = r.inputs("i f")
C = r.state("C", d, e)
n = r.state("n", d)
r.update(C, sigmoid(f) * C.prev + exp(i) * k * v.T)
r.update(n, sigmoid(f) * n.prev + exp(i) * k)
r.output("h", C.next.T * q / (1 + dot(n.next, q) ** 2))
