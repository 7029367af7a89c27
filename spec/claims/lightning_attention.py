"""Lightning attention with data-dependent decay: the formulas of its document, as displayed there."""

from __future__ import annotations

from typing import Any

from ..language.claims import Document, Setting, setting_of
from ..language.formula import (
    Formula,
    cases,
    compare,
    diag,
    differences,
    exp,
    hadamard,
    jacobian,
    log,
    matrix,
    product_over,
    row,
    stack,
)
from ..language.statements import equal, together
from ..lightning_attention import r as lightning

DOCUMENT = Document("Lightning Attention with Data-Dependent Decay", "002")

# --- step by step ---------------------------------------------------------------------------------------------------

step = setting_of(lightning)
t, q, k, v, lam, S, o = step.names("t q k v lam S o")
claim = DOCUMENT.section("recap", step)
claim(
    "rec",
    r"\mathbf s_i = \lambda_i \mathbf s_{i-1} + \mathbf k_i \mathbf v_i^\top,\quad"
    r"\mathbf o_i^\top = \mathbf q_i^\top \mathbf s_i",
    together(equal(S(t), lam(t) * S(t - 1) + k(t) * v(t).T), equal(o(t).T, q(t).T * S(t))),
)

# --- chunk by chunk: the quantities ---------------------------------------------------------------------------------

x = Setting("lightning_attention", lightning)
c, N = x.chunked()
i, j = x.indices("i", 1, N), x.indices("j", 1, c)
t, s, u = x.names("t s u")
q, k, v, lam, state, o, do, dq, dk, dv = x.names("q k v lam S o do dq dk dv")
X, y = x.given("X", "d", "e"), x.given("y", "e")  # anything of these shapes: what a response is contracted with
at = (i - 1) * c + j  # the step of row j in chunk i


def chunk(name: str, of: Any, shown: str) -> Any:
    """The rows of chunk i: a c x d or c x e matrix."""
    return x.define(name, (i,), stack(j, c, of(at).T), shown)


Q, K, V = chunk("Q", q, r"\mathbf Q"), chunk("K", k, r"\mathbf K"), chunk("V", v, r"\mathbf V")
O, dO = chunk("O", o, r"\mathbf O"), chunk("dO", do, r"\mathbf{dO}")
dQ, dK, dV = chunk("dQ", dq, r"\mathbf{dQ}"), chunk("dK", dk, r"\mathbf{dK}"), chunk("dV", dv, r"\mathbf{dV}")
M = x.define("M", (), matrix(u, s, c, c, cases((compare(u, ">=", s), 1), (None, 0))), r"\mathbf M")

Lam = x.define("Lam", (i, j), product_over(s, (i - 1) * c + 1, (i - 1) * c + j, lam(s)), r"\Lambda")
Lambda = x.define("Lambda", (i,), stack(j, c, Lam(i, j)), r"\Lambda")
barLam = x.define("barLam", (i, j), product_over(s, (i - 1) * c + j, i * c, lam(s)), r"\bar\Lambda")
barLambda = x.define("barLambda", (i,), stack(j, c, barLam(i, j)), r"\bar\Lambda")
Qbar = x.define("Qbar", (i,), hadamard(Q(i), Lambda(i)), r"\bar{\mathbf Q}")
Kbar = x.define("Kbar", (i,), K(i) / Lambda(i), r"\bar{\mathbf K}")
Ktilde = x.define("Ktilde", (i,), hadamard(K(i), barLambda(i)), r"\tilde{\mathbf K}")
Qtilde = x.define("Qtilde", (i,), Q(i) / barLambda(i), r"\tilde{\mathbf Q}")

