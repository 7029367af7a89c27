"""Inverse attention: the formulas of its document, as displayed there."""

from __future__ import annotations

from ..inverse_attention import r as stable_form
from ..inverse_attention_unstable import r as first_form
from ..language.claims import Document, Setting, setting_of
from ..language.formula import (
    cases,
    compare,
    diag,
    eye,
    hadamard,
    inverse,
    jacobian,
    matrix,
    product_over,
    stack,
    tril,
)
from ..language.statements import Bounded, OneOf, at_most, eigenvalues, equal, only_if, together, within

DOCUMENT = Document("Inverse attention", "000")


def notation(s: Setting) -> tuple:
    """The document's matrices, over the steps of a recurrence: Q, K, V, O, M, and A = diag(alpha)."""
    t, q, k, v, o, lam = s.names("t q k v o lam")
    i, j, n = s.names("i j n")
    Q, K, V = s.rows("Q", q), s.rows("K", k), s.rows("V", v)
    O = s.rows("O", o)
    alpha = s.define("alpha", (i,), product_over(t, 1, i, lam(t)))
    A = s.define("A", (), diag(stack(i, n, alpha(i))), shown=r"\mathrm{A}")
    M = s.define(
        "M", (), matrix(i, j, n, n, cases((compare(i, ">=", j), product_over(t, j + 1, i, lam(t))), (None, 0)))
    )
    s.define("Lam", (), stack(t, n, lam(t)))
    S0 = s.names("s")(0)
    absorbed = s.ambiguous(
        "Oabsorbed",
        (),
        {"O is the matrix of the o_t": O, "O stands for O - A Q S_0": O - A * Q * S0},
        shown=r"\mathbf{O}",
    )
    return Q, K, V, O, A, M, S0, absorbed, alpha


# --- forward, the first form ----------------------------------------------------------------------------------------

s = setting_of(first_form)
Q, K, V, O, A, M, S0, Oabsorbed, alpha = notation(s)
t, i, j, n, q, k, v, o, lam, st = s.names("t i j n q k v o lam s")
claim = DOCUMENT.section("forward", s)

claim(
    "M-ratio",
    r"\mathbf M_{ij} = \prod_{t=j+1}^i \Lambda_t \triangleq \alpha_i / \alpha_j, \quad i \ge j",
    product_over(t, j + 1, i, lam(t)),
    alpha(i) / alpha(j),
    over=((i, 1, n), (j, 1, i)),
)
claim(
    "V-solve",
    r"\mathbf V = \left[\left(\mathbf Q \mathbf K^\top\right) \odot \mathbf M\right]^{-1}"
    r"\left(\mathbf O - \mathrm{A} \mathbf Q \mathbf S_0\right)",
    V,
    inverse(hadamard(Q * K.T, M)) * (O - A * Q * S0),
)
claim(
    "V-absorb",
    r"\mathbf V \triangleq \left[\left(\mathbf Q \mathbf K^\top\right) \odot \mathbf M\right]^{-1} \mathbf O",
    V,
    inverse(hadamard(Q * K.T, M)) * Oabsorbed,
)
claim(
    "unst-kv",
    r"\mathbf k_t \mathbf v_t^\top = \mathbf s_t - \lambda_t \mathbf s_{t-1}",
    k(t) * v(t).T,
    st(t) - lam(t) * st(t - 1),
)
claim(
    "unst-qkv",
    r"\mathbf q_t^\top \mathbf k_t \mathbf v_t^\top = \mathbf q_t^\top \mathbf s_t"
    r" - \lambda_t \mathbf q_t^\top \mathbf s_{t-1}",
    q(t).T * k(t) * v(t).T,
    q(t).T * st(t) - lam(t) * q(t).T * st(t - 1),
)
claim(
    "unst-o",
    r"\mathbf q_t^\top \mathbf k_t \mathbf v_t^\top = \mathbf o_t^\top - \lambda_t \mathbf q_t^\top \mathbf s_{t-1}",
    q(t).T * k(t) * v(t).T,
    o(t).T - lam(t) * q(t).T * st(t - 1),
)
claim(
    "unst-v",
    r"\mathbf v_t^\top = \left(\mathbf o_t^\top - \lambda_t \mathbf q_t^\top \mathbf s_{t-1}\right)"
    r" / \left(\mathbf q_t^\top \mathbf k_t\right)",
    v(t).T,
    (o(t).T - lam(t) * q(t).T * st(t - 1)) / (q(t).T * k(t)),
)

