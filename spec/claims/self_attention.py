"""Self attention, relay nodes, KED and kattention: the formulas of their document, as displayed there."""

from __future__ import annotations

from fractions import Fraction

from ..language.claims import Document, Setting
from ..language.formula import (
    Formula,
    cases,
    compare,
    exp,
    eye,
    gradient,
    inverse,
    jacobian,
    log,
    matrix,
    row,
    softmax,
    stack,
    sum_over,
)
from ..language.statements import Density, Integral, Number, Stationary, differs, equal, one_of, together

DOCUMENT = Document("Self Attention", "003")
half = Fraction(1, 2)

# --- self attention -------------------------------------------------------------------------------------------------

s = Setting("self_attention")
E, D, n = s.dims("E D n")
i, j = s.indices("i j", 1, n)
x = s.given("x", E, over=(i, 1, n))
Q, K, V = s.given("Q K V", D, E)
X = s.define("X", (), stack(j, n, x(j).T))
a = s.define("a", (i, j), exp(x(i).T * Q.T * K * x(j)), shown="a")
claim = DOCUMENT.section("self attention", s)
claim(
    "attn",
    r"a_{ij} = \exp(x_i^T Q^T K x_j),\quad y_i = V \sum_j x_j \frac{a_{ij}}{\sum_j a_{ij}}",
    V * X.T * softmax(X * K.T * Q * x(i)),
    V * sum_over(j, 1, n, x(j) * (a(i, j) / sum_over(j, 1, n, a(i, j)))),
)

# --- relay nodes, and KED -------------------------------------------------------------------------------------------

s = Setting("relay")
E, n, nodes, D = s.dims("E n m D")
i = s.indices("i", 1, n)
k, k1, k2 = s.indices("k k1 k2", 1, nodes)
x = s.given("x", E, over=(i, 1, n))
mu = s.given("mu", E, over=(k, 1, nodes))
W = s.given("W", over=((k1, 1, nodes), (k2, 1, nodes)))
L, R = s.given("L R", D, E)
X = s.define("X", (), stack(i, n, x(i).T))
A = s.define("A", (i, k), exp(mu(k).T * x(i)) / sum_over(i, 1, n, exp(mu(k).T * x(i))), shown="A")
B = s.define("B", (k,), sum_over(i, 1, n, A(i, k) * x(i)), shown="B")
claim = DOCUMENT.section("relay nodes", s)
claim(
    "relay-A",
    r"\sum_i A_{ik} = 1,\quad A_{ik} = \frac{\exp(\mu_k^T x_i)}{\sum_i \exp(\mu_k^T x_i)}",
    together(
        equal(sum_over(i, 1, n, A(i, k)), 1),
        equal(
            row(softmax(X * mu(k)), i),
            exp(mu(k).T * x(i)) / sum_over(i, 1, n, exp(mu(k).T * x(i))),
        ),
    ),
)
claim(
    "relay-B",
    r"B_k = \sum_i A_{ik} x_i",
    gradient(log(sum_over(i, 1, n, exp(mu(k).T * x(i)))), mu(k)),
    sum_over(i, 1, n, A(i, k) * x(i)),
    note="the softmax average, read as the gradient of log sum_i exp(mu^T x_i)",
)
pairwise = sum_over(k1, 1, nodes, sum_over(k2, 1, nodes, B(k1) * W(k1, k2) * B(k2)))
claim("relay-E1", r"E = \sum B_{k1} W_{k1,k2} B_{k2}", Number(pairwise))
claim(
    "relay-E2",
    r"E = \sum_{k2} -(\sum_{k1} W_{k1,k2} B_{k1} - B_{k2})^2 \quad (= \sum B_{k1} W_{k1,k2} B_{k2})",
    one_of(
        as_displayed=equal(
            pairwise,
            sum_over(k2, 1, nodes, -((sum_over(k1, 1, nodes, W(k1, k2) * B(k1)) - B(k2)) ** 2)),
        ),
        products_and_squares_of_vectors_as_inner_products=equal(
            sum_over(k1, 1, nodes, sum_over(k2, 1, nodes, B(k1).T * W(k1, k2) * B(k2))),
            sum_over(
                k2,
                1,
                nodes,
                -(
                    (sum_over(k1, 1, nodes, W(k1, k2) * B(k1)) - B(k2)).T
                    * (sum_over(k1, 1, nodes, W(k1, k2) * B(k1)) - B(k2))
                ),
            ),
        ),
    ),
)
claim = DOCUMENT.section("KED", s)
b = s.given("b", E, shown="B")
every = s.given("Ball", E, nodes, shown="B")
claim(
    "ked-E",
    r"E = B^T L^T R B",
    one_of(
        B_is_one_node=Number(b.T * L.T * R * b),
        B_is_the_matrix_of_all_nodes=Number(every.T * L.T * R * every),
    ),
)
claim(
    "ked-dEdB",
    r"\frac{\partial E}{\partial B_k} \triangleq L^T R B",
    gradient(b.T * L.T * R * b, b),
    L.T * R * b,
)
energy = s.define("E_", (), sum_over(k, 1, nodes, B(k).T * L.T * R * B(k)), shown="E")
claim(
    "ked-chain",
    r"\frac{\partial E}{\partial x_i} = \sum_k \frac{\partial E}{\partial B_k} \frac{\partial B_k}{\partial x_i}",
    gradient(energy, x(i)),
    sum_over(k, 1, nodes, jacobian(B(k), x(i), gradient(energy, B(k)))),
)

