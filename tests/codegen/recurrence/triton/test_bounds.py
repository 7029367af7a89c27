"""What kernels load and store lies in their tensors: in Triton's interpreter, where an access beside one is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shared.forked import script
from shared.triton_errors import compiled, every_name

from chunkform.codegen.ir.kernel_ir import KernelFunction
from chunkform.codegen.recurrence.triton import triton_form

HERE = Path(__file__).parent
FEW = (
    "channel_delta_rule",
    "gated_delta_rule",
    "gla2d",
    "kimi_delta_attention",
    "lightning_attention",
)  # others: `long`


def bounds_of(*names: str, planted: tuple[str, ...] = ()):
    return script(HERE / "bounds_of_specs.py", json.dumps(list(names)), *planted)


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.long) for n in every_name()])
def test_no_kernel_over_chunks_reaches_beside_its_tensors_at_widths_of_several_tiles(name):
    done = bounds_of(name)
    assert done.returncode == 0, done.stderr[-2000:]
    ran = json.loads(done.stdout)[name]
    if ran is None:
        pytest.skip("has no kernels over chunks")
    every = {x.name for x in triton_form(compiled(name)).parts if isinstance(x, KernelFunction)}
    kernels = {
        n for n in every if not n.startswith("backward_whole")
    }  # fused: descriptors, which end with their tensor
    assert kernels and kernels <= set(ran)


@pytest.mark.parametrize(
    "planted", [("forward_sweep_1", "o_out"), ("backward_sweep_2", "matrix4"), ("backward_per_step_3", "v_p")]
)
def test_a_tensor_that_is_one_number_short_is_found_and_named(planted):
    kernel, argument = planted
    done = bounds_of("value_strengths", planted=planted)
    assert done.returncode == 1
    assert "OutsideOfTensor" in done.stderr
    assert f"{kernel} {'stores' if argument.endswith('_out') else 'loads'} 2 bytes at byte" in done.stderr
    assert f" of {argument}, torch." in done.stderr


KERNEL = """
import sys, torch, triton, triton.language as tl
from shared import bounds_interpreted

@triton.jit
def kernel(x, y, out, counts, n, FAR: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    both = tl.load(x + i, mask=i < n, other=0.0) + tl.load(y + i - 1, mask=(i > 0) & (i <= n), other=0.0)
    tl.store(out + i, both, mask=i < n)
    tl.atomic_add(counts + FAR + 0 * i, 1, mask=i < n)

memory = torch.zeros(64)
kernel[(1,)](memory[4:9], memory[20:25], torch.zeros(5), torch.zeros(1, dtype=torch.int32), 5, int(sys.argv[1]), 8)
print("fine")
"""


def test_what_is_masked_out_and_views_in_the_midst_of_memory_are_no_faults_and_additions_are_seen(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL)
    done = script(path, "0")
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr[-2000:]
    done = script(path, "-1")
    assert done.returncode == 1
    assert "kernel changes 4 bytes at byte -4 of 4 of counts, torch.int32 [1] by [1]" in done.stderr
