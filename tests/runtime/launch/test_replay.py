"""Passes that are replayed: what is done again, with which memory, and what is never replayed."""

import ctypes
import dataclasses
import json
import os
import random
import subprocess
import sys
import threading
import weakref
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from chunkform.generated.lightning_attention import lightning_attention
from chunkform.runtime.launch import cuda_driver as driver
from chunkform.runtime.launch import replay
from chunkform.runtime.launch.launch import launch
from chunkform.runtime.launch.recorder import Launch, Part, Unknown, act, watching
from chunkform.runtime.launch.replay import layouts, placed, replayed

TESTS = Path(__file__).parents[2]


class Kernel:
    """Stands in for a kernel that Triton's interpreter runs: out = factor * x + y, counted."""

    def __init__(self):
        self.runs = 0

    def __getitem__(self, grid):
        def run(out, x, y, factor):
            self.runs += 1
            out.copy_(factor * x if y is None else factor * x + y)

        return run


@pytest.fixture
def kernel(monkeypatch):
    """A kernel; fresh memory is full of NaN."""
    own = replay.room

    def room(*args):
        x = own(*args)
        return x.fill_(255 if x.dtype == torch.uint8 else float("nan"))

    monkeypatch.setattr(replay, "room", room)
    return Kernel()


class Pass:
    """A pass over x and y, counted: what it does is in `body(self, x, y)`."""

    def __init__(self, kernel, body):
        self.kernel, self.body, self.runs, self.known = kernel, body, 0, {}

    def __call__(self, *tensors):
        return replayed(self.known, layouts(tensors), tensors, self.run)[0]

    def run(self, tensors):
        self.runs += 1
        return self.body(self.kernel, *tensors), None

    def times(self, n, *tensors):
        for _ in range(n):
            found = self(*tensors)
        return found


def steps(kernel, x, y):
    """3 (2 x + y) + x, and its sum with y by torch."""
    a, b, c = x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(x.shape)
    launch(kernel, (1,), a, x, y, factor=2)
    launch(kernel, (1,), b, a, None, factor=3)
    launch(kernel, (1,), c, b, x, factor=1)
    return [c, (c + y).sum(-1)]


def numbers(seed=0):
    return torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(seed)).unbind()


def test_the_third_call_is_a_replay_of_the_second(kernel):
    p = Pass(kernel, steps)
    for seed in range(5):
        x, y = numbers(seed)
        found = p(x, y)
        torch.testing.assert_close(found[0], 7 * x + 3 * y)
        torch.testing.assert_close(found[1], (7 * x + 4 * y).sum(-1))
    assert (p.runs, kernel.runs) == (2, 15)


@pytest.mark.parametrize("small", [0, 1 << 21], ids=["large", "small"])
def test_memory_is_shared_or_let_go(kernel, monkeypatch, small):
    monkeypatch.setattr(replay, "SMALL", small)
    p = Pass(kernel, steps)
    x, y = numbers()
    taken, own = [], replay.room
    p.times(2, x, y)

    def room(*args):
        made = own(*args)
        taken.append((weakref.ref(made), made.nbytes, [n for n, (ref, *_) in enumerate(taken) if ref() is not None]))
        return made

    monkeypatch.setattr(replay, "room", room)
    torch.testing.assert_close(p(x, y)[0], 7 * x + 3 * y)
    if small:  # two temporaries in one, and the result
        assert sorted(size for _, size, _ in taken) == [60, 1024]
    else:  # each its own; the first is gone when the third is taken
        assert [size for _, size, _ in taken] == [60] * 3
        assert taken[2][2] == [1]


def test_what_is_in_use_at_once_lies_apart():
    chance = random.Random(0)
    for _ in range(200):
        spans = {}
        for n in range(12):
            first = chance.randrange(10)
            spans[n] = (first, first + chance.randrange(4), chance.choice([0, 1, 500, 512, 513, 4000]))
        places, size = placed(spans)
        assert all(at % replay.ALIGNED == 0 and at + spans[n][2] <= size for n, at in places.items())
        for n, (first, last, length) in spans.items():
            for m, (other, end, much) in spans.items():
                if n < m and first <= end and other <= last and length and much:
                    assert places[n] + length <= places[m] or places[m] + much <= places[n], (spans[n], spans[m])


def test_memory_is_used_again():
    assert placed({n: (n, n + 1, 1000) for n in range(10)})[1] == 2048


def test_one_tensor_given_twice_is_two_arguments(kernel):
    p = Pass(kernel, steps)
    x, y = numbers()
    p.times(3, x, x)
    torch.testing.assert_close(p(x, y)[0], 7 * x + 3 * y)
    both = torch.cat((x, y), 1)
    a, b = both.split(5, 1)
    torch.testing.assert_close(p.times(3, a, b)[0], 7 * x + 3 * y)


