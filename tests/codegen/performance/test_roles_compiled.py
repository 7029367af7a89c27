"""Kernels whose warps have roles are compiled by `chunkform inspect`, without a GPU, and refused where products wait."""

import importlib

import pytest
import torch
from shared.triton_errors import compiled

from chunkform.codegen.performance import compile_report
from chunkform.codegen.performance.compile_report import is_gluon, launches_of, report_row, resources_of
from chunkform.runtime.chunk_kernels import warp_roles
from chunkform.runtime.launch.launch import Config, assuming_roles

needs_gluon = pytest.mark.skipif(not warp_roles.THERE, reason="needs Gluon")
C7512 = (
    "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
    "ptxas info    : (C7519) warpgroup.arrive is injected\n"
    "    12 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
    "ptxas info    : Used 168 registers, used 4 barriers"
)


def with_roles(dtype, **widths):
    """The forward passes with roles that a call of lightning attention may launch."""
    module = importlib.import_module("chunkform.generated.lightning_attention")
    found = launches_of(compiled("lightning_attention"), module, dtype, widths, roles=True)
    return [x for x in found if is_gluon(x.kernel) and x.kernel.fn.__name__.startswith("forward")]


@needs_gluon
def test_they_are_compiled_as_tables_name_them():
    """Where no gradient is recorded, and where one is, with room for checkpoints."""
    alone, recording = with_roles("bfloat16", d=128, e=128)
    rows = [report_row(x, "sm_90", "bfloat16", 128, 0) for x in (alone, recording)]
    for row in rows:
        assert row.ok and row.dots == 4 and row.spill_bytes == 0 and "C=64" in row.config and "warps=8" in row.config
    assert rows[1].shared_bytes == rows[0].shared_bytes + 2 * 128 * 128


@needs_gluon
def test_products_that_wait_for_each_other_are_a_problem(monkeypatch):
    monkeypatch.setitem(warp_roles.MOST, 8, 96)
    launched, _ = with_roles("bfloat16", d=128, e=128)
    row = report_row(launched, "sm_90", "bfloat16", 128, 0)
    assert "adds waits between products: C75" in row.problem


def test_what_the_assembler_says():
    assert resources_of(C7512) == compile_report.Resources(168, 12, ("C7512",))


@pytest.mark.parametrize(
    ("dtype", "d", "e"), [("bfloat16", 128, 64), ("bfloat16", 64, 128), ("bfloat16", 64, 64), ("float32", 128, 128)]
)
def test_tables_name_none_for_what_was_not_measured_to_be_faster(dtype, d, e):
    assert with_roles(dtype, d=d, e=e) == []


def test_a_call_that_launches_has_them_only_where_there_is_such_a_gpu():
    config = Config(chunk=32, tile=64, slice=64, block=32, warps=4, stages=4, roles=2)
    x = torch.empty(1, 64, 1, 128, dtype=torch.bfloat16)
    assert warp_roles.available() or warp_roles.with_roles(config, 128, x).roles is None
    with assuming_roles(3):
        assert warp_roles.with_roles(config, 128, x).roles == 3
        assert warp_roles.with_roles(config, 128, x[..., :64]).roles is None
