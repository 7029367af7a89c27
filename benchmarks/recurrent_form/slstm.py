"""sLSTM (xLSTM, arXiv 2405.04517) with bounded input gates in the place of its stabiliser."""

from chunkform.spec.language import Recurrence, hadamard, sigmoid, tanh

r = Recurrence("slstm")
d = r.dims("d")
x, f, i, g = r.inputs("x f i g", d)
R = r.parameter("R", d, d)
h, c, n = r.state("h", d), r.state("c", d), r.state("n", d)
forget = r.let("forget", sigmoid(f + h.prev))
enter = r.let("enter", sigmoid(i))
r.update(c, hadamard(forget, c.prev) + hadamard(enter, tanh(R * h.prev + x)))
r.update(n, hadamard(forget, n.prev) + enter)
r.update(h, hadamard(sigmoid(g), c.next / n.next))
r.output("o", h.next)
