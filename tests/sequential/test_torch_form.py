"""The step-by-step torch form agrees with the float64 oracle, whatever the step program."""

import pytest
import torch
from sequential.programs import arguments, compare, compiled, printed, specs

NAMES = list(specs())
SIZES = {"d": 5, "e": 3, "m": 3, "n": 5}


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    folder, known = tmp_path_factory.mktemp("printed"), {}

    def get(name):
        if name not in known:
            c = compiled(name)
            known[name] = (c, printed(c, folder))
        return known[name]

    return get


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 11])
def test_agrees_with_the_oracle(modules, name, steps) -> None:
    c, module = modules(name)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        args = arguments(c, 2, steps, 3, SIZES, dtype=dtype)
        compare(c, module.torch_forward, module.torch_backward, args, tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_no_steps_hand_the_states_through(modules, name) -> None:
    c, module = modules(name)
    args = arguments(c, 2, 0, 3, SIZES)
    compare(c, module.torch_forward, module.torch_backward, args, 1e-6)
