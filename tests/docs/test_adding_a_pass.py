"""docs/adding_a_pass.md: its code runs as it stands there, gates hold what its pass makes, and refuse a store that is lost."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from chunkform.codegen.ir.kernel_ir import KernelFunction, Store, changed, inner, loads, stores
from chunkform.codegen.printing.code_passes import CodePass, collected, passes
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.errors import GateError
from chunkform.spec.language import find

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_pass.md"
A_PASS, A_PRINTER = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def defined(text: str) -> dict:
    scope: dict = {}
    exec(text, scope)
    return scope


def code(extra=(), name: str = "sherman_morrison") -> list[KernelFunction]:
    (r,) = find(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "KERNEL_PASSES", (*passes.KERNEL_PASSES, *(CodePass(x, "") for x in extra)))
        with collected() as found:
            emit(compile_spec(r), tidy=False)
    return [x for x in found if isinstance(x, KernelFunction)]


def pairs(body) -> int:
    """How many stores stand beside another one with the same mask."""
    inside = sum(pairs(inner(x)) for x in body)
    side_by_side = (isinstance(x, Store) and isinstance(y, Store) and x.mask == y.mask for x, y in pairwise(body))
    return inside + sum(side_by_side)


def test_the_pass_fuses_stores_and_gates_let_it():
    fused_stores = defined(A_PASS)["fused_stores"]
    before, after = code(), code([fused_stores])
    assert sum(pairs(k.body) for k in after) > sum(pairs(k.body) for k in before)
    assert all(
        set(map(str, stores(x.body))) == set(map(str, stores(y.body))) for x, y in zip(before, after, strict=True)
    )


def test_gates_refuse_a_pass_that_loses_a_store():
    def lost(k: KernelFunction) -> KernelFunction:
        all_of = stores(k.body)
        return replace(k, body=changed(k.body, lambda x: () if isinstance(x, Store) and x is all_of[-1] else (x,)))

    with pytest.raises(GateError):
        code([lost])


def test_the_printer_lists_what_each_kernel_loads():
    lists = defined(A_PRINTER)["lists"]
    assert len(lists) > 4 and all(x.isascii() for x in lists)
    for text, k in zip(lists, code(name="retention"), strict=True):
        lines = [line for line in text.splitlines() if not line.endswith(":")]
        assert len(lines) == len(loads(k.body))
    assert any(" where " in x and "for n in tl.range(" in x for x in lists)


def test_both_are_short():
    assert all(len(x.splitlines()) < 100 for x in (A_PASS, A_PRINTER))