def test_other_layouts_are_other_passes(kernel):
    p = Pass(kernel, lambda kernel, x, y: [steps(kernel, x, y)[0], x.new_full((), x.stride(0))])
    x, y = numbers()
    p.times(3, x, y)
    turned = x.T.contiguous().T
    assert [float(p(x, y)[1]), float(p(turned, y)[1])] == [5.0, 1.0]
    shifted = torch.empty(16)[1:].view(3, 5).copy_(x)
    before = p.runs
    p(shifted, y)
    assert p.runs == before + 1


def test_arguments_and_parts_of_tensors_are_results(kernel):
    def body(kernel, x, y):
        a = x.new_empty((2, *x.shape))
        launch(kernel, (1,), a[1], x, y, factor=2)
        launch(kernel, (1,), a[0], a[1], None, factor=1)
        return [a[1], None, y, x[:, 1:]]

    p = Pass(kernel, body)
    for seed in range(4):
        x, y = numbers(seed)
        a, nothing, same, part = p(x, y)
        torch.testing.assert_close(a, 2 * x + y)
        assert nothing is None
        assert same is y
        torch.testing.assert_close(part, x[:, 1:])
    assert p.runs == 2


def test_operations_in_place(kernel):
    def body(kernel, x, y):
        a = x.new_zeros(x.shape)
        launch(kernel, (1,), a, x, y, factor=2)
        a += y
        a[:, 1:].mul_(2)
        return [torch.cat([a, y])]

    p = Pass(kernel, body)
    for seed in range(4):
        x, y = numbers(seed)
        expected = 2 * x + 2 * y
        expected[:, 1:] *= 2
        torch.testing.assert_close(p(x, y)[0], torch.cat([expected, y]))
    assert p.runs == 2


def test_what_may_be_a_view_has_memory_of_its_own_where_it_is_a_copy(kernel):
    def body(kernel, x, y):
        a = x.new_empty((5, 3))
        launch(kernel, (1,), a, x.mT.contiguous(), y.mT.contiguous(), factor=2)
        return [a.contiguous().mT + 0]

    p = Pass(kernel, body)
    for seed in range(4):
        x, y = numbers(seed)
        with torch.inference_mode():  # where `contiguous` is one operation
            found = p(x, y)[0]
        torch.testing.assert_close(found.clone(), 2 * x + y)
    assert p.runs == 2


def test_an_act_is_one_operation_whatever_is_in_it(kernel):
    def double(out, x):
        out.copy_(x.sin() * 0 + 2 * float(x[0, 0]) * torch.ones(3, 5))

    def body(kernel, x, y):
        a, b = x.new_empty(x.shape), x.new_empty(x.shape)
        launch(kernel, (1,), a, x, y, factor=2)
        act(double, b, a)
        launch(kernel, (1,), a, b, y, factor=1)
        return [a]

    p = Pass(kernel, body)
    for seed in range(4):
        x, y = numbers(seed)
        torch.testing.assert_close(p(x, y)[0], 2 * (2 * x + y)[0, 0] + y)
    assert p.runs == 2
    assert watching.act is None


ELSEWHERE = torch.ones(3, 5)


def reads(kernel, x, y):
    return [x * float(y.sum())]


def takes_from_elsewhere(kernel, x, y):
    a = x.new_empty(x.shape)
    launch(kernel, (1,), a, x, ELSEWHERE, factor=2)
    return [a]


def adds_from_elsewhere(kernel, x, y):
    return [x + ELSEWHERE]


def other_dtype(kernel, x, y):
    return [x.view(torch.int32) + 1]


@pytest.mark.parametrize("body", [reads, takes_from_elsewhere, adds_from_elsewhere, other_dtype])
def test_what_is_never_replayed(kernel, body):
    p = Pass(kernel, body)
    for seed in range(4):
        x, y = numbers(seed)
        assert torch.equal(p(x, y)[0], body(kernel, x, y)[0])
    assert p.runs == 4


def test_subclasses_and_onlookers_see_each_pass(kernel):
    class Own(torch.Tensor):
        pass

    p = Pass(kernel, steps)
    x, y = numbers()
    p.times(3, x.as_subclass(Own), y)
    assert p.runs == 3
    p.times(3, x, y)
    before = p.runs
    with FlopCounterMode(display=False):
        p(x, y)
    torch.func.vmap(lambda z: p(x, y)[0] + z)(torch.zeros(2))
    assert p.runs == before + 2


def test_a_second_thread_need_not_wait(kernel):
    p = Pass(kernel, steps)
    x, y = numbers()
    p.times(2, x, y)
    (recorded,) = p.known.values()
    found = []
    with recorded.lock:
        thread = threading.Thread(target=lambda: found.extend(p(x, y)))
        thread.start()
        thread.join(10)
    torch.testing.assert_close(found[0], 7 * x + 3 * y)
    assert p.runs == 3


