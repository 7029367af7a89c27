"""Sweeps that are one kernel with their prologues, whose warps have roles, are compiled for sm_90 as `chunkform inspect` does,
without a GPU."""

import functools
from dataclasses import replace

import pytest
from shared.passed import instead
from shared.triton_errors import compiled

from chunkform.codegen.performance.compile_report import is_gluon, launches_of, module_of, report_row
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.triton import section
from chunkform.codegen.recurrence.triton.warp_roles import shared_memory
from chunkform.runtime.chunk_kernels import warp_roles

pytestmark = pytest.mark.skipif(not warp_roles.THERE, reason="needs Gluon")
# Bytes that are kept aside, of the loader and the preparer: none of the consumer.
BACKWARD = ["backward_joined_1_roles", "backward_joined_2_roles", "backward_sweep_3_roles"]
WORDS = {"gated_delta_rule": 64, "delta_rule": 64, "comba": 128}
WORDS_BACKWARDS = {"gated_delta_rule": 64, "delta_rule": 16, "comba": 256}


@functools.cache
def with_roles(name: str):
    """An op that has the kernel, its module, and the schedules of sweeps that load their matrices, by name."""
    loaded = {}
    with instead(
        section,
        gate_over_chunks=lambda k, f: None,
        gate_loaded_schedule=lambda k, s: loaded.setdefault(f"{k.name}_roles", s),
    ):
        c = replace(compiled(name))  # made anew, as a form is kept
        return c, module_of(f"{name}_joined", emit(c, tidy=False)), loaded


def launched(name: str, dtype: str = "bfloat16", roles: bool = True, **widths: int):
    """The kernels with roles that a call may launch."""
    found = launches_of(*with_roles(name)[:2], dtype, widths, roles=roles)
    return [x for x in found if is_gluon(x.kernel)]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] if n != "gated_delta_rule" else []) for n in WORDS]
)
def test_it_is_compiled_with_products_beside_each_other(name):
    found = launched(name, d=128, e=128)
    assert [x.kernel.fn.__name__ for x in found] == [*["forward_joined_roles"] * 2, *BACKWARD]
    loaded = with_roles(name)[2]
    for x in found[1:]:
        row = report_row(x, "sm_90", "bfloat16", 128, 0)
        assert row.ok, row.problem
        if (s := loaded.get(x.kernel.fn.__name__)) is not None:
            assert 0 < row.shared_bytes - shared_memory.bytes_of(s) <= shared_memory.TRITON
        assert row.spill_bytes <= (WORDS if x is found[1] else WORDS_BACKWARDS)[name], row
        assert "C=32" in row.config and f"stages={3 if x is found[1] else 2}" in row.config
        assert "warps=8" in row.config
    assert found[-1].kernel.fn.__name__ in loaded


def test_only_what_it_holds_may_launch_it(monkeypatch):
    name = "delta_rule"
    assert len(launched(name, "float16", d=128, e=128)) == 5
    assert {x.kernel.fn.__name__ for x in launched(name, d=128, e=256)} == {"forward_joined_roles"}  # E isn't whole
    for dtype, d, e in (("float32", 128, 128), ("bfloat16", 256, 128)):
        assert launched(name, dtype, d=d, e=e) == []
    assert launched(name, roles=False, d=128, e=128) == []
    monkeypatch.setattr(warp_roles, "FORCED", True)
    assert launched(name, roles=False, d=128, e=128) == []  # no such GPU is here
