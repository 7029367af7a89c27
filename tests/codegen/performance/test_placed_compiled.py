"""Kernels whose tiles are copied ahead of time are compiled by `chunkform inspect`, without a GPU; and which calls have them."""

import importlib
import re
from dataclasses import replace

import pytest
import torch
from shared.triton_errors import compiled

from chunkform.codegen.performance.compile_report import (
    RESERVED,
    SHARED,
    is_gluon,
    launches_of,
    replaced_launches,
    report_row,
)
from chunkform.runtime.chunk_kernels import placed_tiles, warp_roles
from chunkform.runtime.launch.launch import candidates, using

NAMES = ["gated_linear_attention", "kimi_delta_attention"]
CONFIG = candidates(2, 128)[0]
needs_gluon = pytest.mark.skipif(not warp_roles.THERE, reason="needs Gluon")


@needs_gluon
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_two_programs_fit_a_multiprocessor(name, dtype):
    module = importlib.import_module(f"chunkform.generated.{name}")
    found = launches_of(compiled(name), module, dtype, 128, roles=True)
    (placed,) = (x for x in found if x.kernel.fn.__name__ == "backward_read_1_placed")
    assert is_gluon(placed.kernel)
    row = report_row(placed, "sm_90", dtype, 128, 0)
    assert row.ok, row.problem
    assert row.shared_bytes <= SHARED // 2 - RESERVED and row.registers <= 255 and row.spill_bytes < 256
    assert row.dots >= 13 and row.tensor_core >= 4 * row.dots


def launched(
    name: str, roles: int | None, dtype: torch.dtype = torch.bfloat16, width: int = 128, heads: int = 4
) -> list[str]:
    """The kernels that both passes launch with such a configuration."""
    op = importlib.import_module(f"chunkform.generated.{name}")
    found = []

    def empty(v) -> torch.Tensor:
        wide = v.kind != "input"
        shape = (2, 512, heads, *(width for _ in v.axes))
        return torch.empty(shape, device="meta", dtype=torch.float32 if wide else dtype)

    given = {v.name: empty(v) for v in compiled(name).step.variables}
    config = replace(candidates(4 if dtype == torch.float32 else 2, width)[0], roles=roles)
    with replaced_launches(op, lambda k, grid, args, options: found.append(k.fn.__name__), 1), using(config):
        outputs, finals, saved = op.triton_forward(given, {}, {}, needs_backward=True)
        op.triton_backward(given, {}, {}, saved, outputs, finals, frozenset(given))
    return [n for n in found if n.startswith("backward_read")]


@pytest.fixture
def such_a_gpu(monkeypatch):
    monkeypatch.setattr(placed_tiles, "available", lambda: True)
    monkeypatch.setattr(placed_tiles, "movable", lambda *_: True)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_names_kernels_in_gluon_has_them(name, such_a_gpu):
    assert launched(name, 3) == ["backward_read_1_placed", "backward_read_1_slow"]
    assert launched(name, None) == ["backward_read_1", "backward_read_1_slow"]
    assert launched(name, 3, width=64)[0] == "backward_read_1_placed"


@pytest.mark.parametrize("more", [{"width": 256}, {"dtype": torch.float32}])
def test_what_they_were_not_run_with_has_the_others(more, such_a_gpu):
    assert launched(NAMES[0], 3, **more)[0] == "backward_read_1"


def test_other_gpus_have_the_others(monkeypatch):
    monkeypatch.setattr(placed_tiles, "movable", lambda *_: True)
    assert launched(NAMES[0], 3)[0] == "backward_read_1"


def test_tensors_whose_rows_are_not_copied_at_once_have_the_others(monkeypatch):
    monkeypatch.setattr(placed_tiles, "available", lambda: True)
    monkeypatch.setattr(placed_tiles, "movable", lambda *_: False)
    assert launched(NAMES[0], 3)[0] == "backward_read_1"


@needs_gluon
def test_left_operands_have_no_entries_that_are_known_to_the_assembler():
    """What it knows of several products' left operand it sets before the last of them alone (CUDA 12.8)."""
    text = "".join(map(str, (placed_tiles.added_sum_gluon.src, placed_tiles.later_sums_gluon.src)))
    assert len(re.findall(r"hidden_zero\(T\)", text)) == 2
