"""The step-by-step Triton kernels on a GPU: every pass against the float64 oracle, and bit-equal when run twice."""

import pytest
import torch
from sequential.programs import arguments, compare, compiled, printed, specs

WHOLE = dict.fromkeys("demn", 64)
CASES = [
    (WHOLE, torch.float32, 2e-5),
    ({"d": 48, "e": 20, "m": 20, "n": 48}, torch.float32, 2e-5),
    (dict.fromkeys("demn", 128), torch.bfloat16, 1e-2),
    ({"d": 20, "e": 48, "m": 48, "n": 20}, torch.float16, 2e-3),
]


def on_gpu(args: tuple, dtype: torch.dtype, kinds: dict) -> tuple:
    given, states, constants, cotangents, finals = args
    given = {n: x.cuda().to(dtype if kinds[n] == "input" else torch.float32) for n, x in given.items()}
    states = {n: x if x is None else x.cuda() for n, x in states.items()}
    return (
        given,
        states,
        constants,
        {n: x.cuda().to(dtype) for n, x in cotangents.items()},
        {n: x.cuda() for n, x in finals.items()},
    )


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    folder, known = tmp_path_factory.mktemp("printed"), {}

    def get(name):
        if name not in known:
            c = compiled(name)
            known[name] = (c, printed(c, folder, triton=True))
        return known[name]

    return get


def small(name: str, sizes: dict) -> bool:
    return name == "everything" and sizes["d"] > 48  # it multiplies matrices without tensor cores


@pytest.mark.parametrize("name", list(specs()))
@pytest.mark.parametrize("sizes, dtype, tolerance", CASES)
def test_agrees_with_the_oracle(modules, name, sizes, dtype, tolerance) -> None:
    if small(name, sizes):
        pytest.skip("too large for this recurrence")
    c, module = modules(name)
    kinds = {v.name: v.kind for v in c.step.variables}
    for steps in (1, 50):
        args = on_gpu(arguments(c, 2, steps, 3, sizes), dtype, kinds)
        compare(c, module.triton_forward, module.triton_backward, args, tolerance)


@pytest.mark.parametrize("name", ["sherman_morrison", "gradient_descent_logistic", "channels"])
def test_runs_are_bit_equal(modules, name) -> None:
    c, module = modules(name)
    kinds = {v.name: v.kind for v in c.step.variables}
    given, states, constants, cotangents, finals = on_gpu(arguments(c, 2, 70, 4, WHOLE), torch.float32, kinds)
    runs = []
    for _ in range(2):
        outputs, last, saved = module.triton_forward(given, states, constants)
        needs = frozenset({*given, *states})
        gradients, initial = module.triton_backward(given, states, constants, saved, cotangents, finals, needs)
        runs.append([*outputs.values(), *last.values(), *gradients.values(), *initial.values()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_more_batch_entries_and_heads_than_a_grid_is_high(modules) -> None:
    c, module = modules("running_maximum")
    args = on_gpu(arguments(c, 300, 3, 300, {}), torch.float32, {v.name: v.kind for v in c.step.variables})
    compare(c, module.triton_forward, module.triton_backward, args, 2e-5)
