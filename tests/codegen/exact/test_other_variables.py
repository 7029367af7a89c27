"""A state in another variable is proposed where that has a better form; what is printed is a spec, and says the same."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import sympy

import chunkform.spec.language as language
from chunkform.codegen.exact.same import same
from chunkform.codegen.recurrence.explain import proposed
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import (
    Matrix,
    Min,
    Recurrence,
    apply,
    exp,
    hadamard,
    log,
    ones,
    relu,
    sigmoid,
    softplus,
    sqrt,
)

QUANTITIES = ("d", "e", "q", "k", "g", "v", "lam", "a", "b")


def declared() -> tuple[Recurrence, dict[str, object]]:
    r = Recurrence("declared")
    d, e = r.dims("d e")
    (q, k, g), v, b = r.inputs("q k g", d), r.inputs("v", e), r.inputs("b")
    lam, a = r.decay("lam"), r.decay("a", d)
    return r, dict(zip(QUANTITIES, (d, e, q, k, g, v, lam, a, b), strict=True))


def with_state(dims: str, initial: object, update: Callable, read: Callable = lambda h: h) -> Recurrence:
    """A recurrence with one state h, read by its next value and by a decay or a write of another."""
    r, n = declared()
    h = r.state("h", *(n[x] for x in dims), initial=initial(n) if initial else None)
    r.update(h, update(h.prev, n))
    r.output("o", read(h.next))
    return r.validate()


def mean_square(h, n):
    return sqrt(hadamard(n["a"], h**2) + hadamard(1 - n["a"], n["g"] ** 2))


def power(h, n):
    return exp(hadamard(n["a"], log(h)) + n["g"])


def scaled_maximum(h, n):
    return 0.5 * log(exp(2 * h + n["g"]) + exp(2 * n["k"]))


def odds(h, n):
    return sigmoid(log(h / (1 - h)) + n["g"])


def power_of_a_matrix(S, n):
    return exp(hadamard(n["lam"] * ones(n["d"], n["e"]), log(S)) + n["k"] * n["v"].T)


def mean_square_of_a_matrix(S, n):
    return apply(lambda s, x: sympy.sqrt(0.9 * s**2 + x**2), S, n["k"] * n["v"].T)


def harmonic_of_a_matrix(S, n):
    return apply(lambda s, x: s / (1 + s * x), S, softplus(n["k"]) * softplus(n["v"]).T)


def root_of_a_number(h, n):
    return sqrt(n["lam"] * h**2 + n["b"] ** 2)


KINDS = {  # the state's dims, where it begins, its update, and u as it is told
    mean_square: ("d", None, "h**2"),
    power: ("d", lambda n: 0.5 * ones(n["d"]), "log(h)"),
    scaled_maximum: ("d", None, "2*h"),
    odds: ("d", lambda n: 0.5 * ones(n["d"]), "log(h/(1 - h))"),
    power_of_a_matrix: ("de", lambda n: 0.5 * ones(n["d"], n["e"]), "log(h)"),
    mean_square_of_a_matrix: ("de", None, "h**2"),
    harmonic_of_a_matrix: ("de", lambda n: ones(n["d"], n["e"]), "1/h"),
    root_of_a_number: ("", None, "h**2"),
}


def as_proposed(sentence: str, dims: str) -> Recurrence:
    """The spec that a sentence proposes, from its words alone."""
    found = re.search(
        r"keep u = .*?(?:, with initial=(.*))?, by r\.update\(u, (.*)\), and read (.*) for h\.next", sentence
    )
    assert found is not None, sentence
    r, n = declared()
    known = {x: getattr(language, x) for x in language.__all__} | n | {"log": log, "sqrt": sqrt}
    u = r.state("u", *(n[x] for x in dims), initial=eval(found[1], known) if found[1] else None)
    r.update(u, eval(found[2], known | {"u": u}))
    r.output("o", _read(found[3])(u.next))
    return r.validate()


def _read(words: str) -> Callable:
    """A function of entries, or of a number."""
    body = sympy.sympify(words.replace("u.next", "x"))
    return lambda u: apply(lambda x: body.subs("x", x), u) if isinstance(u, Matrix) else body.subs("x", u)


@pytest.mark.parametrize("update", KINDS)
def test_what_is_proposed_says_the_same_and_has_a_better_form(update: Callable) -> None:
    dims, initial, kept = KINDS[update]
    r = with_state(dims, initial, update)
    c = compile_spec(r)
    assert c.family == "sequential"
    (sentence,) = proposed(c)
    assert f"keep u = {kept}" in sentence
    other = as_proposed(sentence, dims)
    assert same(r, other).same
    assert compile_spec(other).family in ("chunk-parallel", "segment-parallel", "scan")


@pytest.mark.parametrize(
    "dims, update",
    [
        ("d", lambda h, n: (sqrt(h) + n["g"]) ** 2),  # the root of the square is a magnitude
        ("d", lambda h, n: Min(relu(h + n["g"]), ones(n["d"]))),
        ("d", lambda h, n: sqrt(hadamard(n["a"], h**2) + n["g"] ** 2 + h)),
        ("d", lambda h, n: h / sqrt(1 + (h.T * h)) + n["g"]),  # entries of which each sees all
        ("de", lambda S, n: apply(lambda s, x: sympy.sqrt(s**2 + sympy.cos(s) + x**2), S, n["k"] * n["v"].T)),
    ],
)
def test_what_isnt_so_isnt_proposed(dims: str, update: Callable) -> None:
    assert proposed(compile_spec(with_state(dims, None, update))) == []


def test_a_state_among_others_is_proposed_where_it_alone_is_slow() -> None:
    r, n = declared()
    h, S = r.state("h", n["d"]), r.state("S", n["d"], n["e"])
    r.update(h, mean_square(h.prev, n))
    r.update(S, language.diag(exp(-h.next)) * S.prev + n["k"] * n["v"].T)
    r.output("o", S.next.T * n["q"])
    c = compile_spec(r.validate())
    assert [p.compiled.family for p in c.strata] == ["sequential", "chunk-parallel"]
    (sentence,) = proposed(c)
    assert sentence.startswith("h has a better form in another variable: keep u = h**2, by r.update(u, ")
    assert "read sqrt(u.next) for h.next" in sentence
