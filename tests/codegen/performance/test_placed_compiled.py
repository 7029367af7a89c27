"""Kernels whose tiles are copied ahead of time are compiled by `chunkform inspect`, without a GPU; and which calls have them."""

import importlib
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from shared.triton_errors import compiled

from chunkform.codegen.ir.expr import dim_of
from chunkform.codegen.performance.compile_report import (
    RESERVED,
    SETTINGS,
    SHARED,
    KernelLaunch,
    compiled_kernel,
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
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gated_linear_attention", "float16"),
        ("kimi_delta_attention", "bfloat16"),
        pytest.param("gated_linear_attention", "bfloat16", marks=pytest.mark.long),
        pytest.param("kimi_delta_attention", "float16", marks=pytest.mark.long),
    ],
)
def test_two_programs_fit_a_multiprocessor(name, dtype):
    module = importlib.import_module(f"chunkform.generated.{name}")
    found = launches_of(compiled(name), module, dtype, 128, roles=True)
    (placed,) = (x for x in found if x.kernel.fn.__name__ == "backward_read_1_placed")
    assert is_gluon(placed.kernel)
    row = report_row(placed, "sm_90", dtype, 128, 0)
    assert row.ok, row.problem
    assert row.shared_bytes <= SHARED // 2 - RESERVED and row.registers <= 255 and row.spill_bytes < 256
    assert row.dots >= 13 and row.tensor_core >= 4 * row.dots


Shape = tuple[int, ...]
Lay = Callable[[Shape, torch.dtype], torch.Tensor]  # a tensor of a shape, laid out in some way


def contiguous(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launches(
    name: str, roles: int | None, widths: dict[str, int], lay: Lay, dtype: torch.dtype = torch.bfloat16, heads: int = 4
) -> list[KernelLaunch]:
    """The launches of both passes with such a configuration that read states."""
    op = importlib.import_module(f"chunkform.generated.{name}")
    found = []
    given = {}
    for v in compiled(name).step.variables:
        shape = (2, 512, heads, *(widths[dim_of(x)] for x in v.axes))
        given[v.name] = lay(shape, dtype) if v.kind == "input" else contiguous(shape, torch.float32)
    config = replace(candidates(4 if dtype == torch.float32 else 2, max(widths.values()))[0], roles=roles)
    with replaced_launches(op, lambda k, grid, *more: found.append(KernelLaunch(k, *more)), 1), using(config):
        outputs, finals, saved = op.triton_forward(given, {}, {}, needs_backward=True)
        op.triton_backward(given, {}, {}, saved, outputs, finals, frozenset(given))
    return [x for x in found if x.kernel.fn.__name__.startswith("backward_read")]


def launched(
    name: str, roles: int | None, dtype: torch.dtype = torch.bfloat16, width: int = 128, heads: int = 4
) -> list[str]:
    """The kernels of these launches."""
    found = launches(name, roles, dict.fromkeys("de", width), contiguous, dtype, heads)
    return [x.kernel.fn.__name__ for x in found]


@pytest.fixture
def such_a_gpu(monkeypatch):
    monkeypatch.setattr(placed_tiles, "available", lambda: True)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_names_kernels_in_gluon_has_them(name, such_a_gpu):
    assert launched(name, 3) == ["backward_read_1_placed", "backward_read_1_slow"]
    assert launched(name, None) == ["backward_read_1", "backward_read_1_slow"]
    assert launched(name, 3, width=64)[0] == "backward_read_1_placed"


@pytest.mark.parametrize("more", [{"width": 256}, {"dtype": torch.float32}])
def test_what_they_were_not_run_with_has_the_others(more, such_a_gpu):
    assert launched(NAMES[0], 3, **more)[0] == "backward_read_1"


def test_other_gpus_have_the_others():
    assert launched(NAMES[0], 3)[0] == "backward_read_1"


def columns(before: int, after: int) -> Lay:
    """Some columns of a wider tensor, as a projection for several inputs leaves them."""

    def lay(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        wider = contiguous((*shape[:-1], before + shape[-1] + after), dtype)
        return wider[..., before : before + shape[-1]]

    return lay


def head_major(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    return contiguous((shape[0], shape[2], shape[1], *shape[3:]), dtype).transpose(1, 2)


def one_for_all_heads(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    return contiguous((*shape[:2], 1, *shape[3:]), dtype).expand(shape)


# Rows at multiples of 16 bytes, of which strides say less: 72, 120 and 88 numbers of two bytes are no multiples of 32 bytes.
ALIGNED = {
    "contiguous": contiguous,
    "columns": columns(8, 8),
    "head-major": head_major,
    "one for all heads": one_for_all_heads,
}
NOT_ALIGNED = {"first row": columns(4, 4), "other rows": columns(0, 4)}


@needs_gluon
@pytest.mark.parametrize("lay", ["contiguous", "columns"])
@pytest.mark.parametrize("name", NAMES)
def test_each_thread_copies_16_bytes_at_once_whatever_strides_say(name, lay, such_a_gpu):
    """Triton refuses to compile copies of two bytes, which it makes of rows of which it knows nothing."""
    placed, _ = launches(name, 3, {"d": 72, "e": 120}, ALIGNED[lay])
    assert placed.kernel.fn.__name__ == "backward_read_1_placed"
    options = {n: x for n, x in placed.options.items() if n not in SETTINGS}
    settings = {n: x for n, x in placed.options.items() if n in SETTINGS}
    ptx = compiled_kernel(placed, options, settings, "sm_90").asm["ptx"]
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", ptx)
    assert copies and {int(n, 0) for n in copies} == {16}


@pytest.mark.parametrize("lay", ALIGNED)
@pytest.mark.parametrize("name", NAMES)
def test_tensors_whose_rows_are_at_multiples_of_16_bytes_have_them(name, lay, such_a_gpu):
    for widths in ({"d": 72, "e": 120}, {"d": 128, "e": 64}):
        assert launches(name, 3, widths, ALIGNED[lay])[0].kernel.fn.__name__ == "backward_read_1_placed"


@pytest.mark.parametrize("lay", NOT_ALIGNED)
@pytest.mark.parametrize("name", NAMES)
def test_tensors_whose_rows_are_elsewhere_have_the_others(name, lay, such_a_gpu):
    assert launches(name, 3, {"d": 72, "e": 120}, NOT_ALIGNED[lay])[0].kernel.fn.__name__ == "backward_read_1"


@pytest.mark.parametrize("widths", [{"d": 68, "e": 120}, {"d": 72, "e": 100}])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_other_widths_have_the_others(name, widths, such_a_gpu):
    assert launches(name, 3, widths, contiguous)[0].kernel.fn.__name__ == "backward_read_1"


@needs_gluon
def test_left_operands_have_no_entries_that_are_known_to_the_assembler():
    """What it knows of several products' left operand it sets before the last of them alone (CUDA 12.8)."""
    text = "".join(map(str, (placed_tiles.added_sum_gluon.src, placed_tiles.later_sums_gluon.src)))
    assert len(re.findall(r"hidden_zero\(T\)", text)) == 2
