"""Gated delta rules whose variables, or dims, are called what generated kernels call their own."""

from chunkform.spec.language import Recurrence

r = Recurrence("awkward_names")
d, e = r.dims("d e")
steps, count = r.inputs("steps count", d)
total = r.inputs("total", e)
map_of_all = r.inputs("map_of_all")
at = r.decay("at")
row = r.constant("row", 0.125)
S = r.state("S", d, e)
decayed = at * S.prev
r.update(S, decayed + map_of_all * steps * (total - decayed.T * steps).T)
r.output("first", row * S.next.T * count)
awkward_names = r

r = Recurrence("awkward_dims")
column, rows = r.dims("column rows")
q, k = r.inputs("q k", column)
v = r.inputs("v", rows)
b = r.inputs("b")
al = r.decay("al")
S = r.state("S", column, rows)
r.update(S, al * S.prev + b * k * (v - al * S.prev.T * k).T)
r.output("o", S.next.T * q)
awkward_dims = r
