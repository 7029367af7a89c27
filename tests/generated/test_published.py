"""The catalogue's second shelf: by name, by the file of its spec, and right against the float64 oracle."""

import ast
import importlib

import pytest
import torch
from shared.definitions import read_definitions

import chunkform
import chunkform.generated
from chunkform.codegen.commands.build import GENERATED, build
from chunkform.codegen.recurrence.backends import Section
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.emit import imported_names, spec_hash
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import CompilerError
from chunkform.runtime.nn import Mixer
from chunkform.spec.language import catalogue, find
from chunkform.spec.language.load import published

SPECS = {r.name: r for r in published()}
SHELF = GENERATED / "published"


@pytest.mark.parametrize("name", SPECS)
def test_the_file_is_of_the_spec_and_right(name):
    """`make test-all` compares the whole texts."""
    c = compile_spec(SPECS[name])
    assert f"spec hash: {spec_hash(c)}" in ast.get_docstring(ast.parse((SHELF / f"{name}.py").read_text()))
    op = getattr(chunkform.generated, name)
    rows = check_op(c, op, Case(seed=1, steps=67, batch=1, heads=2, width=6, dtype=torch.float64))
    assert {r.quantity: r.error for r in rows if not r.ok} == {}


@pytest.mark.long
def test_files_are_fresh():
    assert [b for b in build(check=True) if not b.ok] == []


def test_they_are_found_by_name():
    assert not set(SPECS) & {r.name for r in catalogue()}
    assert {p.stem for p in SHELF.glob("[!_]*.py")} == set(SPECS) <= set(dir(chunkform.generated))
    module = importlib.import_module("chunkform.generated.rwkv7")
    assert module.rwkv7 is chunkform.generated.rwkv7 and find("rwkv7")[0].name == "rwkv7"
    assert "rwkv7" in {x.name for x in chunkform.catalogue("rwkv")}
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("chunkform.generated.published.rwkv7")
    x = torch.randn(1, 9, 32)
    assert Mixer("gdn2", width=32, heads=2)(x).shape == x.shape


def test_a_name_from_two_modules_is_refused():
    """Of two imports of one name, the second would be called for both."""
    section = Section("torch", read_definitions("def f():\n    scanned()\n"), {"a": "scanned", "b": "scanned"})
    with pytest.raises(CompilerError, match="scanned of a generated file is imported from a and from b"):
        imported_names((section,))