# --- Guess 1 --------------------------------------------------------------------------------------------------------


def parameters(s: Setting) -> tuple:
    """x, y, Q, K, b, c, and the numbers c and k."""
    x, y = s.given("x y", "E")
    Q, K = s.given("Q K", "D", "E")
    b, c = s.given("b c", "D")
    return x, y, Q, K, b, c, s.given("c1", domain="positive", shown="c"), s.given("kappa", shown="k")


s = Setting("attention_energy")
s.dims("E D")
x, y, Q, K, b, c, divisor, factor = parameters(s)
wide = Setting("attention_energy")  # K of full row rank, so that a derivative by K y means something
wide.dims("E D", E=(3, 3, 4), D=(2, 3, 2))
parameters(wide)


def f1(x: Formula, y: Formula) -> Formula:
    return x.T * Q.T * K * y / divisor


def f2(x: Formula, y: Formula) -> Formula:
    return x.T * Q.T * K * y - half * y.T * y


def f3(x: Formula, y: Formula) -> Formula:
    return x.T * Q.T * K * y - half * y.T * K.T * K * y


def f4(x: Formula, y: Formula) -> Formula:
    return x.T * Q.T * K * y - half * y.T * K.T * K * y + b.T * K * y


def f5(x: Formula, y: Formula) -> Formula:
    return x.T * K.T * K * y - half * y.T * K.T * K * y + b.T * K * y


claim = DOCUMENT.section("guess 1", s)
full = DOCUMENT.section("guess 1", wide)
claim("f1-Z", r"Z = \int_{y \in R^E} \exp(x^T Q^T K y / c)\, \partial y = \infty", Integral(f1(x, y), y, False))
claim("f1-scale", r"f(x,ky) = kf(x,y)", f1(x, factor * y), factor * f1(x, y))
claim("f2-grad", r"\frac{\partial f_2}{\partial y} = K^T Q x - y", gradient(f2(x, y), y), K.T * Q * x - y)
claim(
    "f2-zero",
    r"\text{(set gradient to zero)}\quad 0 = K^T Q x",
    gradient(f2(x, y), y),
    K.T * Q * x,
    note="the gradient, of which the line says that it is set to zero",
)
claim("f2-argmax", r"\mathrm{argmax}_y f_2(x,y) = K^T Q x", Stationary(f2(x, y), y, y, K.T * Q * x))
claim("f2-gauss", r"\exp f_2 \propto N(y; K^T Q x, I)", Density(f2(x, y), y, K.T * Q * x, eye("E")))
claim(
    "f2-scale",
    r"f_2(x,ky) \ne kf_2(x,ky)",
    one_of(
        as_displayed_with_ky_on_both_sides=differs(f2(x, factor * y), factor * f2(x, factor * y)),
        as_the_scaling_of_f_1_is_written_above=differs(f2(x, factor * y), factor * f2(x, y)),
    ),
)
full("f3-grad", r"\frac{\partial f_3}{\partial (K y)} = Q x - K y", gradient(f3(x, y), K * y), Q * x - K * y)
claim("f3-max", r"K y = Q x\ \text{at the maximum}", Stationary(f3(x, y), y, K * y, Q * x))
z = s.given("z", "D", shown="Ky")
claim(
    "f3-gauss",
    r"K y\ \text{is Gaussian given}\ x",
    one_of(
        as_a_density_over_Ky=Density(x.T * Q.T * z - half * z.T * z, z, Q * x, eye("D")),
        as_a_density_over_y=Integral(f3(x, y), y, True),
    ),
)
ys = s.given("Y", "m", "E")  # the candidates among which attention chooses
s.dims("m")
scores = ys * K.T * Q * x
ones_m = Formula("ones", (), ("m",))
claim(
    "f3-to-f1",
    r"y^T K^T K y = c \ \Rightarrow\ f_3 = f_1",
    one_of(
        as_numbers=equal(x.T * Q.T * K * y - half * divisor, f1(x, y)),
        as_attention_weights=equal(softmax(scores - half * divisor * ones_m), softmax(scores / divisor)),
        as_attention_weights_and_f1_without_its_divisor=equal(
            softmax(scores - half * divisor * ones_m), softmax(scores)
        ),
    ),
)
claim("f3-Z", r"Z = \int_{y \in R^E} \exp f_3(x,y)\, \partial y \ne \infty", Integral(f3(x, y), y, True))
w = wide.given("w", "E")
dy = wide.define("dy", (), w - K.T * inverse(K * K.T) * K * w, shown=r"\partial y")  # any vector of kernel(K)
full(
    "f3-inv",
    r"f_3(x, y + \partial y) = f_3(x, y)\ \text{if}\ \partial y \in \mathrm{kernel}(K)",
    f3(x, y + dy),
    f3(x, y),
)

