"""The emitted text is what it was: `make emitted` tells for every spec, and this for some of each shape.

Where a text was meant to change: `make emitted ARGS=--write`, and commit emitted_text.json."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from shared.emitted import (
    BY_ARGUMENTS,
    FILE,
    ROOT,
    catalogue_texts,
    changes,
    code_hash,
    files,
    hashes,
    looked_through,
    makers,
    recorded,
    said,
    specs_of,
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
ONE = {  # strata, a decay made of a state, a state that starts from a number, angles, a matrix and a vector with one error; maps
    # that aren't affine, numbers of either sign, a decay for every entry, writes of many ranks
    "mlstm_stabilised": "stabilised.py",
    "gated_by_a_state": "several.py",
    "running_scale": "several.py",
    "turned_keys": "turned_keys.py",
    "ttt_linear": "ttt_linear.py",
    "log_space": "stabilised.py",
    "ssd_signed": "signed.py",
    "mamba1": "entries.py",
    "mamba3_mimo": "entries.py",
}
ADVICE = "if it was meant to: make emitted ARGS=--write"


@pytest.mark.parametrize("file", SOME)
def test_the_text_of_a_spec_is_what_it_was(file: str) -> None:
    assert changes(texts_of(file), recorded()) == [], ADVICE


@pytest.mark.parametrize("name", ONE)
def test_the_text_of_one_of_several_specs_is_what_it_was(name: str) -> None:
    texts = texts_of(f"tests/codegen/specs/{ONE[name]}", name)
    assert len(texts) == 1 and changes(texts, recorded()) == [], ADVICE


def test_the_catalogues_text_is_what_it_was() -> None:
    assert changes(catalogue_texts(), recorded()) == [], ADVICE


def test_every_spec_is_recorded_and_nothing_else() -> None:
    """Each file, and each function that makes a spec."""
    known = {key.partition(":")[0] for key in recorded()}
    assert known == {*files(), *catalogue_texts()}, ADVICE
    own = {f"{file}:{key}" for file in files() for key in looked_through((ROOT / file).read_text()).made()}
    assert own - set(recorded()) == set(), ADVICE
    assert FILE.read_text() == written(recorded())


def test_what_makes_specs_of_what_it_is_given_is_named() -> None:
    assert makers() == sorted(BY_ARGUMENTS)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('r = Recurrence("r")', []),
        ('a = p = language.Program("p")', []),
        ('for n in "ab":\n    globals()[n] = Attention(n)', []),
        ("def gla() -> Recurrence:\n    return begun()\n\n\nr, n = gla(), 1", []),
        ("def gla() -> Recurrence:\n    return begun()", ["gla()"]),
        ("def gla(again: bool) -> Recurrence:\n    return begun(again)", ["gla(again=False)", "gla(again=True)"]),
        ('@form("scan")\ndef lru(count: int = 3) -> language.Recurrence:\n    return begun()', ["lru()"]),
        ("MORE: dict[str, Callable[[], Program]] = {}", []),
        ("MORE: list[Callable[[], Attention]] = []", []),
    ],
)
def test_a_spec_file_is_found_wherever_it_lies(tmp_path: Path, text: str, keys: list[str]) -> None:
    places = ["tests/a.py", "tests/runtime/x/y/test_b.py", "benchmarks/c/d.py"]
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(f"from chunkform.spec.language import *\n\n{text}\n")
    assert sorted(files(tmp_path)) == sorted(places) and makers(tmp_path) == []
    assert looked_through(text).made() == keys


@pytest.mark.parametrize("head", ["count: int", "*, names", "n: Name"])
def test_a_function_that_wants_more_is_a_maker(tmp_path: Path, head: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "made.py").write_text(f'def made({head}) -> Recurrence:\n    return Recurrence("r")\n')
    assert files(tmp_path) == [] and makers(tmp_path) == ["tests/made.py"]


def test_all_that_a_file_declares_is_compiled() -> None:
    found = specs_of("tests/shared/program_specs.py")
    assert {"PROGRAMS[cg]", "layers()"} <= set(found) and "PROGRAMS[layers]" not in found
    assert all(x.noun == "program" for x in found.values())
    spelt = specs_of("tests/codegen/recurrence/published_more.py")
    assert {"slstm(again=False)", "slstm(again=True)"} <= set(spelt)


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
