"""The decoding step on a GPU: against the oracle, after a prefill by the op, in a CUDA graph, and its bandwidth."""

import contextlib
import importlib
from collections import Counter

import pytest
import torch
from shared.step_calls import arguments, at, grouped, part, step_of

from chunkform.codegen.checking.accuracy import AMPLIFIED, relative_error
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.oracle import oracle
from chunkform.runtime.op import row_kernels
from chunkform.runtime.op.small_states import DTYPES, LARGEST, SmallPool, small
from chunkform.spec.language import Recurrence, catalogue

NAMES = [r.name for r in catalogue() if isinstance(r, Recurrence)]
SIZES = dict.fromkeys("demn", 64)
ODD = {"d": 40, "e": 24, "m": 24, "n": 40}
BOUND = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def op(name: str):
    return getattr(importlib.import_module(f"chunkform.generated.{name}"), name)


def listed(x):
    return x if isinstance(x, tuple) else (x,)


@contextlib.contextmanager
def kernels_seen():
    """How often each kernel runs meanwhile, by its name."""
    found: Counter[str] = Counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        yield found
        torch.cuda.synchronize()
    found.update({x.key: x.count for x in seen.key_averages() if "kernel" in x.key and not x.key.startswith("cu")})


def error(found: torch.Tensor, value: torch.Tensor) -> float:
    return relative_error(found, value, 1)


def on_gpu(tensors: dict) -> dict:
    return {n: x.cuda() for n, x in tensors.items()}


