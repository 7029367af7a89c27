"""Gated delta rule whose variables are called what generated kernels call their own."""

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
