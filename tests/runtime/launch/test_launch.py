"""What a launch remembers a compiled kernel by."""

import itertools

import pytest
import torch
import triton
from triton.runtime.errors import OutOfResources

from chunkform.runtime.launch import launch
from chunkform.runtime.launch.narrowing import NARROWEST, narrowed


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
    launch.launch_compiled(kernel, (3,), (x, n), {"WIDTH": width, "num_warps": 4}, 0)


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


class Large(Kernel):
    """A kernel of which shared memory holds no more than so many stages."""

    arg_names = ("x", "n", "STAGES")

    def __init__(self, most):
        super().__init__()
        self.most = most

    def __getitem__(self, grid):
        def run(*args, **options):
            if options["STAGES"] > self.most:
                raise OutOfResources(300000, 232448, "shared memory")
            self.runs.append((grid, *args, options["STAGES"]))
            return Compiled(self)

        return run


@pytest.mark.parametrize("most", [3, 2, 1])
def test_a_kernel_has_as_many_stages_as_shared_memory_holds(most):
    kernel, x = Large(most), torch.zeros(64)
    for _ in range(2):
        launch.launch_compiled(kernel, (3,), (x, 48), {"STAGES": 3, "num_warps": 4}, 0)
    assert kernel.runs[0][-1] == most
    assert len(kernel.runs) == 2


class Ahead(Kernel):
    """A kernel whose loads Triton puts ahead, for which shared memory has no room."""

    def __getitem__(self, grid):
        def run(*args, **options):
            if options.get("num_stages") != 1:
                raise OutOfResources(360448, 232448, "shared memory")
            self.runs.append((grid, *args))
            return Compiled(self)

        return run


def test_a_kernel_loads_nothing_ahead_where_shared_memory_has_no_room():
    kernel, x = Ahead(), torch.zeros(64)
    for _ in range(2):
        go(kernel, x, 48)
    assert kernel.runs == [((3,), x, 48), ((3, 1, 1), x, 48, 16)]


def test_a_kernel_that_no_memory_holds_says_so():
    with pytest.raises(OutOfResources):
        launch.launch_compiled(Large(0), (3,), (torch.zeros(64), 48), {"STAGES": 3, "num_warps": 4}, 0)


@pytest.mark.parametrize(("itemsize", "largest"), [(4, 64), (4, 256), (2, 64), (2, 256)])
def test_levels_are_narrower_and_end(itemsize, largest):
    found = [launch.narrower(launch.candidates(itemsize, largest)[0], n) for n in range(NARROWEST + 1)]
    for a, b in itertools.pairwise(found):
        assert all(getattr(b, n) <= getattr(a, n) for n in ("chunk", "tile", "slice", "block", "stages"))
    assert found[-1] != found[0]
    assert found[-1].tile >= (16 if itemsize == 4 else 32)  # narrower ones were tried on no GPU


def test_kernels_take_the_level_of_their_thread():
    usual = launch.choose(torch.float32, (64, 64))
    with narrowed(1):
        assert launch.choose(torch.float32, (64, 64)).tile < usual.tile
        with launch.using(usual):  # what is being measured is what was asked for
            assert launch.choose(torch.float32, (64, 64)) == usual
    assert launch.choose(torch.float32, (64, 64)) == usual


def test_a_users_own_allocator_comes_back_after_a_launch():
    allocator = triton.runtime._allocation._allocator
    before = allocator.get()
    with launch.scratch_memory(0):
        assert allocator.get() is not before
    assert allocator.get() is before
