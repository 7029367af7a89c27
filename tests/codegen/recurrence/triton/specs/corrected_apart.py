"""Corrections whose write and what they take away of it are terms of their own, beside a decay for each channel."""

from chunkform.spec.language import Recurrence, diag, eye, normalize

corrected_apart = r = Recurrence("corrected_apart")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v, b = r.inputs("v", e), r.inputs("b")
a, S = r.decay("a", d), r.state("S", d, e)
key = normalize(k)
r.update(S, (eye(d) - b * key * key.T) * diag(a) * S.prev + b * key * v.T)
r.output("o", S.next.T * q)

corrected_apart_columns = r = Recurrence("corrected_apart_columns")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v, b = r.inputs("v", e), r.inputs("b")
a, S = r.decay("a", e), r.state("S", d, e)
value = normalize(v)
r.update(S, S.prev * diag(a) * (eye(e) - b * value * value.T) + b * k * value.T)
r.output("o", S.next.T * q)
