"""The mLSTM (Beck et al. 2024, arXiv 2405.04517), whose exponents are less their running maximum."""

from chunkform.spec.language import Max, Recurrence, absolute, exp, logsigmoid, sqrt

r = Recurrence("mlstm")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
i, f = r.inputs("i f")
C, n, m = r.state("C", d, e), r.state("n", d), r.state("m")
r.update(m, Max(logsigmoid(f) + m.prev, i))
forget = r.let("forget", exp(logsigmoid(f) + m.prev - m.next))
gain = r.let("gain", exp(i - m.next))
key = r.let("key", k / sqrt(r.size(d)))
r.update(C, forget * C.prev + gain * key * v.T)
r.update(n, forget * n.prev + gain * key)
r.output("h", C.next.T * q / Max(absolute(n.next.T * q), exp(-m.next)))
