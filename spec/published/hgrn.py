"""HGRN (Qin et al. 2023, arXiv 2311.04823): a gated recurrence of every channel for itself."""

from chunkform.spec.language import Recurrence, hadamard

r = Recurrence("hgrn")
d = r.dims("d")
x = r.inputs("x", d)
g = r.decay("g", d)
h = r.state("h", d)
r.update(h, hadamard(g, h.prev) + x)
r.output("o", h.next)
