"""The order of the passes over kernels: which depend on each other, and what becomes of another order or of a pass less."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations

import pytest
from shared.op_cases import SPECS

from chunkform.codegen.commands.kinds import kind_of
from chunkform.codegen.ir.kernel_ir import KernelFunction
from chunkform.codegen.printing.code_passes import passes
from chunkform.codegen.printing.code_passes.passes import KERNEL_PASSES, CodePass
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.errors import GateError

BY_NAME = {p.name: p for p in KERNEL_PASSES}
SOME = ["retention", "gradient_descent_logistic"]  # between them they have all that passes look for
# Of these two, the second looks at what the first has left; all others may change places.
AFTER = {("falling_back", "guarded"), ("rounds_at_once", "prefetched")}


def moved(second: str, first: str) -> tuple[CodePass[KernelFunction], ...]:
    """The passes, with the second of two right before the first."""
    found = [p for p in KERNEL_PASSES if p.name != second]
    found.insert([p.name for p in found].index(first), BY_NAME[second])
    return tuple(found)


def through(order, k: KernelFunction) -> KernelFunction:
    for p in order:
        k = p.run(k)
    return k


@contextmanager
def in_order(order) -> Iterator[list[KernelFunction]]:
    """Meanwhile the passes have this order; gives the kernels as they come, before any. By hand, and not by `monkeypatch`, after
    which gates would run again that have nothing to do with it."""
    found: list[KernelFunction] = []

    def seen(k: KernelFunction) -> KernelFunction:
        found.append(k)
        return k

    passes.KERNEL_PASSES = (CodePass(seen, "nothing"), *order)
    try:
        yield found
    finally:
        passes.KERNEL_PASSES = KERNEL_PASSES


def emit(name: str) -> None:
    kind_of(SPECS[name]).emit(compile_spec(SPECS[name]), tidy=False)


@pytest.fixture(scope="module")
def kernels() -> list[KernelFunction]:
    with in_order(KERNEL_PASSES) as found:
        for name in SOME:
            emit(name)
    return list(dict.fromkeys(found))


def test_each_pass_does_something(kernels):
    for p in KERNEL_PASSES:
        assert any(p.run(through(KERNEL_PASSES[: KERNEL_PASSES.index(p)], k)) != k for k in kernels), p.name


def test_only_what_is_said_to_depend_on_order_does(kernels):
    usual = [through(KERNEL_PASSES, k) for k in kernels]
    found = {
        (first.name, second.name)
        for n, (first, second) in enumerate(combinations(KERNEL_PASSES, 2))
        if [through(swapped(first.name, second.name), k) for k in kernels] != usual
    }
    assert found == AFTER


def swapped(first: str, second: str) -> list[CodePass[KernelFunction]]:
    """The passes in an order in which these two stand the other way round, and no other two that depend on each other do."""
    order = list(moved(second, first))
    for a, b in AFTER - {(first, second)}:
        at, behind = (next(n for n, p in enumerate(order) if p.name == x) for x in (a, b))
        if behind < at:
            order.insert(behind, order.pop(at))
    return order


@pytest.mark.parametrize("left_out", ["in_slices", "falling_back", "guarded"])
def test_a_kernel_without_a_pass_that_it_needs_is_refused(left_out):
    with in_order([p for p in KERNEL_PASSES if p.name != left_out]), pytest.raises(GateError):
        emit("retention")


def test_guards_before_what_falls_back_are_refused():
    """What would be there in any case, would be there only where the argument is given."""
    with in_order(moved("guarded", "falling_back")), pytest.raises(GateError, match="per_step"):
        emit("retention")


def test_loads_a_round_ahead_of_rounds_at_once_are_as_right():
    """They load more than they need, and that is all; so the order of these two is for speed."""
    with in_order(moved("prefetched", "rounds_at_once")) as found:
        emit("gradient_descent_logistic")
    assert any(through(moved("prefetched", "rounds_at_once"), k) != through(KERNEL_PASSES, k) for k in found)
