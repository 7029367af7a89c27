"""Kernels of a pass are compiled side by side ahead of its first run, and are not launched meanwhile."""

from types import SimpleNamespace

import pytest
import torch

from chunkform.runtime import compiling, replay
from chunkform.runtime.launch import launch
from chunkform.runtime.watch import watching


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
    monkeypatch.setattr(compiling, "_seen", set())


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

    kernel, x, runs = Kernel(), torch.zeros(4), []

    def run(tensors):
        runs.append(tensors)
        launch(kernel, (1,), x)
        raise ValueError("what is computed then means nothing")

    given = (tensor(torch.float32, 1, 64, 2, 16), None)
    compiling.compile_first("op", given, run)
    compiling.compile_first("op", (tensor(torch.float32, 3, 128, 2, 16), None), run)  # other steps: the same kernels
    assert len(runs) == 1
    assert len(kernel.compiled) == 1
    compiling.compile_first("op", (tensor(torch.bfloat16, 1, 64, 2, 16), None), run)
    compiling.compile_first("another", given, run)
    assert len(runs) == 3
    assert kernel.launched == []


def test_nothing_is_compiled_ahead_on_a_cpu_or_in_a_graph(monkeypatch):
    runs = []
    compiling.compile_first("op", (torch.zeros(1, 4, 2, 8),), runs.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    cuda = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, shape=(1,), data_ptr=lambda: 0)
    compiling.compile_first("op", (cuda,), runs.append)
    assert runs == []


def test_no_pass_is_recorded_while_launches_are_noted(monkeypatch):
    x, known = torch.zeros(1, 4, 2, 8), {"forward": replay.SEEN}
    kernel = Kernel()

    def run(tensors):
        launch(kernel, (1,), x)
        return [x], None

    compiling.compile_ahead(lambda: replay.replayed(known, "forward", [x], run))
    assert known == {"forward": replay.SEEN}
