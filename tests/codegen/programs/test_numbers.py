"""Programs against dense float64 solves, step by step: outputs, last states and every gradient."""

from __future__ import annotations

import importlib

import pytest
import torch
from shared.program_specs import PROGRAMS, built, mesa

from chunkform.codegen.programs.check import check_program, run
from chunkform.codegen.programs.oracle import sample
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.codegen.recurrence.samples import Case
from chunkform.spec.language import neumann
from chunkform.spec.language.load import CATALOGUE, load


def wrong(rows, but=("|1 - step", "residual")):
    return [(r.quantity, r.error, r.allowed) for r in rows if not r.ok and not r.quantity.startswith(but)]


@pytest.mark.parametrize("steps", [0, 1, 64, 130])
def test_tails(program, steps):
    c, op = program
    assert not wrong(check_program(c, op, Case(steps=steps, width=6, dtype=torch.float64)))


def test_float32_and_the_specs_own_initial_state(program):
    c, op = program
    assert not wrong(check_program(c, op, Case(steps=90, width=8, initial=False)))


@pytest.mark.parametrize("decay", ["none", "strong", "extreme"])
@pytest.mark.parametrize("name", ["two solves", "channel decay", "layers", "shared reads"])
def test_extreme_decays(name, decay):
    """A diagonal doesn't fade, so that even a decay of 0 leaves a matrix that can be solved for."""
    c, op = built(name)
    assert not wrong(check_program(c, op, Case(steps=70, width=6, decay=decay, dtype=torch.float64)))


@pytest.mark.parametrize("name", ["mesa", "mesa_net", "mesa_neumann"])
def test_catalogue(name):
    (p,) = load(CATALOGUE / f"{name}.py")
    c = compile_program(p)
    op = getattr(importlib.import_module(f"chunkform.generated.{name}"), name)
    rows = check_program(c, op, Case(steps=100, width=16))
    assert not [(r.quantity, r.error) for r in rows if not r.ok]


def test_long_sequences_go_in_segments():
    c, op = built("cg")
    rows = check_program(c, op, Case(batch=1, steps=4100, heads=1, width=2, dtype=torch.float64))
    assert not wrong(rows)


def test_a_solve_by_neumann_is_the_iteration_written_out():
    """The method and the same iteration as a Python loop in the spec: the same outputs and gradients."""
    one = built("written out")
    c = compile_program(mesa(neumann(4)))
    from chunkform.codegen.commands.program_kind import generated_module

    op = generated_module(c).solved
    s = sample(c, Case(steps=70, width=6, dtype=torch.float64))
    for n, x in s.given.items():
        if n == "u":
            s.given[n] = 0.2 * x
    (a, _), (b, _) = run(c, op, s), run(*one, s)
    for n, x in a.items():
        torch.testing.assert_close(x, b[n], rtol=1e-11, atol=1e-11)


def test_packed_sequences():
    c, op = built("two solves")
    s = sample(c, Case(batch=1, steps=90, heads=2, width=6, dtype=torch.float64, initial=False))
    given = {"log_lam" if n == "lam" else n: x for n, x in s.given.items()}
    starts = torch.tensor([0, 20, 20, 90])
    o, z, last = op(**given, cu_seqlens=starts, output_final_state=True)
    for n, (a, b) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist())):
        part = {k: x[:, a:b] if x.dim() > 2 else x for k, x in given.items()}
        o1, z1, last1 = op(**part, output_final_state=True)
        torch.testing.assert_close(o[:, a:b], o1)
        torch.testing.assert_close(z[:, a:b], z1)
        torch.testing.assert_close(last[0][n], last1[0][0])


def test_every_program_here_is_a_program():
    assert all(f().validate() for f in PROGRAMS.values())


def test_heads_of_a_group_share_an_argument():
    c, op = built("two solves")
    s = sample(c, Case(batch=1, steps=40, heads=4, width=6, dtype=torch.float64, initial=False))
    given = {"log_lam" if n == "lam" else n: x for n, x in s.given.items()}
    few = given["k"][:, :, :2].clone().requires_grad_()
    o, _, _ = op(**given | {"k": few})
    many = few.detach().repeat_interleave(2, 2).requires_grad_()
    expected, _, _ = op(**given | {"k": many})
    torch.testing.assert_close(o, expected)
    g = torch.randn_like(o)
    (a,), (b,) = torch.autograd.grad(o, few, g), torch.autograd.grad(expected, many, g)
    torch.testing.assert_close(a, b.unflatten(2, (2, 2)).sum(3))
