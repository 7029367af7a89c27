"""RMS normalisation with a weight of what a gate has multiplied, as Mamba-2 has it (arXiv 2405.21060)."""

from chunkform.spec.language import RowMap, dot, hadamard, silu, sqrt

m = RowMap("gate_first_rms_norm")
e = m.dims("e")
x, z = m.inputs("x z", e)
weight = m.parameters("weight", e)
eps = m.constant("eps", 1e-6)
gated = m.let("gated", hadamard(x, silu(z)))
m.output("y", hadamard(weight, gated / sqrt(dot(gated, gated) / m.size(e) + eps)))
