"""The five documents: every formula has a verdict, in time, and the committed report says what the machine finds
today."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from chunkform.codegen.claims import report
from chunkform.codegen.claims.command import as_json, claims_of, judged, table, verify
from chunkform.codegen.claims.derived_claims import Derived, left_out
from chunkform.codegen.claims.html_page import page
from chunkform.codegen.claims.verdict import Verdict
from chunkform.errors import LoadError

IDS = Path(__file__).with_name("ids.txt").read_text().split()
KNOWN = {  # what any reader can check by hand; the repair's own words may change, what it brings in may not
    "000.stab-matrix": "1 - Lam",
    "000.bw-ds0-1": "dv(1)",
    "000.c1-necessary": "c <= 1",
    "001.sm-1": "lam(t)",
    "001.unroll-decay": "sqrt",
    "002.fwd-barLambda": "+ j + 1",
    "002.dq-dObar": "dO(i)",
    "002.dk-lhs": "dK(i) =",
    "003.ked-dEdB": "R.T * L * b",
    "003.f2-zero": "- y",
    "004.final": "eta",
}
READINGS = {
    "000.V-absorb": "O stands for O - A Q S_0",
    "000.c1-stable": "products",
    "001.neu-series": "|1 - eigenvalue| < 1",
    "002.fwd-O": "before chunk i",
    "003.f3-Z": "kernel(K) = 0",
    "003.f6-sym": "Q = K and b = c",
    "003.k-E": "D x E",
}


@pytest.fixture(scope="module")
def timed() -> tuple[dict[str, Verdict], float]:
    started = time.monotonic()
    found = judged(claims_of(()), jobs=2)
    return {v.claim.id: v for v in found}, time.monotonic() - started


@pytest.fixture(scope="module")
def every_verdict(timed: tuple[dict[str, Verdict], float]) -> dict[str, Verdict]:
    return timed[0]


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    """Of some of the formulas: those that are named here, and those of one document."""
    some = [c for c in claims_of(()) if c.id in KNOWN or c.id in READINGS or c.id.startswith("004")]
    return {v.claim.id: v for v in judged(some, jobs=2)}


@pytest.fixture(scope="module")
def derived() -> list[Derived]:
    return left_out()


@pytest.mark.long
def test_all_153_formulas_have_a_verdict_in_under_three_minutes(timed: tuple[dict[str, Verdict], float]) -> None:
    found, seconds = timed
    assert seconds < 180
    assert sorted(found) == sorted(IDS)
    assert len(IDS) == 153
    assert {v.verdict for v in found.values()} == {"holds", "fails", "depends"}


@pytest.mark.parametrize("some", ["verdicts", pytest.param("every_verdict", marks=pytest.mark.long)])
def test_a_formula_that_fails_has_a_counterexample_and_what_depends_says_on_what(
    some: str, request: pytest.FixtureRequest
) -> None:
    for v in request.getfixturevalue(some).values():
        if v.verdict == "fails":
            assert v.counterexample is not None, v.claim.id
        if v.verdict == "depends":
            assert {c.holds for c in v.conditions} == {True, False}, v.claim.id


@pytest.mark.long
def test_nearly_every_failing_formula_has_a_repair(every_verdict: dict[str, Verdict]) -> None:
    failed = [v for v in every_verdict.values() if v.verdict == "fails"]
    assert [v.claim.id for v in failed if not v.repairs] == [
        "003.relay-E2"
    ]  # two different energies: no edit makes them one


def test_known_mistakes_are_found(verdicts: dict[str, Verdict]) -> None:
    for name, part in KNOWN.items():
        assert verdicts[name].verdict == "fails", name
        assert part in verdicts[name].repaired, name


def test_readings_and_conditions_are_found(verdicts: dict[str, Verdict]) -> None:
    for name, part in READINGS.items():
        assert verdicts[name].verdict == "depends", name
        assert any(part in c.text for c in verdicts[name].conditions), name


def test_what_the_documents_leave_out_is_derived_and_proved(derived: list[Derived]) -> None:
    assert {x.verdict for x in derived} == {"holds"}
    subjects = " ".join(x.what for x in derived)
    for word in (
        "dlog_lam(t) of inverse",
        "dlog_lam(t) of lightning",
        "initial state of inverse",
        "initial state of lightning",
    ):
        assert word in subjects
    for word in (
        "chunk form",
        "exact read",
        "dbeta of kattention",
        "dE/dx of the relay",
        "dE/dx of the KED",
        "momentum",
    ):
        assert word in subjects


def test_json_has_the_documented_fields(verdicts: dict[str, Verdict]) -> None:
    for x in json.loads(as_json(list(verdicts.values()))):
        assert {"id", "spec", "document", "section", "verdict", "counterexample", "repair", "conditions"} <= x.keys()
        assert x["verdict"] in ("holds", "fails", "depends")


@pytest.mark.parametrize("some", ["verdicts", pytest.param("every_verdict", marks=pytest.mark.long)])
def test_the_page_is_self_contained_and_has_every_formula(
    some: str, request: pytest.FixtureRequest, derived: list[Derived]
) -> None:
    verdicts = request.getfixturevalue(some)
    text = page(list(verdicts.values()), derived)
    assert all(f'id="{name}"' in text for name in verdicts)
    assert "<script" not in text and "<link" not in text and "<img" not in text
    outside = {x for x in re.findall(r"https?://[^\"'<> ]+", text) if "w3.org" not in x and "purl.org" not in x}
    assert all("matplotlib.org" in x or "creativecommons.org" in x for x in outside), outside
    assert text.count("<math") == text.count("</math>") > 2 * len(verdicts) // 1.5
    assert "<svg" in text


def test_the_command_filters_by_document_and_verdict(tmp_path: Path, verdicts: dict[str, Verdict]) -> None:
    out = tmp_path / "v.json"
    assert verify(document="004", verdict="fails", json_path=out, console=Console(quiet=True)) == 1
    assert {x["id"] for x in json.loads(out.read_text())} == {
        v.claim.id for v in verdicts.values() if v.claim.id.startswith("004") and v.verdict == "fails"
    }


def test_the_judge_knows_no_formula_by_name() -> None:
    sources = {p.name: p.read_text() for p in (Path(report.__file__).parent).glob("*.py")}
    found = [(file, name) for file, text in sources.items() for name in IDS if name in text or f'"{name[4:]}"' in text]
    assert not found


def test_a_spec_without_claims_is_one_clear_error() -> None:
    with pytest.raises(LoadError, match=r"states no claims: write r\.claim"):
        verify(["retention"], console=Console(quiet=True))


def test_the_table_shows_reasons(verdicts: dict[str, Verdict]) -> None:
    console = Console(record=True, width=160, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table([verdicts["000.stab-matrix"]]))
    assert "nearest true formula" in console.export_text()
