"""Functions that launch kernels are data: fields say what the text says, passes and a gate read them."""

import ast
from collections.abc import Callable
from dataclasses import replace

import pytest
from shared.triton_errors import compiled

from chunkform.codegen.exact.launch_gate import gate_launches
from chunkform.codegen.ir.code import Literal
from chunkform.codegen.ir.launch_ir import (
    NONE,
    TILES,
    Alloc,
    Body,
    Call,
    Define,
    For,
    Free,
    Function,
    If,
    Launch,
    Passed,
    Return,
    Statement,
    Update,
    Wanted,
    assigned,
    inner,
    reads,
    ref,
    statements,
    stored,
)
from chunkform.codegen.ir.python_code import Fixed, beside, method
from chunkform.codegen.ir.warp_schedule import with_roles_name
from chunkform.codegen.printing.code_passes import finished_function as finished
from chunkform.codegen.printing.code_passes.freed import freed
from chunkform.codegen.printing.code_passes.wanted import wanted as guarded
from chunkform.codegen.printing.launch_text import lines_of
from chunkform.codegen.recurrence.compiled_cost import launches
from chunkform.codegen.recurrence.triton import TritonForm, triton_form
from chunkform.errors import GateError

OPS = [
    "gated_delta_rule",
    "lightning_attention",
    "gated_linear_attention",
    "gradient_descent_squared_momentum",
    "inverse_attention",
    "two_timescales",
    "leaky_integrator",
    "delta_product",
]


def form(name: str) -> TritonForm:
    return triton_form(compiled(name))


def changed(body: Body, change: Callable[[Statement], Statement | None]) -> Body:
    """A body with another statement, or none, in the place of each."""
    found: list[Statement] = []
    for x in body:
        y = change(x)
        if y is x and isinstance(x, If | Wanted):
            y = replace(x, body=changed(x.body, change))
        if y is not None and isinstance(y, If):
            y = replace(y, otherwise=changed(y.otherwise, change))
        found += [] if y is None else [y]
    return tuple(found)


@pytest.mark.parametrize("name", OPS)
def test_fields_say_what_the_text_says(name: str) -> None:
    for f in form(name).functions.values():
        f = finished(f)
        words = {n for x in statements(f.body) if isinstance(x, Define) for n in x.names}
        words |= {n for x in statements(f.body) if isinstance(x, For) for n in x.names if n not in x.tensors}
        known = {n for x in statements(f.body) for n in assigned(x)} - words - f.parameters
        for x in (x for x in statements(f.body) if not inner(x) and not isinstance(x, Return)):
            parsed = list(ast.walk(ast.parse("\n".join(lines_of((x,))))))
            bound = {n for y in parsed if isinstance(y, ast.comprehension) for n in ast.walk(y.target)}
            tree = [y for y in parsed if isinstance(y, ast.Name) and y not in bound]
            own = {x.name} if isinstance(x, Update) else set()  # |= reads as well
            assert {y.id for y in tree if isinstance(y.ctx, ast.Load)} & known | own == reads(x) & known, x
            assert {y.id for y in tree if isinstance(y.ctx, ast.Store)} == assigned(x), x


@pytest.mark.parametrize("name", OPS)
def test_launches_name_the_kernels_of_their_form(name: str) -> None:
    made = form(name)
    kernels = {x.name for x in made.parts if not isinstance(x, Function)}
    launches = [x for f in made.functions.values() for x in statements(f.body) if isinstance(x, Launch)]
    launched = {x.kernel for x in launches if with_roles_name(x.kernel) not in kernels or x.kernel in kernels}
    assert launched | {x.instead or with_roles_name(x.kernel) for x in launches if x.roles} == kernels
    text = made.text
    assert text.count("\n    launch(") + text.count("    launch(") >= len(launched)


def test_launches_are_counted_where_they_are() -> None:
    f = form("gated_delta_rule").functions
    starts = [x for x in statements(f["triton_forward"].body) if isinstance(x, Launch)]
    assert launches(compiled("gated_delta_rule"))[0] == len(starts) + 1  # and the sums of decays


def test_a_loss_of_names_is_an_error() -> None:
    with pytest.raises(TypeError, match="would lose what it reads: q"):
        f"{ref('q')}.float()"
    assert method(ref("q"), "float").names == {"q"} and method(Fixed("q"), "float").names == frozenset()
    with pytest.raises(ValueError, match=r"expected a name, got 'q.float\(\)'"):
        Fixed("q.float()")


def function(*body: Statement) -> Function:
    return Function("f", (), "Some.", body, frozenset("qk"))


def launch(loads: str, stores: str, programs: frozenset[str] | None = None) -> Launch:
    arguments = (*(Passed(ref(n)) for n in loads), *(stored(ref(n)) for n in stores))
    made = Launch("kernel", Literal(1), arguments, (), ())
    return made if programs is None else replace(made, programs=programs)


