"""The mesa inverse recurrence: the formulas of its document, as displayed there.

The truth is the definition s_t^-1 = lambda_t s_{t-1}^-1 + u_t u_t^T, kept as H(t) = s_t^-1, and the Neumann iteration
for it."""

from __future__ import annotations

from typing import Any

from ..language.claims import Document, Setting
from ..language.formula import (
    Formula,
    cases,
    compare,
    diag,
    eye,
    gradient,
    hadamard,
    inner,
    inverse,
    product_over,
    revcumsum,
    row,
    rowsum,
    stack,
    sum_over,
    tril,
)
from ..language.statements import Approximates, equal, one_of

DOCUMENT = Document("Mesa Inverse Recurrence", "001")
I = eye("d")


def mesa(s: Setting) -> tuple:
    """lambda_0..lambda_n, u_1..u_n, q_1..q_n, alpha_t, and s_t through its inverse H(t)."""
    n = s.names("n")
    t, i = s.indices("t", 1, n), s.indices("i")
    lam = s.given("lam", over=(t, 0, n), domain="slow decay")
    u, q = s.given("u", "d", over=(t, 1, n)), s.given("q", "d", over=(t, 1, n))
    alpha = s.define("alpha", (t,), product_over(i, 0, t, lam(i)))
    return t, i, lam, u, q, alpha


# --- the recurrence -------------------------------------------------------------------------------------------------

s = Setting("sherman_morrison")
d, n = s.dims("d n")
t, i, lam, u, q, alpha = mesa(s)
H0 = s.ambiguous(
    "H0",
    (),
    {"s_0 = lambda_0 I, as displayed": inverse(lam(0) * I), "s_0^-1 = lambda_0 I, as alpha_0 has it": lam(0) * I},
)
H = s.recursive("H", t, 0, H0, lambda before: lam(t) * before + u(t) * u(t).T)
state = s.define("s", (t,), inverse(H(t)), r"\mathbf s")
plain = Setting("sherman_morrison")
plain.dims("d n")
tp, ip, lamp, up, qp, alphap = mesa(plain)
plain_H = plain.recursive("H", tp, 0, inverse(lamp(0) * I), lambda before: lamp(tp) * before + up(tp) * up(tp).T)

claim = DOCUMENT.section("recurrence", plain)
claim(
    "init",
    r"\mathbf s_0 = \lambda_0 \mathbf I_d",
    one_of(
        where_the_recurrence_starts=equal(inverse(plain_H(0)), lamp(0) * I),
        together_with_the_unrolled_form_at_t_0=equal(inverse(alphap(0) * I), lamp(0) * I),
    ),
)
claim = DOCUMENT.section("Sherman-Morrison", s)
claim(
    "sm-1",
    r"\mathbf s_t = (\mathbf s_{t-1}^{-1} + \mathbf u_t \mathbf u_t^\top)^{-1}",
    state(t),
    inverse(inverse(state(t - 1)) + u(t) * u(t).T),
)
claim(
    "sm-2",
    r"\mathbf s_t = \lambda_t^{-1} \mathbf s_{t-1} - \frac{\lambda_t^{-1} \mathbf s_{t-1} \mathbf "
    r"u_t \mathbf u_t^\top"
    r"\lambda_t^{-1} \mathbf s_{t-1}}{1 + \mathbf u_t^\top \lambda_t^{-1} \mathbf s_{t-1} \mathbf u_t}",
    state(t),
    inverse(lam(t)) * state(t - 1)
    - inverse(lam(t))
    * state(t - 1)
    * u(t)
    * u(t).T
    * inverse(lam(t))
    * state(t - 1)
    / (1 + u(t).T * inverse(lam(t)) * state(t - 1) * u(t)),
)
claim(
    "sm-3",
    r"\mathbf s_t = \lambda_t^{-1} \left(\mathbf s_{t-1} - \frac{\mathbf s_{t-1} \mathbf u_t \mathbf u_t^\top"
    r"\mathbf s_{t-1}}{\lambda_t + \mathbf u_t^\top \mathbf s_{t-1} \mathbf u_t}\right)",
    state(t),
    inverse(lam(t))
    * (state(t - 1) - state(t - 1) * u(t) * u(t).T * state(t - 1) / (lam(t) + u(t).T * state(t - 1) * u(t))),
)
utilde = s.define("utilde", (t, i), alpha(t) / alpha(i) * u(i), r"\tilde{\mathbf u}")
claim = DOCUMENT.section("unrolled", s)
unrolled = inverse(alpha(t) * I + sum_over(i, 1, t, utilde(t, i) * utilde(t, i).T))
claim(
    "unroll-decay",
    r"\mathbf s_t = \left(\alpha_t \mathbf I_d + \sum_{i=1}^t (\alpha_t/\alpha_i \mathbf "
    r"u_i)(\alpha_t/\alpha_i \mathbf u_i)^\top\right)^{-1}",
    state(t),
    unrolled,
    defines="utilde",
    note="the displayed summand is written with the vector alpha_t/alpha_i u_i, twice",
)
Utilde = s.define(
    "Utilde",
    (t,),
    stack(i, n, cases((compare(i, "<=", t), utilde(t, i).T), (None, 0 * u(i).T))),
    r"\tilde{\mathbf U}",
)
claim(
    "unroll-tilde",
    r"\mathbf s_t \triangleq \left(\alpha_t \mathbf I_d + \tilde{\mathbf U}_t^\top \tilde{\mathbf U}_t\right)^{-1}",
    state(t),
    inverse(alpha(t) * I + Utilde(t).T * Utilde(t)),
)