def expected(name: str, tensors: dict, constants: dict, heads: int, dtype: torch.dtype = torch.float64):
    """(outputs, finals) of all steps, by the oracle."""
    given = {}
    for v in step_of(name).variables:
        if v.kind != "constant":
            x = tensors[("log_" if v.is_decay else "") + v.name]
            axis = 2 if v.per_step else 0
            given[v.name] = x.repeat_interleave(heads // x.shape[axis], axis)
    c = Compiled(None, step_of(name), None, "")  # type: ignore[arg-type]
    return oracle(c, given, {}, constants, dtype=dtype)[:2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("name", NAMES)
def test_steps_agree_with_the_oracle(name, dtype):
    """The state is in the inputs' dtype too, and is rounded at each step."""
    steps, heads, sizes = 6, 4, ODD if dtype == torch.float16 else SIZES
    tensors, constants = arguments(name, 3, steps, heads, sizes, dtype)
    tensors = on_gpu(grouped(name, tensors, heads) if dtype == torch.float32 else tensors)
    outputs, finals = expected(name, tensors, constants, heads)
    state = None
    worst = 0.0
    with torch.no_grad():
        for t in range(steps):
            *found, state = op(name).step(
                state, **at(name, tensors, t), **constants, state_dtype=dtype, inplace=t % 2 == 1
            )
            worst = max([worst, *(error(o, x[:, t]) for o, x in zip(found, outputs.values(), strict=True))])
    worst = max([worst, *(error(s, x) for s, x in zip(listed(state), finals.values(), strict=True))])
    if worst > BOUND[dtype]:  # ill-conditioned: what rounding makes of the definition
        rounded = expected(name, tensors, constants, heads, torch.float32)
        amplified = max(error(rounded[0][n], x) for n, x in outputs.items()) * BOUND[dtype] / 1e-6
        assert worst <= AMPLIFIED * amplified, (worst, amplified)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_pool_and_drafts_from_them(name, dtype):
    """A step in a pool has the bits of one outside; drafts and what is taken over of them are what steps give."""
    tensors, constants = arguments(name, 4, 3, 4, SIZES, dtype)
    tensors, call = on_gpu(tensors), op(name)
    rows = torch.tensor([5, -1, 2, 0], device="cuda", dtype=torch.int32)
    *_, start = call.step(None, **at(name, tensors, 0), **constants, state_dtype=dtype)
    pool = [x[torch.tensor([0, 1, 2, 3, 0, 2, 1])].clone() for x in listed(start)]
    states, wanted = [[x.clone() for x in pool]], []
    for t in range(3):
        now = states[-1]
        *outputs, after = call.step(
            tuple(x[rows.clamp(min=0)] for x in now), **at(name, tensors, t), **constants, inplace=True
        )
        following = [x.clone() for x in now]
        *found, _ = call.step(tuple(following), **at(name, tensors, t), **constants, state_indices=rows)
        for o, x in zip(found, outputs, strict=True):
            assert torch.equal(o[[0, 2, 3]], x[[0, 2, 3]]) and not o[1].any()
        for x, y, before in zip(following, listed(after), now, strict=True):
            assert torch.equal(x[[5, 2, 0]], y[[0, 2, 3]]) and torch.equal(x[[1, 3, 4, 6]], before[[1, 3, 4, 6]])
        states.append(following)
        wanted.append(outputs)
    for keep in ("replay", "copies"):
        drafted = [x.clone() for x in pool]
        *found, drafts = call.draft(tuple(drafted), **tensors, **constants, state_indices=rows, keep=keep)
        assert all(torch.equal(x, y) for x, y in zip(drafted, pool, strict=True))
        for t in range(3):
            for o, x in zip(found, wanted[t], strict=True):
                assert error(o[[0, 2, 3], t], x[[0, 2, 3]]) < BOUND[dtype]
        call.commit(drafts, torch.tensor([2, 3, 0, 3], device="cuda"))
        for i, x in enumerate(drafted):
            for row, n in ((5, 2), (2, 0), (0, 3)):
                assert error(x[row], states[n][i][row]) < BOUND[dtype]
            assert torch.equal(x[[1, 3, 4, 6]], pool[i][[1, 3, 4, 6]])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("name", ["gated_delta_rule", "gradient_descent_squared_momentum"])
def test_rows_of_small_pools_are_moved_by_kernels_as_by_torch(name, dtype, monkeypatch):
    """A prefill, drafts and their commit, with rows read and written by a kernel each, and by torch."""
    tensors, constants = arguments(name, 4, 3, 4, SIZES)
    tensors, call = on_gpu(tensors), op(name)
    rows, accepted = torch.tensor([5, -1, 2, 0], device="cuda"), torch.tensor([2, 3, 0, 3], device="cuda")
    found = []
    for on in (True, False):
        monkeypatch.setattr(row_kernels, "on_kernels", lambda pool, on=on: on)
        pool = SmallPool.zeros(call, 7, 4, SIZES, dtype, "cuda", stochastic=False)
        with kernels_seen() as seen:
            *first, _ = call(**tensors, **constants, state_pool=pool, state_indices=rows)
            *outputs, drafts = call.draft(pool, **tensors, **constants, state_indices=rows)
            call.commit(drafts, accepted)
        states = len(pool.states)
        assert (seen["read_kernel"], seen["write_kernel"]) == (2 * states * on, 2 * states * on)
        found.append((first, outputs, pool.read(torch.arange(7, device="cuda"))))
    bound = {torch.int8: 2 / 127, torch.float8_e4m3fn: 1 / 8, torch.bfloat16: 1 / 128}[dtype]
    for x, y in zip(found[0][0], found[1][0], strict=True):
        assert torch.equal(x, y)
    for x, y in zip(found[0][1] + found[0][2], found[1][1] + found[1][2], strict=True):
        assert error(x, y) < 0.1 * bound and (x - y).abs().max() <= bound * y.abs().max()


@pytest.mark.parametrize("dtype", list(LARGEST), ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("name", [n for n in NAMES if op(n).step.__globals__["OP"].step.kernel.scaled])
def test_a_step_between_rows_of_small_numbers(name, dtype):
    """One kernel reads and rounds them: outputs are those of the states that the rows stand for; to the nearest, numbers are
    those that torch rounds the states after the step to, but where these lie between two; and at random they are neighbours."""
    tensors, constants = arguments(name, 4, 1, 4, SIZES)
    now, call = at(name, on_gpu(tensors), 0), op(name)
    rows = torch.tensor([5, -1, 2, 0], device="cuda", dtype=torch.int32)
    real, others = [0, 2, 3], [1, 3, 4, 6]
    *_, start = call.step(None, **now, **constants)
    every = torch.arange(7, device="cuda")
    for stochastic in (False, True):
        pool = SmallPool.zeros(call, 7, 4, SIZES, dtype, "cuda", stochastic)
        pool.write(every, [x[torch.tensor([0, 1, 2, 3, 0, 2, 1])] for x in listed(start)])
        before, own = pool.read(every), pool.read(rows)
        *wanted, after = call.step(tuple(own), **now, **constants)
        with kernels_seen() as seen:
            *found, _ = call.step(pool, **now, **constants, state_indices=rows)
        assert seen["step_kernel"] == 1 and seen.total() <= 1 + len(found), seen  # and what fills outputs with zeros
        assert all(error(x[real], y[real]) < 1e-5 and not x[1].any() for x, y in zip(found, wanted, strict=True))
        for s, x, y, z in zip(pool.states, pool.read(every), listed(after), before, strict=True):
            assert torch.equal(x[others], z[others])
            numbers, scales = small(y, s.numbers.dtype, False)
            if scales is None:
                assert error(x[[5, 2, 0]], y[real]) < 1e-5
                continue
            assert error(s.scales[[5, 2, 0]], scales[real]) < 1e-5
            places = [z[i].view(torch.int8).int() for z, i in ((s.numbers, [5, 2, 0]), (numbers, real))]
            far = (places[0] - places[1]).abs()  # neighbours of float8 are one apart as integers, too
            crossing = (s.numbers[[5, 2, 0]].float() * numbers[real].float()) <= 0
            assert ((far <= 1) | crossing).all() and (stochastic or (far > 0).float().mean() < 1e-3)


@pytest.mark.parametrize("inplace", [True, False])
def test_a_wide_state_is_taken_by_rows(inplace):
    name, sizes = "sherman_morrison", {"d": 256}
    tensors, _ = arguments(name, 2, 4, 3, sizes)
    tensors = on_gpu(tensors)
    outputs, finals = expected(name, tensors, {}, 3)
    state = None
    for t in range(4):
        o, state = op(name).step(state, **at(name, tensors, t), inplace=inplace)
        assert error(o, outputs["o"][:, t]) < 1e-5
    assert error(state, finals["S"]) < 1e-5


@pytest.mark.parametrize("name", ["lightning_attention", "gated_delta_rule", "sherman_morrison"])
def test_prefill_then_steps_equals_the_whole(name):
    tensors, constants = arguments(name, 2, 100, 4, SIZES)
    tensors = on_gpu(tensors)
    *whole, last = op(name)(**tensors, **constants, output_final_state=True)
    *_, state = op(name)(**part(name, tensors, slice(0, 90)), **constants, output_final_state=True)
    for t in range(90, 100):
        *outputs, state = op(name).step(state, **at(name, tensors, t), **constants)
        assert all(error(o, x[:, t]) < 2e-3 for o, x in zip(outputs, whole, strict=True))
    assert error(state, last) < 2e-3


def test_a_step_replays_in_a_cuda_graph():
    name = "gated_delta_rule"
    tensors, _ = arguments(name, 2, 8, 4, SIZES)
    tensors = on_gpu(tensors)
    now = {n: x.clone() for n, x in at(name, tensors, 0).items()}
    o, state = op(name).step(None, **now)
    op(name).step(state, **now, inplace=True, out=o)
    state.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(name).step(state, **now, inplace=True, out=o)
    state.zero_()
    outputs, finals = expected(name, tensors, {}, 4)
    for t in range(8):
        for n, x in at(name, tensors, t).items():
            now[n].copy_(x)
        graph.replay()
        assert error(o, outputs["o"][:, t]) < 1e-5
    assert error(state, finals["S"]) < 1e-5


def test_steps_are_bit_equal_when_run_twice_and_other_sequences_do_not_matter():
    name = "kimi_delta_attention"
    tensors, _ = arguments(name, 5, 1, 4, SIZES, torch.bfloat16)
    now = at(name, on_gpu(tensors), 0)
    state = torch.randn(5, 4, 64, 64, device="cuda")
    first, second = op(name).step(state, **now), op(name).step(state, **now)
    alone = op(name).step(state[2:3], **{n: x[2:3] for n, x in now.items()})
    for x, y, z in zip(first, second, alone, strict=True):
        assert torch.equal(x, y)
        assert error(z[0], x[2]) < 4e-3  # other tiles, another order of sums


def test_no_memory_is_allocated_on_the_hot_path():
    name = "lightning_attention"
    tensors, _ = arguments(name, 4, 1, 4, SIZES, torch.bfloat16)
    now = at(name, on_gpu(tensors), 0)
    o, state = op(name).step(None, **now)
    op(name).step(state, **now, inplace=True, out=o)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    op(name).step(state, **now, inplace=True, out=o)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.alone
def test_the_state_moves_at_70_percent_of_the_copy_rate():
    from benchmarks.decode import copy_rate, measure

    row = measure("lightning_attention", 64, 16, 128, torch.bfloat16, copy_rate())
    assert row.of_copy_rate >= 0.7, row
