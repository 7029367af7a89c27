"""MesaNet's layer: values, read by the query that the inverse of the keys' memory makes (arXiv 2506.05233)."""

from .language import Program, cg, diag

p = Program("mesa_net", source="arXiv 2506.05233")
d, e = p.dims("d e")
q, k = p.inputs("q k", d)
v = p.inputs("v", e)
beta = p.inputs("beta", sign=">= 0")
lam = p.decay("lam")
lamb = p.parameters("lamb", d, sign="> 0")
H, S = p.state("H", d, d), p.state("S", d, e)
p.update(H, lam * H.prev + beta * k * k.T)
p.update(S, lam * S.prev + beta * k * v.T)
x = p.solve("x", H.next + diag(lamb), q, cg(30))
p.output("o", S.next.T * x)