# --- the Neumann series ---------------------------------------------------------------------------------------------

x = Setting("neumann")
x.dims("d k", k=(4,))
i = x.indices("i")
k = x.indices("m", 1, 5)
X = x.given("X", "d", "d", domain="matrix")
y = x.given("y", "d")
partial = x.define("Xinv", (k,), sum_over(i, 0, k, (I - X) ** i), r"\mathbf X^{-1}")
claim = DOCUMENT.section("Neumann series", x)
claim("neu-inv", r"\mathbf X^{-1} = (\mathbf I - (\mathbf I - \mathbf X))^{-1}", inverse(X), inverse(I - (I - X)))
claim(
    "neu-series",
    r"\mathbf X^{-1} = \sum_{i=0}^\infty (\mathbf I - \mathbf X)^i",
    inverse(X),
    sum_over(i, 0, None, (I - X) ** i),
)
claim(
    "neu-partial",
    r"\mathbf X_k^{-1} = \mathbf X_{k-1}^{-1} (\mathbf I - \mathbf X) + \mathbf I",
    partial(k),
    partial(k - 1) * (I - X) + I,
)
claim(
    "neu-approx",
    r"\mathbf y^\top \mathbf X^{-1} \approx \mathbf y^\top \mathbf X_k^{-1}",
    Approximates(y.T * inverse(X), y.T * sum_over(i, 0, x.names("k"), (I - X) ** i), "k"),
)
yk = x.ambiguous(
    "yk",
    (k,),
    {
        "y_k is the row y^T X_k^-1, as where it is defined": y.T * partial(k),
        "y_k is a column, as where it is transposed": (y.T * partial(k)).T,
    },
    r"\mathbf y",
)
claim(
    "neu-y-1",
    r"\mathbf y^\top \mathbf X_k^{-1} \triangleq \mathbf y_k = \mathbf y^\top \mathbf "
    r"X_{k-1}^{-1} (\mathbf I - \mathbf X) + \mathbf y^\top",
    yk(k),
    y.T * partial(k - 1) * (I - X) + y.T,
)
claim(
    "neu-y-2",
    r"\mathbf y^\top \mathbf X_k^{-1} = \mathbf y_{k-1}^\top (\mathbf I - \mathbf X) + \mathbf y^\top",
    y.T * partial(k),
    yk(k - 1).T * (I - X) + y.T,
)
claim(
    "neu-y-3",
    r"\mathbf y^\top \mathbf X_k^{-1} = \mathbf y_{k-1}^\top - \mathbf y_{k-1}^\top \mathbf X + \mathbf y^\top",
    y.T * partial(k),
    yk(k - 1).T - yk(k - 1).T * X + y.T,
)

# --- the iteration, step by step ------------------------------------------------------------------------------------

