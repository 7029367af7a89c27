"""TTT-Linear without its layer norm (Sun et al. 2024, arXiv 2407.04620): one gradient step per token on weights and bias."""

from chunkform.spec.language import Recurrence

r = Recurrence("ttt_linear")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
eta = r.inputs("eta")
W = r.state("W", d, e)
b = r.state("b", e)
error = r.let("error", W.prev.T * k + b.prev - v)
r.update(W, W.prev - eta * k * error.T)
r.update(b, b.prev - eta * error)
r.output("z", W.next.T * q + b.next)
