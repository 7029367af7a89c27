"""Errors are of each head for itself: what one head gets wrong isn't hidden by another that is larger."""

import math

import pytest
import torch

from chunkform.codegen.checking.accuracy import errors_apart, head_axis, relative_error
from chunkform.codegen.ir.step_program import StepProgram
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import find


@pytest.fixture
def x():
    return torch.randn(2, 9, 3, 5, generator=torch.Generator().manual_seed(0))


def test_a_small_head_is_not_hidden_by_a_large_one(x):
    x[:, :, 1] *= 1e-6
    y = x.clone()
    y[:, :, 1] *= 1.5
    assert float((y - x).norm() / x.norm()) < 1e-5  # which all at once wouldn't see
    assert relative_error(y, x, 2) == pytest.approx(0.5, rel=1e-5)
    assert errors_apart(y, x, 2).tolist() == pytest.approx([0, 0.5, 0], rel=1e-5)


def test_channels_apart(x):
    y = x.clone()
    y[:, :, 2, 4] = 0
    errors = errors_apart(y, x, (2, 3))
    assert errors.shape == (3, 5) and float(errors[2, 4]) == 1 and float(errors.sum()) == 1


def test_a_head_of_zeros_counts_beside_the_largest(x):
    x[:, :, 1] = 0
    y = x.clone()
    y[:, :, 1, 0] = 1e-3
    beside = float(y[:, :, 1].double().norm() / x[:, :, 0].double().norm().maximum(x[:, :, 2].double().norm()))
    assert relative_error(y, x, 2) == pytest.approx(beside)


def test_where_all_is_zero_the_error_is_absolute(x):
    assert relative_error(x, torch.zeros_like(x), 2) == pytest.approx(
        float(x.movedim(2, 0).flatten(1).norm(dim=1).max())
    )


def test_what_a_dtype_has_no_normal_numbers_for_may_be_zero(x):
    small = x.double() * 1e-45
    assert relative_error(torch.zeros_like(x), small, 2) < 1e-5
    assert relative_error(torch.zeros_like(small), small, 2) == 1  # in float64 it has
    half = x * 1e-6
    assert relative_error(half.half(), half, 2) < 1e-3
    assert relative_error(torch.zeros_like(half), half, 2) == 1
    assert relative_error(2 * x * 1e-3, x * 1e-3, 2, torch.float16) == pytest.approx(1)


def test_what_is_not_a_number_or_has_another_shape_is_never_near(x):
    y = x.clone()
    y[0, 0, 2, 0] = math.nan
    assert math.isnan(relative_error(y, x, 2))
    assert relative_error(x, y, 2) == 0  # where the reference has no value, anything is right
    assert relative_error(x[:1], x, 2) == math.inf
    assert relative_error(x[:, :0], x[:, :0], 2) == 0
    assert relative_error(x[:, :, :0], x[:, :, :0], 2) == 0


def test_where_a_quantity_has_its_heads():
    step: StepProgram = compile_spec(find("retention")[0]).step
    axes = {n: head_axis(step, n) for n in ("o", "final S", "d initial S", "dq", "dlog_gamma", "dgamma")}
    assert axes == {"o": 2, "final S": 1, "d initial S": 1, "dq": 2, "dlog_gamma": 0, "dgamma": 0}
