"""Which steps can be taken by rows, and in how many passes: found by structure."""

import pytest
from shared.recurrent_programs import specs

from chunkform.codegen.ir.expr import Node, leaves
from chunkform.codegen.recurrence.step.adjoint import adjoint
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.codegen.recurrence.stepwise.rows import ROW, row_plan


def plans(name: str) -> list:
    p = lower(specs()[name])
    a = adjoint(p).program
    return [row_plan(x.updates, x.outputs, {s.name: s.axes for s in x.states}) for x in (p, a)]


def known(*nodes: Node) -> set[str]:
    return {x.attrs[1] for x in leaves(*nodes) if x.attrs[0] == "known"}


@pytest.mark.parametrize(("name", "passes"), [("sherman_morrison", [2, 3]), ("two_sided", [2, 3])])
def test_a_pass_uses_sums_of_earlier_ones_only(name, passes) -> None:
    found = plans(name)
    assert [len(x.levels) for x in found] == passes
    for plan in found:
        before: set[str] = set()
        for level in plan.levels:
            assert known(*(x.body for x in level)) <= before
            assert all(ROW in x.body.axes for x in level)
            before |= {x.name for x in level}
        assert known(*plan.updates.values(), *plan.rest.values()) <= before
        assert not any(len(x.axes) > 1 for x in plan.rest.values())


@pytest.mark.parametrize("name", ["everything", "tanh_layer"])
def test_products_of_matrices_and_matrices_of_parameters_are_left_whole(name) -> None:
    assert plans(name) == [None, None]
