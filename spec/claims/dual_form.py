"""The dual form of a linear layer: the formulas of its document, as displayed there."""

from __future__ import annotations

from ..language.claims import Document, Setting
from ..language.formula import (
    Formula,
    beside,
    columns,
    constant,
    formula,
    gradient,
    jacobian,
    row,
    sum_over,
    unit,
)
from ..language.statements import Factors
from ..linear_attention import r as linear

DOCUMENT = Document("Dual form of linear transformation", "004")

# --- statement and proof --------------------------------------------------------------------------------------------

s = Setting("linear_attention", linear)
t, i, n, q, k, v, S, o = s.names("t i n q k v S o")
x = s.given("x", "d")
K = s.define("K", (), columns(t, "n", k(t)))
V = s.define("V", (), columns(t, "n", v(t)))
W = s.define("W", (), (S(n) - S(0)).T)  # what the recurrence has added up after its T = n steps
claim = DOCUMENT.section("statement", s)
claim(
    "W-sum",
    r"W = \sum_{i=1}^T v_t k_t^T = V K^T",
    V * K.T,
    W,
    sum_over(i, 1, n, v(t) * k(t).T),
)
claim(
    "equal",
    r"S_1(x) = W x\ \text{equals}\ S_2(x) = \mathrm{Attention}(K, V, x)",
    W * x,
    sum_over(t, 1, n, (k(t).T * x) * v(t)),
)
claim = DOCUMENT.section("proof", s)
claim(
    "attn",
    r"\mathrm{Attention}(K, V, q) = (V K^T) q",
    o(n) - S(0).T * q(n),
    (V * K.T) * q(n),
)
claim(
    "one",
    r"\langle k_1, x \rangle v_1 = v_1 (k_1^T x) = (v_1 k_1^T) x",
    (x.T * k(1)) * v(1),
    v(1) * (k(1).T * x),
    (v(1) * k(1).T) * x,
)
m = Setting("linear_attention")
m.dims("d e T1 T2")
x = m.given("x", "d")
K1, V1 = m.given("K1", "d", "T1"), m.given("V1", "e", "T1")
K2, V2 = m.given("K2", "d", "T2"), m.given("V2", "e", "T2")
claim = DOCUMENT.section("proof", m)
claim(
    "merge",
    r"W_1 x + W_2 x = \mathrm{Attention}([K_1, K_2], [V_1, V_2], x)",
    V1 * K1.T * x + V2 * K2.T * x,
    beside(V1, V2) * beside(K1, K2).T * x,
)

# --- exercise 1 -----------------------------------------------------------------------------------------------------

s = Setting("linear_attention")
s.dims("d", d=(3,))
W = constant("d", "d", ((1, 2, 3), (2, 3, 1), (3, 1, 2)))
claim = DOCUMENT.section("exercise 1", s)
for T in (3, 2, 4):
    claim(
        f"ex1-T{T}",
        r"W = \begin{pmatrix} 1 & 2 & 3 \\ 2 & 3 & 1 \\ 3 & 1 & 2 \end{pmatrix} = V K^T,\quad T = " + str(T),
        Factors(W, T),
    )

# --- exercise 2, the hint -------------------------------------------------------------------------------------------

s = Setting("gradient_descent")
d_in, d_out = s.dims("d_in d_out")
i, j = s.indices("i", 1, d_out), s.indices("j", 1, d_in)
W = s.given("W", d_out, d_in)
x = s.given("x", d_in)
u = s.given("u", d_out)  # any vector, to look at one combination of the components of W x
a, g = s.given("a g", d_out)
Bq = s.given("B", d_out, d_out)


def loss(z: Formula) -> Formula:
    """Any smooth loss; a general cubic polynomial stands for it."""
    return a.T * z + z.T * Bq * z + (g.T * z) ** 3


Wx = s.define("z", (), W * x, shown="Wx")
AT_WX, AT_X = "L' is taken at W x", "L' is taken at x, as displayed"
Lprime = s.ambiguous(
    "Lprime", (), {AT_X: gradient(loss(x), x).T, AT_WX: gradient(loss(Wx), Wx).T}, shown=r"\mathcal{L}'(x)"
)
claim = DOCUMENT.section("exercise 2", s)
claim(
    "h-chain",
    r"\frac{df(x)}{dW_{i,j}} = \frac{d\mathcal{L}(x)}{dx} \frac{d(Wx)}{dW_{i,j}}",
    gradient(loss(W * x), W),
    jacobian(W * x, W, Lprime.T),
)
dx = s.define("dx", (), 0 * x, shown=r"\frac{dx}{dW_{i,j}}")
claim(
    "h-product",
    r"\frac{d(Wx)}{dW_{i,j}} = \frac{dW}{dW_{i,j}} x + \frac{dx}{dW_{i,j}} W",
    unit(d_out, i).T * jacobian(W * x, W, u) * unit(d_in, j),
    u.T * (unit(d_out, i) * unit(d_in, j).T * x + dx * W),
)
at_Wx = gradient(loss(Wx), Wx).T
claim(
    "h-eij",
    r"\frac{df(x)}{dW_{i,j}} = \mathcal{L}'(x)(e_i e_j^T x + 0) = (\mathcal{L}'(x) e_i)(e_j^T x) "
    r"= (\mathcal{L}'(x))_i\, x_j",
    at_Wx * (unit(d_out, i) * unit(d_in, j).T * x + 0 * u),
    (at_Wx * unit(d_out, i)) * (unit(d_in, j).T * x),
    row(at_Wx.T, i) * row(x, j),
)
claim("h-sum", r"\frac{df(x)}{dW} = \mathcal{L}'(x)^T x^T", gradient(loss(W * x), W), Lprime.T * x.T)

# --- exercise 2, the decomposition ----------------------------------------------------------------------------------

s = Setting("gradient_descent")
d_in, d_out, n = s.dims("d_in d_out n")
t = s.indices("t", 1, n)
W0 = s.given("W0", d_out, d_in, shown="W_0")
x = s.given("x", d_in, over=(t, 1, n))
query = s.given("q", d_in, shown="x")
eta = s.given("eta")
a, g = s.given("a g", d_out)
Bq = s.given("B", d_out, d_out)
W = s.recursive("W", t, 0, W0, lambda before: before - eta * gradient(loss(before * x(t)), before), shown="W")
seen = s.define("seen", (t,), W(t - 1) * x(t))
first = s.define("first", (t,), W0 * x(t))
plain = s.define("plain", (t,), formula(1) * x(t))
errors = s.ambiguous(
    "errors",
    (t,),
    {
        "L'(x_t) is taken at x_t, as displayed": gradient(loss(plain(t)), plain(t)).T,
        "L'(x_t) is taken at W_0 x_t": gradient(loss(first(t)), first(t)).T,
        "L'(x_t) is taken at W x_t, with the weights before step t": gradient(loss(seen(t)), seen(t)).T,
    },
    shown=r"\mathcal{L}'",
)
claim = DOCUMENT.section("exercise 2", s)
claim(
    "final",
    r"Wx = W_0 x + \mathrm{Attention}((x_1,\dots x_T), (\mathcal{L}'(x_1)^T,\dots \mathcal{L}'(x_T)^T), x)",
    W(n) * query,
    W0 * query + columns(t, "n", errors(t).T) * columns(t, "n", x(t)).T * query,
)