# --- Guess 2 --------------------------------------------------------------------------------------------------------

rope = Setting("attention_energy")
rope.dims("E D", E=(3, 2, 4), D=(2,))
parameters(rope)
m, n = rope.indices("m n", 0, 3)
p, q = rope.indices("p q")
tan = rope.given("tau", shown=r"\tan\tfrac{\theta}{2}")
turn = matrix(p, q, "D", "D", cases((compare(p, "<", q), tan), (compare(p, ">", q), -tan), (None, 0)))
R = rope.define("R", (m,), ((eye("D") - turn) * inverse(eye("D") + turn)) ** m, shown="R")
flat = matrix(p, q, "D", "D", cases((compare(p, "<", q), 0 * tan), (compare(p, ">", q), -0 * tan), (None, 0)))
R0 = rope.define("Rflat", (m,), ((eye("D") - flat) * inverse(eye("D") + flat)) ** m, shown="R")
claim = DOCUMENT.section("guess 2, RoPE", rope)
claim(
    "rope-rel",
    r"m=n:\ x^T Q^T (R_m^T R_n) K y\ \text{with}\ R_0^T R_0 = I,\ x = y\ \text{is}\ x^T Q^T K x",
    together(
        equal(R(0).T * R(0), eye("D")),
        equal(x.T * Q.T * (R(m).T * R(m)) * K * x, x.T * Q.T * K * x),
    ),
)
claim(
    "rope-theta0",
    r"\theta = 0:\quad x^T Q^T (R_m^T R_n) K y = x^T Q^T K y",
    x.T * Q.T * (R0(m).T * R0(n)) * K * y,
    x.T * Q.T * K * y,
)
claim("rope-noncomm", r"R_m^T R_n \ne R_n^T R_m", differs(R(m).T * R(n), R(n).T * R(m)))

claim = DOCUMENT.section("guess 2", s)
full = DOCUMENT.section("guess 2", wide)
full("f4-grad", r"\frac{\partial f_4}{\partial K y} = Qx - Ky + b", gradient(f4(x, y), K * y), Q * x - K * y + b)
claim(
    "f4-form",
    r"f_4(x,y) = x^T Q^T K y - \frac{1}{2} y^T K^T K y + b^T K y = (x^T Q^T - \frac{1}{2} y^T K^T + b^T) K y",
    f4(x, y),
    (x.T * Q.T - half * y.T * K.T + b.T) * K * y,
)
claim("f4-max", r"\text{maximum at}\ Qx + b = Ky", Stationary(f4(x, y), y, K * y, Q * x + b))
claim(
    "f5-form",
    r"f_5(x,y) = x^T K^T K y - \frac{1}{2} y^T K^T K y + b^T K y = (x^T K^T - \frac{1}{2} y^T K^T + b^T) K y"
    r" = y^T K^T (K x + b - \frac{1}{2} K y)",
    f5(x, y),
    (x.T * K.T - half * y.T * K.T + b.T) * K * y,
    y.T * K.T * (K * x + b - half * K * y),
)
claim("f5-asym", r"f_5(x,y) \ne f_5(y,x)", differs(f5(x, y), f5(y, x)))


