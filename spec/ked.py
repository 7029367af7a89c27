"""KED: the energy B^T L^T R B of softmax averages by fixed queries, read node by node and as the matrix of all nodes."""

from .language import hadamard, ones
from .language.attention import Attention

a = Attention("ked", source="1007: Self Attention, section Simple KED model")
m, e, d = a.dims("M E D")
x_i = a.keys("x", e)
mu_k = a.fixed_queries("mu", m, e)
L, R = a.parameters("L R", d, e)
a.softmax(mu_k.T * x_i)
B = a.average(x_i)
a.output("B", B)
a.output("nodes", ones(m).T * hadamard(B * L.T, B * R.T) * ones(d))  # sum_k B_k^T L^T R B_k
a.output("matrix", B * L.T * R * B.T)  # B^T L^T R B where B = (B_1 .. B_M), one entry for each pair of nodes
