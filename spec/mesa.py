"""The mesa read: o_t = H_t^-1 q_t, with H_t the decayed sum of u u^T from a multiple of the identity, by conjugate gradients."""

from .language import Program, cg, eye

p = Program("mesa", source="Mesa Inverse Recurrence")
d = p.dims("d")
q, u = p.inputs("q u", d)
lam = p.decay("lam")
lam_0 = p.parameters("lam_0", sign="> 0")
H = p.state("H", d, d, initial=lam_0 * eye(d))
p.update(H, lam * H.prev + u * u.T)
p.output("o", p.solve("x", H.next, q, cg(30)))
