"""Log decays of the channels of a head between a lower bound and 0, bound sigmoid(exp(A) (g + b)), as Kimi Linear may have."""

from chunkform.spec.language import RowMap, exp, sigmoid

m = RowMap("bounded_decay")
d = m.dims("d")
g = m.inputs("g", d)
A = m.parameters("A")
b = m.parameters("b", d)
bound = m.constant("bound", -5.0)
m.output("log_decay", bound * sigmoid(exp(A) * (g + b)), wide=True)
