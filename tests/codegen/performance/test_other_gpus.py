"""Kernels are compiled for other GPUs than those that they were measured on, without one: with the shared memory that these have,
and by the assembler that knows them. What doesn't compile is said in a sentence."""

import functools
import os

import pytest
import torch
from shared.triton_errors import compiled

from chunkform.codegen.performance import compile_report
from chunkform.codegen.performance.compile_report import inspect_op, sentence, shared_limit
from chunkform.errors import CompilerError
from chunkform.runtime.chunk_kernels import split_precision
from chunkform.runtime.chunk_kernels.fused_backward import may_be_fused
from chunkform.runtime.launch import launch
from chunkform.runtime.launch.assumed_card import Card, assuming_card
from chunkform.runtime.launch.launch import Config

ARCHITECTURES = [  # one of little shared memory, one with an assembler of its own, and all others
    "sm_86", "sm_100", *(pytest.param(x, marks=pytest.mark.long) for x in ("sm_80", "sm_89", "sm_120"))
]  # fmt: skip
PTXAS = """ptxas /tmp/a.ptx, line 5965; error   : Feature 'mul.bf16x2' requires .target sm_90 or higher
ptxas fatal   : Ptx assembly aborted due to errors"""


@functools.cache
def module_of(name: str):
    return compile_report.generated_module(compiled(name))


@pytest.mark.parametrize("name", ["linear_attention", pytest.param("retention", marks=pytest.mark.long)])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_recurrence_compiles_for_other_gpus(arch, name):
    """Both passes: the fused backward, which Hopper alone takes, isn't among their kernels."""
    rows = list(inspect_op(compiled(name), arch, ("bfloat16",), (128,), module_of(name)))
    assert [f"{row.kernel}: {row.problem}" for row in rows if not row.ok] == []
    assert "backward_whole" not in {row.kernel for row in rows} and "backward_sweep_1" in {row.kernel for row in rows}
    assert max(row.shared_bytes for row in rows) <= shared_limit(arch)


def test_the_fused_backward_is_chosen_for_hopper_alone():
    config = Config(chunk=32, tile=64, slice=64, block=32, warps=4, stages=4)
    for capability, shared, there in (
        ((9, 0), 227, True),
        ((8, 0), 163, False),
        ((10, 0), 227, False),
        ((9, 0), 99, False),
    ):
        with assuming_card(Card(capability, shared * 1024)):
            assert may_be_fused(config, (128, 128)) is there
    assert may_be_fused(config, (128, 128))


def test_entries_are_rounded_in_pairs_where_the_compiler_takes_that(monkeypatch):
    """A GPU's capability is told before a kernel is compiled for it, once."""
    asked = []
    monkeypatch.setattr(split_precision, "PAIRS", split_precision.PAIRS)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: asked.append(device) or (10, 0))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    launch.prepare.cache_clear()
    launch.prepare(0)
    launch.prepare(0)
    assert asked == [0] and not split_precision.PAIRS.value
    for capability in ((8, 0), (9, 0), (12, 0)):
        split_precision.in_pairs_on(capability)
        assert split_precision.PAIRS.value == (not split_precision.INTERPRETED)
    launch.prepare.cache_clear()


def test_an_assembler_that_refuses_is_quoted_in_a_sentence(monkeypatch):
    assert sentence(CompilerError(PTXAS)) == "Feature 'mul.bf16x2' requires .target sm_90 or higher"
    assert sentence(ValueError("no such thing")) == "no such thing" and sentence(KeyError()) == "KeyError"

    def fail(*_):
        print("5000 lines of PTX")
        raise CompilerError(PTXAS)

    monkeypatch.setattr(compile_report, "compiled_kernel", fail)
    row = next(iter(inspect_op(compiled("retention"), "sm_80", ("bfloat16",), (64,), module_of("retention"))))
    assert row.problem == "does not compile for sm_80: Feature 'mul.bf16x2' requires .target sm_90 or higher"


def test_what_a_compiler_prints_is_not_shown(capfd):
    def run():
        os.write(1, b"5000 lines of PTX")
        return 1

    assert compile_report.apart(run) == 1
    assert capfd.readouterr().out == ""
