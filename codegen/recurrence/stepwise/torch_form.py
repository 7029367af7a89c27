"""The torch form of a step program: a loop over time, forwards, and backwards through checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...ir.code import Attribute, Items
from ...ir.expr import Node, leaves
from ...ir.launch_ir import (
    Alloc,
    Body,
    Break,
    Code,
    Do,
    For,
    Function,
    If,
    Return,
    Set,
    Statement,
    Table,
    entry,
    put,
    ref,
    takes,
)
from ...ir.python_code import Fixed, a_list, beside, dictionary, made_by, method, said, several
from ...ir.step_program import StepProgram, Var
from ...ir.words import Definitions, apart
from ...printing.code_passes import finished_function
from ...printing.expressions import NodePrinter, Torch
from ...printing.launch_text import launch_definition
from ..chunkwise.compiled import Compiled
from ..step.adjoint import gradient_name
from .initial import gradient_statements, parameters, start_statements
from .names import Names, Shape, computed, first_input, names_of, printed, sizes, tensors, wanted_among

STEPS, HEADS = ("batch", "steps", "heads"), ("batch", "heads")


def sequential_torch(c: Compiled, begins: str = "torch") -> Definitions:
    """Functions whose names begin so, such as `torch_forward` and `torch_backward`; and `torch_start`."""
    return _finished([*_start(c), _forward(c, f"{begins}_forward"), _backward(c, f"{begins}_backward")])


def maps_torch(c: Compiled, name: str) -> Definitions:
    """A function that takes the steps of c forwards; it uses `torch_start`."""
    return _finished([_forward(c, name)])


def starts(c: Compiled, gradients: bool = True) -> Definitions:
    """`torch_start`, and where parameters set the first states `torch_start_gradients`."""
    return _finished(_start(c)[: 2 if gradients else 1])


def _finished(functions: list[Function]) -> Definitions:
    return apart((launch_definition(finished_function(f)) for f in functions), "\n")


@dataclass
class _Form:
    """The names that functions of one recurrence have in common."""

    c: Compiled

    @cached_property
    def names(self) -> Names:
        return names_of(self.c.step, {f"size_{d}" for d in sizes(self.c.step).dims})

    def state(self, name: str) -> str:
        return self.names.of("state", name)

    def gradient(self, name: str) -> str:
        return self.names.of("state", f"d{name}")

    @property
    def states(self) -> list[str]:
        return [s.name for s in self.c.step.states]

    @property
    def all_states(self) -> Code:
        """All states at one step, as a tuple."""
        return Items(tuple(ref(self.state(n)) for n in self.states), closed=True)

    def given(self, v: Var) -> Code:
        """A variable as steps compute with it."""
        return computed(v)

    def constant_in_time(self) -> Body:
        """Sizes, and what is the same at each step."""
        p = self.c.step
        return (
            *(Set((f"size_{d}",), size) for d, size in sizes(p).dims.items()),
            *(
                Set((self.names.of("constant", v.name),), Fixed("constants")[v.name])
                for v in p.variables
                if v.kind == "constant"
            ),
            *(Set((self.names.of(v.kind, v.name),), self.given(v)) for v in tensors(p) if not v.per_step),
        )

    def like(self) -> Set:
        return Set(("like",), method(sizes(self.c.step).lead, "new_zeros", several(), dtype="dtype"))

    def unpack(self) -> Body:
        """Sizes, sequences of what is given at each step, and the length of a segment."""
        per_step = [v for v in tensors(self.c.step) if v.per_step]
        return (
            Set(("dtype",), made_by("computed_in", "given")),
            Set(("batch", "steps", "heads"), Attribute(sizes(self.c.step).lead, "shape")[:3]),
            self.like(),
            *self.constant_in_time(),
            Table("sequences", tuple(Set((v.name,), method(self.given(v), "unbind", 1)) for v in per_step)),
            Set(("segment",), made_by("segment_length", "steps")),
        )

    def by_length(self, kind: str, name: str, rest: tuple[str, ...]) -> If:
        """What is packed is taken sequence after sequence."""
        per_step = a_list(*(said(v.name) for v in tensors(self.c.step) if v.per_step))
        handed = made_by(f"{kind}_by_length", name, "per_step", "given", "states", "constants", *rest, "packed")
        return If(Fixed("packed").given, (Set(("per_step",), per_step), Return(handed)))


@dataclass(frozen=True)
class _Step:
    """One step: what it reads, its statements, its outputs, and the assignment of the new states."""

    reads: Body
    made: Body
    outputs: dict[str, Code]
    assignment: Set


def _step(form: _Form, p: StepProgram, outputs: bool = True) -> _Step:
    names = form.names
    states, axes = {s.name: s.axes for s in p.states}, p.output_axes if outputs else {}
    nodes = {f"next {n}": p.updates[n] for n in states} | {f"out {n}": p.outputs[n] for n in axes}
    orders = {f"next {n}": x for n, x in states.items()} | {f"out {n}": x for n, x in axes.items()}
    printer = NodePrinter(Torch(lambda d: f"size_{d}", "like"), taken=set(names.taken))
    made, results = printed(printer, nodes, names, orders, p.names)
    read = _read(nodes)
    updates = [_whole(results[f"next {n}"], p.updates[n], Shape(HEADS, x).whole) for n, x in states.items()]
    return _Step(
        tuple(
            Set((names.of(v.kind, v.name),), entry("sequences", v.name)[Fixed("t")])
            for v in p.variables
            if (v.kind, v.name) in read and v.kind in ("input", "decay")
        ),
        tuple(made),
        {n: results[f"out {n}"] for n in axes},
        Set(tuple(names.of("state", n) for n in states), beside(*updates)),
    )


def _read(nodes: dict[str, Node]) -> set[tuple[str, str]]:
    return {x.attrs[:2] for x in leaves(*nodes.values())}


def _whole(value: Code, node: Node, shape: Code) -> Code:
    """A new state with all of its axes, where the value itself may lack some."""
    full = any(x.attrs[0] in ("input", "decay", "cotangent", "trajectory", "state") for x in leaves(node))
    return value if full and node.op != "expand" else made_by("like.new_zeros", shape) + value


# --- the states before the first step -------------------------------------------------------------------------------


def _start(c: Compiled) -> list[Function]:
    """`torch_start`, and `torch_start_gradients` where there are any."""
    form = _Form(c)
    head: Body = (Set(("dtype",), made_by("computed_in", "given")), form.like(), *form.constant_in_time())
    states = dictionary([(n, ref(form.state(n))) for n in form.states])
    start = Function(
        "torch_start",
        takes("given", "states", "constants", "batch", "heads"),
        "The states before the first step, [B, H, ...]: those given, or the spec's own.",
        (*head, *start_statements(c, form.names), Return(states)),
        frees=False,
    )
    found = _initial(form)
    if not found:
        return [start]
    given = (Set((form.gradient(n),), method(entry("initial_gradients", n), "to", "dtype")) for n in form.states)
    back = Function(
        "torch_start_gradients",
        takes("given", "states", "constants", "initial_gradients"),
        "Gradients of parameters, [B, H, ...], through the states before the first step.",
        (*head, *given, *found, Return(ref("initial"))),
        frees=False,
    )
    return [start, back]


def _initial(form: _Form) -> Body:
    """The gradients of parameters through the states before the first step; nothing where there are none."""
    found, touched = gradient_statements(form.c, form.names, {n: form.gradient(n) for n in form.states})
    return tuple(found) if touched else ()


# --- forwards -------------------------------------------------------------------------------------------------------


def _forward(c: Compiled, name: str) -> Function:
    form, p, like = _Form(c), c.step, Fixed("given")[first_input(c)]
    step = _step(form, p)
    keep = (Do(method(entry("checkpoints", n), "append", ref(form.state(n)))) for n in form.states)
    stores = (_stored(entry("outputs", n), x) for n, x in step.outputs.items())
    each: Body = (
        If((Fixed("t") % Fixed("segment")).equals(0), tuple(keep)),
        *step.reads,
        *step.made,
        *stores,
        step.assignment,
    )
    finals = [(n, method(ref(form.state(n)), "to", made_by("dtype_of", "given"), copy=True)) for n in form.states]
    saved = [(n, made_by("stacked", entry("checkpoints", n), ref(form.state(n)))) for n in form.states]
    return Function(
        name,
        takes("given", "states", "constants", packed=None),
        "(outputs, final states, checkpoints of the states), in recurrent form.",
        (
            form.by_length("forward", name, ()),
            *form.unpack(),
            Set(("start",), made_by("torch_start", "given", "states", "constants", "batch", "heads")),
            *(Set((form.state(n),), entry("start", n)) for n in form.states),
            Table("outputs", tuple(_room(n, STEPS, axes, like) for n, axes in p.output_axes.items())),
            Set(("checkpoints",), dictionary([(n, a_list()) for n in form.states])),
            For(("t",), made_by("range", "steps"), each),
            Set(("finals",), dictionary(finals)),
            Set(("saved",), dictionary(saved)),
            Return(beside(*map(ref, ("outputs", "finals", "saved")))),
        ),
        frees=False,
    )


def _stored(room: Code, value: Code) -> Do:
    """What stores a step's value."""
    return put(room[:, Fixed("t")], value, stores=room.names)


