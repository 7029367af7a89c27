"""Every search has a budget, the same on any machine, and the report tells it; what is judged now is told too."""

from __future__ import annotations

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
from chunkform.spec.language.formula import formula, product_over, sum_over
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
    for effort in (0.2, 2.0):
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


def test_which_claim_is_judged_is_told_as_it_begins() -> None:
    claims = [*hopeless(), *hopeless()] * 4  # of two settings, and enough for several processes
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


def test_the_command_takes_an_effort(tmp_path: Path) -> None:
    out = tmp_path / "v.json"
    quiet = Console(quiet=True)
    assert verify(["lightning_attention"], verdict="fails", json_path=out, console=quiet, effort=0) == 1
    assert {"effort": 0, "complete": False} in [x["search"] for x in json.loads(out.read_text())]
    with pytest.raises(ArgumentError, match="effort must be a number of seconds from 0 on"):
        verify(console=quiet, effort=-1)
