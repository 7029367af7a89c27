"""Kattention: softmax attention by the energy of a quadratic model of the key given the query."""

from .language import dot
from .language.attention import Attention

a = Attention("kattention", source="1007: Self Attention, section Kattention")
e, d = a.dims("E D")
x_i, x_j = a.stream("x", e)
Q, K = a.parameters("Q K", d, e)
b = a.parameters("b", d)
beta = a.inverse_temperature("beta", default=1)
a.softmax(dot(Q * x_i, K * x_j) - dot(K * x_j, K * x_j) / 2 + dot(b, K * x_j), beta)
a.output("y", a.average(x_j))
