"""Prefill by the op, then steps, equals the op on the whole; for every op, in torch."""

import pytest
import torch
from shared.step_calls import SIZES, arguments, at, op, part, recurrences
from shared.structures import sweep

from chunkform.codegen.checking.accuracy import relative_error

NAMES = sweep(recurrences())
EXACT = {"inverse_attention_unstable": 1e-3}  # its states grow, and with them the rounding


def error(found: torch.Tensor, value: torch.Tensor) -> float:
    return relative_error(found, value, 1)


@pytest.mark.parametrize("name", NAMES)
def test_prefill_then_steps_equals_the_whole(name) -> None:
    tensors, constants = arguments(name, 2, 9, 3, SIZES)
    call = op(name)
    *whole, last = call(**tensors, **constants, output_final_state=True)
    *_, state = call(**part(name, tensors, slice(0, 5)), **constants, output_final_state=True)
    for t in range(5, 9):
        *outputs, state = call.step(state, **at(name, tensors, t), **constants)
        for o, x in zip(outputs, whole, strict=True):
            assert o.dtype == x.dtype and o.shape == x[:, t].shape
            assert error(o, x[:, t]) < EXACT.get(name, 2e-5)
    for s, x in zip(state if isinstance(state, tuple) else (state,), last if isinstance(last, tuple) else (last,)):
        assert s.dtype == torch.float32 and error(s, x) < EXACT.get(name, 2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_starts_from_the_specs_own_state(name) -> None:
    tensors, constants = arguments(name, 2, 3, 2, SIZES)
    *whole, _ = op(name)(**tensors, **constants)
    state = None
    for t in range(3):
        *outputs, state = op(name).step(state, **at(name, tensors, t), **constants, inplace=True)
    for o, x in zip(outputs, whole, strict=True):
        assert error(o, x[:, 2]) < EXACT.get(name, 2e-5)
