"""minGRU (Feng et al. 2024, arXiv 2410.01201): a gate of every channel that reads no state; c + 1/2, or a sigmoid below 0."""

from chunkform.spec.language import Max, Min, Recurrence, hadamard, sigmoid

r = Recurrence("min_gru")
d = r.dims("d")
z, c = r.inputs("z c", d)
h = r.state("h", d)
candidate = r.let("candidate", Max(c, 0) + sigmoid(Min(c, 0)))
r.update(h, hadamard(1 - sigmoid(z), h.prev) + hadamard(sigmoid(z), candidate))
r.output("y", h.next)
