"""Fused backward passes: which recurrences have one, what it loads, and the memory that its gradients take."""

from __future__ import annotations

import math
import re

import pytest
import torch
from shared.triton_errors import compiled, module

from chunkform.codegen.performance.compile_report import replaced_launches
from chunkform.codegen.recurrence.triton import fused_backward_of, triton_source
from chunkform.runtime.chunk_kernels.chunk_layout import chunk_layout
from chunkform.runtime.chunk_kernels.fused_backward import aligned, in_place, may_be_fused, movable
from chunkform.runtime.launch.launch import Config, candidates
from chunkform.runtime.launch.varlen import INTERVAL, Packed


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("lightning_attention", True),
        ("linear_attention", True),
        ("scaled_retention", True),
        ("gated_delta_rule", False),  # solves for writes
        ("gated_linear_attention", False),  # a decay for each channel
        ("mamba2", False),  # sums over channels for the gradient of a number
        ("leaky_integrator", False),  # a state that is a vector
    ],
)
def test_one_sweep_makes_gradients_that_its_registers_hold(name, one):
    assert (fused_backward_of(compiled(name)) is not None) == one


def test_one_sweep_loads_each_tensor_once_and_makes_each_matrix_over_steps_once():
    text = triton_source(compiled("lightning_attention"))
    begin = text.index("def backward_whole(")
    kernel = text[begin : text.index("\n@", begin)]  # before the one whose warps have roles
    loads = re.findall(r"(\w+)_rows\.load\(", kernel)
    assert sorted(loads) == ["S", "do", "k", "q", "v"]
    assert sorted(re.findall(r"# (\w+ \w+\^T)$", kernel, re.M)) == ["do S^T", "do v^T", "q k^T", "v dS^T"]


def test_one_sweep_takes_states_and_tensors_that_fit():
    config = candidates(2, 64)[0]
    x = torch.empty(1, 64, 2, 64, dtype=torch.bfloat16)
    assert may_be_fused(config, (64, 64), x)
    assert not may_be_fused(config, (64, 256), x)
    assert not may_be_fused(config, (64, 64), torch.empty(1, 64, 2, 60, dtype=torch.bfloat16))
    assert not may_be_fused(Config(**{**vars(config), "itemsize": 4}), (64, 64), x.float())


@pytest.mark.parametrize(("needs", "left"), [(True, True), (False, False), ("announced", False)])
def test_states_are_left_where_they_are_kept(needs, left):
    m = module("lightning_attention")
    given = {n: torch.empty(1, 128, 2, 64, dtype=torch.bfloat16, device="meta") for n in "qkv"}
    given["lam"] = torch.empty(1, 128, 2, device="meta")
    with replaced_launches(m, lambda *_: None, segments=1):
        saved = m.triton_forward(given, {}, {}, needs_backward=needs)[2]
    assert ("S checkpoints" in saved) == left


def test_tensors_that_the_copy_engine_takes_begin_rows_at_16_bytes():
    x = torch.empty(2, 8, 3, 40, dtype=torch.bfloat16)
    assert movable(x) and aligned(x) is x
    for other in (x[..., ::2], x[..., 4:], x[..., :12], x.mT):
        assert not movable(other)
    assert movable(aligned(x[..., 8:24].transpose(1, 2)))


@pytest.mark.parametrize("rows", [64, 128])
def test_gradients_in_the_place_of_states_lie_in_their_own_blocks(rows):
    steps, heads, width = 3 * INTERVAL, 2, 5
    layout = chunk_layout(None, (2, steps, heads), INTERVAL)
    checkpoints = torch.zeros(2, layout.chunks * rows, heads, width)
    found = in_place(checkpoints, layout)
    assert [x.shape for x in found] == [(2, steps, heads, width)] * (rows // INTERVAL)
    for n, x in enumerate(found):
        x.copy_(torch.arange(steps)[:, None, None] // INTERVAL + 10 * (n + 1))
    blocks = checkpoints.view(2, layout.chunks, rows, heads, width)
    for c in range(layout.chunks):
        assert set(blocks[:, c].unique().tolist()) == {c + 10.0 * (n + 1) for n in range(len(found))}


def test_where_blocks_are_not_whole_nothing_is_in_place():
    assert not in_place(torch.zeros(1, 128, 1, 4), chunk_layout(None, (1, 100, 1), INTERVAL))
    packed = Packed(torch.tensor([0, 64, 128]), 2, 64)
    assert not in_place(torch.zeros(1, 256, 1, 4), chunk_layout(packed, (1, 128, 1), INTERVAL))


@pytest.mark.parametrize(("width", "numbers"), [(64, 0), (128, 8)])
def test_a_sweep_of_four_warps_takes_no_memory_for_a_decays_gradient(width, numbers):
    """But two for each block: numbers of each step that parts take, beside the decays' sums."""
    m = module("lightning_attention")
    steps, heads = 4 * INTERVAL, 2
    given = {n: torch.empty(1, steps, heads, width, dtype=torch.bfloat16, device="meta") for n in "qkv"}
    given["lam"] = torch.empty(1, steps, heads, device="meta")
    made: list[int] = []
    empty = torch.Tensor.new_empty

    def counted(x, size, **options):
        made.append(math.prod(size) if options.get("dtype") == torch.float32 else 0)
        return empty(x, size, **options)

    with replaced_launches(m, lambda *_: None, segments=1), pytest.MonkeyPatch.context() as patch:
        saved = m.triton_forward(given, {}, {})[2]
        patch.setattr(torch.Tensor, "new_empty", counted)
        m.triton_backward(given, {}, {}, saved, {"o": given["v"]}, {}, frozenset(given))
    blocks = steps // INTERVAL * heads * (1 if width == 64 else 8)
    assert sum(made) - blocks == steps * heads * (1 + numbers)
