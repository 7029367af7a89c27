"""The torch form of a step program: a loop over time, forwards, and backwards through checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...ir.expr import Node, leaves
from ...ir.launch_ir import (
    Alloc,
    Body,
    Do,
    Expr,
    For,
    Function,
    If,
    Return,
    Set,
    Statement,
    Table,
    dictionary,
    entry,
    joined,
    py,
    ref,
)
from ...ir.step_program import StepProgram, Var
from ...ir.words import Definitions, apart
from ...printing.code_passes import finished_function
from ...printing.expressions import NodePrinter, Torch
from ...printing.launch_text import launch_definition
from ..chunkwise.compiled import Compiled
from ..step.adjoint import gradient_name
from .initial import gradient_statements, parameters, start_statements
from .names import Names, Shape, first_input, names_of, printed, sizes, tensors

STEPS, HEADS = ("batch", "steps", "heads"), ("batch", "heads")
WANTED = "{{name: gradient for name, gradient in {}.items() if name in needs}}"


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
    def all_states(self) -> Expr:
        """All states at one step, as a tuple."""
        return py("({},)", joined(ref(self.state(n)) for n in self.states))

    def given(self, v: Var) -> Expr:
        """A variable as steps compute with it."""
        return Expr(f'given["{v.name}"].to(dtype){".exp()" if v.is_decay else ""}')

    def constant_in_time(self) -> Body:
        """Sizes, and what is the same at each step."""
        p = self.c.step
        return (
            *(Set((f"size_{d}",), Expr(text)) for d, text in sizes(p).dims.items()),
            *(
                Set((self.names.of("constant", v.name),), Expr(f'constants["{v.name}"]'))
                for v in p.variables
                if v.kind == "constant"
            ),
            *(Set((self.names.of(v.kind, v.name),), self.given(v)) for v in tensors(p) if not v.per_step),
        )

    def like(self) -> Set:
        return Set(("like",), Expr(f"{sizes(self.c.step).lead}.new_zeros((), dtype=dtype)"))

    def unpack(self) -> Body:
        """Sizes, sequences of what is given at each step, and the length of a segment."""
        per_step = [v for v in tensors(self.c.step) if v.per_step]
        return (
            Set(("dtype",), Expr("computed_in(given)")),
            Set(("batch", "steps", "heads"), Expr(f"{sizes(self.c.step).lead}.shape[:3]")),
            self.like(),
            *self.constant_in_time(),
            Table("sequences", tuple(Set((v.name,), py("{}.unbind(1)", self.given(v))) for v in per_step)),
            Set(("segment",), Expr("segment_length(steps)")),
        )

    def by_length(self, kind: str, name: str, rest: tuple[str, ...]) -> If:
        """What is packed is taken sequence after sequence."""
        per_step = ", ".join(f'"{v.name}"' for v in tensors(self.c.step) if v.per_step)
        given = ", ".join((name, "per_step", "given", "states", "constants", *rest, "packed"))
        return If(
            Expr("packed is not None"),
            (Set(("per_step",), Expr(f"[{per_step}]")), Return(Expr(f"{kind}_by_length({given})"))),
        )


@dataclass(frozen=True)
class _Step:
    """One step: what it reads, its statements, its outputs, and the assignment of the new states."""

    reads: Body
    made: Body
    outputs: dict[str, Expr]
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
            Set((names.of(v.kind, v.name),), py("{}[t]", entry("sequences", v.name)))
            for v in p.variables
            if (v.kind, v.name) in read and v.kind in ("input", "decay")
        ),
        tuple(made),
        {n: results[f"out {n}"] for n in axes},
        Set(tuple(names.of("state", n) for n in states), joined(updates)),
    )


def _read(nodes: dict[str, Node]) -> set[tuple[str, str]]:
    return {x.attrs[:2] for x in leaves(*nodes.values())}


def _whole(value: Expr, node: Node, shape: Expr) -> Expr:
    """A new state with all of its axes, where the value itself may lack some."""
    full = any(x.attrs[0] in ("input", "decay", "cotangent", "trajectory", "state") for x in leaves(node))
    return value if full and node.op != "expand" else py("like.new_zeros({}) + ({})", shape, value)


# --- the states before the first step -------------------------------------------------------------------------------


def _start(c: Compiled) -> list[Function]:
    """`torch_start`, and `torch_start_gradients` where there are any."""
    form = _Form(c)
    head: Body = (Set(("dtype",), Expr("computed_in(given)")), form.like(), *form.constant_in_time())
    states = dictionary([(n, ref(form.state(n))) for n in form.states])
    start = Function(
        "torch_start",
        "(given, states, constants, batch, heads)",
        "The states before the first step, [B, H, ...]: those given, or the spec's own.",
        (*head, *start_statements(c, form.names), Return(states)),
        frees=False,
    )
    found = _initial(form)
    if not found:
        return [start]
    given = (Set((form.gradient(n),), py("{}.to(dtype)", entry("initial_gradients", n))) for n in form.states)
    back = Function(
        "torch_start_gradients",
        "(given, states, constants, initial_gradients)",
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
    form, p, like = _Form(c), c.step, Expr(f'given["{first_input(c)}"]')
    step = _step(form, p)
    keep = (Do(py("{}.append({})", entry("checkpoints", n), ref(form.state(n)))) for n in form.states)
    stores = (_stored(entry("outputs", n), x) for n, x in step.outputs.items())
    each: Body = (If(Expr("t % segment == 0"), tuple(keep)), *step.reads, *step.made, *stores, step.assignment)
    finals = [(n, py("{}.to(dtype_of(given), copy=True)", ref(form.state(n)))) for n in form.states]
    saved = [(n, py("stacked({}, {})", entry("checkpoints", n), ref(form.state(n)))) for n in form.states]
    return Function(
        name,
        "(given, states, constants, packed=None)",
        "(outputs, final states, checkpoints of the states), in recurrent form.",
        (
            form.by_length("forward", name, ()),
            *form.unpack(),
            Set(("start",), Expr("torch_start(given, states, constants, batch, heads)")),
            *(Set((form.state(n),), entry("start", n)) for n in form.states),
            Table("outputs", tuple(_room(n, STEPS, axes, like) for n, axes in p.output_axes.items())),
            Set(("checkpoints",), dictionary([(n, Expr("[]")) for n in form.states])),
            For(("t",), Expr("range(steps)"), each),
            Set(("finals",), dictionary(finals)),
            Set(("saved",), dictionary(saved)),
            Return(joined(map(ref, ("outputs", "finals", "saved")))),
        ),
        frees=False,
    )


def _stored(room: Expr, value: Expr) -> Do:
    """What stores a step's value."""
    return Do(py("{}[:, t] = {}", room, value), stores=room.names)


