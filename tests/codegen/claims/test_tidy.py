"""Repairs are written as a person would write them, and with the same value."""

from __future__ import annotations

from chunkform.codegen.claims.tidy import tidied
from chunkform.codegen.claims.verifier import Verifier
from chunkform.spec.language import Recurrence
from chunkform.spec.language.formula import Formula, add, formula, product, sum_over


def test_numbers_are_multiplied_and_terms_of_nothing_are_left_out() -> None:
    s, t = Formula("at", (), ("S",)), Formula("index", (), ("t",))
    two, one, none = formula(2), formula(1), formula(0)
    assert tidied(product(two, one, s)) == product(two, s)
    assert tidied(product(formula(1) / formula(2), two, s)) == s
    assert tidied(add(product(none, s), s)) == s
    assert str(tidied(t + 1 - 1)) == "t"
    for x in (product(two, s), add(s, t), product(none, s)):
        assert tidied(x) == x


def test_a_missing_solve_and_a_missing_product_of_keys_are_found() -> None:
    r = Recurrence("delta")
    d, e = r.dims("d e")
    q, k, v = r.inputs("q", d), r.inputs("k", d), r.inputs("v", e)
    S = r.state("S", e, d)
    u = r.let("u", v - S.prev * k)
    r.update(S, S.prev + u * k.T)
    r.output("o", S.next * q)
    t, i, k, v, S, u = r.quantities("t i k v S u")
    r.claim("u", u(t), v(t) - S(0) * k(t) - sum_over(i, 1, t - 1, u(i)))
    found = Verifier().judge(r.claims[0])
    assert found.verdict == "fails"
    assert "k(i).T * k(t)" in found.repaired or "k(t).T * k(i)" in found.repaired