m = s.indices("m", 1, 3)
i = s.indices("i")
truth = s.define("o", (m, t), (q(t).T * sum_over(i, 0, m, (I - H(t)) ** i)).T, r"\mathbf o")
claim = DOCUMENT.section("iteration", s)
claim(
    "sub-1",
    r"[\mathbf o_t^{(i)}]^\top = [\mathbf o_t^{(i-1)}]^\top - [\mathbf o_t^{(i-1)}]^\top"
    r"\left(\alpha_t \mathbf I_d + \tilde{\mathbf U}_t^\top \tilde{\mathbf U}_t\right) + \mathbf q_t^\top",
    truth(m, t).T,
    truth(m - 1, t).T - truth(m - 1, t).T * (alpha(t) * I + Utilde(t).T * Utilde(t)) + q(t).T,
)
claim(
    "sub-2",
    r"[\mathbf o_t^{(i)}]^\top = \mathbf q_t^\top + [\mathbf o_t^{(i-1)}]^\top (1-\alpha_t \mathbf I_d)"
    r" - [\mathbf o_t^{(i-1)}]^\top \tilde{\mathbf U}_t^\top \tilde{\mathbf U}_t",
    truth(m, t).T,
    q(t).T + truth(m - 1, t).T * (1 - alpha(t) * I) - truth(m - 1, t).T * (Utilde(t).T * Utilde(t)),
)

# --- the iteration as a program, with its own copy of Q, K and alpha in each round ----------------------------------

z = Setting("mesa_iteration")
d, n, rounds = z.dims("d n k", k=(3, 2, 3), n=(3, 2, 2))
t, i, lam, kt, qt, alpha = mesa(z)
j, m = z.indices("j"), z.indices("m", 1, rounds)
K = z.define("K", (), stack(t, n, kt(t).T), r"\mathbf K")
Q = z.define("Q", (), stack(t, n, qt(t).T), r"\mathbf Q")
A = z.define("A", (), stack(t, n, alpha(t)), r"\mathrm A")
Kc, Qc, Ac = (
    z.define(name, (m,), whole, shown)
    for name, whole, shown in (("Kc", K, r"\mathbf K"), ("Qc", Q, r"\mathbf Q"), ("Ac", A, r"\mathrm A"))
)
O0 = z.ambiguous("O0", (), {"O^(0) = 0": 0 * Q, "O^(0) = Q": Q}, r"\mathbf O^{(0)}")


def applied(before: Formula, read: Formula, K: Formula, A: Formula) -> Formula:
    """o_t^T H_t in every row, H_t = alpha_t I + sum over i <= t of alpha_t / alpha_i k_i k_i^T; `read` is the o that
    f reads."""
    return diag(A) * before + hadamard(read * K.T, tril(A * (1 / A).T)) * K


Of = z.define("Of", (m,), Formula("at", (m,), ("O",)), r"\mathbf O")
O = z.recursive(
    "O", m, 0, O0, lambda before: Qc(m - 1) + before - applied(before, Of(m - 1), Kc(m - 1), Ac(m - 1)), r"\mathbf O"
)
incoming = z.given("dO", n, "d", shown=r"\mathbf{dO}")
loss = z.define("loss", (), inner(incoming, O(rounds)))
dO = z.define("dOi", (m,), gradient(loss, O(m)), r"\mathbf{dO}")
dOf = z.define("dOf", (m,), gradient(loss, Of(m)), r"\mathbf{d}_f\mathbf{O}")  # what comes back through f alone
dQ = z.define("dQi", (m,), gradient(loss, Qc(m)), r"\mathbf{dQ}")
dK = z.define("dKi", (m,), gradient(loss, Kc(m)), r"\mathbf{dK}")
dlogA = z.define("dlogAi", (m,), hadamard(A, gradient(loss, Ac(m))), r"\mathbf{d\log A}")
reading_A = ("O(1-A) is a matrix product, with A = diag(alpha)", "O(1-A) scales row t by 1 - alpha_t")


def side(name: str, of: Any) -> Any:
    """O(1 - A), under both readings."""
    product, scaled = of(m) * (eye("n") - diag(A)), hadamard(of(m), 1 - A)
    return z.ambiguous(name, (m,), dict(zip(reading_A, (product, scaled), strict=True)))