def test_a_pass_that_raises_is_as_before(kernel):
    def body(kernel, x, y):
        raise ValueError("nothing doing")

    p = Pass(kernel, body)
    for _ in range(4):
        with pytest.raises(ValueError, match="nothing doing"):
            p(*numbers())
    assert watching.note is None


def test_final_states_that_nobody_wants_are_no_results():
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 30, 2, 4).unbind())
    decay = -torch.rand(1, 30, 2)
    o, last = lightning_attention(q, k, v, decay)
    both, final = lightning_attention(q, k, v, decay, output_final_state=True)
    assert last is None
    assert final.shape == (1, 2, 4, 4)
    assert [len(x.grad_fn._input_metadata) for x in (o, both)] == [1, 2]
    for x, y in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (o, both)), strict=True):
        torch.testing.assert_close(x, y)


PLAIN = {"num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": False, "global_scratch_size": 0}
SIGNATURE = {"out": "*fp32", "x": "*bf16", "y": "constexpr", "factor": "fp32", "n": "i64", "WIDTH": "constexpr"}


def compiled(signature=(), **metadata):
    """A launch of a kernel that was compiled for `SIGNATURE`, but for what is given otherwise."""
    made = SimpleNamespace(
        metadata=SimpleNamespace(**PLAIN | metadata),
        src=SimpleNamespace(signature=SIGNATURE | dict(signature)),
        function=0,
    )
    x = Part(0, 0, (3,), (1,), torch.float32)
    kernel = SimpleNamespace(arg_names=list(SIGNATURE))
    return Launch(kernel, made, (1,), (x, x, None, 0.5, 2**40), {"WIDTH": 16, "num_warps": 4})


def test_parameters_of_a_compiled_kernel(monkeypatch):
    sizes = []
    monkeypatch.setattr(driver, "check", lambda function, found: sizes.append(found))
    found = driver.parameters(compiled())
    assert [kind for kind, _ in found] == ["@Q", "@Q", "@f", "@q", "@Q", "@Q"]
    assert [x for _, x in found[2:]] == [0.5, 2**40, 0, 0]
    assert sizes == [[8, 8, 4, 8]]


def test_the_memory_that_a_kernel_takes_for_itself_is_among_its_parameters(monkeypatch):
    monkeypatch.setattr(driver, "check", lambda function, found: None)
    room = Part(7, 0, (64,), (1,), torch.int8)
    launched = dataclasses.replace(compiled(global_scratch_size=64), scratch=(room,))
    assert [x for _, x in driver.parameters(launched)[-2:]] == [room, 0]
    assert room.slot in launched.slots
    with pytest.raises(Unknown):
        driver.parameters(dataclasses.replace(compiled(), scratch=(room,)))


@pytest.mark.parametrize(
    "other",
    [
        {"num_ctas": 2},
        {"launch_cooperative_grid": True},
        {"global_scratch_size": 64},
        {"signature": {"x": "tensordesc<bf16[64, 64]>"}},
        {"signature": {"x": "i64"}},
        {"signature": {"factor": "*fp32"}},
    ],
)
def test_kernels_that_are_launched_in_another_way_are_not_replayed(monkeypatch, other):
    monkeypatch.setattr(driver, "check", lambda function, found: None)
    with pytest.raises(Unknown):
        driver.parameters(compiled(**other))


class Driver:
    """Stands in for CUDA's: `launched` has a stream and what each kernel was given, `calls` counts what was asked for."""

    def __init__(self):
        self.launched, self.calls, self.nodes, self.stuck, self.mode = [], Counter(), {}, (), 0

    def __getattr__(self, name):
        def call(*given):
            self.calls[name] += 1
            return 1 if name in self.stuck else getattr(type(self), f"_{name}", lambda *_: 0)(self, *given)

        return call

    def _cuLaunchKernelEx(self, config, function, values, _):
        self.launched.append(
            (driver.CONFIG.unpack(ctypes.string_at(config, driver.CONFIG.size))[7], self._read(values))
        )
        return 0

    def _cuGraphAddKernelNode_v2(self, node, graph, before, count, values):
        assert count == min(len(self.nodes), 1)
        ctypes.c_void_p.from_address(node).value = len(self.nodes) + 1
        return self._cuGraphExecKernelNodeSetParams_v2(None, len(self.nodes) + 1, values)

    def _cuGraphExecKernelNodeSetParams_v2(self, executable, node, values):
        _, *grid_and_more = driver.NODE.unpack(ctypes.string_at(values, driver.NODE.size))
        assert grid_and_more[:7] == [3, 1, 1, 128, 1, 1, 0]
        self.nodes[node] = self._read(grid_and_more[7])
        return 0

    def _cuThreadExchangeStreamCaptureMode(self, mode):
        mode._obj.value, self.mode = self.mode, mode._obj.value
        return 0

    def _cuGraphInstantiateWithFlags(self, executable, graph, flags):
        assert self.mode == driver.RELAXED
        return 0

    def _cuGraphLaunch(self, executable, stream):
        assert self.mode == 0
        self.launched += [(stream, self.nodes[n]) for n in sorted(self.nodes)]
        return 0

    @staticmethod
    def _read(values):
        kinds = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float, ctypes.c_int64)
        at = (ctypes.c_void_p * len(kinds)).from_address(values)
        return tuple(kind.from_address(x).value for kind, x in zip(kinds, at, strict=True))


