"""Every search has a budget, the same on any machine, and the report tells it; what is judged now is told too."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from shared.published_claims import DERIVATIONS

from chunkform.codegen.claims.alone import verdicts_alone
from chunkform.codegen.claims.command import Work, judged, reason, verdicts_of, verify
from chunkform.codegen.claims.verdict import Verdict
from chunkform.errors import ArgumentError
from chunkform.spec.language import Recurrence
from chunkform.spec.language.claims import Claim
from chunkform.spec.language.formula import cases, compare, formula, product_over, sum_over
from chunkform.spec.language.statements import Equal


def hopeless() -> list[Claim]:
    """Formulas with three mistakes each, which no search repairs, of a derivation with many quantities."""
    made = DERIVATIONS["gated_delta_rule"]()
    dk, dS = (formula(made.right[name][1]) for name in ("dk", "dS"))
    left = [formula(made.right[name][0]) for name in ("dk", "dS", "dq")]
    wrong = (3 * dk.args[0] - 5 * dk, 7 * dS.T.T - dS.args[-1] * dS * 3, dS * dk - 3 * dk)
    return [
        Claim(f"hopeless {k}", Equal((a, b)), made.setting) for k, (a, b) in enumerate(zip(left, wrong, strict=True))
    ]


def test_a_search_that_finds_nothing_ends_and_says_how_far_it_went() -> None:
    claim = hopeless()[0]
    took = {}
    for effort in (0.2, 0.2, 2.0):  # the first time more is worked out that others keep
        gc.freeze()  # what other tests have left takes as long to look through as a short search
        started = time.process_time()
        (found,) = verdicts_alone([claim], effort=effort)
        took[effort] = time.process_time() - started
        assert found.verdict == "fails" and not found.repairs
        assert found.search is not None and not found.search.complete
        assert f"--effort {effort:g}; --effort {10 * effort:g} looks further" in reason(found).replace(
            "--effort 1 ", "--effort 2 "
        )
        assert found.json()["search"] == {"effort": effort, "complete": False}
    assert took[0.2] < took[2.0] < 10, took


def test_the_same_claim_gets_the_same_verdict_whatever_was_judged_before() -> None:
    claims = hopeless()
    alone = [next(iter(verdicts_alone([c], effort=0.2))) for c in claims]
    together = list(verdicts_alone(claims, effort=0.2))
    assert [x.json() for x in alone] == [x.json() for x in together]


def steps(**claims: Any) -> list[Verdict]:
    r = Recurrence("plain")
    d = r.dims("d")
    k = r.inputs("k", d)
    lam = r.decay("lam")
    R = r.state("R", d, d)
    r.update(R, lam * R.prev + k * k.T)
    r.output("o", R.next * k)
    t, i, k, lam, R = r.quantities("t i k lam R")
    for name, make in claims.items():
        sides, about = make(t, i, k, lam, R)
        r.claim(name, *sides, **about)
    return judged(r.claims, jobs=1)


def test_ranges_without_end_are_refused_at_once() -> None:
    started = time.process_time()
    found = steps(
        over=lambda t, i, k, lam, R: ((R(t), R(t).T), {"over": (t, 1, 10**9)}),
        false=lambda t, i, k, lam, R: ((R(t), k(t) * k(t).T), {"over": (t, 1, 10**9)}),
        sums=lambda t, i, k, lam, R: ((R(t), sum_over(i, 1, 10**7, lam(t) * k(t) * k(t).T)), {}),
        products=lambda t, i, k, lam, R: ((R(t), product_over(i, 1, 10**7, lam(t)) * R(t)), {}),
    )
    assert time.process_time() - started < 5
    for v in found:
        assert v.error is not None
        assert "and the verifier tries 10000 values at most" in v.error.message


def easy(name: str, count: int) -> list[Claim]:
    """What an output is, said so many times."""
    r = Recurrence(name)
    d = r.dims("d")
    q, k = r.inputs("q k", d)
    S = r.state("S", d, d)
    r.update(S, S.prev + k * k.T)
    r.output("o", S.next * q)
    t, q, S, o = r.quantities("t q S o")
    for n in range(count):
        r.claim(f"{name} {n}", o(t), S(t) * q(t))
    return list(r.claims)


def test_which_claim_is_judged_is_told_as_it_begins() -> None:
    claims = [*easy("one", 10), *easy("other", 10)]  # of two settings, and enough for several processes
    told: list[int] = []
    groups = [
        [i for i, c in enumerate(claims) if c.setting is s] for s in {id(c.setting): c.setting for c in claims}.values()
    ]
    work = Work(claims, 300, 0, told.append)
    first = next(iter(verdicts_of(work, [groups[0]], 1)))[0]
    assert told[0] == first == 0
    told.clear()
    assert len(list(verdicts_of(work, groups, 2))) == len(claims)
    assert sorted(told) == list(range(len(claims)))


def test_the_command_takes_an_effort_and_a_spec_of_the_catalogue(tmp_path: Path) -> None:
    out = tmp_path / "v.json"
    quiet = Console(quiet=True)
    assert verify(["linear_attention"], json_path=out, console=quiet, effort=0) == 1
    found = json.loads(out.read_text())
    assert {"effort": 0, "complete": False} in [x["search"] for x in found]
    assert {x["spec"] for x in found} == {"linear_attention"}
    with pytest.raises(ArgumentError, match="effort must be a number of seconds from 0 on"):
        verify(console=quiet, effort=-1)


def test_effort_turns_no_verdict_into_another() -> None:
    """What depends on a condition is looked for whatever the effort, and so is what a symmetric matrix hides."""
    r = Recurrence("decayed")
    d, e = r.dims("d e")
    q, k, v, lam = r.inputs("q", d), r.inputs("k", d), r.inputs("v", e), r.decay("lam")
    A = r.parameters("A", d, d)
    S = r.state("S", d, e)
    r.update(S, lam * S.prev + k * v.T)
    r.output("o", S.next.T * (A * q))
    t, s, n, i, q, k, v, lam, S, o, A, do, dS, dq, dk, dlog_lam = r.quantities(
        "t s n i q k v lam S o A do dS dq dk dlog_lam"
    )
    decayed = sum_over(s, 1, t, product_over(i, s + 1, t, lam(i)) * v(s) * (k(s).T * (A * q(t))))
    r.claim("no first state", o(t), decayed)
    r.claim("no last loss", dS(n), A * q(n) * do(n).T)
    r.claim("neither", dlog_lam(t), sum_over(s, t, n, q(s).T * dq(s) - k(s).T * dk(s)))
    r.claim("transposed", o(t), S(t).T * (A.T * q(t)))
    r.claim("wrong", o(t), S(t - 1).T * (A * q(t)))
    found = {effort: [x.verdict for x in judged(list(r.claims), effort=effort)] for effort in (0, 0.1, 3)}
    assert found[0] == ["depends", "depends", "depends", "fails", "fails"]
    assert found[0.1] == found[3] == found[0]


def test_what_a_definition_is_tried_with_is_its_own_claims() -> None:
    """A case of a definition that a claim never reaches is no case that wasn't tried, whatever was judged before."""
    r = Recurrence("masked")
    d, e = r.dims("d e")
    q, k, v = r.inputs("q", d), r.inputs("k", d), r.inputs("v", e)
    S = r.state("S", d, e)
    r.update(S, S.prev + k * v.T)
    r.output("o", S.next.T * q)
    t, i, j, n, q, k, v, S, o = r.quantities("t i j n q k v S o")
    M = r.define("M", (i, j), cases((compare(i, ">=", j), 1), (None, 0)))
    past = S(0).T * q(t)
    r.claim("to t", o(t), past + sum_over(j, 1, t, M(t, j) * v(j) * (k(j).T * q(t))))
    r.claim("to n", o(t), past + sum_over(j, 1, n, M(t, j) * v(j) * (k(j).T * q(t))))
    assert [x.verdict for x in judged(list(r.claims), effort=0)] == ["holds", "holds"]
    assert [x.verdict for x in judged(list(r.claims)[::-1], effort=0)] == ["holds", "holds"]
