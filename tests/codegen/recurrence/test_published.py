"""Published recurrences have the forms that the documentation's table says, and the numbers of the step-by-step run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from shared.respelt import SPELLINGS

import chunkform
from chunkform.codegen.recurrence.backends import triton_section
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.spec.language import Recurrence

HERE = Path(__file__).parent


def beside(name: str) -> ModuleType:
    """A module of this folder."""
    found = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


SPECS, TWICE = beside("published_specs").SPECS, beside("published_twice").TWICE | beside("published_more").MORE
AGAIN, LATER = beside("published_again").AGAIN, beside("published_later").LATER
ALL = SPECS | {name: first for name, (first, _) in TWICE.items()} | LATER
FEW = ("mamba2", "linoss", "mimo_delta")  # of the other spellings, in every run
PAGE = (HERE.parents[2] / "docs" / "recurrences.md").read_text()
FORMS = {
    "chunks": "chunk-parallel",
    "a scan": "scan",
    "segments": "segment-parallel",
    "strata": "strata",
    "recurrent form": "sequential",
}


def table() -> dict[str, str]:
    """The forms by the names of the page."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\w ]+?)(?:: [^|]*)? \|$", PAGE, re.MULTILINE)
    return {name: FORMS[form] for name, form in rows}


def test_the_page_has_all_of_them() -> None:
    assert table().keys() == ALL.keys()
    assert len(ALL) == len(SPECS) + len(TWICE) + len(LATER)


@pytest.mark.parametrize("name", ["mingru", "mega", "mingru_log", "rebased", "value_strengths", "h3", "yaad"])
def test_some_have_the_form_that_the_page_says(name: str) -> None:
    assert compile_spec(ALL[name]()).family == table()[name]


def respelt(r: Recurrence) -> dict[str, Recurrence]:
    """A recurrence in other words, in each way in which there are any."""
    found = {way: change(r) for way, change in SPELLINGS.items()}
    return {way: x for way, x in found.items() if any(getattr(x, of) != getattr(r, of) for of in SAID)}


SAID = ("variables", "states", "lets", "updates", "outputs")


def test_there_are_other_words_for_each() -> None:
    ways = {name: respelt(make()).keys() for name, make in ALL.items()}
    assert all(ways.values())
    assert set().union(*ways.values()) == SPELLINGS.keys()


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("yaad", "transposed"),
        ("gated_both_ways", "multiplied_out"),
        ("mlstm", "by_exponentials"),
        ("flowformer", "inlined"),
        ("titans_channels", "by_logarithms"),
        ("titans", "named"),
        ("lru", "by_diagonals"),
    ],
)
def test_other_words_say_the_same_and_have_the_same_form(name: str, way: str) -> None:
    r = ALL[name]()
    other = respelt(r)[way]
    if way != "by_logarithms":  # which is given something else
        assert chunkform.same(r, other).same
    assert compile_spec(other).family == table()[name]


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_all_have_one_form_in_all_other_words(name: str) -> None:
    assert dict.fromkeys(respelt(ALL[name]()), table()[name]) == {
        way: compile_spec(x).family for way, x in respelt(ALL[name]()).items()
    }


@pytest.mark.long
@pytest.mark.parametrize("name", LATER)
def test_later_ones_have_that_form_and_the_numbers_of_the_plain_loop(name: str) -> None:
    c, op = compile_spec(LATER[name]()), chunkform.compile(LATER[name]())
    assert c.family == table()[name]
    bad = [r for r in check_op(c, op, Case(batch=1, steps=50, width=5, dtype=torch.float64)) if not r.ok]
    assert not bad, bad


@pytest.mark.long
@pytest.mark.parametrize("name", SPECS)
def test_all_have_that_form_and_the_numbers_of_the_plain_loop(name: str) -> None:
    c, op = compile_spec(SPECS[name]()), chunkform.compile(SPECS[name]())
    assert c.family == table()[name]
    for dtype in (torch.float64, torch.float32):
        bad = [r for r in check_op(c, op, Case(batch=1, steps=90, width=6, dtype=dtype)) if not r.ok]
        assert not bad, bad


def test_many_have_another_spelling() -> None:
    assert SPECS.keys() - AGAIN.keys() == {"kda", "rwkv7", "mlstm", "titans"}  # which `TWICE` has
    assert AGAIN.keys() <= SPECS.keys()


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.long) for n in AGAIN])
def test_another_spelling_is_the_same_and_has_that_form(name: str) -> None:
    assert chunkform.same(SPECS[name](), AGAIN[name]()).same
    assert compile_spec(AGAIN[name]()).family == table()[name]


@pytest.mark.parametrize("name", ["longhorn", "path_linear", "lightnet", "kalman_filter"])
def test_two_spellings_have_one_form(name: str) -> None:
    assert {compile_spec(f()).family for f in TWICE[name]} == {table()[name]}


@pytest.mark.long
@pytest.mark.parametrize("name", TWICE)
def test_two_spellings_are_the_same_and_have_the_numbers_of_the_plain_loop(name: str) -> None:
    one, two = TWICE[name]
    assert chunkform.same(one(), two()).same
    for f in (one, two):
        c, op = compile_spec(f()), chunkform.compile(f())
        assert c.family == table()[name]
        bad = [r for r in check_op(c, op, Case(batch=1, steps=50, width=5, dtype=torch.float64)) if not r.ok]
        assert not bad, bad


def test_what_pairs_are_summed_of_is_made_wherever_the_kernel_that_sums_them_runs() -> None:
    """A prologue of Mamba-3's backward pass also makes matrices for a later sweep, which runs for more gradients; the gate of
    launches refuses reads of what isn't there."""
    assert triton_section(compile_spec(AGAIN["mamba3"]()))