def _room(name: str, lead: tuple[str, ...], axes: tuple[str, ...], like: Code) -> Alloc:
    return Alloc(name, Shape(lead, axes).entries, None, like=like)


# --- backwards ------------------------------------------------------------------------------------------------------


def _backward(c: Compiled, name: str) -> Function:
    form, p = _Form(c), c.step
    back, again = _step(form, c.adjoint.program), _step(form, p, outputs=False)
    read = _read(c.adjoint.program.updates | c.adjoint.program.outputs)
    own, others = [v for v in p.variables if v.per_step], parameters(c)
    states, all_states = p.states, form.all_states
    incoming = (
        Set((n,), method(_incoming("cotangents", n, Shape(STEPS, axes)), "unbind", 1))
        for n, axes in p.output_axes.items()
    )
    ends = (Set((form.gradient(s.name),), _incoming("final_cotangents", s.name, Shape(HEADS, s.axes))) for s in states)
    rooms: list[Alloc | Set] = [_room(v.name, STEPS, v.axes, Fixed("given")[v.name]) for v in own]
    rooms += [Set((v.name,), made_by("like.new_zeros", Shape(HEADS, v.axes).whole)) for v in others]
    recompute: Body = (
        Do(made_by("before.append", all_states)),
        If((Fixed("t") + 1).equals(Fixed("stop")), (Break(),)),
        *again.reads,
        *again.made,
        again.assignment,
    )
    cotangents = (
        Set((form.names.of("cotangent", f"d{n}"),), entry("incoming_sequences", n)[Fixed("t")])
        for n in p.outputs
        if ("cotangent", f"d{n}") in read
    )
    adjoint: Body = (
        put(all_states, Fixed("before")[Fixed("t") - Fixed("start")]),
        *back.reads,
        *cotangents,
        *back.made,
        *(_stored(entry("gradients", v.name), back.outputs[gradient_name(v)]) for v in own),
        *(put(entry("gradients", v.name), back.outputs[gradient_name(v)], "+=") for v in others),
        back.assignment,
    )
    segment: Body = (
        Set(("stop",), made_by("min", Fixed("start") + Fixed("segment"), "steps")),
        *(Set((form.state(s.name),), Fixed("saved")[s.name][Fixed("start") // Fixed("segment")]) for s in states),
        Set(("before",), a_list()),
        For(("t",), made_by("range", "start", "stop"), recompute),
        For(("t",), made_by("reversed", made_by("range", "start", "stop")), adjoint),
    )
    first = [(s.name, method(ref(form.gradient(s.name)), "to", made_by("dtype_of", "given"))) for s in states]
    rest = ("saved", "cotangents", "final_cotangents", "needs")
    return Function(
        name,
        takes("given", "states", "constants", "saved", "cotangents", "final_cotangents", "needs", packed=None),
        "(gradients, gradients of the initial states): the adjoint's steps, over states recomputed from checkpoints.",
        (
            form.by_length("backward", name, rest),
            *form.unpack(),
            Table("incoming_sequences", tuple(incoming)),
            *ends,
            Table("gradients", tuple(rooms)),
            For(("start",), made_by("reversed", made_by("range", 0, "steps", "segment")), segment),
            Set(("initial_gradients",), dictionary(first)),
            *_through_start(form),
            *(_summed(v) for v in others),
            Set(("gradients",), wanted_among("gradients")),
            Return(beside(ref("gradients"), wanted_among("initial_gradients"))),
        ),
        frees=False,
    )


def _incoming(table: str, name: str, shape: Shape) -> Code:
    """A gradient that the function is given, or zeros."""
    found = made_by("incoming", made_by(f"{table}.get", said(name)), shape.whole, "like")
    return method(found, "to", "dtype")


def _through_start(form: _Form) -> Body:
    if not _initial(form):
        return ()
    over = method(made_by("torch_start_gradients", "given", "states", "constants", ref("initial_gradients")), "items")
    added = put(ref("gradients")[Fixed("name")], ref("gradient"), "+=")
    return (For(("name", "gradient"), over, (added,)),)


def _summed(v: Var) -> Statement:
    """A parameter's gradient over the batch."""
    total = entry("gradients", v.name)
    return put(total, method(method(total, "sum", 0), "to", Attribute(Fixed("given")[v.name], "dtype")))
