"""Softmax attention of queries, keys and values, with a scale."""

from .language import dot, sqrt
from .language.attention import Attention

a = Attention("softmax_attention", source="1007: Self Attention, section Self Attention")
d, e = a.dims("D E")
q = a.queries("q", d)
k = a.keys("k", d)
v = a.keys("v", e)
scale = a.inverse_temperature("scale", default=1 / sqrt(a.size(d)))
a.softmax(dot(q, k), scale)
a.output("o", a.average(v))
