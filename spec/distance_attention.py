"""Softmax attention with a penalty that grows with the distance of query and key, with a slope for each head."""

from .language import absolute, dot, sqrt
from .language.attention import Attention

a = Attention("distance_attention")
d, e = a.dims("D E")
q = a.queries("q", d)
k = a.keys("k", d)
v = a.keys("v", e)
slope = a.parameters("slope")
i, j = a.positions()
a.softmax(dot(q, k) / sqrt(a.size(d)) - slope * absolute(i - j))
a.output("o", a.average(v))
