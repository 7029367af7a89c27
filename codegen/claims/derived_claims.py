"""What the five documents leave out: derived by `derive.py`, proved against dual numbers like any claim, and shown in
the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chunkform.spec.inverse_attention import r as inverse_attention
from chunkform.spec.language import Recurrence
from chunkform.spec.language.claims import Claim, Setting
from chunkform.spec.language.formula import (
    Formula,
    cases,
    compare,
    diag,
    exp,
    formula,
    gradient,
    hadamard,
    inner,
    inverse,
    matrix,
    product,
    product_over,
    stack,
    substitute,
    sum_over,
)
from chunkform.spec.language.statements import Equal
from chunkform.spec.lightning_attention import r as lightning_attention

from .arithmetic import FIELD, PRIME, Undefined
from .derive import Underivable, derivative, shapes_in, step_adjoint, summed
from .evaluate import Evaluator
from .fingerprint import small_ratio
from .instance import Instance
from .trial_sizes import proof_sizes
from .values import solve
from .verifier import Verifier


@dataclass(frozen=True)
class Derived:
    """A formula that the machine derived: its document, what it is, both sides, and whether the proof went through."""

    document: str
    what: str
    claim: Claim
    verdict: str
    how: str


def left_out() -> list[Derived]:
    """Everything, in the order of the documents."""
    makers: list[Callable[[], list[tuple[str, str, Claim]]]] = [
        lambda: recurrence("000", "inverse attention", inverse_attention),
        lambda: telescoped("000", "inverse attention", inverse_attention),
        absorbed_initial_state,
        exact_mesa_read,
        lambda: recurrence("002", "lightning attention", lightning_attention),
        lambda: telescoped("002", "lightning attention", lightning_attention),
        relay,
        kattention,
        trained_linear_layer,
    ]
    found = []
    for make in makers:
        verifier = Verifier()
        for document, what, claim in make():
            verdict = verifier.judge(claim)
            found.append(Derived(document, what, claim, verdict.verdict, verdict.how))
    return found


def adjoint_of(title: str, r: Recurrence) -> list[Derived]:
    """The derived adjoint of any recurrence made of sums, products and quotients; nothing for others."""
    try:
        claims = recurrence(title, r.name, r)
    except Underivable:
        return []
    verifier = Verifier()
    verdicts = [(document, what, claim, verifier.judge(claim)) for document, what, claim in claims]
    return [Derived(document, what, claim, v.verdict, v.how) for document, what, claim, v in verdicts]


def stated(setting: Setting, name: str, left: Formula, right: Formula, over: tuple = ()) -> Claim:
    ranges = tuple((i, formula(a), formula(b)) for i, a, b in over)
    return Claim(f"derived.{name}", Equal((left, right), over=ranges), setting)


# --- adjoints of the recurrences ------------------------------------------------------------------------------------


def recurrence(document: str, title: str, r: Recurrence) -> list[tuple[str, str, Claim]]:
    """The whole adjoint of a recurrence, step by step, with the gradient of the log decay and of the initial state."""
    s = Setting(r.name, r)
    t = s.names("t")
    found = []
    for name, body in step_adjoint(r, s).items():
        if name.endswith(" initial"):
            left, shown = s.lookup(name.removesuffix(" initial"))(0), f"the gradient of the initial state of {title}"
        else:
            left, shown = s.lookup(name)(t), f"{name}(t) of {title}"
        found.append((document, shown, stated(s, f"{r.name}.{name}", left, body)))
    return found


def telescoped(document: str, title: str, r: Recurrence) -> list[tuple[str, str, Claim]]:
    """The gradient of the log decay from products <x, dx> alone: what it changes by from one step to the next, as a
    combination of them that is solved for exactly. Summed backwards in time it gives the chunk form, as no state is
    needed."""
    s = Setting(r.name, r)
    t, n, lam, dlog = s.names("t n lam dlog_lam")
    outputs = [x.name for x in r.outputs]
    names = [v.name for v in r.variables if v.kind == "input"] + outputs
    pairs = []
    for name in names:
        x, dx = s.lookup(name), s.lookup(f"d{name}")
        for at in (t, t + 1):
            pairs.append(x(at).T * dx(at))
            pairs.append(lam(at) / (1 - lam(at)) * (x(at).T * dx(at)))
    body = combination(dlog(t) - dlog(t + 1), pairs, s)
    if body is None:
        return []
    (state,) = r.states
    last = [x for x in pairs if "t+1" not in str(x)]
    S, dS = s.lookup(state.name), s.lookup(f"d{state.name}")
    at_end = combination(dlog(t) - inner(S(n), dS(n)), last, s, only_last=True)
    found = [
        (
            document,
            f"dlog_lam of {title} without a state: its change from step t + 1 to step t",
            stated(s, f"{r.name}.telescoped", dlog(t), dlog(t + 1) + body, (("t", 1, n - 1),)),
        )
    ]
    if at_end is not None:
        start = inner(S(n), dS(n)) + at_end
        found.append(
            (
                document,
                f"dlog_lam of {title} at the last step",
                stated(s, f"{r.name}.last", dlog(t), start, (("t", n, n),)),
            )
        )
    return [*found, (document, f"dlog_lam of {title} in chunk form, row j of chunk i", chunk_form(r, body, names))]


def chunk_form(r: Recurrence, body: Formula, names: list[str]) -> Claim:
    """The change from step to step, summed backwards over a chunk; one number is handed on from the chunk after it."""
    s = Setting(r.name, r)
    c, count = s.chunked()
    i, j = s.indices("i", 1, count), s.indices("j", 1, c)
    t, u = s.names("t u")
    for name in (*names, *(f"d{x}" for x in names), "lam"):
        s.lookup(name)
    dlog = s.lookup("dlog_lam")
    terms = body.args if body.op == "add" else (body,)
    row = (i - 1) * c + u
    here = [substitute(x, {t: row}) for x in terms if "t+1" not in str(x)]
    following = [substitute(x, {t + 1: row}) for x in terms if "t+1" in str(x)]
    right = dlog(i * c + 1) + sum_over(u, j, c, summed(here))
    if following:
        right = right + sum_over(u, j + 1, c + 1, summed(following))
    return stated(s, f"{r.name}.chunk", dlog((i - 1) * c + j), right, (("i", 1, count - 1), ("j", 1, c)))


def combination(target: Formula, terms: list[Formula], setting: Setting, only_last: bool = False) -> Formula | None:
    """Small rational coefficients c with target = sum c term, found by exact elimination over many points of the
    field."""
    rows, right = [], []
    for seed in range(8 * len(terms)):
        instance = Instance(setting, dict(proof_sizes(setting)[0]), FIELD, 100 + seed)
        evaluate = Evaluator(instance)
        t = instance.sizes["n"] if only_last else 2
        rows.append([evaluate(x, {"t": t}).a[0, 0] for x in terms])
        right.append([evaluate(target, {"t": t}).a[0, 0]])
        if len(rows) >= len(terms) + 3:
            break
    kept = independent(rows)
    try:
        square = np.array([[row[k] for k in kept] for row in rows], dtype=object)
        gram, goal = (square.T @ square) % PRIME, (square.T @ np.array(right, dtype=object)) % PRIME
        solution = solve(FIELD, gram, goal)
    except Undefined:
        return None
    if not FIELD.equal((square @ solution) % PRIME, np.array(right, dtype=object)):
        return None
    parts = []
    for k, c in zip(kept, solution[:, 0]):
        if c:
            ratio = small_ratio(int(c))
            if ratio is None:
                return None
            parts.append(terms[k] if ratio == 1 else -terms[k] if ratio == -1 else product(formula(ratio), terms[k]))
    return summed(parts)


def independent(rows: list[list[int]]) -> list[int]:
    """The columns that are no combination of those before them."""
    kept: list[int] = []
    basis: list[tuple[int, list[int]]] = []
    for k in range(len(rows[0])):
        column = [row[k] for row in rows]
        for pivot, vector in basis:
            f = column[pivot]
            column = [(x - f * y) % PRIME for x, y in zip(column, vector)]
        lead = next((i for i, x in enumerate(column) if x), None)
        if lead is not None:
            scale = pow(column[lead], -1, PRIME)
            basis.append((lead, [x * scale % PRIME for x in column]))
            kept.append(k)
    return kept


def absorbed_initial_state() -> list[tuple[str, str, Claim]]:
    """What it means to write O for O - A Q S_0: the gradients that S_0, and Q once more, get through that O alone."""
    s = Setting("inverse_attention_matrix")
    s.dims("n d e")
    t, i, j, n = s.names("t i j n")
    lam = s.given("lam", over=(t, 1, n), domain="decay")
    Q, K = s.given("Q K", "n", "d")
    O, dV = s.given("O dV", "n", "e")
    S0 = s.given("S0", "d", "e")
    alpha = s.define("alpha", (i,), product_over(t, 1, i, lam(t)))
    A = s.define("A", (), diag(stack(i, n, alpha(i))))
    M = matrix(i, j, n, n, cases((compare(i, ">=", j), alpha(i) / alpha(j)), (None, 0)))
    read = s.define("Qread", (), Q)  # the Q that stands in O - A Q S_0
    whole = O - A * read * S0
    absorbed = s.define("Oabsorbed", (), whole)
    loss = s.define("loss", (), inner(dV, inverse(hadamard(Q * K.T, M)) * absorbed))
    dO = s.define("dOabsorbed", (), gradient(loss, absorbed))
    shapes = shapes_in(s)
    rows = [
        ("dS_0 where O stands for O - A Q S_0", S0, gradient(loss, S0)),
        ("what dQ gets where O stands for O - A Q S_0, besides its part with O held", read, gradient(loss, read)),
        ("dO where O stands for O - A Q S_0", O, gradient(loss, O)),
    ]
    return [
        ("000", what, stated(s, f"absorbed.{by}", left, derivative(inner(dO, whole), by, shapes)))
        for what, by, left in rows
    ]


# --- the exact mesa read --------------------------------------------------------------------------------------------


def exact_mesa_read() -> list[tuple[str, str, Claim]]:
    """o_t = H_t^-1 q_t with H_t = lambda_t H_{t-1} + u_t u_t^T, by the implicit function theorem: no inverse is
    differentiated twice."""
    s = Setting("mesa_read")
    s.dims("d n")
    n = s.names("n")
    t = s.indices("t", 1, n)
    lam = s.given("lam", over=(t, 1, n), domain="decay")
    u, q, do = (s.given(name, "d", over=(t, 1, n)) for name in ("u", "q", "do"))
    H0 = s.given("H0", "d", "d")
    H = s.recursive("H", t, 0, H0, lambda before: lam(t) * before + u(t) * u(t).T)
    loss = s.define("loss", (), sum_over(t, 1, n, do(t).T * inverse(H(t)) * q(t)))
    dH = s.define("dH", (t,), gradient(loss, H(t)))
    shapes = shapes_in(s)
    read = do(t).T * inverse(H(t)) * q(t)
    update = inner(dH(t), lam(t) * H(t - 1) + u(t) * u(t).T)
    later = derivative(update, H(t - 1), shapes)
    following = substitute(later, {t: t + 1})
    rows = [
        ("dq", gradient(loss, q(t)), derivative(read, q(t), shapes), ()),
        ("du", gradient(loss, u(t)), derivative(update, u(t), shapes), ()),
        ("dlam", gradient(loss, lam(t)), derivative(update, lam(t), shapes), ()),
        ("dH", dH(t), summed([derivative(read, H(t), shapes), following]), (("t", 1, n - 1),)),
        ("dH_n", dH(n), substitute(derivative(read, H(t), shapes), {t: n}), ()),
        ("dH_0", gradient(loss, H0), substitute(later, {t: formula(1)}), ()),
    ]
    return [
        ("001", f"{name} of the exact read o_t = H_t^-1 q_t", stated(s, f"mesa.{name}", left, right, over))
        for name, left, right, over in rows
    ]


# --- energies -------------------------------------------------------------------------------------------------------


def softmax_back(
    weight: Callable[[Formula], Formula], outer: Callable[[Formula], Formula], i: Formula, n: object
) -> Formula:
    """The gradient by the i-th score from those by the weights: A_i (dA_i - sum_m A_m dA_m)."""
    m = Formula("index", (), ("u",))
    return weight(i) * (outer(i) - sum_over(m, 1, n, weight(m) * outer(m)))


def at_node(quantity: Callable[[Formula, Formula], Formula], k: Formula) -> Callable[[Formula], Formula]:
    return lambda i: quantity(i, k)


def relay() -> list[tuple[str, str, Claim]]:
    """dE/dx of the relay energy sum W_kl B_k.B_l and of the KED energy sum B_k^T L^T R B_k."""
    found = []
    for title in ("relay", "KED"):
        s = Setting(title.lower())
        E, n, m, D = s.dims("E n m D")
        i = s.indices("i", 1, n)
        k, j = s.indices("k j", 1, m)
        x, mu = s.given("x", E, over=(i, 1, n)), s.given("mu", E, over=(k, 1, m))
        W = s.given("W", over=((k, 1, m), (j, 1, m)))
        L, R = s.given("L R", D, E)
        A = s.define("A", (i, k), exp(mu(k).T * x(i)) / sum_over(i, 1, n, exp(mu(k).T * x(i))))
        B = s.define("B", (k,), sum_over(i, 1, n, A(i, k) * x(i)))
        if title == "relay":
            energy = sum_over(k, 1, m, sum_over(j, 1, m, W(k, j) * (B(k).T * B(j))))
        else:
            energy = sum_over(k, 1, m, B(k).T * L.T * R * B(k))
        whole = s.define("energy", (), energy)
        shapes = shapes_in(s)
        dB_body = derivative(energy, B(k), shapes)
        dB = s.define("dB", (k,), dB_body)
        found.append(("003", f"dE/dB of the {title} energy", stated(s, f"{title}.dB", gradient(whole, B(k)), dB_body)))
        dA = s.define("dA", (i, k), derivative(sum_over(i, 1, n, A(i, k) * x(i)), A(i, k), shapes, dB(k)))
        dscore = s.define("dscore", (i, k), softmax_back(at_node(A, k), at_node(dA, k), i, n))
        direct = derivative(sum_over(i, 1, n, A(i, k) * x(i)), x(i), shapes, dB(k))
        through = derivative(mu(k).T * x(i), x(i), shapes, dscore(i, k))
        right = sum_over(k, 1, m, direct + through)
        found.append(("003", f"dE/dx of the {title} energy", stated(s, f"{title}.dx", gradient(whole, x(i)), right)))
    return found


def kattention() -> list[tuple[str, str, Claim]]:
    """The gradients of y_i = sum_j softmax_j(beta E(x_i, x_j)) x_j by x, Q, K, b and beta."""
    s = Setting("kattention")
    E, D, n = s.dims("E D n")
    i, j = s.indices("i j", 1, n)
    x, dy = s.given("x", E, over=(i, 1, n)), s.given("dy", E, over=(i, 1, n))
    Q, K = s.given("Q K", D, E)
    b, beta = s.given("b", D), s.given("beta")
    half = Fraction(1, 2)

    def energy(x: Formula, y: Formula) -> Formula:
        return x.T * Q.T * K * y - half * y.T * K.T * K * y + b.T * K * y

    e = s.define("E_", (i, j), energy(x(i), x(j)))
    A = s.define("A", (i, j), exp(beta * e(i, j)) / sum_over(j, 1, n, exp(beta * e(i, j))))
    loss = s.define("loss", (), sum_over(i, 1, n, dy(i).T * sum_over(j, 1, n, A(i, j) * x(j))))
    shapes = shapes_in(s)
    output = dy(i).T * (A(i, j) * x(j))
    dA = s.define("dA", (i, j), derivative(output, A(i, j), shapes))
    dscore = s.define("dscore", (i, j), softmax_back(lambda a: A(i, a), lambda a: dA(i, a), j, n))
    dE = s.define("dE", (i, j), derivative(beta * e(i, j), e(i, j), shapes, dscore(i, j)))
    query, key = s.given("query key", E)  # the two arguments of the energy, apart
    pair = energy(query, key)

    def over_pairs(by: Formula) -> Formula:
        term = derivative(energy(x(i), x(j)), by, shapes, dE(i, j))
        return sum_over(i, 1, n, sum_over(j, 1, n, term))

    as_query = substitute(derivative(pair, query, shapes, dE(i, j)), {query: x(i), key: x(j)})
    as_key = substitute(derivative(pair, key, shapes, dE(j, i)), {query: x(j), key: x(i)})
    dx = sum_over(j, 1, n, as_query) + sum_over(j, 1, n, as_key) + sum_over(j, 1, n, A(j, i) * dy(j))
    score_by_beta = derivative(beta * e(i, j), beta, shapes, dscore(i, j))
    rows = [
        ("dQ", gradient(loss, Q), over_pairs(Q)),
        ("dK", gradient(loss, K), over_pairs(K)),
        ("db", gradient(loss, b), over_pairs(b)),
        ("dbeta", gradient(loss, beta), sum_over(i, 1, n, sum_over(j, 1, n, score_by_beta))),
        ("dx", gradient(loss, x(i)), dx),
    ]
    return [("003", f"{name} of kattention", stated(s, f"kattention.{name}", a, c)) for name, a, c in rows]


# --- gradient descent with momentum and weight decay ----------------------------------------------------------------


def trained_linear_layer() -> list[tuple[str, str, Claim]]:
    """W_n x as attention, for descent with momentum mu and weight decay omega: what an error of step t has become by
    step n follows from the powers of the step's own 2 x 2 matrix, which is read off the step."""
    s = Setting("momentum")
    rows, cols, n, two = s.dims("d_out d_in n two", two=(2,))
    t = s.indices("t", 1, n)
    W0, x = s.given("W0", rows, cols), s.given("x", cols, over=(t, 1, n))
    error, query = s.given("error", rows, over=(t, 1, n)), s.given("q", cols)
    eta, mu, omega = s.given("eta mu omega")
    shapes = shapes_in(s)

    def velocity(before: Formula, write: Formula) -> Formula:
        return mu * before + write

    def weights(before: Formula, speed: Formula) -> Formula:
        return (1 - omega) * before - eta * speed

    V = s.recursive("V", t, 0, 0 * W0, lambda before: velocity(before, error(t) * x(t).T))
    W = s.recursive("W", t, 0, W0, lambda before: weights(before, V(t)))
    w, v, g = s.given("w_ v_ g_")  # one entry of the weights, of the velocity, and of the write
    speed = velocity(v, g)
    entries = [
        [derivative(weights(w, speed), w, shapes), derivative(weights(w, speed), v, shapes)],
        [derivative(speed, w, shapes), derivative(speed, v, shapes)],
    ]
    step = grid(two, entries)
    write = grid(two, [[derivative(weights(w, speed), g, shapes)], [derivative(speed, g, shapes)]])
    first = Formula("unit", (formula(1),), ("two",))
    kept = first.T * step**n * first
    arrived = first.T * step ** (n - t) * write
    right = kept * (W0 * query) + sum_over(t, 1, n, arrived * ((x(t).T * query) * error(t)))
    claim = stated(s, "momentum", W(n) * query, right)
    return [
        ("004", "the dual form with momentum mu and weight decay omega (mu = 0 or omega = 0 for one of them)", claim)
    ]


def grid(two: object, entries: list[list[Formula]]) -> Formula:
    """A small matrix from its entries."""
    parts = []
    for i, line in enumerate(entries, 1):
        for j, value in enumerate(line, 1):
            left = Formula("unit", (formula(i),), ("two",))
            right = Formula("unit", (formula(j),), ("two",)).T if len(line) > 1 else formula(1)
            if value != formula(0):
                factors = [x for x in (value, left, right) if x != formula(1)]
                parts.append(product(*factors))
    return summed(parts)
