"""Kernels that a call launches fit the shared memory of the GPUs that they are compiled for, without a GPU to try it."""

import importlib
import os
import time

import pytest
from shared.spec_files import SPECS, read

from chunkform.codegen.performance import compile_report
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.errors import CompilerError
from chunkform.runtime.launch.narrowing import narrowed

ROOM = {"sm_80": 166912, "sm_86": 101376, "sm_90": 232448}  # bytes of shared memory of a program


def launches(file, name, level=0, **widths):
    """What a call in float32 launches."""
    (r,) = (r for r in read(SPECS / file) if r.name == name)
    c = compile_spec(r)
    module = compile_report.generated_module(c)
    with narrowed(level):
        return compile_report.launches_of(c, module, "float32", widths)


def needs(file, name, arch, level=0, only="", **widths):
    """Bytes of shared memory of each kernel of a call in float32."""
    found = {}
    for x in launches(file, name, level, **widths):
        if only in x.kernel.fn.__name__:
            settings = {n: x.options[n] for n in compile_report.SETTINGS if x.options.get(n) is not None}
            options = {n: v for n, v in x.options.items() if n not in compile_report.SETTINGS}
            shared = compile_report.compiled_kernel(x, options, settings, arch).metadata.shared
            found[x.kernel.fn.__name__] = max(shared, found.get(x.kernel.fn.__name__, 0))
    assert found
    return found


@pytest.mark.parametrize("only", ["forward", pytest.param("", marks=pytest.mark.long)], ids=["forwards", "all"])
def test_steps_that_write_many_ranks_fit_at_first(only):
    """Triton loads the matrices of two more steps ahead, by itself, unless it is told not to: here 352 KiB."""
    widths = {"d": 24, "e": 96, "m": 66}
    told = {x.kernel.fn.__name__: x.options.get("num_stages") for x in launches("entries.py", "mamba3_mimo", **widths)}
    assert told["sequential_forward_kernel"] == told["sequential_backward_kernel"] == 1
    assert max(needs("entries.py", "mamba3_mimo", "sm_80", only=only, **widths).values()) <= ROOM["sm_80"]


@pytest.mark.long
@pytest.mark.parametrize(("arch", "level", "e"), [("sm_80", 0, 96), ("sm_86", 0, 96), ("sm_90", 0, 64)])
def test_states_that_decay_by_the_channel_fit(arch, level, e):
    """On a Hopper tensor cores take both operands from shared memory: in float32 there is room for 64 channels, and for 96
    the torch form runs."""
    assert max(needs("rwkv7.py", "rwkv7", arch, level, d=64, e=e).values()) <= ROOM[arch]


@pytest.mark.long
def test_narrower_tiles_need_less():
    usual = needs("rwkv7.py", "rwkv7", "sm_90", 0, "unroll", d=64, e=64)
    narrow = needs("rwkv7.py", "rwkv7", "sm_90", 1, "unroll", d=64, e=64)
    assert all(narrow[n] < usual[n] for n in usual)


def test_a_compiler_is_stopped_after_some_time():
    def forever():
        while True:
            pass

    begun = time.process_time()
    with pytest.raises(CompilerError, match="takes more than 1 s"):
        compile_report.apart(forever, 1)
    assert time.process_time() - begun < 1  # it ran elsewhere
    with pytest.raises(CompilerError, match="the compiler ended with 3"):
        compile_report.apart(lambda: os._exit(3))
    with pytest.raises(CompilerError, match="No module named"):
        compile_report.apart(lambda: importlib.import_module("nothing_of_this_name"))
    assert compile_report.apart(lambda: 7) == 7
