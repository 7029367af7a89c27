"""Softmax attention by the document's f4: the key as a Gaussian around Q x + b, without a temperature."""

from .language import dot
from .language.attention import Attention

a = Attention("kattention_f4", source="1007: Self Attention, section Guess 2")
e, d = a.dims("E D")
x_i, x_j = a.stream("x", e)
Q, K = a.parameters("Q K", d, e)
b = a.parameters("b", d)
a.softmax(dot(Q * x_i, K * x_j) - dot(K * x_j, K * x_j) / 2 + dot(b, K * x_j))
a.output("y", a.average(x_j))
