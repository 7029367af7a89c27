"""Whatever a pass does wrong in one place of a kernel over chunks is refused, in each family of these kernels."""

import random
from dataclasses import replace
from functools import cache

import pytest
from shared.corrupted import corrupted
from shared.passed import instead
from shared.triton_errors import compiled

from chunkform.codegen.ir.kernel_ir import KernelFunction
from chunkform.codegen.recurrence.triton import section
from chunkform.codegen.recurrence.triton.kernels import fused_backward
from chunkform.codegen.recurrence.triton.kernels.chunk_kernel import Kernel
from chunkform.codegen.recurrence.triton.launch.fused_backward import FusedBackwardHost
from chunkform.errors import GateError

Made = tuple[Kernel, tuple[KernelFunction, ...]]
# op, kernel: one of each family
FAMILIES = {
    "prologue": ("retention", "backward_prologue_1"),
    "sweep": ("value_decay_attention", "backward_sweep_2"),
    "sweep that solves for each channel": ("value_strengths_square", "backward_sweep_2"),
    "sweep of segments": ("gated_delta_rule", "forward_sweep_1"),
    "output": ("gated_linear_attention", "backward_read_1"),
    "output of more reads than registers hold": ("kimi_delta_attention", "backward_read_1"),
    "products at each step": ("gradient_descent_squared_momentum", "backward_unroll_2"),
    "fused backward": ("retention", "backward_whole"),
    "fused backward that solves for writes": ("gated_delta_rule", "backward_whole"),
    "fused backward that sums for numbers of each step": ("mamba2", "backward_whole"),
}
# what a kernel leaves the same, with the reason
SAME = {
    "": (
        "identity",  # a square tile by it, or it by the tile
        "_last + sh * ",  # of a launch that isn't made
    ),
    "no guard": (
        "begins is not None",
        "S_linear is not None",
    ),  # what it makes anew is what it was; a name nothing reads then
    "half a mask": ("_ok",),  # what is beyond meets a zero, or a mask again, elsewhere
    # what is left is zero; or it takes longer
    "always": ("not EXACT", "YIELD", "SMALL_RANGE", "has_small_range", "T > 0"),
    # no work is spared that needn't be done: a place without a chunk has no steps, of which masks ask
    "never": ("is_zero(", "not YIELD", "SMALL_RANGE", "begins is not None", "last < 0"),
    "a round more": ("range(0, ",),  # a slice beyond an axis is masked
    "operands swapped": ("count - n",),  # what is asked is whether it divides
}
MASKED = "filled with ones"  # what a mask leaves out meets a zero of another factor
EACH = 1  # of a kind of fault


@cache
def made(op: str, whole: bool = False) -> dict[str, Made]:
    """The kernels over chunks of an op, and what passes have made of them; `whole`: with a fused backward pass also where sweeps
    are faster."""
    found: dict[str, Made] = {}
    pays = {"pays": lambda *_: True} if whole else {}
    with (
        instead(section, gate_over_chunks=lambda k, f: found.setdefault(k.name, (k, f))),
        instead(fused_backward, **pays),
    ):
        section.made_form(replace(compiled(op)))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_faults_are_refused(family: str) -> None:
    op, name = FAMILIES[family]
    k, (f, *others) = made(op, name == "backward_whole")[name]
    section.gate_over_chunks(k, (f, *others))
    kinds: dict[str, list[tuple[str, KernelFunction]]] = {}
    given = [a for a in k.arguments if a.layout == "step" and a.source is not None]
    own = [f"{a.base}_g" for a in given if a.source.attrs[0] not in ("input", "decay")]  # which have all heads
    for what, wrong in corrupted(f):
        kind = what.split(":")[0]
        if "group" in kind and any(x in what for x in own):
            continue
        if kind != MASKED and not any(x in what for x in (*SAME[""], *SAME.get(kind, ()))):
            kinds.setdefault(kind, []).append((what, wrong))
    assert {"operands swapped", "no store"} <= kinds.keys()
    for faults in kinds.values():
        for what, wrong in random.Random(family).sample(faults, min(EACH, len(faults))):
            assert refused(k, (wrong, *others)), what


def test_a_fused_backward_of_writes_that_read_each_other_is_what_its_sweeps_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three corrections a step, whose inverses are made of one another, by one sweep as they aren't launched."""
    monkeypatch.setattr(fused_backward, "pays", lambda *_: True)
    c = replace(compiled("three_corrections"))
    found = section.fused_backward_of(c)
    assert c.backward is not None and found is not None
    host = FusedBackwardHost(c, section.simplified(c.backward), False, True, found, "triton")
    host.function_ir()
    (k,) = (k for k in host.kernels if isinstance(k, Kernel) and k.whole)
    assert section.functions_of(k)


def refused(k: Kernel, functions: tuple[KernelFunction, ...]) -> bool:
    try:
        section.gate_over_chunks(k, functions)
    except GateError as why:
        assert k.name in str(why)
        return True
    return False
