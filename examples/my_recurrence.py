"""A gated delta rule that learns how strongly to write, and lets each token see its own value.

Nobody has printed kernels for it; it is here as a user would write it. With the write strength beta_t = sigmoid(b_t) and a
bonus u for each head and key channel (from RWKV):

    S_t = lam_t S_{t-1} + beta_t k_t (v_t - lam_t S_{t-1}^T k_t)^T
    o_t = S_t^T q_t + ((u . k_t)^T q_t) v_t
"""

from chunkform.spec.language import Recurrence, dot, hadamard, sigmoid

r = Recurrence("my_recurrence")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
b = r.inputs("b")
lam = r.decay("lam")
u = r.parameter("u", d)
S = r.state("S", d, e)
beta = r.let("beta", sigmoid(b))
r.update(S, lam * S.prev + beta * k * (v - lam * S.prev.T * k).T)
r.output("o", S.next.T * q + dot(hadamard(u, k), q) * v)

# The page of derivations, as its author has it. `chunkform verify examples/my_recurrence.py` says what is right.
t, S, dS, o, do = r.quantities("t S dS o do")
q, k, v, b, u, lam, beta = r.quantities("q k v b u lam beta")
dq, dk, dv, db = r.quantities("dq dk dv db")

r.claim(
    "output",
    o(t),
    lam(t) * S(t - 1).T * q(t)
    + (k(t).T * q(t)) * beta(t) * (v(t) - lam(t) * S(t - 1).T * k(t))
    + (k(t).T * hadamard(u, q(t))) * v(t),
)
r.claim("dq", dq(t), S(t) * do(t) + (v(t).T * do(t)) * hadamard(u, k(t)))
r.claim("dv", dv(t), beta(t) * dS(t).T * k(t) + (k(t).T * hadamard(u, q(t))) * do(t))
r.claim("db", db(t), beta(t) * (v(t) - lam(t) * S(t - 1).T * k(t)).T * dS(t).T * k(t))  # forgets the slope of sigmoid
