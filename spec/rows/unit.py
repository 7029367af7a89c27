"""Rows of one length: queries and keys before a delta rule, times a number."""

from chunkform.spec.language import RowMap, normalize

m = RowMap("unit")
d = m.dims("d")
x = m.inputs("x", d)
scale = m.constant("scale", 1.0)
m.output("y", scale * normalize(x))
