"""The fused backward whose warps have roles is compiled for sm_90 as `chunkform inspect` does, without a GPU: it holds its tiles
in registers, and the assembler adds no waits between its products."""

import functools

import pytest
from shared.triton_errors import compiled

from chunkform.codegen.performance.compile_report import is_gluon, launches_of, module_of, report_row
from chunkform.codegen.recurrence.emit import emit
from chunkform.runtime.chunk_kernels import warp_roles

pytestmark = pytest.mark.skipif(not warp_roles.THERE, reason="needs Gluon")
WORDS = 16  # bytes that are kept for what comes after the loop: none are stored or loaded in it
NAMES = ["lightning_attention", "retention", "linear_attention"]


@functools.cache
def with_roles(name: str):
    """An op that has the kernel, and its module."""
    return compiled(name), module_of(f"{name}_roles", emit(compiled(name), tidy=False))


def launched(name: str, dtype: str = "bfloat16", roles: bool = True, **widths: int):
    """The fused backward with roles that a call may launch."""
    found = launches_of(*with_roles(name), dtype, widths, roles=roles)
    return [x for x in found if is_gluon(x.kernel) and x.kernel.fn.__name__ == "backward_whole_roles"]


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(n, marks=pytest.mark.long) for n in NAMES[1:])])
def test_it_is_compiled_with_all_in_registers(name):
    (x,) = launched(name, d=128, e=128)
    row = report_row(x, "sm_90", "bfloat16", 128, 0)
    assert row.ok, row.problem
    assert row.spill_bytes <= WORDS and row.dots == 9 and "C=64" in row.config and "stages=2" in row.config


def test_only_what_it_holds_may_launch_it(monkeypatch):
    """States of as many channels along both axes as there are registers for, in two bytes, and where it is asked for."""
    name = NAMES[0]
    assert len(launched(name, "float16", d=128, e=128)) == 1
    for dtype, d, e in (("float32", 128, 128), ("bfloat16", 64, 64), ("bfloat16", 128, 64), ("bfloat16", 128, 256)):
        assert launched(name, dtype, d=d, e=e) == []
    assert launched(name, roles=False, d=128, e=128) == []
    monkeypatch.setattr(warp_roles, "FORCED", True)
    assert launched(name, roles=False, d=128, e=128) == []  # no such GPU is here


def test_with_fewer_registers_products_wait_for_each_other(monkeypatch):
    """Of which the assembler tells: the kernel is then refused."""
    monkeypatch.setitem(warp_roles.MOST, 8, 104)
    (x,) = launched(NAMES[0], d=128, e=128)
    row = report_row(x, "sm_90", "bfloat16", 128, 0)
    assert "adds waits between products: C75" in row.problem or "spilled" in row.problem
