"""Softmax attention by the document's f5: as f4, where the query's projection is the key's."""

from .language import dot
from .language.attention import Attention

a = Attention("kattention_f5", source="1007: Self Attention, section Guess 2")
e, d = a.dims("E D")
x_i, x_j = a.stream("x", e)
K = a.parameters("K", d, e)
b = a.parameters("b", d)
a.softmax(dot(K * x_i, K * x_j) - dot(K * x_j, K * x_j) / 2 + dot(b, K * x_j))
a.output("y", a.average(x_j))
