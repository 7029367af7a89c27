"""Functions of the recurrent form, of attentions and of solves: what they read is assigned and stored, or they are refused."""

import ast
from dataclasses import replace

import pytest

from chunkform.codegen.commands.kinds import kind_of
from chunkform.codegen.exact.launch_gate import gate_kept_launches, gate_launches
from chunkform.codegen.ir.code import Literal
from chunkform.codegen.ir.launch_ir import (
    Alloc,
    Break,
    Do,
    Entries,
    For,
    Function,
    If,
    Launch,
    Local,
    Return,
    Set,
    Statement,
    Table,
    assigned,
    entry,
    put,
    reads,
    ref,
    statements,
    takes,
)
from chunkform.codegen.ir.python_code import EMPTY, Entry, Fixed, beside, made_by, method
from chunkform.codegen.printing.code_passes import passes
from chunkform.codegen.printing.launch_text import launch_text
from chunkform.errors import GateError
from chunkform.spec.language import find

NAMES = ("gradient_descent_logistic", "softmax_attention", "mesa_net")


@pytest.fixture(scope="module")
def functions() -> dict[str, list[Function]]:
    """All functions that are printed as data, before any pass."""
    found: dict[str, list[Function]] = {}
    gate = passes.gate_launches
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            made = found.setdefault(name, [])
            patch.setattr(passes, "gate_launches", lambda f, made=made: (made.append(f), gate(f)))
            (r,) = find(name)
            kind_of(r).emit(kind_of(r).compile_spec(r), tidy=False)
    return found


def without(f: Function, gone: object) -> Function:
    def body(of):
        kept = [x for x in of if x is not gone]
        return tuple(
            replace(x, body=body(x.body), otherwise=body(x.otherwise)) if isinstance(x, If) else x for x in kept
        )

    return replace(f, body=body(f.body))


def refused(f: Function) -> bool:
    try:
        gate_launches(f)
    except GateError:
        return True
    return False


def one(found: list[Function], *names: str) -> Function:
    return next(f for f in found if f.name in names)


def test_all_pass(functions):
    for found in functions.values():
        assert found and not any(map(refused, found))


def test_the_recurrent_form_needs_each_launch_and_each_room(functions):
    found = functions["gradient_descent_logistic"]
    for name in ("triton_forward", "triton_backward"):
        f = one(found, name)
        launches = [x for x in statements(f.body) if isinstance(x, Launch)]
        rooms = [x for x in statements(f.body) if isinstance(x, Alloc | Table) and x.name != "partial_sums"]
        assert launches and rooms
        assert refused(replace(f, body=tuple(x for x in f.body if not has_launch(x))))
        assert any(refused(without(f, x)) for x in rooms)


def has_launch_in(f: Function) -> bool:
    return any(map(has_launch, f.body))


def has_launch(x) -> bool:
    return any(isinstance(y, Launch) for y in statements((x,)))


def test_torch_steps_store_what_is_returned(functions):
    for name in ("torch_forward", "torch_backward"):
        f = one(functions["gradient_descent_logistic"], name)

        def unstored(x):
            inside = tuple(map(unstored, x.body)) if hasattr(x, "body") else ()
            x = replace(x, body=inside) if inside else x
            return replace(x, stores=frozenset(), value=Fixed("nothing"), target=None) if isinstance(x, Do) else x

        assert refused(replace(f, body=tuple(map(unstored, f.body))))


def test_an_attention_s_functions_read_what_they_assign(functions):
    refusals = 0
    for f in functions["softmax_attention"]:
        for x in (x for x in f.body if isinstance(x, Set)):
            refusals += refused(without(f, x))
    assert refusals >= 3


def torch_functions(found: list[Function]) -> list[Function]:
    """Those of the torch form of a recurrence over chunks, and of a solve's matrix."""
    return [f for f in found if f.name.startswith(("torch_", "_")) and not has_launch_in(f)]


def test_functions_in_torch_need_each_statement_whose_names_are_read(functions):
    found = torch_functions(functions["mesa_net"])
    assert {"torch_forward", "torch_backward", "torch_forward_states", "torch_matrix"} <= {f.name for f in found}
    seen = 0
    for f in found:
        for n, x in enumerate(f.body):
            later = frozenset[str]().union(*map(reads, f.body[n + 1 :]))
            others = frozenset[str]().union(*map(assigned, (y for y in f.body if y is not x)))
            if isinstance(x, Set) and set(x.names) & later - others - f.parameters:
                assert refused(without(f, x)), (f.name, x)
                seen += 1
    assert seen > 50


def test_fields_of_functions_in_torch_say_what_the_text_says(functions):
    for f in torch_functions(functions["mesa_net"]):
        known = frozenset[str]().union(f.parameters, *map(assigned, f.body))
        tree = ast.parse(launch_text(f))
        called = {y.func for y in ast.walk(tree) if isinstance(y, ast.Call)}  # `exchange`, which is a function
        loaded = (y for y in ast.walk(tree) if isinstance(y, ast.Name) and isinstance(y.ctx, ast.Load))
        names = {y.id for y in loaded if y not in called}
        assert names & known == frozenset[str]().union(*map(reads, f.body)) & known, f.name


