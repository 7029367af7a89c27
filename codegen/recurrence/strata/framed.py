"""What the functions of a recurrence in a moving frame do beside its strata: its last states are turned into those of the step,
and their gradients back."""

from __future__ import annotations

from ...ir.code import Code, Literal
from ...ir.expr import Node, fn
from ...ir.launch_ir import Body, Function, If, Return, Set, Statement, Update, item, ref, takes
from ...ir.python_code import Constant, Spread, dictionary, made_by, method, said, several
from ...ir.step_program import StepProgram
from ...printing.expressions import NodePrinter, Torch
from ..chunkwise.compiled import Compiled
from ..step.adjoint import adjoint, gradient_name
from ..step.frames import TURNED, Frame, begins_with, ends_program
from ..stepwise.names import Names, printed

MODULES = {"chunkform.runtime.op.frames": "last_unit like_state none_of"}
KEPT = 0  # what is kept of the last states, beside what strata keep


def turning_functions(c: Compiled, backend: str) -> list[Function]:
    """The two functions that turn last states, and their gradients back."""
    ends = ends_program(_frame(c))
    return [_turned(c, ends, backend), _turned_back(c, ends, backend)]


def begun(c: Compiled) -> Statement:
    """The states with those of the frame, which begins as the step does."""
    return Set(("states",), _and_hidden(c, "states"))


def finished(c: Compiled, backend: str, keeps: Body) -> Body:
    """What follows the strata's forward passes, which left the last states in the frame; `keeps` keeps these as `ends`."""
    frame = _frame(c)
    packed = Literal(None) if backend == "torch" else ref("packed")
    units = []
    for name in frame.hidden:
        units.append((name, _last_unit(c, name, packed)))
    return (
        Update("lasts", dictionary(units)),
        Set(("ends",), dictionary([(n, item("lasts", n)) for n in (*frame.hidden, *frame.moved)])),
        *keeps,
        Set(("lasts",), made_by(f"{backend}_turned", "lasts")),
    )


def turned_back(c: Compiled, backend: str) -> Statement:
    """The gradients of the last states, as the strata's backward passes take them."""
    kept = made_by("kept_of", KEPT, ref("saved"))
    return Set(("final_cotangents",), made_by(f"{backend}_turned_back", kept, "final_cotangents"))


def _frame(c: Compiled) -> Frame:
    assert c.frame is not None
    return c.frame


def _last_unit(c: Compiled, name: str, packed: Code) -> Code:
    """The product of all units of a sequence, of what is handed on of it at each step: of an angle less whole turns."""
    step = _frame(c).step
    s, after = step.state(name), step.updates[name]
    handed = {p.compiled.step.outputs[x]: x for p in c.strata for x in p.hands}
    first = float(begins_with(s))
    if after in handed:
        return made_by("last_unit", item("given", handed[after]), packed, first)
    found = [handed.get(fn(f, after)) for f in ("sin", "cos")]
    if None in found:
        return item("lasts", name)
    return made_by(
        "torch.atan2", *(made_by("last_unit", item("given", x), packed, n) for n, x in enumerate(found) if x)
    )


def _and_hidden(c: Compiled, table: str) -> Code:
    return dictionary([Spread(ref(table)), *((n, Constant(None)) for n in _frame(c).hidden)])


def _turned(c: Compiled, ends: StepProgram, backend: str) -> Function:
    names = _names(ends)
    made, results = _printed(ends, ends.outputs, {n: ends.output_axes[n] for n in ends.outputs}, names)
    lasts = [(s.name, results.get(f"{TURNED}{s.name}", item("lasts", s.name))) for s in c.step.states]
    return Function(
        f"{backend}_turned",
        takes("lasts"),
        "The last states as the step has them, of those in the frame.",
        (*_taken(ends, names, "lasts"), *made, Return(dictionary(lasts))),
        frees=False,
    )


def _turned_back(c: Compiled, ends: StepProgram, backend: str) -> Function:
    names, back = _names(ends), adjoint(ends).program
    moved = _frame(c).moved
    wanted = {v.name: back.outputs[gradient_name(v)] for v in ends.variables}
    own: list[Statement] = []
    for n in moved:
        value = made_by("like_state", method(ref("cotangents"), "get", said(n)), names.of("input", n))
        own.append(Set((names.of("cotangent", f"d{TURNED}{n}"),), value))
    made, results = _printed(ends, wanted, {v.name: v.axes for v in ends.variables}, names)
    nothing = made_by("none_of", "cotangents", several(*map(said, moved)))
    return Function(
        f"{backend}_turned_back",
        takes("kept", "cotangents"),
        "The gradients of the last states in the frame, of those as the step has them.",
        (
            If(nothing, (Return(_and_hidden(c, "cotangents")),)),
            *_taken(ends, names, "kept"),
            *own,
            *made,
            Return(dictionary([Spread(ref("cotangents")), *results.items()])),
        ),
        frees=False,
    )


def _names(ends: StepProgram) -> Names:
    names = Names()
    names.taken |= {"lasts", "kept"}
    for v in ends.variables:
        names.of(v.kind, v.name)
    return names


def _taken(ends: StepProgram, names: Names, table: str) -> Body:
    return tuple(Set((names.of(v.kind, v.name),), item(table, v.name)) for v in ends.variables)


def _printed(
    ends: StepProgram, nodes: dict[str, Node], orders: dict[str, tuple[str, ...]], names: Names
) -> tuple[list[Set], dict[str, Code]]:
    printer = NodePrinter(Torch(lambda d: f"size_{d}", ends.variables[0].name), taken=set(names.taken))
    return printed(printer, nodes, names, orders)
