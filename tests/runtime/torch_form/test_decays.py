"""Gradients of decays, head by head and channel by channel; and that nothing looks ahead, in the torch form."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from shared.decay_errors import changed_after, torch_form, worst

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.recurrence.samples import Case
from chunkform.spec.language import Recurrence, ones, sigmoid

CASE = Case(batch=1, steps=100, width=4)
NAMES = (
    "gated_linear_attention",
    "gla2d",
    "equal_keys",
    "channel_rate",
    *(pytest.param(n, marks=pytest.mark.long) for n in ("kimi_delta_attention", "value_decay_attention", "rwkv6")),
)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_decays_have_the_error_of_a_step_by_step_run_in_each_head_and_channel(name):
    for found in worst(name, torch_form, CASE):
        assert found.ok, found


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gated_linear_attention", torch.float64),
        ("kimi_delta_attention", torch.float32),
        ("value_decay_attention", torch.float32),
        ("gla2d", torch.float32),
    ],
)
def test_later_steps_change_no_bit_of_what_comes_before(name, dtype):
    case = Case(batch=1, steps=100, width=4, dtype=dtype)
    assert changed_after(name, torch_form, case, (41, 64), dtype) == []


def test_a_gradient_is_not_told_by_a_difference_in_which_it_is_lost(tmp_path, monkeypatch):
    """What is written tells what was read but for a factor; where that may be small, as a gate may, nothing is left of it."""
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path))
    r = Recurrence("small_feedback")
    d, e = r.dims("d e")
    q, v, b = r.inputs("q", d), r.inputs("v", e), r.inputs("b")
    S = r.state("S", d, e)
    r.update(S, S.prev + ones(d) * (v - sigmoid(b) * S.prev.T * ones(d)).T)
    r.output("o", S.next.T * q)
    op = compile_op(r)
    g = torch.Generator().manual_seed(1)
    q, v = torch.randn(1, 70, 2, 4, generator=g), torch.randn(1, 70, 2, 5, generator=g)
    found = []
    for dtype in (torch.float32, torch.float64):
        b = torch.full((1, 70, 2), -18.0, dtype=dtype, requires_grad=True)
        o, _ = op(q.to(dtype), v.to(dtype), b)
        o.square().sum().backward()
        found.append(b.grad.double())
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-5