O1A, dO1A = side("O1A", O), side("dO1A", dO)
f0 = z.define("f0", (), lam(0) * I, r"\mathbf s_0")
fstate = z.recursive("fstate", t, 0, f0, lambda before: lam(t) * before + kt(t) * kt(t).T, r"\mathbf s")


def f(rows: Formula) -> Formula:
    """f(rows, K, K, Lambda, false): row t of `rows` times the state."""
    return stack(t, n, row(rows, t) * fstate(t))


claim = DOCUMENT.section("iteration", z)
claim(
    "f-def",
    r"f:\ \mathbf s_0 = \lambda_0 \mathbf I_d,\ \mathbf s_t = \lambda_t \mathbf s_{t-1} + \mathbf "
    r"u_t \mathbf u_t^\top,\ "
    r"\mathbf o_t^\top = \mathbf q_t^\top \mathbf s_t,\quad\text{with the factor}\ (1-\mathrm A)",
    O(m),
    Q + hadamard(O(m - 1), 1 - A) - f(O(m - 1)),
    defines="f0",
    note="the iteration with the sign of its last line, and the state of f started as displayed",
)
a, b = z.given("a b", "d", over=(t, 1, n))
line = z.recursive("line", t, 0, f0, lambda before: lam(t) * before + kt(t) * kt(t).T, r"\mathbf s")
total = z.define("total", (), sum_over(t, 1, n, a(t).T * line(t) * b(t)))
BY_T, BY_NEXT = "reversed, step t multiplies by lambda_t", "reversed, step t multiplies by lambda_{t+1}"


def backwards(name: str, left: Any, right: Any) -> Any:
    """The state at t of the recurrence run backwards in time, which adds left(j) right(j)^T for j = n..t."""
    term = left(j) * right(j).T
    return z.ambiguous(
        name,
        (t, m),
        {
            BY_T: sum_over(j, t, n, product_over(i, t, j - 1, lam(i)) * term),
            BY_NEXT: sum_over(j, t, n, product_over(i, t + 1, j, lam(i)) * term),
        },
        r"\mathbf s",
    )


plain_back = backwards("plainback", a, b)
claim(
    "f-reverse",
    r"f(\ldots, \mathrm{true})\ \text{runs the recurrence backwards in time}",
    gradient(total, line(t)),
    plain_back(t, 1),
    note="read as what the adjoint needs: the state whose row t is the gradient by s_t of sum_j a_j^T s_j b_j",
)
IT = (
    r"\mathbf O^{(i)} = \mathbf Q^{(i-1)} + \mathbf O^{(i-1)}(1-\mathrm A^{(i-1)}) + f(\mathbf "
    r"O^{(i-1)}, \mathbf K, \mathbf K, \Lambda, \mathrm{false})"
)
claim("it", IT, O(m), Qc(m - 1) + O1A(m - 1) + f(O(m - 1)))
claim(
    "it-A-side",
    r"\mathbf O^{(i-1)} (1-\mathrm A)",
    stack(t, n, row(O(m - 1), t) * (I - alpha(t) * I)),
    O1A(m - 1),
)
dQ_sum = equal(gradient(loss, Q), sum_over(m, 1, rounds, dQ(m - 1)))
claim("it-O0", r"\mathbf O^{(0)} = \,?\quad \mathbf{dQ} = \sum_{i=1}^k \mathbf{dQ}^{(i-1)}", dQ_sum)

# --- backward -------------------------------------------------------------------------------------------------------

claim = DOCUMENT.section("backward", z)
claim(
    "bw-dO",
    r"\mathbf{dO}^{(i-1)} = \mathbf{dO}^{(i)} (1-\mathrm A_t^{(i-1)}) + f(\mathbf{dO}^{(i)}, "
    r"\mathbf K, \mathbf K, \Lambda, \mathrm{false})",
    dO(m - 1),
    dO1A(m) + f(dO(m)),
)
claim("bw-dQ", r"\mathbf{dQ}^{(i-1)} = \mathbf{dO}^{(i)}", dQ(m - 1), dO(m))


