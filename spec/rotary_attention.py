"""Softmax attention with rotary positions: the document's x^T Q^T R_m^T R_n K y, over rotated queries and keys."""

from .language import dot, sqrt
from .language.attention import Attention, frequencies, rotate

a = Attention("rotary_attention", source="1007: Self Attention, section Guess 2")
d, e = a.dims("D E")
q = a.queries("q", d)
k = a.keys("k", d)
v = a.keys("v", e)
i, j = a.positions()
theta = frequencies(d)
scale = a.inverse_temperature("scale", default=1 / sqrt(a.size(d)))
a.softmax(dot(rotate(q, i * theta), rotate(k, j * theta)), scale)
a.output("o", a.average(v))
