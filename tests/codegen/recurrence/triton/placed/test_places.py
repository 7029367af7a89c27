"""Kernels whose tiles are copied ahead of time: which have them, and that their gate refuses what isn't waited for, or is another
number."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from shared.triton_errors import compiled

from chunkform.codegen.ir.code import Call, Code, Literal
from chunkform.codegen.ir.code_parts import rebuilt
from chunkform.codegen.ir.placed_tiles import (
    CopiesAwaited,
    Copy,
    Kept,
    Left,
    Made,
    PlacedKernel,
    ProductAwaited,
    ProductBegun,
    Step,
)
from chunkform.codegen.printing.cannot_print import CannotPrint
from chunkform.codegen.recurrence.triton import section, triton_form
from chunkform.codegen.recurrence.triton.kernels.chunk_kernel import Kernel
from chunkform.codegen.recurrence.triton.placed.derive import ROOM, placed_kernel
from chunkform.codegen.recurrence.triton.placed.gate import gate_placed
from chunkform.errors import GateError

HAVE = ["gated_linear_attention", "kimi_delta_attention"]
HAVE_NONE = ["gated_delta_rule", "lightning_attention", "value_decay_attention"]
Pair = tuple[Kernel, PlacedKernel]


def kernels(name: str) -> list[Pair]:
    """The kernels of an op whose tiles have places."""
    found: list[Pair] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(section, "gate_over_chunks", lambda k, f: None)
        patch.setattr(section, "gate_placed", lambda k, p: found.append((k, p)))
        section.made_form(compiled(name))
    return found


@pytest.fixture(scope="module", params=HAVE)
def pair(request: Any) -> Pair:
    ((k, p),) = kernels(request.param)
    return k, p


@pytest.mark.parametrize("name", HAVE_NONE)
def test_what_reads_no_states_with_a_decay_for_each_channel_has_none(name):
    assert not [x for x in triton_form(compiled(name)).parts if isinstance(x, PlacedKernel)]


def test_steps_leave_what_the_kernel_is_for(pair):
    gate_placed(*pair)


def without(kind: type, number: int = 0) -> Callable[[tuple[Step, ...]], tuple[Step, ...]]:
    """The steps but for one of a kind."""

    def change(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        at = [n for n, x in enumerate(steps) if isinstance(x, kind)][number]
        return steps[:at] + steps[at + 1 :]

    return change


def changed(
    kind: type, change: Callable[[Any], Any], number: int = 0
) -> Callable[[tuple[Step, ...]], tuple[Step, ...]]:
    """The steps, one of a kind another."""

    def of(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        at = [n for n, x in enumerate(steps) if isinstance(x, kind) and change(x) != x][number]
        return (*steps[:at], change(steps[at]), *steps[at + 1 :])

    return of


def other_call(before: str, after: str) -> Callable[[Any], Any]:
    """A step whose value calls another function."""

    def of(x: Code) -> Code:
        x = rebuilt(x, of)
        return replace(x, function=after) if isinstance(x, Call) and x.function == before else x

    return lambda x: replace(x, value=of(x.value))


def other_direction(x: Made) -> Made:
    """A step whose sum is over the steps on the other side."""

    def of(y: Code) -> Code:
        y = rebuilt(y, of)
        if isinstance(y, Call) and y.function == "added_sum":
            *first, forward, diagonal, dtype = y.arguments
            assert isinstance(forward, Literal)
            return replace(y, arguments=(*first, Literal(not forward.value), diagonal, dtype))
        return y

    return replace(x, value=of(x.value))


NOT_WAITED = {
    "a copy": without(CopiesAwaited),
    "the last copies": without(CopiesAwaited, -1),
    "fewer copies": changed(CopiesAwaited, lambda x: replace(x, under_way=x.under_way + 1)),
    "a product": without(ProductAwaited),
    "the last product": without(ProductAwaited, -1),
    "products that may go on": changed(ProductAwaited, lambda x: replace(x, under_way=x.under_way + 1)),
    "a tile copied twice": lambda steps: (*steps, next(x for x in steps if isinstance(x, Copy))),
}
OTHERS = {
    "the other operand turned": changed(ProductBegun, lambda x: replace(x, left=replace(x.left, turned=True)), 0),
    "another factor": changed(Made, other_call("to_start", "from_start")),
    "another direction": changed(Made, other_direction),
    "other sums of decays": changed(Kept, lambda x: replace(x, value=x.value + 1)),
    "nothing left": without(Left),
    "the wrong tile left": changed(Left, lambda x: replace(x, value=x.value * 2)),
}


@pytest.mark.parametrize("what", NOT_WAITED)
def test_what_is_not_waited_for_is_refused(pair, what):
    k, p = pair
    with pytest.raises(GateError, match=r"before|wait|twice"):
        gate_placed(k, replace(p, steps=NOT_WAITED[what](p.steps)))


@pytest.mark.parametrize("what", OTHERS)
def test_other_numbers_are_refused(pair, what):
    k, p = pair
    with pytest.raises(GateError):
        gate_placed(k, replace(p, steps=OTHERS[what](p.steps)))


def test_a_place_is_not_filled_while_a_product_reads_it(pair):
    k, p = pair
    begun = next(x for x in p.steps if isinstance(x, ProductBegun))
    at = p.steps.index(begun) + 1
    steps = (*p.steps[:at], Kept("other", begun.left.place, Literal(0)), *p.steps[at:])
    with pytest.raises(GateError, match="filled while a product reads it"):
        gate_placed(k, replace(p, steps=steps))


def test_copies_begin_at_once_where_there_is_room(pair):
    """All of them where a program's room holds them; else those that are needed late, when others aren't needed any more."""
    _, p = pair
    sizes = {x.place.name: (4 if x.place.dtype != "DT" else 2) * 64 * (128 if "block_e" in x.place.shape else 64)
             for x in p.steps if isinstance(x, Copy)}  # fmt: skip
    first = next(n for n, x in enumerate(p.steps) if not isinstance(x, Copy))
    late = [x.place.name for x in p.steps[first:] if isinstance(x, Copy)]
    meanwhile = 2 * 2 * 64 * 64
    assert (late == []) == (sum(sizes.values()) + meanwhile <= ROOM)
    assert sum(x for n, x in sizes.items() if n not in late) + meanwhile <= ROOM


def test_a_kernel_that_does_something_else_is_refused(pair):
    k, _ = pair
    with pytest.raises(CannotPrint, match="places are for"):
        placed_kernel(replace(k, slow_path=()))
    with pytest.raises(CannotPrint, match="made twice"):
        placed_kernel(replace(k, body=(*k.body[:-1], k.body[1], k.body[1])))
