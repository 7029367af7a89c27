"""Functions of the recurrent form, of attentions and of solves: what they read is assigned and stored, or they are refused."""

from dataclasses import replace

import pytest

from chunkform.codegen.commands.kinds import kind_of
from chunkform.codegen.exact.launch_gate import gate_launches
from chunkform.codegen.ir.launch_ir import Alloc, Do, Function, If, Launch, Set, Table, statements
from chunkform.codegen.printing.code_passes import passes
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


def has_launch(x) -> bool:
    return any(isinstance(y, Launch) for y in statements((x,)))


def test_torch_steps_store_what_is_returned(functions):
    for name in ("torch_forward", "torch_backward"):
        f = one(functions["gradient_descent_logistic"], name)

        def unstored(x):
            inside = tuple(map(unstored, x.body)) if hasattr(x, "body") else ()
            x = replace(x, body=inside) if inside else x
            return replace(x, stores=frozenset(), text=replace(x.text, names=frozenset())) if isinstance(x, Do) else x

        assert refused(replace(f, body=tuple(map(unstored, f.body))))


def test_an_attention_s_functions_read_what_they_assign(functions):
    refusals = 0
    for f in functions["softmax_attention"]:
        for x in (x for x in f.body if isinstance(x, Set)):
            refusals += refused(without(f, x))
    assert refusals >= 3


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
