"""Softmax attention by the document's f6: -1/2 |Q x - K y|^2 and a linear term for each side; the log-sum-exp has it whole."""

from .language import dot
from .language.attention import Attention

a = Attention("kattention_f6", source="1007: Self Attention, section Guess 2")
e, d = a.dims("E D")
x_i, x_j = a.stream("x", e)
Q, K = a.parameters("Q K", d, e)
b, c = a.parameters("b c", d)
a.softmax(-dot(Q * x_i - K * x_j, Q * x_i - K * x_j) / 2 + dot(b, K * x_j) + dot(c, Q * x_i))
a.output("y", a.average(x_j))
