"""Decays that may be zero or negative: parallel over the sequence, exact at zeros, gradients there included."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.recurrence.check import judge_all
from chunkform.codegen.recurrence.definition import defined
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case, sample
from chunkform.spec.language import load

SPECS = {r.name: r for r in load(Path(__file__).parents[1] / "specs" / "signed.py")}
VALUES = {  # of what a decay is a function of: of any size, often exactly 0, both signs next to each other
    "ssd_signed": lambda x: torch.where(x.abs() < 0.4, 0.0, x * 4),
    "delta_rule_signed": lambda x: x * 2,
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_outputs_and_gradients_are_those_of_the_plain_loop(name: str, dtype: torch.dtype) -> None:
    """Also at zeros, where a logarithm has no gradient; the final state and the initial one's gradient included."""
    r = SPECS[name]
    c, op = compile_spec(r), compile_op(r)
    assert c.family == "chunk-parallel", c.reason
    case = Case(seed=0, steps=150, width=8, dtype=dtype)
    s = sample(c, case)
    noise = torch.randn(s.given["g"].shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    s = dataclasses.replace(s, given=s.given | {"g": VALUES[name](noise)})
    exact = defined(c, s)
    given = {n: x.clone().requires_grad_() for n, x in s.given.items()}
    state = s.states["S"].clone().requires_grad_()
    out, last = op(**given, initial_state=state, output_final_state=True, backend="torch")
    torch.autograd.backward([out, last], [s.cotangents["o"], s.final_cotangents["S"]])
    found = {"o": out.detach(), "final S": last.detach(), "d initial S": state.grad}
    found |= {f"d{n}": x.grad for n, x in given.items()}
    judged = judge_all(c, found, exact, s, case, bounds=dict.fromkeys(exact, 1e-13) if dtype == torch.float64 else None)
    assert {n: j.error for n, j in judged.items() if not j.ok} == {}


def test_nothing_passes_a_decay_of_zero() -> None:
    op = compile_op(SPECS["ssd_signed"])
    q, k, v = torch.randn(3, 1, 90, 1, 4)
    g = torch.randn(1, 90, 1)
    g[:, 50] = 0.0
    first, _ = op(q, k, v, g, backend="torch")
    k[:, :50] = 1e30
    second, _ = op(q, k, v, g, backend="torch")
    assert torch.equal(first[:, 50:], second[:, 50:])
