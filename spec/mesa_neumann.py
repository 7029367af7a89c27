"""The document's iteration as a program: O^(i) = Q + O^(i-1) - H O^(i-1), four rounds from O^(0) = 0."""

from .language import Program, eye

p = Program("mesa_neumann", source="Mesa Inverse Recurrence")
d = p.dims("d")
q, u = p.inputs("q u", d)
lam = p.decay("lam")
lam_0 = p.parameters("lam_0", sign="> 0")
H = p.state("H", d, d, initial=lam_0 * eye(d))
p.update(H, lam * H.prev + u * u.T)
o = q
for i in range(2, 5):
    o = p.let(f"o{i}", q + o - H.next * o)
p.output("o", o)
