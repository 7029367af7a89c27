"""The generated files: fresh, light to import, and right against the float64 oracle."""

import ast
import importlib

import pytest
import torch
from shared.forked import code
from shared.op_cases import compiled
from shared.spec_files import catalogue

from chunkform.codegen.commands.build import GENERATED, build
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case

SPECS = {r.name: r for r in catalogue()}
CASES = [
    Case(seed=0, steps=150),
    Case(seed=1, steps=65, batch=1, heads=3, width=20),
    Case(seed=2, steps=129, decay="extreme"),
]


def op_of(name):
    return getattr(importlib.import_module(f"chunkform.generated.{name}"), name)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"seed{c.seed}-{c.decay}")
@pytest.mark.parametrize("name", SPECS)
def test_outputs_states_and_gradients_match_the_oracle(name, case):
    rows = check_op(compiled(name), op_of(name), case, backend="torch")
    assert {r.quantity: r.error for r in rows if not r.ok} == {}


@pytest.mark.parametrize("name", SPECS)
def test_in_float64_nothing_but_rounding_is_left(name):
    case = Case(seed=3, steps=70, width=8, dtype=torch.float64)
    rows = check_op(compiled(name), op_of(name), case, backend="torch")
    assert {r.quantity: r.error for r in rows if not r.ok} == {}


@pytest.mark.parametrize("steps", [0, 1, 64])
@pytest.mark.parametrize("name", SPECS)
def test_short_sequences(name, steps):
    case = Case(seed=4, steps=steps, width=8)
    rows = check_op(compiled(name), op_of(name), case, backend="torch")
    assert {r.quantity: r.error for r in rows if not r.ok} == {}


def test_committed_files_are_fresh_and_none_is_orphaned():
    assert [b for b in build(check=True, papers=False) if not b.ok] == []


@pytest.mark.parametrize("name", ["lightning_attention", pytest.param("gated_delta_rule", marks=pytest.mark.long)])
def test_printing_twice_gives_the_same_text(name):
    assert emit(compiled(name)) == emit(compile_spec(SPECS[name])) == (GENERATED / f"{name}.py").read_text()


def test_a_stale_and_an_orphaned_file_are_found(tmp_path):
    some = [SPECS["linear_attention"], SPECS["retention"]]
    build(some, tmp_path)
    assert all(b.ok for b in build(some, tmp_path, check=True))
    path = tmp_path / "retention.py"
    path.write_text(path.read_text().replace("return", "return  #"))
    assert [b.status for b in build(some, tmp_path, check=True)] == ["fresh", "stale"]
    path.unlink()
    assert [b.status for b in build(some, tmp_path, check=True)] == ["fresh", "missing"]


def test_importing_an_op_loads_neither_sympy_nor_jinja2():
    done = code("import sys, chunkform.generated.lightning_attention; print({'sympy', 'jinja2'} & set(sys.modules))")
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize("name", SPECS)
def test_a_file_says_where_it_comes_from(name):
    doc = ast.get_docstring(ast.parse((GENERATED / f"{name}.py").read_text()))
    assert f"chunkform build {name}" in doc and "do not edit" in doc and "spec hash" in doc


@pytest.mark.parametrize("packed", ["one", "several"])
@pytest.mark.parametrize("name", ["gated_delta_rule", "lightning_attention"])
def test_a_check_hands_on_which_sequences_are_packed(name, packed):
    case = Case(seed=5, steps=70, width=8, packed=packed)
    rows = check_op(compiled(name), op_of(name), case, backend="torch")
    assert {r.quantity: r.error for r in rows if not r.ok} == {}
