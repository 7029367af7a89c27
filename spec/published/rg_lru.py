"""The RG-LRU of Griffin (De et al. 2024, arXiv 2402.19427): a gated decay of every channel, whose writes keep the variance."""

from chunkform.spec.language import Recurrence, exp, hadamard, sigmoid, softplus, sqrt

r = Recurrence("rg_lru")
d = r.dims("d")
x, gate, write = r.inputs("x gate write", d)
lam = r.parameter("lam", d)
h = r.state("h", d)
a = r.let("a", exp(-8 * hadamard(softplus(lam), sigmoid(gate))))
r.update(h, hadamard(a, h.prev) + hadamard(sqrt(1 - a**2), hadamard(sigmoid(write), x)))
r.output("y", h.next)