BEFORE, AFTER = "S_i is the state before chunk i", "S_i is the state after chunk i"
Sc = x.ambiguous("Sc", (i,), {BEFORE: state((i - 1) * c), AFTER: state(i * c)}, r"\mathbf S")
handed_on = x.carried("S", "dcarried")
dSc = x.ambiguous(
    "dSc",
    (i,),
    {
        "dS_i is the gradient by the state before chunk i": handed_on((i - 1) * c),
        "dS_i is the gradient by the state after chunk i": handed_on(i * c),
    },
    r"\mathbf{dS}",
)
Vbar = x.ambiguous(
    "Vbar",
    (i,),
    {"Vbar_i is V_i": V(i), "Vbar_i is V_i o barLambda_i, as under dK": hadamard(V(i), barLambda(i))},
    r"\bar{\mathbf V}",
)


def mask(vector: Formula) -> Formula:
    """M(vector) = exp(log vector[:, None] - log vector[None, :]) o M."""
    return Formula("call", (hadamard(exp(differences(log(vector), log(vector))), M), vector), ("M",))


# --- forward --------------------------------------------------------------------------------------------------------

claim = DOCUMENT.section("forward", x)
claim(
    "fwd-Lambda",
    r"\Lambda_{i,j} = \prod_{s=(i-1)c+1}^{(i-1)c+j} \lambda_s",
    jacobian(state(at), state((i - 1) * c), X),
    Lam(i, j) * X,
    defines="Lam",
    note="read as the decay from the state before chunk i to the state after its j-th step",
)
claim(
    "fwd-barLambda",
    r"\bar\Lambda_{i,j} = \prod_{s=(i-1)c+j}^{ic} \lambda_s",
    jacobian(state(i * c), state(at), X),
    barLam(i, j) * X,
    defines="barLam",
    note="read as the decay from the state after the chunk's j-th step to the state after the chunk, as Ktilde needs it",
)
claim(
    "fwd-Qbar",
    r"\bar{\mathbf Q}_i = \mathbf Q_i \odot \Lambda_i",
    jacobian(o(at), state((i - 1) * c), y),
    row(Qbar(i), j).T * y.T,
    defines="Qbar",
    note="read as what the outputs of chunk i read of the state before it",
)
claim(
    "fwd-Kbar",
    r"\bar{\mathbf K}_i = \mathbf K_i / \Lambda_i",
    jacobian(o((i - 1) * c + u), v(at), y),
    row(Qbar(i), u) * row(Kbar(i), j).T * y,
    over=((i, 1, N), (j, 1, c), (u, j, c)),
    defines="Kbar",
    note="read as what, with Qbar, takes a value to the outputs after it in its chunk",
)
claim(
    "fwd-Ktilde",
    r"\tilde{\mathbf K}_i = \mathbf K_i \odot \bar\Lambda_i",
    jacobian(state(i * c), v(at), X),
    X.T * row(Ktilde(i), j).T,
    defines="Ktilde",
    note="read as what the values of chunk i write to the state after it",
)
claim(
    "fwd-Vbar",
    r"\mathbf O_i = \bar{\mathbf Q}_i \mathbf S_i + [[\bar{\mathbf Q}_i \bar{\mathbf K}_i^\top] "
    r"\odot \mathbf M] \bar{\mathbf V}_i",
    O(i),
    Qbar(i) * Sc(i) + hadamard(Qbar(i) * Kbar(i).T, M) * Vbar(i),
)
STATE = r"\mathbf S_{i+1} = \Lambda_{i+1,c} \mathbf S_i + \tilde{\mathbf K}_{i+1} \mathbf V_{i+1}^\top"
state_line = equal(Sc(i + 1), Lam(i + 1, c) * Sc(i) + Ktilde(i + 1) * V(i + 1).T)
claim(
    "fwd-S-index",
    r"\mathbf O_i = \bar{\mathbf Q}_i \mathbf S_i + [[\bar{\mathbf Q}_i \bar{\mathbf K}_i^\top] "
    r"\odot \mathbf M] \mathbf V_i,\quad " + STATE,
    together(equal(O(i), Qbar(i) * Sc(i) + hadamard(Qbar(i) * Kbar(i).T, M) * V(i)), state_line),
)
claim(
    "fwd-O",
    r"\mathbf O_i = \bar{\mathbf Q}_i \mathbf S_i + [[\mathbf Q_i \mathbf K_i^\top] \odot \mathbf "
    r"M(\Lambda_i)] \mathbf V_i",
    O(i),
    Qbar(i) * Sc(i) + hadamard(Q(i) * K(i).T, mask(Lambda(i))) * V(i),
)
claim(
    "fwd-QKM",
    r"[\bar{\mathbf Q}_i \bar{\mathbf K}_i^\top] \odot \mathbf M = [\mathbf Q_i \mathbf K_i^\top] "
    r"\odot \mathbf M(\Lambda_i)",
    hadamard(Qbar(i) * Kbar(i).T, M),
    hadamard(Q(i) * K(i).T, mask(Lambda(i))),
)
Lambda2 = x.ambiguous(
    "Lambda2",
    (i,),
    {
        "Lambda_i starts anew in each chunk, as displayed": Lambda(i),
        "Lambda_i is the product from the first step on": stack(j, c, product_over(s, 1, at, lam(s))),
    },
    r"\Lambda",
)
claim(
    "fwd-M2",
    r"\mathbf M(\Lambda_i, \Lambda_j) \triangleq [\exp(\log\Lambda_i[:,\mathrm{None}] - "
    r"\log\Lambda_j[\mathrm{None},:])], \quad i > j",
    jacobian(o((i - 1) * c + u), v((j - 1) * c + s), y),
    row(row(hadamard(Q(i) * K(j).T, exp(differences(log(Lambda2(i)), log(Lambda2(j))))), u).T, s) * y,
    over=((i, 2, N), (j, 1, i - 1), (u, 1, c), (s, 1, c)),
    note="read as the decay between a value of chunk j and an output of chunk i",
)
claim(
    "fwd-M1",
    r"\mathbf M(\Lambda_i) = [\exp(\log\Lambda_i[:,\mathrm{None}] - \log\Lambda_i[\mathrm{None},:])] \odot \mathbf M",
    jacobian(o((i - 1) * c + u), v((i - 1) * c + s), y),
    row(row(hadamard(Q(i) * K(i).T, hadamard(exp(differences(log(Lambda(i)), log(Lambda(i)))), M)), u).T, s) * y,
    over=((i, 1, N), (u, 1, c), (s, 1, c)),
    note="read as the decay between a value and an output of one chunk",
)