def _room(name: str, lead: tuple[str, ...], axes: tuple[str, ...], like: Expr) -> Alloc:
    return Alloc(name, Shape(lead, axes).entries, None, like=like)


# --- backwards ------------------------------------------------------------------------------------------------------


def _backward(c: Compiled, name: str) -> Function:
    form, p = _Form(c), c.step
    back, again = _step(form, c.adjoint.program), _step(form, p, outputs=False)
    read = _read(c.adjoint.program.updates | c.adjoint.program.outputs)
    own, others = [v for v in p.variables if v.per_step], parameters(c)
    states, all_states = p.states, form.all_states
    incoming = (
        Set((n,), py('incoming(cotangents.get("{}"), {}, like).to(dtype).unbind(1)', n, Shape(STEPS, axes).whole))
        for n, axes in p.output_axes.items()
    )
    ends = (
        Set(
            (form.gradient(s.name),),
            py('incoming(final_cotangents.get("{}"), {}, like).to(dtype)', s.name, Shape(HEADS, s.axes).whole),
        )
        for s in states
    )
    rooms: list[Alloc | Set] = [_room(v.name, STEPS, v.axes, Expr(f'given["{v.name}"]')) for v in own]
    rooms += [Set((v.name,), py("like.new_zeros({})", Shape(HEADS, v.axes).whole)) for v in others]
    recompute: Body = (
        Do(py("before.append({})", all_states)),
        If(Expr("t + 1 == stop"), (Do(Expr("break")),)),
        *again.reads,
        *again.made,
        again.assignment,
    )
    cotangents = (
        Set((form.names.of("cotangent", f"d{n}"),), py("{}[t]", entry("incoming_sequences", n)))
        for n in p.outputs
        if ("cotangent", f"d{n}") in read
    )
    adjoint: Body = (
        Do(py("{} = before[t - start]", all_states)),
        *back.reads,
        *cotangents,
        *back.made,
        *(_stored(entry("gradients", v.name), back.outputs[gradient_name(v)]) for v in own),
        *(Do(py("{} += {}", entry("gradients", v.name), back.outputs[gradient_name(v)])) for v in others),
        back.assignment,
    )
    segment: Body = (
        Set(("stop",), Expr("min(start + segment, steps)")),
        *(Set((form.state(s.name),), Expr(f'saved["{s.name}"][start // segment]')) for s in states),
        Set(("before",), Expr("[]")),
        For(("t",), Expr("range(start, stop)"), recompute),
        For(("t",), Expr("reversed(range(start, stop))"), adjoint),
    )
    first = [(s.name, py("{}.to(dtype_of(given))", ref(form.gradient(s.name)))) for s in states]
    rest = ("saved", "cotangents", "final_cotangents", "needs")
    return Function(
        name,
        "(given, states, constants, saved, cotangents, final_cotangents, needs, packed=None)",
        "(gradients, gradients of the initial states): the adjoint's steps, over states recomputed from checkpoints.",
        (
            form.by_length("backward", name, rest),
            *form.unpack(),
            Table("incoming_sequences", tuple(incoming)),
            *ends,
            Table("gradients", tuple(rooms)),
            For(("start",), Expr("reversed(range(0, steps, segment))"), segment),
            Set(("initial_gradients",), dictionary(first)),
            *_through_start(form),
            *(_summed(v) for v in others),
            Set(("gradients",), py(WANTED, ref("gradients"))),
            Return(joined([ref("gradients"), py(WANTED, ref("initial_gradients"))])),
        ),
        frees=False,
    )


def _through_start(form: _Form) -> Body:
    if not _initial(form):
        return ()
    over = py("torch_start_gradients(given, states, constants, {}).items()", ref("initial_gradients"))
    added = Do(Expr("gradients[name] += gradient", frozenset({"gradients", "gradient"})))
    return (For(("name", "gradient"), over, (added,)),)


def _summed(v: Var) -> Statement:
    """A parameter's gradient over the batch."""
    total = entry("gradients", v.name)
    return Do(py('{} = {}.sum(0).to(given["{}"].dtype)', total, total, v.name))
