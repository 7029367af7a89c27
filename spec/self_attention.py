"""Self attention of a stream, with the projections as parameters: a_ij = exp(x_i^T Q^T K x_j)."""

from .language.attention import Attention

a = Attention("self_attention", source="1007: Self Attention, section Self Attention")
e, d = a.dims("E D")
x_i, x_j = a.stream("x", e)
Q, K = a.parameters("Q K", d, e)
V = a.parameters("V", e, e)
a.softmax(x_i.T * Q.T * K * x_j)
a.output("y", V * a.average(x_j))
