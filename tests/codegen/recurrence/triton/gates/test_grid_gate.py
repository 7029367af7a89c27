"""Launches of kernels over chunks: refused on another grid, with exchanged arguments, or before what they load is stored."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from shared.passed import instead
from shared.triton_errors import compiled

from chunkform.codegen.exact.launch_gate import gate_launches
from chunkform.codegen.ir.code import Binary, Code, Group
from chunkform.codegen.ir.code_parts import rebuilt, walk_code
from chunkform.codegen.ir.launch_ir import (
    Body,
    For,
    Function,
    If,
    Launch,
    Set,
    Statement,
    Wanted,
    assigned,
    inner,
    statements,
)
from chunkform.codegen.ir.python_code import Fixed
from chunkform.codegen.recurrence.triton import section
from chunkform.codegen.recurrence.triton.gates.grid_gate import gate_grids
from chunkform.codegen.recurrence.triton.kernels.chunk_kernel import Kernel
from chunkform.errors import GateError

OPS = ["gated_delta_rule", "gated_linear_attention", "retention", "linear_attention"]
Made = tuple[Function, list[Kernel]]


@pytest.fixture(scope="module")
def functions() -> list[Made]:
    """The functions that launch kernels over chunks, of some ops, and those kernels."""
    found: list[Made] = []
    with instead(
        section,
        gate_grids=lambda f, k: found.append((f, k)),
        gate_over_chunks=lambda *_: None,
        gate_kernel=lambda *_: None,
    ):
        for name in OPS:
            section.made_form(compiled(name))
    return found


def edited(body: Body, change: Callable[[Body], Body]) -> Body:
    """A body in which the bodies of statements, and then it itself, are what `change` makes of them."""
    found: list[Statement] = []
    for x in body:
        match x:
            case If(body=own, otherwise=other):
                x = replace(x, body=edited(own, change), otherwise=edited(other, change))
            case Wanted(body=own) | For(body=own):
                x = replace(x, body=edited(own, change))
        found.append(x)
    return change(tuple(found))


def instead_of(f: Function, old: Statement, new: Statement) -> Function:
    return replace(f, body=edited(f.body, lambda body: tuple(new if x is old else x for x in body)))


def launches(made: Made) -> Iterator[Launch]:
    f, kernels = made
    names = {n for k in kernels for n in (k.name, f"{k.name}_slow")}
    yield from (x for x in statements(f.body) if isinstance(x, Launch) and x.kernel in names)


def refused(f: Function, kernels: list[Kernel]) -> bool:
    try:
        gate_grids(f, kernels)
        gate_launches(f)
    except GateError as why:
        assert f.name in str(why)
        return True
    return False


def test_what_is_made_is_launched_as_it_is_for(functions: list[Made]) -> None:
    assert len(functions) >= 7 and sum(1 for made in functions for _ in launches(made)) > 30
    assert not any(refused(*made) for made in functions)


def test_a_grid_without_one_of_its_factors_is_refused(functions: list[Made]) -> None:
    tried = 0
    for f, kernels in functions:
        for x in launches((f, kernels)):
            for y in walk_code(x.grid):
                for wrong in (y.left, y.right) if isinstance(y, Binary) and y.operator in "*+" else ():
                    new = replace(x, grid=_replaced(x.grid, y, wrong))
                    tried += 1
                    assert refused(instead_of(f, x, new), kernels), (x.kernel, new.grid.text)
    assert tried > 100


def _replaced(x: Code, old: Code, new: Code) -> Code:
    return Group(new) if x is old else rebuilt(x, lambda y: _replaced(y, old, new))


def test_blocks_that_the_grid_does_not_count_are_refused(functions: list[Made]) -> None:
    for f, kernels in functions:
        known = {k.name: k for k in kernels}
        for x in launches((f, kernels)):
            k = known.get(x.kernel)
            if k is None or k.tiled is None:
                continue
            words = tuple((n, w * 2 if n == f"block_{k.tiled}" else w) for n, w in x.words)
            assert words == x.words or refused(instead_of(f, x, replace(x, words=words)), kernels), x.kernel


def test_arguments_of_which_one_is_handed_over_for_another_are_refused(functions: list[Made]) -> None:
    """Of tensors that the call gives, or a launch has stored."""
    tried = 0
    for f, kernels in functions:
        sets = [x for x in statements(f.body) if isinstance(x, Set)]
        given = {n for x in sets for n in x.names if Fixed("given") in walk_code(x.value)}
        given -= {n for n in given if sum(n in assigned(x) for x in statements(f.body) if not inner(x)) > 1}
        for x in launches((f, kernels)):
            found = [n for n, a in enumerate(x.arguments) if a.value.names & given and len(a.value.names) == 1]
            for a, b in pairwise(found):
                new = list(x.arguments)
                new[a], new[b] = new[b], new[a]
                tried += 1
                wrong = instead_of(f, x, replace(x, arguments=tuple(new)))
                assert refused(wrong, kernels), (x.kernel, new[a].value.text, new[b].value.text)
    assert tried > 15


def test_a_launch_that_is_missing_is_refused(functions: list[Made]) -> None:
    """Where another one loads what it stores."""
    tried = 0
    for f, kernels in functions:
        found = list(launches((f, kernels)))
        for x in found:
            if x.small_range is None and any(x.stores & y.loads for y in found[found.index(x) + 1 :]):
                tried += 1
                gone = replace(f, body=edited(f.body, lambda body, x=x: tuple(y for y in body if y is not x)))
                assert refused(gone, kernels), x.kernel
    assert tried > 5


def test_launches_in_another_order_are_refused(functions: list[Made]) -> None:
    """A launch before another one whose results it loads."""
    tried = 0
    for f, kernels in functions:
        bodies: list[Body] = []
        edited(f.body, lambda body, bodies=bodies: bodies.append(body) or body)
        for body in bodies:
            for a, b in pairwise(n for n, x in enumerate(body) if any(isinstance(y, Launch) for y in statements([x]))):
                first, second = (frozenset(y for y in statements([body[n]]) if isinstance(y, Launch)) for n in (a, b))
                if not any(x.stores & y.loads - y.stores for x in first for y in second):
                    continue
                new = (*body[:a], body[b], body[a], *body[a + 1 : b], *body[b + 1 :])
                wrong = replace(f, body=edited(f.body, lambda x, body=body, new=new: new if x == body else x))
                tried += 1
                assert wrong != f and refused(wrong, kernels), [x.kernel for x in first]
    assert tried > 3
