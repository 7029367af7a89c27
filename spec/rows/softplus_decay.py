"""Log decays of the channels of a head, -exp(A) softplus(g + b), as Mamba and Kimi Linear have them."""

from chunkform.spec.language import RowMap, exp, softplus

m = RowMap("softplus_decay")
d = m.dims("d")
g = m.inputs("g", d)
A = m.parameters("A")
b = m.parameters("b", d)
m.output("log_decay", -exp(A) * softplus(g + b), wide=True)
