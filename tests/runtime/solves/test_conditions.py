"""Conditions that fail are told: by the residual, by `check`, and by `chunkform check`."""

from __future__ import annotations

import pytest
import torch
from shared.program_specs import built, mesa

from chunkform.codegen.commands.program_kind import generated_module
from chunkform.codegen.programs.check import check_program, conditions, require_conditions
from chunkform.codegen.programs.oracle import sample
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import ArgumentError, ConditionError
from chunkform.runtime.solves.solves import conjugate_gradients
from chunkform.spec.language import cg, neumann


def made(method):
    c = compile_program(mesa(method))
    return c, generated_module(c).solved


@pytest.fixture(scope="module")
def series():
    return made(neumann(30, backward="implicit"))


def arguments(scale, steps=60, d=6, decay=0.01):
    g = torch.Generator().manual_seed(0)
    q, u = torch.randn(2, 2, steps, 3, d, generator=g, dtype=torch.float64)
    log_lam = -decay * torch.rand(2, steps, 3, generator=g, dtype=torch.float64)
    return {"q": q, "u": scale * u, "log_lam": log_lam, "lam_0": torch.ones(3, dtype=torch.float64)}


def test_a_series_that_converges_says_so(series):
    _, op = series
    _, residual, _ = op(**arguments(0.03), output_residual=True)
    assert residual.shape == (2, 60, 3) and residual.dtype == torch.float32
    assert float(residual.max()) < 1e-3


def test_a_series_that_diverges_is_refused(series):
    """Eigenvalues of H_t at 2 and more."""
    _, op = series
    with pytest.raises(ConditionError, match=r"the solve x didn't converge.*step \d+, head \d.*eigenvalue"):
        op(**arguments(2.0), check=1e-2)
    _, residual, _ = op(**arguments(2.0), output_residual=True)
    assert float(residual.max()) > 1e3


@pytest.mark.parametrize("limit", ["x", -1, True, torch.tensor([1.0]), float("nan")])
def test_a_limit_of_residuals_is_a_number(series, limit):
    _, op = series
    with pytest.raises(ArgumentError, match="solved: check must be a number, 0 or more, or None, got"):
        op(**arguments(0.03), check=limit)


def test_whether_residuals_are_returned_is_true_or_false(series):
    _, op = series
    with pytest.raises(ArgumentError, match="solved: output_residual must be True or False, got 'yes'"):
        op(**arguments(0.03), output_residual="yes")


def test_check_reports_the_eigenvalues(series):
    c, op = series
    case = Case(steps=40, width=6, dtype=torch.float64)
    s = sample(c, case)
    s.given["u"] = 3.0 * s.given["u"]
    (row,) = conditions(c, s, case)
    assert not row.ok and row.error > 1
    with pytest.raises(ConditionError, match=r"must be below 1.*make the step smaller"):
        require_conditions(c, [row])
    rows = check_program(c, op, case)
    assert any(r.quantity.startswith("|1 - step eigenvalue|") for r in rows)


def test_a_step_of_one_over_the_trace_always_converges():
    _, op = made(neumann(400, step="trace", backward="implicit"))
    x = arguments(0.5, steps=12, d=3)
    _, residual, _ = op(**x, output_residual=True)
    assert float(residual.max()) < 1.0
    assert float(residual[:, :2].max()) < 1e-3


def test_too_few_steps_of_conjugate_gradients():
    _, op = made(cg(1))
    with pytest.raises(ConditionError, match="more than 1 steps"):
        op(**arguments(1.0), check=1e-6)
    _, many = built("cg")
    many(**arguments(1.0, steps=6), check=1e-6)


def test_a_matrix_that_is_not_positive_leaves_its_residual():
    """An initial state that a call gives may be anything."""
    _, op = built("cg")
    x = arguments(0.1)
    start = -torch.eye(6, dtype=torch.float64).expand(2, 3, 6, 6)
    o, residual, _ = op(**x, initial_state=start, output_residual=True)
    assert bool(o.isfinite().all()) and float(residual[:, 0].min()) > 0.9
    with pytest.raises(ConditionError):
        op(**x, initial_state=start, check=1e-3)


def test_a_tolerance_lets_systems_rest():
    matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0, 50.0], dtype=torch.float64))
    b = torch.ones(1, 1, 1, 4, dtype=torch.float64)
    counted = []

    def product(p):
        counted.append(p)
        return p @ matrix

    _, residual = conjugate_gradients(product, b, 20, 1e-3, b)
    assert 0 < float(residual) <= 1e-3
    _, exact = conjugate_gradients(product, b, 20, 0.0, b)
    assert float(exact) < 1e-10


def test_a_right_side_of_zero():
    _, op = built("cg")
    x = arguments(1.0)
    x["q"] = torch.zeros_like(x["q"]).requires_grad_()
    o, residual, _ = op(**x, output_residual=True)
    o.sum().backward()
    assert not o.any() and not residual.any() and bool(x["q"].grad.isfinite().all())


def test_the_residual_has_no_gradient():
    _, op = built("cg")
    x = arguments(1.0)
    x["q"].requires_grad_()
    _, residual, _ = op(**x, output_residual=True)
    assert not residual.requires_grad
