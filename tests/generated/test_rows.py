"""Row maps of layers: against the float64 oracle in torch and in Triton's interpreter, in one kernel, under torch.compile."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from shared.forked import script

import chunkform
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.spec.language import RowMap, find, hadamard, tanh
from chunkform.spec.language.data import as_data, from_data
from chunkform.spec.language.load import row_maps

HERE = Path(__file__).parent
MAPS = {m.name: m for m in row_maps()}


def op_of(name):
    return getattr(importlib.import_module("chunkform.generated.rows"), name)


@pytest.mark.parametrize("name", MAPS)
def test_outputs_and_gradients_match_the_oracle(name):
    c = compile_spec(MAPS[name])
    for case in (Case(seed=0, steps=40), Case(seed=1, steps=0), Case(seed=3, steps=9, dtype=torch.float64)):
        rows = check_op(c, op_of(name), case, backend="torch")
        assert {r.quantity: r.error for r in rows if not r.ok} == {}


def test_kernels_match_the_oracle():
    done = script(HERE / "rows_interpreted.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(found.pop(f"{name} tried") for name in MAPS)
    assert found == {}


@pytest.mark.parametrize("name", MAPS)
def test_one_kernel_forwards_and_one_backwards(name):
    text = Path(importlib.import_module(f"chunkform.generated.rows.{name}").__file__).read_text()
    assert text.count("@triton.jit") == 2


def test_a_row_map_of_ones_own():
    m = RowMap("scaled_gate")
    d = m.dims("d")
    x, z = m.inputs("x z", d)
    c = m.inputs("c")
    m.output("y", c * hadamard(x, tanh(z)))
    op = chunkform.compile(m)
    x, z = torch.randn(2, 2, 7, 3, 5, dtype=torch.float64, requires_grad=True).unbind(0)
    c = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    y, last = op(x, z, c)
    expected = c.unsqueeze(-1) * x * torch.tanh(z)
    assert last is None and torch.allclose(y, expected, atol=1e-12)
    ones = torch.randn_like(y)
    for a, b in zip(*(torch.autograd.grad(v, (x, z, c), ones, retain_graph=True) for v in (y, expected)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)
    assert not hasattr(op, "step")


def test_one_graph():
    unit = op_of("unit")
    x = torch.randn(1, 4, 2, 8)
    compiled = torch.compile(lambda x: unit(x, scale=2.0)[0], fullgraph=True, backend="eager")
    assert torch.allclose(compiled(x), unit(x, scale=2.0)[0])


def test_specs_are_found_as_files():
    assert find(str(HERE.parents[1] / "spec" / "rows" / "unit.py"))[0].name == "unit"


def test_log_decays_are_float32_whatever_the_inputs_are():
    """A wide output: in both forms, under torch.compile, as data, and with the gradient of the input in the input's dtype."""
    op = op_of("softplus_decay")
    g, A, b = torch.randn(1, 6, 2, 8).bfloat16().requires_grad_(), torch.rand(2), torch.randn(2, 8)
    out, _ = op(g, A, b)
    expected = -A.exp().unsqueeze(-1) * torch.nn.functional.softplus(g.float() + b)
    assert out.dtype == torch.float32 and torch.allclose(out, expected, atol=1e-6)
    (grad,) = torch.autograd.grad(out, g, torch.ones_like(out))
    assert grad.dtype == torch.bfloat16
    compiled = torch.compile(lambda *x: op(*x)[0] + 0.0, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(g, A, b), out)
    assert from_data(as_data(MAPS["softplus_decay"])).wide == {"log_decay"}