# --- forward, the stable form ---------------------------------------------------------------------------------------

s = setting_of(stable_form)
Q, K, V, O, A, M, S0, Oabsorbed, alpha = notation(s)
t, n, d, q, k, v, o, lam, st = s.names("t n d q k v o lam s")
claim = DOCUMENT.section("forward", s)
I = eye("n")

claim(
    "stab-LA",
    r"\mathbf o_t^\top = \mathbf v_t^\top + \lambda_t \mathbf q_t^\top \mathbf s_{t-1}",
    o(t).T,
    v(t).T + lam(t) * q(t).T * st(t - 1),
)
claim(
    "stab-matrix",
    r"\mathbf V = \left[\mathbf I + \mathrm{tril}(\left(\mathbf Q \mathbf K^\top\right) \odot "
    r"\mathbf M, -1)\right]^{-1}"
    r"\left(\mathbf O - \mathrm{A} \mathbf Q \mathbf S_0\right)",
    V,
    inverse(I + tril(hadamard(Q * K.T, M), -1)) * (O - A * Q * S0),
)
claim(
    "stab-matrix-absorb",
    r"\mathbf V \triangleq \left[\mathbf I + \mathrm{tril}(\left(\mathbf Q \mathbf K^\top\right) \odot \mathbf M, -1)"
    r"\right]^{-1} \mathbf O",
    V,
    inverse(I + tril(hadamard(Q * K.T, M), -1)) * Oabsorbed,
)
claim(
    "stab-subst-2",
    r"\mathbf s_t = \lambda_t \mathbf s_{t-1} + (1-\lambda_t) \mathbf k_t"
    r"\left(\mathbf o_t^\top - \lambda_t \mathbf q_t^\top \mathbf s_{t-1}\right)",
    st(t),
    lam(t) * st(t - 1) + (1 - lam(t)) * k(t) * (o(t).T - lam(t) * q(t).T * st(t - 1)),
)
claim(
    "stab-subst-3",
    r"\mathbf s_t = \lambda_t (\mathbf I - (1-\lambda_t) \mathbf k_t \mathbf q_t^\top) \mathbf s_{t-1}"
    r" + (1-\lambda_t) \mathbf k_t \mathbf o_t^\top",
    st(t),
    lam(t) * (eye("d") - (1 - lam(t)) * k(t) * q(t).T) * st(t - 1) + (1 - lam(t)) * k(t) * o(t).T,
)
claim(
    "eig-matrix-text",
    r"\mathbf s_t = \lambda_t (\mathbf I - (1-\lambda_t) \mathbf k_t^\top \mathbf q_t) \mathbf s_{t-1} + \dots"
    r"\quad \text{with the matrix of the text,}\ \mathbf I - (1-\lambda_t) \mathbf k_t^\top \mathbf q_t",
    st(t) - (1 - lam(t)) * k(t) * o(t).T,
    lam(t) * (eye("d") - (1 - lam(t)) * k(t).T * q(t)) * st(t - 1),
)
step = eye("d") - (1 - lam(t)) * k(t) * q(t).T
last = 1 - (1 - lam(t)) * k(t).T * q(t)
claim(
    "eig-count",
    r"\text{the matrix}\ \mathbf I - (1-\lambda_t) \mathbf k_t \mathbf q_t^\top\ \text{has}\ d-1\ "
    r"\text{eigenvalues}\ 1",
    eigenvalues(step, (1, d - 1)),
)
claim(
    "eig-last",
    r"\text{its last eigenvalue is}\ 1-(1-\lambda_t) \mathbf k_t^\top \mathbf q_t",
    eigenvalues(step, (1, d - 1), (last, 1)),
)

# --- stability ------------------------------------------------------------------------------------------------------

