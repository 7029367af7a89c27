"""Relay nodes: B_k, the softmax average of a sequence by a fixed query mu_k, and both displayed energies of the nodes."""

from .language import hadamard, ones
from .language.attention import Attention

a = Attention("relay_nodes", source="1007: Self Attention, section Relay nodes")
m, d = a.dims("M E")
x_i = a.keys("x", d)
mu_k = a.fixed_queries("mu", m, d)
W = a.parameters("W", m, m)
a.softmax(mu_k.T * x_i)
B = a.average(x_i)
gap = W.T * B - B
a.output("B", B)
a.output("pairwise", ones(m).T * hadamard(W.T * B, B) * ones(d))  # sum_{k1, k2} W_{k1, k2} <B_k1, B_k2>
a.output("distance", -ones(m).T * hadamard(gap, gap) * ones(d))  # -sum_k2 |sum_k1 W_{k1, k2} B_k1 - B_k2|^2
