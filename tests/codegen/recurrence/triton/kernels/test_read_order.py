"""A kernel of many reads adds each to what it goes to, and stores what is complete, before it makes the next."""

from dataclasses import replace

import pytest
from shared.triton_errors import compiled

from chunkform.codegen.ir.code import Call
from chunkform.codegen.ir.expr import ROW, Node, leaf, mul
from chunkform.codegen.ir.kernel_ir import KernelFunction, Let, Store
from chunkform.codegen.recurrence.triton import section
from chunkform.codegen.recurrence.triton.kernels.read_order import SUM, ReadSum


def read(n: int) -> Node:
    return leaf("read", f"r{n}", (ROW, "d"))


def stream(name: str) -> Node:
    return leaf("input", name, (ROW, "d"))


def test_terms_with_a_common_factor_are_added_up_before_they_are_multiplied_by_it() -> None:
    k, a, q = map(stream, "kaq")
    sums = ReadSum.of([mul(-1, k, a, read(1)), mul(q, read(2)), mul(k, read(3))])
    kept: list[Node] = []

    def keep(x: Node) -> Node:
        kept.append(x)
        return leaf(SUM, str(len(kept)), x.axes)

    for n in (1, 3):
        sums.add(lambda x, n=n: x if read(n) in (x, *x.args) else None, keep)  # type: ignore[misc]
        assert not sums.complete
    sums.add(lambda x: x, keep)
    assert sums.complete and sums.total is not None
    assert kept[0] is mul(-1, a, read(1))
    assert {x.attrs[0] for x in kept[1].args if x.op == "leaf"} == {"input"} and k in kept[1].args


def test_a_gradient_is_stored_before_the_next_read_is_made() -> None:
    found: dict[str, KernelFunction] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(section, "gate_over_chunks", lambda k, f: found.setdefault(k.name, f[0]))
        section._form.__wrapped__(replace(compiled("kimi_delta_attention")), True, None, None)
    body = found["backward_read_1"].body
    sums = [n for n, x in enumerate(body) if isinstance(x, Let) and isinstance(x.value, Call)]
    sums = [n for n in sums if body[n].value.function == "decayed_sum"]  # type: ignore[union-attr]
    stores = [n for n, x in enumerate(body) if isinstance(x, Store)]
    assert len(sums) == 4 and len(stores) == 3
    assert sums[2] < stores[0] < sums[3] < stores[1]
