"""The emitted text is what it was: `make emitted` tells for every spec, and this for some of each shape.

Where a text was meant to change: `make emitted ARGS=--write`, and commit emitted_text.json."""

from __future__ import annotations

import ast

import pytest
from shared.emitted import (
    FILE,
    catalogue_texts,
    changes,
    code_hash,
    files,
    hashes,
    recorded,
    said,
    text_hash,
    texts_of,
    written,
)

SOME = [  # a scan, matrices of parameters, several corrections, step by step, states added to each other, channels
    "tests/codegen/specs/leaky_integrator.py",
    "tests/codegen/specs/mapped.py",
    "tests/codegen/specs/delta_product.py",
    "tests/codegen/specs/oja_subspace.py",
    "tests/codegen/specs/momentum.py",
    "tests/codegen/specs/rwkv6.py",
    "benchmarks/recurrent_form/slstm.py",
]
ADVICE = "if it was meant to: make emitted ARGS=--write"


@pytest.mark.parametrize("file", SOME)
def test_the_text_of_a_spec_is_what_it_was(file: str) -> None:
    assert changes(texts_of(file), recorded()) == [], ADVICE


def test_the_catalogues_text_is_what_it_was() -> None:
    assert changes(catalogue_texts(), recorded()) == [], ADVICE


def test_every_spec_is_recorded_and_nothing_else() -> None:
    known = {key.partition(":")[0] for key in recorded()}
    assert known == {*files(), *catalogue_texts()}, ADVICE
    assert FILE.read_text() == written(recorded())


def test_a_change_is_told_with_its_spec_and_its_kind() -> None:
    text = 'def f(a):\n    """What it does."""\n    return a + 1  # one more\n'
    known = {"x": hashes(text)}
    assert changes({"x": text}, known) == []
    assert changes({"x": text.replace("one more", "and one")}, known) == [
        "x: no more than comments, layout or imports changed"
    ]
    assert changes({"x": text.replace("What it", "All it")}, known) == [
        "x: no more than comments, layout or imports changed"
    ]
    assert changes({"x": text.replace("+ 1", "+ 2")}, known) == ["x: the code changed"]
    assert changes({"y": text}, known) == ["y: not recorded"]
    assert text_hash(text) != code_hash(text) == text_hash(said(ast.parse(text)))
