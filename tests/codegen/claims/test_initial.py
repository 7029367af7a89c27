"""A state's first value is what the recurrence says, in formulas and in gradients; where it says nothing, it is any."""

from __future__ import annotations

from typing import Any

import pytest

from chunkform.codegen.claims.command import judged
from chunkform.spec.language import Recurrence, diag, eye, hadamard, sigmoid
from chunkform.spec.language import formula as f
from chunkform.spec.language.formula import inner, product_over, sum_over


def verdicts(r: Recurrence, **claims: tuple) -> dict[str, str]:
    return {v.claim.id: v.verdict for v in judged([r.claim(n, *sides) for n, sides in claims.items()], jobs=1)}


def identity() -> tuple[Recurrence, Any]:
    r = Recurrence("from_identity")
    d = r.dims("d")
    q, k = r.inputs("q k", d)
    lam = r.decay("lam")
    R = r.state("R", d, d, initial=eye(d))
    r.update(R, lam * R.prev + k * k.T)
    r.output("o", R.next.T * q)
    return r, r.quantities


def made_of_parameters() -> tuple[Recurrence, Any]:
    r = Recurrence("from_parameters")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    a, b, w = r.parameters("a", d), r.parameters("b", e), r.parameters("w", d, e)
    c = r.parameters("c", d)
    lam = r.decay("lam")
    S = r.state("S", d, e, initial=a * b.T)
    W = r.state("W", d, e, initial=2 * w)
    Z = r.state("Z", d, e, initial=0)
    y = r.state("y", d, initial=sigmoid(c))
    r.update(S, lam * S.prev + k * v.T)
    r.update(W, lam * W.prev + S.next)
    r.update(Z, lam * Z.prev + k * v.T)
    r.update(y, hadamard(y.prev, k))
    r.output("o", S.next.T * q + W.next.T * q + Z.next.T * q)
    r.output("p", y.next)
    return r, r.quantities


def test_the_identity() -> None:
    r, names = identity()
    t, i, q, k, lam, R, o, do, dR = names("t i q k lam R o do dR")
    decay = product_over(i, 1, t, lam(i))
    found = verdicts(
        r,
        first=(R(0), f.eye("d")),
        step_1=(R(1), lam(1) * f.eye("d") + k(1) * k(1).T),
        symmetric=(R(t), R(t).T),
        read=(o(t), R(t) * q(t)),
        adjoint=(dR(t), lam(t + 1) * dR(t + 1) + q(t) * do(t).T),
        adjoint_0=(dR(0), lam(1) * dR(1)),
        trace=(inner(R(t), f.eye("d")), decay * inner(f.eye("d"), f.eye("d")) + rest(t, i, k, lam)),
    )
    assert set(found.values()) == {"holds"}, found


def rest(t: Any, i: Any, k: Any, lam: Any) -> Any:
    from chunkform.spec.language.formula import Formula

    j = Formula("index", (), ("j",))
    return sum_over(j, 1, t, product_over(i, j + 1, t, lam(i)) * (k(j).T * k(j)))


def test_false_formulas_about_the_identity() -> None:
    r, names = identity()
    q, k, lam, R, dR, do = names("q k lam R dR do")
    found = verdicts(
        r,
        twice=(R(0), 2 * f.eye("d")),
        zero=(R(1), k(1) * k(1).T),
        undecayed=(R(1), f.eye("d") + k(1) * k(1).T),
        skipped=(dR(0), dR(1)),
        read_at_once=(dR(0), lam(1) * dR(1) + q(1) * do(1).T),
    )
    assert set(found.values()) <= {"fails", "depends"}, found
    assert found["twice"] == found["zero"] == "fails"


def test_no_claim_depends_on_a_first_value_that_is_given() -> None:
    r, names = identity()
    k, R = names("k R")
    (found,) = judged([r.claim("claim", R(1), k(1) * k(1).T)], jobs=1)
    assert not any("R(0) = 0" in c.text for c in found.conditions)


def test_parameters_get_gradients_through_first_values() -> None:
    r, names = made_of_parameters()
    k, v, a, b, c, w, lam, S, W, Z, y = names("k v a b c w lam S W Z y")
    dS, dW, dy, da, db, dc, dw = names("dS dW dy da db dc dw")
    slope = hadamard(sigmoid(c), 1 - sigmoid(c))
    found = verdicts(
        r,
        S_0=(S(0), a * b.T),
        W_0=(W(0), 2 * w),
        Z_0=(Z(0), 0 * Z(0)),
        Z_1=(Z(1), k(1) * v(1).T),
        y_0=(y(0), sigmoid(c)),
        da=(da, dS(0) * b),
        db=(db, dS(0).T * a),
        dw=(dw, 2 * dW(0)),
        dc=(dc, hadamard(slope, dy(0))),
        dS_0=(dS(0), lam(1) * dS(1)),
        dy_0=(dy(0), hadamard(k(1), dy(1))),
    )
    assert set(found.values()) == {"holds"}, found
    wrong = verdicts(
        r,
        S_0_turned=(S(0), 2 * a * b.T),
        W_0_once=(W(0), w),
        Z_0_one=(Z(1), lam(1) * (a * b.T) + k(1) * v(1).T),
        da_later=(da, dS(1) * b),
        dw_once=(dw, dW(0)),
        dc_once=(dc, dy(0)),
    )
    assert set(wrong.values()) == {"fails"}, wrong


@pytest.mark.parametrize("initial", [None, 0])
def test_a_first_value_that_is_not_given_may_be_anything(initial: Any) -> None:
    r = Recurrence("plain")
    d, e = r.dims("d e")
    k, v = r.inputs("k", d), r.inputs("v", e)
    g = r.decay("g", d)
    S = r.state("S", d, e, initial=initial)
    r.update(S, diag(g) * S.prev + k * v.T)
    r.output("o", S.next.T * k)
    k, v, g, S = r.quantities("k v g S")
    found = verdicts(r, whole=(S(1), f.diag(g(1)) * S(0) + k(1) * v(1).T), without=(S(1), k(1) * v(1).T))
    assert found == {"whole": "holds", "without": "holds" if initial == 0 else found["without"]}
    assert initial == 0 or found["without"] != "holds"


def test_a_formula_without_a_term_for_the_first_state_is_mended_where_that_is_zero() -> None:
    r = Recurrence("sums")
    d, e = r.dims("d e")
    q, k, v = *r.inputs("q k", d), r.inputs("v", e)
    lam = r.decay("lam")
    S = r.state("S", d, e)
    r.update(S, lam * S.prev + k * v.T)
    r.output("y", S.next.T * q)
    t, i, s, q, k, v, lam, S, y = r.quantities("t i s q k v lam S y")

    def term(low: Any) -> Any:
        return product_over(s, low, t, lam(s)) * v(i) * k(i).T * q(t)

    right = r.claim("right", y(t), sum_over(i, 1, t, term(i + 1)))
    wrong = r.claim("wrong", y(t), sum_over(i, 1, t, term(i)))
    found = judged([right, wrong], jobs=1)
    assert [v.verdict for v in found] == ["depends", "fails"]
    assert found[1].repair_reading == "S(0) = 0"
    assert found[1].repaired == " = ".join(map(str, right.statement.sides))
    own = ("q(t).T * S(t)", "S(t).T * q(t)")  # the output's own equation
    assert not any(x in str(y.result) for v in found for y in v.repairs for x in own)
