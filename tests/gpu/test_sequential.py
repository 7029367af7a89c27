"""The step-by-step Triton kernels on a GPU: every pass against the float64 oracle, and bit-equal when run twice."""

import pytest
import torch
from shared.recurrent_programs import arguments, compare, compiled, printed, specs

from chunkform.runtime.launch.varlen import Packed

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


@pytest.mark.parametrize("name", ["sherman_morrison", "two_sided"])
@pytest.mark.parametrize("size", [200, 256])
def test_wide_states_are_taken_by_rows(modules, name, size) -> None:
    c, module = modules(name)
    args = on_gpu(
        arguments(c, 2, 20, 3, dict.fromkeys("demn", size)), torch.float32, {v.name: v.kind for v in c.step.variables}
    )
    compare(c, module.triton_forward, module.triton_backward, args, 2e-5)


@pytest.mark.parametrize(("name", "size"), [("sherman_morrison", 64), ("sherman_morrison", 256), ("channels", 64)])
def test_packed_sequences_and_head_groups(modules, name, size) -> None:
    """Sequences one after the other, with fewer heads in some arguments, give what each gives alone with repeated heads."""
    c, module = modules(name)
    kinds = {v.name: v.kind for v in c.step.variables}
    lengths, heads, sizes = [20, 0, 37, 1], 4, dict.fromkeys("demn", size)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    given, _, constants, cotangents, _ = on_gpu(arguments(c, 1, sum(lengths), heads, sizes), torch.float32, kinds)
    _, states, _, _, finals = on_gpu(arguments(c, len(lengths), 1, heads, sizes), torch.float32, kinds)
    axis = {v.name: 2 if v.per_step else 0 for v in c.step.variables}
    few = {n: x.narrow(axis[n], 0, (4, 2, 1)[i % 3]) for i, (n, x) in enumerate(given.items())}
    full = {n: x.repeat_interleave(heads // x.shape[axis[n]], axis[n]) for n, x in few.items()}
    together = Packed(starts.cuda(), len(lengths), sum(lengths))
    needs = frozenset({*given, *states})
    outputs, last, saved = module.triton_forward(few, states, constants, together)
    gradients, initial = module.triton_backward(few, states, constants, saved, cotangents, finals, needs, together)
    for n in range(len(lengths)):
        own = slice(int(starts[n]), int(starts[n + 1]))
        alone = {k: x[:, own] if axis[k] else x for k, x in full.items()}
        some = {k: x[n : n + 1] for k, x in states.items()}
        out, end, kept = module.triton_forward(alone, some, constants)
        incoming = {k: x[:, own] for k, x in cotangents.items()}
        ends = {k: x[n : n + 1] for k, x in finals.items()}
        grads, first = module.triton_backward(alone, some, constants, kept, incoming, ends, needs)
        pairs = [(outputs[k][:, own], x) for k, x in out.items()] + [(last[k][n : n + 1], x) for k, x in end.items()]
        pairs += [(gradients[k][:, own], x) for k, x in grads.items() if axis[k]]
        pairs += [(initial[k][n : n + 1], x) for k, x in first.items()]
        for found, value in pairs:
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)


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
