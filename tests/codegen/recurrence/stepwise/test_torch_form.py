"""The step-by-step torch form agrees with the float64 oracle, whatever the step program."""

import importlib.util

import pytest
import torch
from shared.recurrent_programs import arguments, compare, compiled, printed, specs

from chunkform.codegen.recurrence.emit import emit

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


@pytest.mark.parametrize("name", ["kimi_delta_attention", "retention"])
def test_agrees_with_the_chunk_parallel_form(modules, name, tmp_path) -> None:
    """An affine recurrence may be forced through the sequential path: both forms are one function."""
    c, module = modules(name)
    assert c.family == "chunk-parallel"
    file = tmp_path / f"chunked_{name}.py"
    file.write_text(emit(c, tidy=False))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    chunked = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chunked)
    given, states, constants, cotangents, finals = arguments(c, 2, 70, 2, SIZES, dtype=torch.float64)
    results = []
    for form in (module, chunked):
        outputs, last, saved = form.torch_forward(given, states, constants)
        needs = frozenset({*given, *states})
        results.append(
            (outputs, last, *form.torch_backward(given, states, constants, saved, cotangents, finals, needs))
        )
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


def test_an_initial_state_made_of_parameters_hands_its_gradient_on(modules) -> None:
    c, module = modules("tanh_layer")
    args = arguments(c, 2, 3, 2, SIZES, dtype=torch.float64, start=False)
    compare(c, module.torch_forward, module.torch_backward, args, 1e-12)


def test_gradients_that_do_not_come_in_count_as_zeros(modules) -> None:
    c, module = modules("momentum")
    given, states, constants, _, _ = arguments(c, 2, 4, 2, SIZES)
    _, _, saved = module.torch_forward(given, states, constants)
    gradients, initial = module.torch_backward(given, states, constants, saved, {}, {"S": None}, frozenset({"q", "M"}))
    assert set(gradients) == {"q"} and set(initial) == {"M"}
    assert not gradients["q"].any() and not initial["M"].any()