# --- dQ -------------------------------------------------------------------------------------------------------------

claim = DOCUMENT.section("dQ", x)
claim(
    "dq-dQbar",
    r"\mathbf{d\bar Q}_i = \mathbf{dO}_i \mathbf S_i^\top + [[\mathbf{dO}_i \mathbf V_i^\top] "
    r"\odot \mathbf M] \bar{\mathbf K}_i,"
    r"\quad \mathbf{dQ}_i = \mathbf{d\bar Q}_i \odot \Lambda_i",
    dQ(i),
    hadamard(dO(i) * Sc(i).T + hadamard(dO(i) * V(i).T, M) * Kbar(i), Lambda(i)),
)
claim("dq-S", STATE, state_line)
claim(
    "dq-line1",
    r"\mathbf{dQ}_i = \mathrm{diag}(\Lambda_i)[\mathbf{dO}_i \mathbf S_i^\top]"
    r" + \mathrm{diag}(\Lambda_i)[[\mathbf{dO}_i \mathbf V_i^\top] \odot \mathbf M] \bar{\mathbf K}_i",
    dQ(i),
    diag(Lambda(i)) * (dO(i) * Sc(i).T) + diag(Lambda(i)) * hadamard(dO(i) * V(i).T, M) * Kbar(i),
)
claim(
    "dq-line2",
    r"\mathbf{dQ}_i = \mathrm{diag}(\Lambda_i)[\mathbf{dO}_i] \mathbf S_i^\top"
    r" + \mathrm{diag}(\Lambda_i)[[\mathbf{dO}_i \mathbf V_i^\top] \odot \mathbf M] "
    r"\mathrm{diag}(1/\Lambda_i) \mathbf K_i",
    dQ(i),
    (diag(Lambda(i)) * dO(i)) * Sc(i).T + diag(Lambda(i)) * hadamard(dO(i) * V(i).T, M) * diag(1 / Lambda(i)) * K(i),
)
claim(
    "dq-diag",
    r"\mathrm{diag}(\Lambda_i)[[\mathbf{dO}_i \mathbf V_i^\top] \odot \mathbf M] \mathrm{diag}(1/\Lambda_i)"
    r" = [\mathbf{dO}_i \mathbf V_i^\top] \odot \mathbf M(\Lambda_i)",
    diag(Lambda(i)) * hadamard(dO(i) * V(i).T, M) * diag(1 / Lambda(i)),
    hadamard(dO(i) * V(i).T, mask(Lambda(i))),
)
dObar = x.define("dObar", (i,), hadamard(O(i), Lambda(i)), r"\mathbf{d\bar O}")
dq_final = equal(dQ(i), dObar(i) * Sc(i).T + hadamard(dO(i) * V(i).T, mask(Lambda(i))) * K(i))
claim(
    "dq-dObar",
    r"\mathbf{d\bar O}_i = \mathbf O_i \odot \Lambda_i",
    dq_final,
    defines="dObar",
    note="read as what the final form of dQ, below it, needs",
)
claim(
    "dq-final",
    r"\mathbf{dQ}_i = \mathbf{d\bar O}_i \mathbf S_i^\top"
    r" + [[\mathbf{dO}_i \mathbf V_i^\top] \odot \mathbf M(\Lambda_i)] \mathbf K_i",
    dq_final,
)

