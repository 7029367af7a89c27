"""A gated linear recurrent unit: a vector state, no products (HGRN, Qin et al. 2023, arXiv 2311.04823)."""

from chunkform.spec.language import Recurrence, hadamard, sigmoid

r = Recurrence("scalar_rnn")
d = r.dims("d")
x, g = r.inputs("x g", d)
f = r.decay("f", d)
h = r.state("h", d)
r.update(h, hadamard(f, h.prev) + hadamard(1 - f, x))
r.output("o", hadamard(sigmoid(g), h.next))