x = Setting("inverse_attention")
dim = x.dims("d", d=(2, 3, 4))
ks, qs = x.given("k q", dim)
la = x.given("lam", domain="decay", shown=r"\lambda_t")
c = x.given("c", domain="positive", shown="c")
ktq = x.given("kq", between=(-c, c), shown=r"\mathbf k_t^\top \mathbf q_t")  # |k^T q| <= c
unit = x.given("kq1", between=(-1, 1), shown=r"\mathbf k_t^\top \mathbf q_t")  # |k^T q| <= 1
claim = DOCUMENT.section("forward, stability", x)

claim(
    "eig-range",
    r"1-(1-\lambda_t) \mathbf k_t^\top \mathbf q_t \in [1-(1-\lambda_t)c, 1+(1-\lambda_t)c],"
    r"\quad |\mathbf k_t^\top \mathbf q_t| \le c",
    within(1 - (1 - la) * ktq, 1 - (1 - la) * c, 1 + (1 - la) * c),
)
transition = la * (eye("d") - (1 - la) * ks * qs.T)
claim(
    "trans-eig",
    r"\text{the transition has}\ d-1\ \text{eigenvalues}\ \lambda_t",
    eigenvalues(transition, (la, x.names("d") - 1)),
)
claim(
    "trans-range",
    r"\text{its last eigenvalue is in}\ [\lambda_t-\lambda_t(1-\lambda_t)c, \lambda_t+\lambda_t(1-\lambda_t)c]",
    together(
        eigenvalues(transition, (la, x.names("d") - 1), (la * (1 - (1 - la) * ks.T * qs), 1)),
        within(la * (1 - (1 - la) * ktq), la - la * (1 - la) * c, la + la * (1 - la) * c),
    ),
)


def low(c):
    return la - la * (1 - la) * c


def high(c):
    return la + la * (1 - la) * c


claim(
    "c1-range",
    r"c=1:\quad [\lambda_t-\lambda_t(1-\lambda_t)c, \lambda_t+\lambda_t(1-\lambda_t)c] = "
    r"[\lambda_t^2, \lambda_t(2-\lambda_t)]",
    together(equal(low(1), la**2), equal(high(1), la * (2 - la))),
)
claim(
    "c1-subset",
    r"[\lambda_t^2, \lambda_t(2-\lambda_t)] \in [\lambda_t^2, 1]",
    together(at_most(la**2, la**2), at_most(la**2, la * (2 - la)), at_most(la * (2 - la), 1)),
)
claim(
    "c1-stable",
    r"c=1:\ \text{the system is stable}",
    OneOf(
        (
            (
                "stable: the eigenvalues of each step are at most 1 in absolute value",
                together(
                    eigenvalues(transition, (la, x.names("d") - 1), (la * (1 - (1 - la) * ks.T * qs), 1)),
                    within(la * (1 - (1 - la) * unit), -1, 1),
                ),
            ),
            (
                "stable: products of the steps stay bounded",
                Bounded(transition, ks, qs, bound=1),
            ),
        )
    ),
)
claim(
    "quad-upper",
    r"\lambda_t+\lambda_t(1-\lambda_t)c = -c\lambda_t^2 + (1+c)\lambda_t \le \frac{(1+c)^2}{4c}",
    together(
        equal(high(c), -c * la**2 + (1 + c) * la),
        at_most(-c * la**2 + (1 + c) * la, (1 + c) ** 2 / (4 * c)),
    ),
)
claim(
    "quad-lower",
    r"\lambda_t-\lambda_t(1-\lambda_t)c = c\lambda_t^2 + (1-c)\lambda_t",
    low(c),
    c * la**2 + (1 - c) * la,
)
claim("amgm", r"\frac{(1+c)^2}{4c} \ge 1", at_most(1, (1 + c) ** 2 / (4 * c)))
claim(
    "c1-necessary",
    r"\text{the system is stable only if}\ c=1",
    only_if(together(within(low(c), -1, 1), within(high(c), -1, 1)), c, "=", 1),
)

# --- backward -------------------------------------------------------------------------------------------------------