def both_ways(m: Formula) -> tuple:
    """The states of f(K, dO_i, O_{i-1}, true) and f(K, O_{i-1}, dO_i, true)."""
    left = backwards("back1", lambda j: row(dO(m), j).T, lambda j: row(O(m - 1), j).T)
    right = backwards("back2", lambda j: row(O(m - 1), j).T, lambda j: row(dO(m), j).T)
    return left, right


back1, back2 = both_ways(m)
claim(
    "bw-dK",
    r"\mathbf{dK}^{(i-1)} = f(\mathbf K, \mathbf{dO}^{(i)}, \mathbf O^{(i-1)}, \Lambda, \mathrm{true})"
    r" + f(\mathbf K, \mathbf O^{(i-1)}, \mathbf{dO}^{(i)}, \Lambda, \mathrm{true})",
    dK(m - 1),
    stack(t, n, kt(t).T * back1(t, m)) + stack(t, n, kt(t).T * back2(t, m)),
)
dlogA_shown = -hadamard(dO(m), O(m - 1), A) + hadamard(O(m - 1), dQ(m - 1)) - hadamard(K, dK(m - 1))
claim(
    "bw-dlogA",
    r"\mathbf{d\log A}^{(i-1)} = -\mathbf{dO}^{(i)} \odot \mathbf O^{(i-1)} \odot \mathbf A^{(i-1)}"
    r" + \mathbf O^{(i-1)} \odot \mathbf{dQ}^{(i-1)} - \mathbf K^{(i-1)} \odot \mathbf{dK}^{(i-1)}",
    one_of(
        as_displayed=equal(dlogA(m - 1), dlogA_shown),
        with_each_product_summed_over_the_features=equal(
            dlogA(m - 1),
            -rowsum(hadamard(dO(m), O(m - 1), A))
            + rowsum(hadamard(O(m - 1), dQ(m - 1)))
            - rowsum(hadamard(K, dK(m - 1))),
        ),
    ),
)
claim("sum-dQ", r"\mathbf{dQ} = \sum_{i=1}^k \mathbf{dQ}^{(i-1)}", dQ_sum)
claim(
    "sum-dK",
    r"\mathbf{dK} = \sum_{i=1}^k \mathbf{dK}^{(i-1)}",
    gradient(loss, K),
    sum_over(m, 1, rounds, dK(m - 1)),
)
all_dlogA = hadamard(A, gradient(loss, A))
claim(
    "sum-dlogA",
    r"\mathbf{d\log A} = \sum_{i=1}^k \mathbf{d\log A}^{(i-1)}",
    all_dlogA,
    sum_over(m, 1, rounds, dlogA(m - 1)),
)
claim("sum-dO", r"\mathbf{dO} = \sum_{i=1}^k \mathbf{dO}^{(i-1)}", incoming, sum_over(m, 1, rounds, dO(m - 1)))
claim(
    "dlogLam",
    r"\mathbf{d\log \Lambda} = \mathrm{revcumsum}(\mathbf{d\log A})",
    stack(t, n, lam(t) * gradient(loss, lam(t))),
    revcumsum(all_dlogA),
)
Ht = z.recursive("Ht", t, 0, lam(0) * I, lambda before: lam(t) * before + kt(t) * kt(t).T, r"\mathbf H")
dOlast = z.define(
    "dOlast", (m,), stack(t, n, row(incoming, t) * (I - Ht(t)) ** (rounds - m)), r"\mathbf{dO}"
)  # the same as dO(m), without running the program backwards for each round


def dK_with(other: Formula) -> Formula:
    """The gradient of K in one round, with `other` in the place of O^(i-1)."""
    mask = tril(A * (1 / A).T)
    forth, back = hadamard(dOlast(m) * K.T, mask), hadamard(other * K.T, mask)
    return -(forth.T * other + back.T * dOlast(m))


claim(
    "simpl-approx",
    r"\mathbf{dK} \approx \sum_{i=1}^k \mathbf{dK}^{(i-1)}\ \text{with}\ \mathbf O\ \text{in the "
    r"place of every}\ \mathbf O^{(i-1)}",
    Approximates(gradient(loss, K), sum_over(m, 1, rounds, dK_with(O(rounds))), "k"),
    note="with the sign and the state of f that the exact formula needs (bw-dK, f-def); in question is O in place of O^(i-1)",
)