def test_a_function_inside_another_reads_what_that_one_has_assigned(functions):
    f = one(functions["mesa_net"], "torch_matrix")
    (inside,) = [x for x in f.body if isinstance(x, Local)]
    assert inside.outer and inside.function.parameters & reads(inside.function.body[0])
    assert refused(replace(f, body=(inside, *(x for x in f.body if x is not inside))))
    nothing = replace(inside, function=replace(inside.function, body=inside.function.body[-1:]))
    assert refused(replace(f, body=tuple(nothing if x is inside else x for x in f.body)))


def test_solves_load_what_was_stored_and_programs_have_places_of_their_own(functions):
    for f in (f for f in functions["mesa_net"] if f.name in ("triton_solve", "triton_matrix")):
        (launch,) = [x for x in statements(f.body) if isinstance(x, Launch)]
        assert refused(without(f, launch)) == (f.name == "triton_matrix" or any_room(f))
        alike = tuple(replace(a, over=frozenset()) if a.stores else a for a in launch.arguments)
        body = tuple(replace(x, arguments=alike) if x is launch else x for x in f.body)
        with pytest.raises(GateError, match="store to one place"):
            gate_launches(replace(f, body=body))


def any_room(f: Function) -> bool:
    return any(isinstance(x, Alloc) for x in f.body)


def test_a_loop_over_a_dictionary_sets_the_entries_of_its_names_and_no_others():
    """A room beside those is refused where nothing stores it, and so is a part that nothing has stored."""
    parts, gradients = ref("parts"), ref("gradients")
    each = put(
        Fixed("gradients")[Fixed("name")],
        method(ref("part"), "sum", 0),
        stores=frozenset({Entries("gradients", "parts")}),
    )
    loop = For(("name", "part"), method(parts, "items"), (each,), ("part",))
    tables = Set(("parts", "gradients"), beside(EMPTY, EMPTY), empty=True)
    room = Alloc(Entry("parts", "k"), Literal(8), None, like=Fixed("x"))
    other = Alloc(Entry("gradients", "w"), Literal(8), None, like=Fixed("x"))
    both = (entry("parts", "k"), entry("gradients", "w"))
    stores = Do(made_by("fill", *both), frozenset({entry("parts", "k").text, entry("gradients", "w").text}))
    half = Do(made_by("fill", entry("parts", "k")), frozenset({entry("parts", "k").text}))

    def made(*body: Statement) -> Function:
        return Function("f", takes("x"), "", (tables, room, *body, loop, Return(gradients)), frozenset({"k"}))

    gate_launches(made(half))
    gate_launches(made(other, stores))
    for body, said in (((), r"part is read by .*no launch has stored it"), ((other, half), "gradients is read by")):
        with pytest.raises(GateError, match=said):
            gate_launches(made(*body))
    with pytest.raises(GateError, match="isn't assigned before"):
        gate_launches(replace(made(half), body=(tables, room, half, loop, Return(entry("gradients", "w")))))


def test_what_a_loop_goes_over_is_stored_before():
    """Where a function makes it of tensors, these are read there."""
    room = Alloc("ends", Literal(8), None, like=Fixed("x"))
    loop = For(("name", "gradient"), method(made_by("through", ref("ends")), "items"), (Break(),))
    stored = Do(made_by("fill", ref("ends")), frozenset({"ends"}))
    gate_launches(Function("f", takes("x"), "", (room, stored, loop), frozenset({"k"})))
    with pytest.raises(GateError, match=r"ends is read by .*no launch has stored it"):
        gate_launches(Function("f", takes("x"), "", (room, loop), frozenset({"k"})))


@pytest.mark.parametrize("what", ["tensors exchanged", "a program less", "left out", "twice"])
def test_passes_over_functions_leave_launches_as_they_are(functions, what, monkeypatch):
    f = next(x for some in functions.values() for x in some if any(isinstance(y, Launch) for y in x.body))
    gate_kept_launches(f, f)

    def corrupted(x: Function) -> Function:
        n, launch = next((n, y) for n, y in enumerate(x.body) if isinstance(y, Launch))
        first, second, *others = launch.arguments
        made = {
            "tensors exchanged": (replace(launch, arguments=(second, first, *others)),),
            "a program less": (replace(launch, grid=launch.grid - 1),),
            "left out": (),
            "twice": (launch, launch),
        }[what]
        return replace(x, body=(*x.body[:n], *made, *x.body[n + 1 :]))

    monkeypatch.setattr(passes, "FUNCTION_PASSES", (passes.CodePass(corrupted, "a launch that isn't what it was"),))
    with pytest.raises(GateError):
        passes.finished_function(f)