s = setting_of(stable_form)
t, n, q, k, v, o, lam, st = s.names("t n q k v o lam s")
dv, ds, do, dk, dq, dw = s.names("dv ds do dk dq dw")
p = s.define("p", (t,), (1 - lam(t)) * ds(t).T * k(t))
claim = DOCUMENT.section("backward", s)

claim(
    "bw-p",
    r"\mathbf p_t \triangleq (1-\lambda_t) \mathbf{ds}_t^\top \mathbf k_t",
    dw(t) - dv(t),
    p(t),
    defines="p",
    note="p_t is read as what reaches v_t through the state: the whole gradient by v_t, less the incoming dv_t",
)
NEXT = r"\mathbf{ds}_t = \lambda_{t+1} \mathbf{ds}_{t+1}"
inside = (t, 1, n - 1)
claim(
    "bw-ds-1",
    r"\mathbf{ds}_t = \lambda_{t+1} (\mathbf I - (1-\lambda_{t+1}) \mathbf k_{t+1} \mathbf q_{t+1}^\top)^\top"
    r"\mathbf{ds}_{t+1} - \lambda_{t+1} \mathbf q_{t+1} \mathbf{dv}_{t+1}^\top, \quad t=1,\ldots,n-1",
    ds(t),
    lam(t + 1) * (eye("d") - (1 - lam(t + 1)) * k(t + 1) * q(t + 1).T).T * ds(t + 1)
    - lam(t + 1) * q(t + 1) * dv(t + 1).T,
    over=inside,
)
claim(
    "bw-ds-2",
    NEXT + r" - \lambda_{t+1} (1-\lambda_{t+1}) \mathbf q_{t+1} \left[\mathbf k_{t+1}^\top \mathbf{ds}_{t+1}\right]"
    r" - \lambda_{t+1} \mathbf q_{t+1} \mathbf{dv}_{t+1}^\top",
    ds(t),
    lam(t + 1) * ds(t + 1)
    - lam(t + 1) * (1 - lam(t + 1)) * q(t + 1) * (k(t + 1).T * ds(t + 1))
    - lam(t + 1) * q(t + 1) * dv(t + 1).T,
    over=inside,
)
claim(
    "bw-ds-3",
    NEXT
    + r" - \lambda_{t+1} (1-\lambda_{t+1}) \mathbf q_{t+1} \left[\mathbf{ds}_{t+1}^\top \mathbf k_{t+1}\right]^\top"
    r" - \lambda_{t+1} \mathbf q_{t+1} \mathbf{dv}_{t+1}^\top",
    ds(t),
    lam(t + 1) * ds(t + 1)
    - lam(t + 1) * (1 - lam(t + 1)) * q(t + 1) * (ds(t + 1).T * k(t + 1)).T
    - lam(t + 1) * q(t + 1) * dv(t + 1).T,
    over=inside,
)
claim(
    "bw-ds-4",
    NEXT
    + r" - \lambda_{t+1} \mathbf q_{t+1} \mathbf p_{t+1}^\top - \lambda_{t+1} \mathbf q_{t+1} \mathbf{dv}_{t+1}^\top",
    ds(t),
    lam(t + 1) * ds(t + 1) - lam(t + 1) * q(t + 1) * p(t + 1).T - lam(t + 1) * q(t + 1) * dv(t + 1).T,
    over=inside,
)
claim(
    "bw-ds-5",
    NEXT + r" - \lambda_{t+1} \mathbf q_{t+1} (\mathbf p_{t+1} + \mathbf{dv}_{t+1})^\top",
    ds(t),
    lam(t + 1) * ds(t + 1) - lam(t + 1) * q(t + 1) * (p(t + 1) + dv(t + 1)).T,
    over=inside,
)
claim(
    "bw-ds0-1",
    r"\mathbf{ds}_0 = \lambda_1 (\mathbf I - (1-\lambda_1) \mathbf q_1 \mathbf k_1^\top) \mathbf{ds}_1",
    ds(0),
    lam(1) * (eye("d") - (1 - lam(1)) * q(1) * k(1).T) * ds(1),
)
claim(
    "bw-ds0-2",
    r"\mathbf{ds}_0 = \lambda_1 \mathbf{ds}_1 - \lambda_1 \mathbf q_1 \mathbf p_1^\top",
    ds(0),
    lam(1) * ds(1) - lam(1) * q(1) * p(1).T,
)
claim(
    "bw-do-2",
    r"\mathbf{do}_t^\top = \mathbf{dv}_t^\top + (1-\lambda_t) \mathbf{ds}_t^\top \mathbf k_t",
    do(t).T,
    dv(t).T + (1 - lam(t)) * ds(t).T * k(t),
)
claim("bw-do-3", r"\mathbf{do}_t^\top = \mathbf{dv}_t^\top + \mathbf p_t^\top", do(t).T, dv(t).T + p(t).T)
CHAIN = (
    r"\frac{{\partial l}}{{\partial \mathbf v_t}}^\top \frac{{\partial \mathbf v_t}}{{\partial \mathbf {0}_t}}"
    r" + \frac{{\partial l}}{{\partial \mathbf s_t}} \frac{{\partial \mathbf s_t}}{{\partial \mathbf {0}_t}}"
)
claim(
    "bw-dk-1",
    r"\mathbf{dk}_t^\top = " + CHAIN.format("k"),
    dk(t).T,
    jacobian(v(t), k(t), dv(t)).T + jacobian(st(t), k(t), ds(t)).T,
)
claim(
    "bw-dk-2",
    r"\mathbf{dk}_t^\top = (1-\lambda_t) \mathbf o_t^\top \mathbf{ds}_t^\top"
    r" - \lambda_t (1-\lambda_t) [\mathbf{ds}_t \mathbf s_{t-1}^\top \mathbf q_t]^\top",
    dk(t).T,
    (1 - lam(t)) * o(t).T * ds(t).T - lam(t) * (1 - lam(t)) * (ds(t) * st(t - 1).T * q(t)).T,
)
claim(
    "bw-dk-3",
    r"\mathbf{dk}_t^\top = (1-\lambda_t) \left[\mathbf{ds}_t \mathbf o_t\right]^\top"
    r" + (1-\lambda_t) \left[\mathbf{ds}_t (\mathbf v_t - \mathbf o_t)\right]^\top",
    dk(t).T,
    (1 - lam(t)) * (ds(t) * o(t)).T + (1 - lam(t)) * (ds(t) * (v(t) - o(t))).T,
)
claim(
    "bw-dk-4",
    r"\mathbf{dk}_t^\top = (1-\lambda_t) \left[\mathbf{ds}_t \mathbf v_t\right]^\top",
    dk(t).T,
    (1 - lam(t)) * (ds(t) * v(t)).T,
)
claim(
    "bw-dq-1",
    r"\mathbf{dq}_t^\top = " + CHAIN.format("q"),
    dq(t).T,
    jacobian(v(t), q(t), dv(t)).T + jacobian(st(t), q(t), ds(t)).T,
)
claim(
    "bw-dq-2",
    r"\mathbf{dq}_t^\top = -\lambda_t \mathbf{dv}_t^\top \mathbf s_{t-1}^\top"
    r" - \lambda_t (1-\lambda_t) \left(\mathbf s_{t-1} \mathbf{ds}_t^\top \mathbf k_t\right)^\top",
    dq(t).T,
    -lam(t) * dv(t).T * st(t - 1).T - lam(t) * (1 - lam(t)) * (st(t - 1) * ds(t).T * k(t)).T,
)
claim(
    "bw-dq-3",
    r"\mathbf{dq}_t^\top = -\lambda_t \left[\mathbf s_{t-1} \mathbf{dv}_t\right]^\top"
    r" - \lambda_t \left[\mathbf s_{t-1} \mathbf p_t\right]^\top",
    dq(t).T,
    -lam(t) * (st(t - 1) * dv(t)).T - lam(t) * (st(t - 1) * p(t)).T,
)
claim(
    "bw-dq-4",
    r"\mathbf{dq}_t^\top = -\lambda_t \mathbf s_{t-1} \left[\mathbf{dv}_t + \mathbf p_t\right]^\top",
    dq(t).T,
    -lam(t) * st(t - 1) * (dv(t) + p(t)).T,
)
