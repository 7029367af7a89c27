"""Gradients of decays, head by head and channel by channel; and that nothing looks ahead, on a GPU."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from shared.decay_errors import changed_after, triton_form, worst

from chunkform.codegen.recurrence.samples import Case

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
NAMES = (
    "gated_linear_attention",
    "kimi_delta_attention",
    "value_decay_attention",
    "gla2d",
    "rwkv6",
    "dplr",
    "gdn2",
    "gated_oja_rule",
)


@pytest.mark.parametrize("steps", [150, 300])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_decays_have_the_error_of_a_step_by_step_run_in_each_head_and_channel(name, steps):
    case = Case(batch=1, steps=steps, width=32, device="cuda")
    for found in worst(name, triton_form, case):
        assert found.ok, found


@pytest.mark.parametrize("name", ["gated_linear_attention", "gla2d", "kimi_delta_attention", "gdn2", "gated_oja_rule"])
def test_gradients_of_decays_in_bfloat16(name):
    case = Case(batch=1, steps=300, width=32, device="cuda")
    for found in worst(name, triton_form, case, torch.bfloat16):
        assert found.ok, found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_later_steps_change_no_bit_of_what_comes_before(name, dtype):
    case = Case(batch=2, steps=150, width=32, device="cuda")
    assert changed_after(name, triton_form, case, (41, 64, 77, 128), dtype) == []