@pytest.fixture
def gpu(monkeypatch):
    """Two launches of a compiled kernel, from slot 0 to 1 and on to 2, and what stands in for the driver and torch's streams."""
    now = SimpleNamespace(driver=Driver(), stream=0, captured=False)
    monkeypatch.setattr(driver, "libcuda", lambda: now.driver)
    monkeypatch.setattr(driver, "check", lambda function, found: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: now.stream, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: now.captured, raising=False)
    one = compiled(num_warps=4, shared=0)
    parts = [Part(n, 0, (3,), (1,), torch.float32) for n in range(3)]
    now.launches = [dataclasses.replace(one, grid=(3,), args=(y, x, *one.args[2:])) for x, y in pairwise(parts)]
    return now


def launched(gpu, kernels):
    """Launch for new tensors: what was launched, and what should have been."""
    slots = [torch.empty(3) for _ in range(3)]
    gpu.driver.launched.clear()
    kernels(slots)
    return gpu.driver.launched, [(gpu.stream, (y.data_ptr(), x.data_ptr(), 0.5, 2**40)) for x, y in pairwise(slots)]


def test_kernels_are_launched_by_a_graph_from_the_second_time_on(gpu):
    kernels = driver.Kernels(gpu.launches, {}, torch.device("cuda", 0))
    for n in range(4):
        got, expected = launched(gpu, kernels)
        assert got == expected
        assert (gpu.driver.calls["cuLaunchKernelEx"], gpu.driver.calls["cuGraphLaunch"]) == (2, n)


def test_parameters_are_set_where_addresses_are_others(gpu):
    kernels = driver.Kernels(gpu.launches, {}, torch.device("cuda", 0))
    slots = [torch.empty(3) for _ in range(3)]
    for _ in range(4):
        kernels(slots)
    assert gpu.driver.calls["cuGraphExecKernelNodeSetParams_v2"] == 0
    kernels(slots[::-1])
    assert gpu.driver.calls["cuGraphExecKernelNodeSetParams_v2"] == 2
    assert [x[0] for _, x in gpu.driver.launched[-2:]] == [x.data_ptr() for x in slots[1::-1]]


def test_other_streams_and_captures_have_launches_of_their_own(gpu):
    kernels = driver.Kernels(gpu.launches, {}, torch.device("cuda", 0))
    graphs = []
    for stream, captured in ((7, True), (7, False), (8, False), (7, False), (7, True), (8, True), (7, False)):
        gpu.stream, gpu.captured = stream, captured
        got, expected = launched(gpu, kernels)
        assert got == expected
        graphs.append(gpu.driver.calls["cuGraphLaunch"])
    assert graphs == [0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("stuck", ["cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags"])
def test_without_a_graph_each_kernel_is_launched(gpu, stuck):
    gpu.driver.stuck = (stuck,)
    kernels = driver.Kernels(gpu.launches, {}, torch.device("cuda", 0))
    for _ in range(3):
        got, expected = launched(gpu, kernels)
        assert got == expected
    assert gpu.driver.calls[stuck] == 1
    assert gpu.driver.calls["cuGraphLaunch"] == 0


def test_a_graph_goes_with_its_launches(gpu):
    kernels = driver.Kernels(gpu.launches, {}, torch.device("cuda", 0))
    launched(gpu, kernels)
    del kernels
    assert (gpu.driver.calls["cuGraphExecDestroy"], gpu.driver.calls["cuGraphDestroy"]) == (1, 1)


@pytest.mark.parametrize("stuck", ["cuLaunchKernelEx", "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch"])
def test_a_launch_that_fails_is_an_error(gpu, stuck):
    kernels = driver.Kernels(gpu.launches, {}, torch.device("cuda", 0))
    launched(gpu, kernels)
    gpu.driver.stuck = (stuck,)
    if stuck == "cuLaunchKernelEx":
        gpu.stream = 7
    with pytest.raises(RuntimeError, match="a Triton kernel wasn't launched"):
        launched(gpu, kernels)


@pytest.mark.long
def test_generated_ops_give_the_same_bits():
    """Under the interpreter, with fresh memory full of NaN; see `replays.py`."""
    environment = os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "replays.py")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads(ran.stdout) == {}
