"""A kernel of many reads adds each to what it goes to, and stores what is complete, before it makes the next."""

from dataclasses import replace

import pytest
from shared.passed import instead
from shared.triton_errors import compiled

from chunkform.codegen.ir.code import Call, Either
from chunkform.codegen.ir.expr import ROW, Node, leaf, mul
from chunkform.codegen.ir.kernel_ir import KernelFunction, Let, Statement, Store
from chunkform.codegen.performance.compile_report import card_of, generated_module, launches_of, report_row
from chunkform.codegen.recurrence.triton import section
from chunkform.codegen.recurrence.triton.kernels.read_order import SUM, ReadSum
from chunkform.runtime.launch.assumed_card import assuming_card


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


@pytest.fixture(scope="module")
def body() -> tuple[Statement, ...]:
    found: dict[str, KernelFunction] = {}
    with instead(section, gate_over_chunks=lambda k, f: found.setdefault(k.name, f[0])):
        section.made_form(replace(compiled("kimi_delta_attention")))
    return found["backward_read_1"].body


def test_a_gradient_is_stored_before_the_next_read_is_made(body: tuple[Statement, ...]) -> None:
    sums = [n for n, x in enumerate(body) if isinstance(x, Let) and isinstance(x.value, Call)]
    sums = [n for n in sums if body[n].value.function in ("added_sum", "decayed_sum")]  # type: ignore[union-attr]
    stores = [n for n, x in enumerate(body) if isinstance(x, Store)]
    assert len(sums) == 4 and len(stores) == 3
    assert sums[2] < stores[0] < sums[3] < stores[1]


def test_float32_takes_the_transpose_of_a_product_that_is_there(body: tuple[Statement, ...]) -> None:
    made = {x.names[0]: x.value for x in body if isinstance(x, Let)}
    products = {n: x for n, x in made.items() if isinstance(x, Call) and x.function == "tl.dot"}
    either = [x for x in made.values() if isinstance(x, Either)]
    transposes = {x.then.arguments[0].text: x for x in either if x.then.text.startswith("tl.trans")}  # type: ignore[attr-defined]
    assert len(transposes) == 2 and transposes.keys() <= products.keys()
    for name, x in transposes.items():
        assert isinstance(x.otherwise, Call) and x.condition.text == "EXACT"
        (a, b), (c, d) = products[name].arguments, x.otherwise.arguments
        assert (b.text, d.text) == (f"tl.trans({c.text})", f"tl.trans({a.text})")


@pytest.mark.long
def test_operands_of_float32_fit_into_shared_memory_at_the_largest_width() -> None:
    c = compiled("kimi_delta_attention")
    with assuming_card(card_of("sm_90")):
        reads = [
            x
            for x in launches_of(c, generated_module(c), "float32", 256)
            if x.kernel.fn.__name__.startswith("backward_read")
        ]
        rows = [report_row(x, "sm_90", "float32", 256, 0) for x in reads]
    assert len(rows) == 2 and [x.problem for x in rows] == ["", ""]


def test_what_a_read_takes_of_a_state_and_of_writes_is_multiplied_once_by_the_decays_that_they_share(
    body: tuple[Statement, ...],
) -> None:
    """Two reads of a state, each added to the sum of its own writes; and one that has two such sums of a chunk's writes."""
    made = {x.names[0]: x.value for x in body if isinstance(x, Let) and isinstance(x.value, Call)}
    added = {n: x for n, x in made.items() if x.function == "added_sum"}
    onto = [made[x.arguments[0].text].function for x in added.values() if x.arguments[0].text in made]
    assert sorted(onto) == ["added_sum", "from_state", "from_state"] and len(added) == 4
    read = [x.arguments[0].text for x in made.values() if x.function == "of_reads"]
    assert len(read) == 3 and set(read) < set(added)
    assert not any(x.function == "decayed_sum" for x in made.values())
