"""RMS normalisation with a weight, times the sigmoid of a gate, as Kimi Linear has it (arXiv 2510.26692)."""

from chunkform.spec.language import RowMap, dot, hadamard, sigmoid, sqrt

m = RowMap("sigmoid_gated_rms_norm")
e = m.dims("e")
x, z = m.inputs("x z", e)
weight = m.parameters("weight", e)
eps = m.constant("eps", 1e-6)
normal = m.let("normal", x / sqrt(dot(x, x) / m.size(e) + eps))
m.output("y", hadamard(hadamard(weight, normal), sigmoid(z)))
