"""Gradients of decays, head by head and channel by channel; and that nothing looks ahead, in the torch form."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from shared.decay_errors import changed_after, torch_form, worst

from chunkform.codegen.recurrence.samples import Case

CASE = Case(batch=1, steps=100, width=4)
NAMES = ("gated_linear_attention", "kimi_delta_attention", "value_decay_attention", "rwkv6", "gla2d")


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
