"""Kernels of a pass are compiled side by side before its first run, and are not launched meanwhile."""

import threading
from types import SimpleNamespace

import pytest
import torch

from chunkform.generated import lightning_attention, softmax_attention
from chunkform.runtime.attention import passes as attention_passes
from chunkform.runtime.launch import parallel_compile as compiling
from chunkform.runtime.launch import replay
from chunkform.runtime.launch.launch import launch
from chunkform.runtime.launch.recorder import watching
from chunkform.runtime.op import autograd
from chunkform.runtime.op import passes as op_passes

CUDA = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, shape=(1,), data_ptr=lambda: 0)


class Kernel:
    """Stands for one of Triton's, which needs a GPU."""

    def __init__(self, broken: bool = False) -> None:
        self.broken, self.compiled, self.launched = broken, [], []

    def warmup(self, *args, grid, **options):
        if self.broken:
            raise RuntimeError("it can't be compiled")
        self.compiled.append((args, grid, options))

    def __getitem__(self, grid):
        return lambda *args, **options: self.launched.append((args, grid, options))


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(compiling, "SEEN", set())


def test_each_kind_is_compiled_once_and_nothing_is_launched():
    kernel, x = Kernel(), torch.zeros(4)

    def run():
        launch(kernel, (1,), x, 3, C=16)
        launch(kernel, (2,), x, 5, C=16)  # as the one before, for the compiler
        launch(kernel, (1,), x, 3, C=32)
        launch(kernel, (0,), x, 3, C=64)  # an empty grid

    assert compiling.compile_ahead(run) == 2
    assert {options["C"] for _, _, options in kernel.compiled} == {16, 32}
    assert kernel.launched == []
    assert watching.instead is None


def test_what_cannot_be_compiled_is_left_for_its_launch():
    x = torch.zeros(4)
    assert compiling.compile_ahead(lambda: launch(Kernel(broken=True), (1,), x)) == 0


def test_a_pass_is_compiled_ahead_of_its_first_run_for_each_kind_of_tensors():
    def tensor(dtype, *shape):
        return SimpleNamespace(device=torch.device("cuda"), dtype=dtype, shape=shape, data_ptr=lambda: 64)

    kernel, x, runs, followed = Kernel(), torch.zeros(4), [], []

    def run(tensors):
        runs.append(tensors)
        launch(kernel, (1,), x)
        return len(runs)

    given = (tensor(torch.float32, 1, 64, 2, 16), None)
    compiling.compile_first("op", given, run, followed.append)
    compiling.compile_first("op", (tensor(torch.float32, 3, 128, 2, 16), None), run)  # other steps: the same kernels
    assert len(runs) == 1
    assert len(kernel.compiled) == 1
    compiling.compile_first("op", (tensor(torch.bfloat16, 1, 64, 2, 16), None), run)
    compiling.compile_first("another", given, run)
    assert len(runs) == 3
    assert followed == [1]
    assert kernel.launched == []


def test_what_a_pass_raises_when_its_kernels_are_not_launched_means_nothing():
    kernel, x = Kernel(), torch.zeros(4)

    def run(tensors):
        launch(kernel, (1,), x)
        raise ValueError("what is computed then means nothing")

    compiling.compile_first("op", (CUDA, None), run)
    assert len(kernel.compiled) == 1