def f6(x: Formula, y: Formula, Q: Formula = Q, K: Formula = K, b: Formula = b, c: Formula = c) -> Formula:
    return -half * x.T * Q.T * Q * x + x.T * Q.T * K * y - half * y.T * K.T * K * y + b.T * K * y + c.T * Q * x


claim(
    "f6-l2",
    r"f_6 = -\frac{1}{2} x^T Q^T (Qx - Ky) - \frac{1}{2} (y^T K^T - x^T Q^T) Ky + b^T K y + c^T Q x",
    f6(x, y),
    -half * x.T * Q.T * (Q * x - K * y) - half * (y.T * K.T - x.T * Q.T) * K * y + b.T * K * y + c.T * Q * x,
)
claim(
    "f6-l3",
    r"f_6 = -\frac{1}{2} x^T Q^T (Qx - Ky) + \frac{1}{2} (Qx - Ky)^T K y + b^T K y + c^T Q x",
    f6(x, y),
    -half * x.T * Q.T * (Q * x - K * y) + half * (Q * x - K * y).T * K * y + b.T * K * y + c.T * Q * x,
)
claim(
    "f6-l4",
    r"f_6 = -\frac{1}{2} (Qx - Ky)^T (Qx - Ky) + b^T K y + c^T Q x",
    f6(x, y),
    -half * (Q * x - K * y).T * (Q * x - K * y) + b.T * K * y + c.T * Q * x,
)
claim(
    "f6-sym",
    r"f_6\ \text{follows from symmetry in}\ x, y",
    one_of(
        x_and_y_change_places=equal(f6(x, y), f6(y, x)),
        x_and_y_change_places_and_with_them_Q_and_K_and_b_and_c=equal(f6(x, y), f6(y, x, K, Q, c, b)),
    ),
)

# --- Kattention -----------------------------------------------------------------------------------------------------

s = Setting("kattention")
E, D, n = s.dims("E D n")
i, j, k = s.indices("i j", 1, n) + (s.indices("k", 1, E),)
x = s.given("x", E, over=(i, 1, n))
y = s.given("y", E)
Q1, K1 = s.given("Q1 K1", D, E)
b = s.given("b", D)
beta = s.given("beta")
TALL, WIDE = "Q and K are E x D, as displayed", "Q and K are D x E"
Q = s.ambiguous("Q", (), {TALL: Q1.T, WIDE: Q1}, shown="Q")
K = s.ambiguous("K", (), {TALL: K1.T, WIDE: K1}, shown="K")


def kattention(x: Formula, y: Formula) -> Formula:
    return x.T * Q.T * K * y - half * y.T * K.T * K * y + b.T * K * y


def factored(x: Formula, y: Formula) -> Formula:
    return (Q * x - half * K * y + b).T * K * y


def share(weight: Formula) -> Formula:
    """exp(weight) over its sum over j."""
    return exp(weight) / sum_over(j, 1, n, exp(weight))


claim = DOCUMENT.section("kattention", s)
claim(
    "k-E",
    r"E(x,y) = x^T Q^T K y - \frac{1}{2} y^T K^T K y + b^T K y = (Q x - \frac{1}{2} K y + b)^T K y",
    kattention(x(1), y),
    factored(x(1), y),
)
Eij = s.define("Eij", (i, j), kattention(x(i), x(j)), shown="E")
claim(
    "k-A",
    r"A_{ij} = \mathrm{softmax}_j(\beta E_{ij}) = \frac{\exp(\beta E_{ij})}{\sum_j \exp(\beta E_{ij})}"
    r" = \frac{\exp \beta (x_i^T Q^T K x_j - \dots)}{\sum_j \exp \beta (\dots)}"
    r" = \frac{\exp(\beta (Q x_i - \frac{1}{2} K x_j + b)^T K x_j)}{\sum_j \exp(\beta (\dots)^T K x_j)}",
    row(softmax(stack(j, n, beta * Eij(i, j))), j),
    share(beta * Eij(i, j)),
    share(beta * (x(i).T * Q.T * K * x(j) - half * x(j).T * K.T * K * x(j) + b.T * K * x(j))),
    share(beta * (Q * x(i) - half * K * x(j) + b).T * K * x(j)),
)
flatA = s.define("A", (i, j), share(beta * Eij(i, j)), shown="A")
average = s.define("y_", (i,), stack(j, n, x(j).T).T * softmax(stack(j, n, beta * Eij(i, j))), shown="y")
claim("k-y", r"y_{ik} = \sum_j A_{ij} x_j", row(average(i), k), sum_over(j, 1, n, flatA(i, j) * x(j)))
