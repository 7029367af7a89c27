"""States that are scanned, alone and before others: a running maximum, and a state that is kept as a logarithm."""

from chunkform.spec.language import Max, Recurrence, absolute, dot, exp, log, logsigmoid

mlstm = r = Recurrence("mlstm_stabilised")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
f, i = r.inputs("f i")
C, n, m = r.state("C", d, e), r.state("n", d), r.state("m")
r.update(m, Max(logsigmoid(f) + m.prev, i))
forget, gain = exp(logsigmoid(f) + m.prev - m.next), exp(i - m.next)
r.update(C, forget * C.prev + gain * k * v.T)
r.update(n, forget * n.prev + gain * k)
r.output("o", C.next.T * q / (1 + Max(absolute(dot(n.next, q)), exp(-m.next))))

log_space = r = Recurrence("log_space")
d = r.dims("d")
f, x = r.inputs("f x", d)
w = r.parameter("w", d)
h = r.state("h", d)
r.update(h, log(exp(h.prev + logsigmoid(f)) + exp(x + w)))
r.output("y", h.next)
