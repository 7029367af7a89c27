"""No repair says what a definition says already, or less: it says something that could have been false."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkform.codegen.claims.command import judged
from chunkform.codegen.claims.restated import cancels, plain
from chunkform.codegen.claims.verdict import Verdict
from chunkform.spec.language import Recurrence
from chunkform.spec.language.formula import Formula, inner, inverse, row

Sides = Callable[..., tuple[Any, Any]]
CLAIMS: dict[str, Sides] = {
    "an output that is the state": lambda t, k, q, R, **_: (R(t), k(t) * k(t).T + k(t) * q(t).T),
    "a definition a chunk off": lambda i, c, dS, carried, **_: (dS(i), carried((i + 1) * c)),
    "a factor to the seventh": lambda t, lam, dR, R, dlog_lam, **_: (dlog_lam(t), lam(t) ** 7 * inner(dR(t), R(t - 1))),
    "a quotient to the seventh": lambda t, lam, dlam, dlog_lam, **_: (dlog_lam(t), lam(t) ** 7 * dlam(t) * lam(t)),
    "an output": lambda t, q, R, o, **_: (o(t), R(t - 1)),
    "an update": lambda t, k, q, lam, R, **_: (R(t), lam(t) * R(t - 1) + 2 * k(t) * k(t).T + q(t) * q(t).T),
    "a product turned round": lambda t, lam, u, q, **_: (u(t), q(t) * lam(t - 1)),
    "a definition a factor off": lambda t, u, q, **_: (u(t), q(t)),
    "a gradient of a log": lambda t, lam, dR, R, dlog_lam, **_: (dlog_lam(t), lam(t) + inner(dR(t), R(t))),
}

DEFINED = {  # what a definition, or the recurrence, says already
    "a definition a chunk off": "dS(i+1) = dRc((i+1)*c)",
    "an output": "o(t) = R(t)",
    "an update": "R(t) = lam(t) * R(t-1) + k(t) * k(t).T + q(t) * q(t).T",
    "a product turned round": "u(t) = q(t) * lam(t)",
    "a definition a factor off": "u(t) = lam(t) * q(t)",
}


def judge(name: str) -> Verdict:
    r = Recurrence("rls")
    d = r.dims("d")
    q, k = r.inputs("q k", d)
    lam = r.decay("lam")
    R = r.state("R", d, d)
    r.update(R, lam * R.prev + k * k.T + q * q.T)
    r.output("o", R.next)
    names = "t q k lam R o do dR dk dlam dlog_lam"
    values = dict(zip(names.split(), r.quantities(names), strict=True))
    c, N = r.chunked()
    i = r.indices("i", 1, N)
    carried = r.carried("R", "dRc")
    values["u"] = r.define("u", values["t"], values["lam"](values["t"]) * values["q"](values["t"]))
    values |= {"i": i, "c": c, "carried": carried, "dS": r.define("dS", i, carried(i * c))}
    (found,) = judged([r.claim(name, *CLAIMS[name](**values))], jobs=1)
    return found


@pytest.mark.parametrize("name", CLAIMS)
def test_what_is_offered_says_something(name: str) -> None:
    found = judge(name)
    assert found.verdict == "fails"
    assert found.defined == DEFINED.get(name, "")
    assert not (found.defined and found.repairs)
    for r in found.repairs:
        equation = r.result
        assert equation.op == "equation" and not any(map(cancels, equation.args))
        shown = str(equation)
        assert shown not in ("R(t) = o(t)", "dlog_lam(t) = lam(t) * dlam(t)", "dlog_lam(t) = dlam(t) * lam(t)") or (
            name == "a quotient to the seventh"  # whose author states the log's gradient
        )
        assert plain(equation.args[0]) != plain(equation.args[1])
        assert not shown.startswith("dS(i) = dRc(")
    if name.endswith("seventh"):
        assert found.repairs


def test_factors_that_cancel_are_seen() -> None:
    x, y = (Formula("at", (), (name,)) for name in "xy")
    assert cancels((1 / x) * x) and cancels(x * y / x) and cancels(inverse(x) * x) and cancels(y + x - x)
    assert cancels(((1 / x) * x) ** 7 * y) and cancels(inverse(inverse(x)))
    assert not cancels(x / y * x) and not cancels(x + y - x.T) and not cancels(row(x, 1) * y)


def test_formulas_that_differ_in_brackets_and_sums_of_indices_are_the_same_in_the_plain_form() -> None:
    i, c = Formula("index", (), ("i",)), Formula("size", (), ("c",))

    def a(index: Any) -> Formula:
        return Formula("at", (index,), ("a",))

    assert plain(a((i + 1 - 1) * c)) == plain(a(i * c)) != plain(a((i + 1) * c))
    x, y, z = (Formula("at", (), (name,)) for name in "xyz")
    assert plain((x * (y * z)).T) == plain(z.T * y.T * x.T)
    assert plain(x * -y) == plain(-(x * y))
