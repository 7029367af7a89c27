"""The Sherman-Morrison step of the mesa recurrence: S_t is the inverse of lam_t S_{t-1}^-1 + u u^T; quadratic in S."""

from .language import Recurrence, dot, eye

r = Recurrence("sherman_morrison", source="Mesa Inverse Recurrence")
d = r.dims("d")
q, u = r.inputs("q u", d)
lam = r.decay("lam")
S = r.state("S", d, d, initial=eye(d))
Su = r.let("Su", S.prev * u)
uS = r.let("uS", S.prev.T * u)
r.update(S, (S.prev - Su * uS.T / (lam + dot(u, Su))) / lam)
r.output("o", S.next.T * q)
