"""Mamba-2 / SSD (Dao and Gu 2024, arXiv 2405.21060): h = exp(dt A) h + dt B x^T, with a skip connection D."""

from chunkform.spec.language import Recurrence, exp, softplus

r = Recurrence("mamba2")
n, p = r.dims("n p")
B, C = r.inputs("B C", n)
x = r.inputs("x", p)
raw = r.inputs("raw")
A_log, bias, D = r.parameters("A_log bias D")
h = r.state("h", n, p)
dt = r.let("dt", softplus(raw + bias))
r.update(h, exp(-dt * exp(A_log)) * h.prev + dt * B * x.T)
r.output("y", h.next.T * C + D * x)