def test_results_are_made_where_they_are_wanted() -> None:
    some, all_ = Wanted(frozenset("q"), (launch("", "x"),)), Wanted(frozenset("qk"), (launch("", "y"),))
    first, second = guarded(function(some, all_, Wanted(frozenset("q"), ()))).body
    assert isinstance(first, If) and first.condition.text == 'needs & {"q"}' and second == all_.body[0]


def test_large_tensors_go_after_their_last_use() -> None:
    room, use, last = Alloc("x", beside("B", "T")), launch("", "x"), Return(NONE)
    assert freed(function(room, use, launch("x", ""), last)).body == (room, use, launch("x", ""), Free(("x",)), last)
    inside = If(Fixed("c"), (launch("x", ""),))
    assert freed(function(room, use, inside, last)).body[3] == Free(("x",))
    assert freed(replace(function(room, use, last), frees=False)).body == (room, use, last)


@pytest.mark.parametrize("name", OPS)
def test_each_launch_and_each_room_is_needed(name: str) -> None:
    """Without any of them, something is read that isn't there: but for the last launches, whose results go out as they are."""
    for f in form(name).functions.values():
        gate_launches(f)
        rooms = [x for x in statements(f.body) if isinstance(x, Alloc)]
        for gone in rooms[:: max(1, len(rooms) // 4)]:
            with pytest.raises(GateError, match=gone.name):
                gate_launches(replace(f, body=changed(f.body, lambda x, gone=gone: None if x is gone else x)))


def test_what_no_launch_has_stored_is_not_read() -> None:
    room = Alloc("x", beside("B", "T"))
    gate_launches(function(room, launch("", "x"), launch("x", "")))
    for body in (
        (room, launch("x", "")),
        (launch("", "x"), room),
        (room, Wanted(frozenset("q"), (launch("", "x"),)), launch("x", "")),
        (room, If(Fixed("c"), (launch("", "x"),)), launch("x", "")),
        (room, launch("", "x"), Free(("x",)), launch("x", "")),
        (room, Call(("y",), "pair", (ref("x"),))),
    ):
        with pytest.raises(GateError, match="x is read by"):
            gate_launches(function(*body))
    both = If(Fixed("c"), (launch("", "x"),), (launch("", "x"),))
    gate_launches(function(room, both, launch("x", "")))
    gate_launches(function(room, If(Fixed("c"), (launch("", "x"),)), If(Fixed("c"), (launch("x", ""),))))


def test_launches_that_share_the_chunks_are_both_needed() -> None:
    room, small, large = Alloc("x", beside("B", "T")), *(replace(launch("", "x"), small_range=s) for s in (True, False))
    gate_launches(function(room, small, large, launch("x", "")))
    for one in (small, large):
        with pytest.raises(GateError, match="x is read by"):
            gate_launches(function(room, one, launch("x", "")))
    found = 0
    for f in form("kimi_delta_attention").functions.values():
        shared = [x for x in statements(f.body) if isinstance(x, Launch) and x.small_range is not None]
        for gone in (x for x in shared if "prologue" in x.kernel):
            found += 1
            with pytest.raises(GateError, match="no launch has stored it"):
                gate_launches(replace(f, body=changed(f.body, lambda x, gone=gone: None if x is gone else x)))
    assert found >= 4


def test_two_programs_store_to_no_place() -> None:
    tiled = launch("", "x").programs | {TILES}
    with pytest.raises(GateError, match="programs of kernel that differ in tiles store to one place of x"):
        gate_launches(function(Alloc("x", beside("B", "T")), launch("", "x", tiled)))


@pytest.mark.parametrize("name", ["gated_delta_rule", "gated_linear_attention", "two_timescales"])
def test_corrupted_functions_are_refused(name: str) -> None:
    f = form(name).functions["triton_backward"]
    blocks = [x for x in f.body if isinstance(x, Wanted) and len(x.wanted) > 1 and x.wanted != f.results]
    refused = 0
    for block in blocks:  # made for one of the results alone, where others need it too
        narrow = replace(block, wanted=frozenset(sorted(block.wanted)[:1]))
        try:
            gate_launches(replace(f, body=changed(f.body, lambda x, b=block, n=narrow: n if x is b else x)))
        except GateError:
            refused += 1
    assert refused
    swapped = [x for x in f.body if isinstance(x, Wanted)]
    with pytest.raises(GateError):
        gate_launches(replace(f, body=tuple(x for x in f.body if x not in swapped) + tuple(reversed(swapped))))


@pytest.mark.parametrize("name", ["momentum_beside_channels", "ones_read"])
def test_what_a_sweep_loads_is_made_wherever_it_runs(name: str) -> None:
    """A sweep that makes what enters parts, or leaves states for others, runs for gradients that its own terms aren't for."""
    gate_launches(form(name).functions["triton_backward"])
