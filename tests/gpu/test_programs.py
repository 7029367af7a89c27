"""Programs on a GPU: outputs, last states and every gradient against dense float64 solves, and the kernels of solves."""

from __future__ import annotations

import importlib

import pytest
import torch
from shared.program_specs import built

from chunkform.codegen.checking.accuracy import relative_error
from chunkform.codegen.programs.check import check_program
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import ConditionError
from chunkform.spec.language.load import CATALOGUE, load

pytestmark = pytest.mark.gpu
NAMES = ("mesa", "mesa_net", "mesa_neumann")
CASES = {
    "usual": Case(batch=2, steps=200, heads=3, width=32, device="cuda"),
    "odd": Case(batch=1, steps=129, heads=2, width=37, device="cuda", seed=2),
    "short": Case(batch=1, steps=3, heads=1, width=16, device="cuda", seed=3, initial=False),
}


def catalogue_op(name):
    (p,) = load(CATALOGUE / f"{name}.py")
    return compile_program(p), getattr(importlib.import_module(f"chunkform.generated.{name}"), name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_catalogue(name, case, dtype):
    import dataclasses

    c, op = catalogue_op(name)
    rows = check_program(c, op, dataclasses.replace(CASES[case], dtype=dtype))
    assert not [(r.quantity, f"{r.error:.1e}", f"{r.allowed:.1e}") for r in rows if not r.ok]


@pytest.mark.parametrize("name", ["two solves", "channel decay", "layers", "shared reads", "sherman-morrison"])
def test_other_programs(name):
    c, op = built(name)
    rows = check_program(c, op, Case(batch=1, steps=130, heads=2, width=24, device="cuda"))
    assert not [
        (r.quantity, f"{r.error:.1e}", f"{r.allowed:.1e}")
        for r in rows
        if not r.ok and not r.quantity.startswith("residual")
    ]


@pytest.mark.parametrize("decay", ["none", "strong", "extreme"])
def test_extreme_decays(decay):
    c, op = catalogue_op("mesa_net")
    case = Case(batch=1, steps=150, heads=2, width=32, device="cuda", decay=decay, dtype=torch.bfloat16)
    rows = check_program(c, op, case)
    assert not [(r.quantity, f"{r.error:.1e}", f"{r.allowed:.1e}") for r in rows if not r.ok]


@pytest.mark.parametrize("width", [16, 64, 128, 200])
def test_widths(width):
    """The kernel of the solves against the same iteration in torch, in float32."""
    _, op = catalogue_op("mesa_net")
    g = torch.Generator("cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=g, device="cuda")

    q, k, v = (torch.nn.functional.normalize(normal(2, 300, 2, width), dim=-1).bfloat16() for _ in range(3))
    rest = (
        normal(2, 300, 2).sigmoid(),
        torch.nn.functional.logsigmoid(normal(2, 300, 2) + 3),
        normal(2, width).abs() + 0.5,
    )
    o, residual, _ = op(q, k, v, *rest, output_residual=True)
    wide, _ = op(q.float(), k.float(), v.float(), *rest, backend="torch")
    assert relative_error(o, wide, 2) < 1e-2
    assert float(residual.max()) < 1e-4


def test_a_failing_condition_is_told():
    _, op = catalogue_op("mesa")
    u = torch.randn(1, 70, 2, 32, device="cuda").bfloat16()
    args = (u, u.flip(1), torch.zeros(1, 70, 2, device="cuda"), torch.ones(2, device="cuda"))
    start = -100.0 * torch.eye(32, device="cuda").expand(1, 2, 32, 32)
    with pytest.raises(ConditionError, match="didn't converge"):
        op(*args, initial_state=start, check=1e-2)
