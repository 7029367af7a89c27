"""The recurrent network of Elman (1990), without its maps of inputs."""

from chunkform.spec.language import Recurrence, tanh

r = Recurrence("elman")
d = r.dims("d")
x = r.inputs("x", d)
W = r.parameter("W", d, d)
h = r.state("h", d)
r.update(h, tanh(W * h.prev + x))
r.output("o", h.next)