# --- dK -------------------------------------------------------------------------------------------------------------

claim = DOCUMENT.section("dK", x)
dKbar = x.define("dKbar", (i,), V(i) * dSc(i).T + hadamard(V(i) * dO(i).T, M.T) * Qtilde(i), r"\mathbf{d\bar K}")
claim(
    "dk-dKbar",
    r"\mathbf{d\bar K}_i = \mathbf V_i \mathbf{dS}_i^\top + [[\mathbf V_i \mathbf{dO}_i^\top] "
    r"\odot \mathbf M^\top] \tilde{\mathbf Q}_i,"
    r"\quad \tilde{\mathbf Q}_i = \mathbf Q_i / \bar\Lambda_i,\quad \mathbf{dK}_i = \mathbf{d\bar "
    r"K}_i \odot \bar\Lambda_i",
    dK(i),
    hadamard(dKbar(i), barLambda(i)),
)
DSTATE = r"\mathbf{dS}_i = \Lambda_{i+1,c} \mathbf{dS}_{i+1} + \bar{\mathbf Q}_i \mathbf{dO}_i^\top"
dstate_line = equal(dSc(i), Lam(i + 1, c) * dSc(i + 1) + Qbar(i) * dO(i).T)
claim("dk-dS", DSTATE, dstate_line)
dk_line1 = diag(barLambda(i)) * (V(i) * dSc(i).T) + diag(barLambda(i)) * hadamard(V(i) * dO(i).T, M.T) * Qtilde(i)
claim(
    "dk-lhs",
    r"\mathbf{d\bar K}_i = \mathrm{diag}(\bar\Lambda_i)[\mathbf V_i \mathbf{dS}_i^\top]"
    r" + \mathrm{diag}(\bar\Lambda_i)[[\mathbf V_i \mathbf{dO}_i^\top] \odot \mathbf M^\top] \tilde{\mathbf Q}_i",
    dKbar(i),
    dk_line1,
)
claim(
    "dk-line2",
    r"\mathrm{diag}(\bar\Lambda_i)[\mathbf V_i \mathbf{dS}_i^\top] + \mathrm{diag}(\bar\Lambda_i)"
    r"[[\mathbf V_i \mathbf{dO}_i^\top] \odot \mathbf M^\top] \tilde{\mathbf Q}_i = "
    r"[\mathrm{diag}(\bar\Lambda_i) \mathbf V_i] \mathbf{dS}_i^\top"
    r" + \mathrm{diag}(\bar\Lambda_i)[[\mathbf V_i \mathbf{dO}_i^\top] \odot \mathbf M^\top] "
    r"\mathrm{diag}(1/\bar\Lambda_i) \mathbf Q_i",
    dk_line1,
    (diag(barLambda(i)) * V(i)) * dSc(i).T
    + diag(barLambda(i)) * hadamard(V(i) * dO(i).T, M.T) * diag(1 / barLambda(i)) * Q(i),
)
claim(
    "dk-MbarT",
    r"\mathrm{diag}(\bar\Lambda_i)[[\mathbf V_i \mathbf{dO}_i^\top] \odot \mathbf M^\top] "
    r"\mathrm{diag}(1/\bar\Lambda_i)"
    r" = [\mathbf V_i \mathbf{dO}_i^\top] \odot \mathbf M(\bar\Lambda_i)^\top",
    diag(barLambda(i)) * hadamard(V(i) * dO(i).T, M.T) * diag(1 / barLambda(i)),
    hadamard(V(i) * dO(i).T, mask(barLambda(i)).T),
)
VbarK = x.define("VbarK", (i,), hadamard(V(i), barLambda(i)), r"\bar{\mathbf V}")
claim(
    "dk-Vbar",
    r"\bar{\mathbf V}_i = \mathbf V_i \odot \bar\Lambda_i",
    jacobian(state(i * c), k(at), X),
    X * row(VbarK(i), j).T,
    defines="VbarK",
    note="read as how the state after the chunk responds to the chunk's keys",
)
claim(
    "dk-final",
    r"\mathbf{dK}_i = \bar{\mathbf V}_i \mathbf{dS}_i^\top"
    r" + [[\mathbf V_i \mathbf{dO}_i^\top] \odot \mathbf M(\bar\Lambda_i)^\top] \mathbf Q_i",
    dK(i),
    VbarK(i) * dSc(i).T + hadamard(V(i) * dO(i).T, mask(barLambda(i)).T) * Q(i),
)

