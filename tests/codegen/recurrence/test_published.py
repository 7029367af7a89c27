"""Published recurrences have the forms that the documentation's table says, and the numbers of the step-by-step run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import chunkform
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case

HERE = Path(__file__).parent


def beside(name: str) -> ModuleType:
    """A module of this folder."""
    found = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


SPECS, TWICE = beside("published_specs").SPECS, beside("published_twice").TWICE | beside("published_more").MORE
AGAIN = beside("published_again").AGAIN
FEW = ("mamba2", "linoss", "mimo_delta")  # of the other spellings, in every run
PAGE = (HERE.parents[2] / "docs" / "recurrences.md").read_text()
FORMS = {
    "chunks": "chunk-parallel",
    "a scan": "scan",
    "segments": "segment-parallel",
    "strata": "strata",
    "step by step": "sequential",
}


def table() -> dict[str, str]:
    """The forms by the names of the page."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\w ]+?)(?:: [^|]*)? \|$", PAGE, re.MULTILINE)
    return {name: FORMS[form] for name, form in rows}


def test_the_page_has_all_of_them() -> None:
    assert table().keys() == SPECS.keys() | TWICE.keys()


@pytest.mark.parametrize("name", ["mingru", "mega", "mingru_log"])
def test_some_have_the_form_that_the_page_says(name: str) -> None:
    assert compile_spec(SPECS[name]()).family == table()[name]


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
