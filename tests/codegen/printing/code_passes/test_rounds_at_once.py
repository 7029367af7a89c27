"""Steps that are taken several at once load what all of them take before the first; the gate refuses what is wrong in it."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from shared.recurrent_programs import compiled

from chunkform.codegen.ir.code import Binary, Literal, Name
from chunkform.codegen.ir.kernel_ir import (
    Body,
    For,
    If,
    KernelFunction,
    Let,
    Statement,
    changed,
    inner,
    loads,
    statements,
)
from chunkform.codegen.printing.code_passes import finished_kernel as finished
from chunkform.codegen.recurrence.stepwise.kernel_gate import gate_kernel
from chunkform.codegen.recurrence.stepwise.triton_form import sequential_kernels
from chunkform.errors import GateError

NAME = "channels"  # a matrix, of which each column is a program's own
Made = dict[str, Any]


@cache
def made() -> tuple[Made, ...]:
    return tuple(x for x in sequential_kernels(compiled(NAME)) if x)


def gate(x: Made, f: KernelFunction) -> None:
    gate_kernel(compiled(NAME), x["kernel"], f)


def blocks(f: KernelFunction) -> list[For]:
    return [x for x in statements(f.body) if isinstance(x, For) and x.name.endswith("_block")]


def edited(f: KernelFunction, change: dict[For, Body]) -> KernelFunction:
    return replace(f, body=changed(f.body, lambda x: change.get(x, (x,)) if isinstance(x, For) else (x,)))


def test_a_block_begins_with_its_loads() -> None:
    for x in made():
        f, together = finished(x["function"]), x["kernel"].together
        gate(x, f)
        assert together > 1 and blocks(f)
        for block in blocks(f):
            loaded = [bool(loads((y,))) for y in block.body]
            assert sum(loaded) % together == 0 and sum(loaded) > together
            last = max(n for n, y in enumerate(loaded) if y)
            assert all(isinstance(y, Let) for y in block.body[:last])


def test_a_launch_says_whether_it_takes_several() -> None:
    """What is beside the axis that is cut may be too much for it."""
    for x in made():
        f = finished(x["function"])
        choices = [y for y in statements(f.body) if isinstance(y, If) and y.condition == Name("several")]
        assert len(choices) == len(blocks(f))
        assert all(not blocks(replace(f, body=y.otherwise)) for y in choices)


def wrong_rounds(block: For) -> Body:
    """The last round is the one before."""
    found: list[Statement] = []
    for y in block.body:
        if (
            isinstance(y, Let)
            and isinstance(y.value, Binary)
            and y.value.right == Literal(made()[0]["kernel"].together - 1)
        ):
            y = replace(y, value=replace(y.value, right=Literal(0)))
        found.append(y)
    return (replace(block, body=tuple(found)),)


def test_corrupted_blocks_are_refused() -> None:
    for x in made():
        f = finished(x["function"])
        for block in blocks(f):
            each = [y for y in statements(f.body) if isinstance(y, If) and block in inner(y)]
            (left,) = [y for y in each[0].body if isinstance(y, For) and y != block]
            corrupted = (
                edited(f, {left: ()}),  # rounds that don't fill a block
                edited(f, {block: wrong_rounds(block)}),
                edited(f, {block: (replace(block, body=block.body[:-1]),)}),  # what the last round leaves
            )
            for wrong in corrupted:
                assert wrong != f
                with pytest.raises(GateError, match=f.name):
                    gate(x, wrong)
