"""What a launch remembers a compiled kernel by."""

import torch

from chunkform.runtime import launch


class Kernel:
    """Stands in for a Triton kernel: counts how often it is compiled, and keeps what it was run with."""

    arg_names = ("x", "n", "WIDTH")

    def __init__(self):
        self.compiled, self.runs = 0, []

    def __getitem__(self, grid):
        def run(*args, **options):
            self.compiled += 1
            self.runs.append((grid, *args, options["WIDTH"]))
            return Compiled(self)

        return run


class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *args: self.kernel.runs.append((grid, *args))


def go(kernel, x, n, width=16):
    launch._launch(kernel, (3,), (x, n), {"WIDTH": width, "num_warps": 4}, 0)


def test_a_kernel_is_found_again_and_run_with_all_its_arguments():
    kernel, x = Kernel(), torch.zeros(64)
    go(kernel, x, 48)
    go(kernel, x, 96)
    assert kernel.compiled == 1
    assert kernel.runs == [((3,), x, 48, 16), ((3, 1, 1), x, 96, 16)]


def test_what_triton_compiles_anew_is_told_apart():
    kernel, x = Kernel(), torch.zeros(64)
    for given in [(x, 48), (x, 1), (x, 7), (x, 2**40), (x[1:], 48), (x.double(), 48), (None, 48), (x, 48, 32)]:
        before = kernel.compiled
        go(kernel, *given)
        assert kernel.compiled == before + 1, given
        go(kernel, *given)
        assert kernel.compiled == before + 1, given