# --- dV -------------------------------------------------------------------------------------------------------------

claim = DOCUMENT.section("dV", x)
dVbar = x.define(
    "dVbar", (i,), Ktilde(i) * dSc(i) + hadamard(Ktilde(i) * Qtilde(i).T, M.T) * dO(i), r"\mathbf{d\bar V}"
)
claim(
    "dv-dVbar",
    r"\mathbf{d\bar V}_i = \tilde{\mathbf K}_i \mathbf{dS}_i"
    r" + [[\tilde{\mathbf K}_i \tilde{\mathbf Q}_i^\top] \odot \mathbf M^\top] \mathbf{dO}_i",
    dV(i),
    dVbar(i),
    defines="dVbar",
    note="read as dV_i, which the document's next line equates it with",
)
claim("dv-dV", r"\mathbf{dV}_i = \mathbf{d\bar V}_i", dV(i), dVbar(i))
claim(
    "dv-MT",
    r"[\tilde{\mathbf K}_i \tilde{\mathbf Q}_i^\top] \odot \mathbf M^\top"
    r" = [\mathbf K_i \mathbf Q_i^\top] \odot \mathbf M(\Lambda_i)^\top",
    hadamard(Ktilde(i) * Qtilde(i).T, M.T),
    hadamard(K(i) * Q(i).T, mask(Lambda(i)).T),
)
claim(
    "dv-final",
    r"\mathbf{dV}_i = \tilde{\mathbf K}_i \mathbf{dS}_i"
    r" + [[\mathbf K_i \mathbf Q_i^\top] \odot \mathbf M(\Lambda_i)^\top] \mathbf{dO}_i",
    dV(i),
    Ktilde(i) * dSc(i) + hadamard(K(i) * Q(i).T, mask(Lambda(i)).T) * dO(i),
)
claim("dv-dS", DSTATE, dstate_line)