class Slow(Kernel):
    """Takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def warmup(self, *args, grid, **options):
        self.go.wait(20)
        super().warmup(*args, grid=grid, **options)


def test_what_follows_is_compiled_behind_a_pass_and_is_waited_for_by_who_needs_it():
    first, slow, x, results = Kernel(), Slow(), torch.zeros(4), []

    def follows(result):
        results.append(result)
        launch(slow, (1,), x)
        raise ValueError("what is computed then means nothing")

    def run():
        launch(first, (1,), x)
        return "result"

    assert compiling.compile_ahead(run, then=follows) == 1
    assert results == ["result"]
    assert (len(first.compiled), len(slow.compiled)) == (1, 0)
    threading.Timer(0.05, slow.go.set).start()
    assert compiling.compile_ahead(lambda: launch(slow, (1,), x)) == 1
    assert len(slow.compiled) == 1  # once for both
    assert all(arg.device.type == "meta" for arg in slow.compiled[0][0])  # and nobody's memory was held meanwhile


def test_what_a_kernel_loads_with_is_asked_for_as_it_is_compiled():
    asked = []

    class Made:
        run = property(asked.append)

    class Loading(Kernel):
        def warmup(self, *args, grid, **options):
            return Made()

    compiling.compile_ahead(lambda: launch(Loading(), (1,), torch.zeros(4)))
    assert len(asked) == 1


def test_nothing_is_compiled_ahead_on_a_cpu_or_in_a_graph(monkeypatch):
    runs = []
    compiling.compile_first("op", (torch.zeros(1, 4, 2, 8),), runs.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    compiling.compile_first("op", (CUDA,), runs.append)
    assert runs == []


def test_no_pass_is_recorded_while_launches_are_noted(monkeypatch):
    x, known = torch.zeros(1, 4, 2, 8), {"forward": replay.SEEN}
    kernel = Kernel()

    def run(tensors):
        launch(kernel, (1,), x)
        return [x], None

    compiling.compile_ahead(lambda: replay.replayed(known, "forward", [x], run))
    assert known == {"forward": replay.SEEN}


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_the_backward_pass_that_will_follow_is_known_with_the_forward_pass(monkeypatch, recompute):
    passes = []

    def replayed(known, key, tensors, run, owner=None, then=None):
        found = run(tensors)
        if then is not None:
            then(found)
        return found

    def backward_pass(*given):
        passes.append(given[1:2] + given[3:])  # the arguments, which cotangents there are, what is wanted
        return backward(*given)

    backward = op_passes.backward_pass
    monkeypatch.setattr(autograd, "replayed", replayed)
    monkeypatch.setattr(op_passes, "backward_pass", backward_pass)
    x = torch.randn(1, 5, 2, 4)
    q, k, v, log_alpha = x.clone().requires_grad_(), x, x.clone().requires_grad_(), -x[..., 0].abs()
    out, _ = lightning_attention(q, k, v, log_alpha, recompute=recompute)
    assert len(passes) == 1
    out.sum().backward()
    (foreseen, cotangents, wanted), (arguments, incoming, asked) = passes
    assert all(a is b for a, b in zip(foreseen, arguments, strict=True))
    assert [x is None for x in cotangents] == [x is None for x in incoming] == [False, True]
    assert wanted == asked
    lightning_attention(q, k, v, log_alpha.requires_grad_(False), recompute=recompute)
    with torch.no_grad():
        lightning_attention(q, k, v, log_alpha, recompute=recompute)
    assert len(passes) == 3


def test_so_is_that_of_an_attention(monkeypatch):
    passes = []

    def replayed(known, key, tensors, run, owner=None, then=None):
        found = run(tensors)
        if then is not None:
            then(found)
        return found

    def backward_pass(call, tensors, saved, cotangents, wanted):
        passes.append((tuple(saved), [x is None for x in cotangents], wanted))
        return backward(call, tensors, saved, cotangents, wanted)

    backward = attention_passes.backward_pass
    monkeypatch.setattr(autograd, "replayed", replayed)
    monkeypatch.setattr(attention_passes, "backward_pass", backward_pass)
    q, k, v = torch.randn(3, 1, 5, 2, 4).unbind()
    out, _ = softmax_attention(q.clone().requires_grad_(), k, v, output_lse=True)
    assert len(passes) == 1
    out.sum().backward()
    assert passes[0] == passes[1]
    assert passes[0][1:] == ([False, True], (True, False, False, False))
    softmax_attention(q, k, v)
    assert len(passes) == 2
