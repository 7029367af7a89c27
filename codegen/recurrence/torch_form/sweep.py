"""The torch function of one sweep: what is free of the states before the loop over chunks, and the reads after it.

A stream has the name of what it is of. Inside a function it is called so as chunks, and a value has the kernels' word for what it
holds: `kept`, `since` and `until` are decays over a chunk, to a read and from a write; `prod` is a product, `t` another term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...ir.code import Attribute, Code, Group, Item, Items, Literal, Method, Name, Slice, call
from ...ir.expr import COL, ONE, ROW, Node, expand, leaf, leaves, walk
from ...ir.launch_ir import Body, Do, For, Function, Return, Set, Statement, assign, reads, takes
from ...ir.python_code import Fixed, Part, a_list, leaf_code
from ...ir.step_program import WHOSE_LOGARITHM, argument_name
from ...ir.words import Definitions, apart
from ...printing.code_passes import finished_function
from ...printing.dialects import along_axes
from ...printing.launch_text import launch_definition
from ...printing.torch_expressions import Leaf, TorchText, sorted_axes, stored
from ..chunkwise.compiled import Compiled
from ..chunkwise.coupled_states import TRANSITIONS
from ..chunkwise.plan import Sweep, Unroll
from ..normal_form.log_decay import log_of

SIZE = Name("size")  # of a chunk, as functions over chunks are given it
LIKE = {n: Name(n) for n in ("dtype", "device")}


class Parent(Protocol):
    """The function that a sweep is part of: which of both passes, of what, and its sweeps so far."""

    @property
    def kind(self) -> str: ...
    @property
    def sweeps(self) -> list[Function]: ...
    @property
    def c(self) -> Compiled: ...
    def called(self, x: Node) -> str: ...


class Fresh:
    """Names that a function hasn't had yet."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def name(self, stem: str) -> str:
        self.counts[stem] += 1
        return stem if self.counts[stem] == 1 else f"{stem}{self.counts[stem]}"


STEMS = {
    "decay_all": "kept",
    "decay_in": "since",
    "decay_out": "until",
    "decay_mask": "decays",
    "order_mask": "order",
    "apart_mask": "order",
    "inverse": "inverse",
    "sum": "prod",
}


def stem_of(x: Node) -> str:
    """What a value is called, but for a number."""
    return "transition" if x.op in TRANSITIONS else STEMS.get(x.op, "t")


Called = Callable[[Node], str]  # what a stream is called


def called(x: Node) -> str:
    """A stream by the name of the argument that it is."""
    if x.op != "leaf" or x.attrs[0] in ("read", "write", "state-adjoint product"):
        return "x"
    kind, name, _ = x.attrs
    return argument_name(name, kind in WHOSE_LOGARITHM)


class Streams:
    """Step-level quantities as parameters of a printed function, and as chunks of `size` steps inside of it."""

    def __init__(self, nodes: dict[Node, Node], named: Called = called, size: Code = SIZE) -> None:
        self.node_of = {x.attrs[1]: node for x, node in nodes.items()}
        self.named, self.size = named, size
        self.fresh = Fresh()
        self.nodes: dict[Node, str] = {}  # with their names, in the order of the parameters
        self.texts: dict[tuple[str, bool, float], str] = {}
        self.valid = False

    def text(self, x: Node, logged: bool = False, fill: float = 0.0) -> str:
        """The chunks of a stream, or of its logarithm, with `fill` beyond the sequence's end."""
        key = (x.attrs[1], logged, fill)
        if key not in self.texts:
            node = self._node(*key)
            if node not in self.nodes:
                self.nodes[node] = self.fresh.name(self.named(node))
            self.texts[key] = self.nodes[node] if fill == 0.0 else f"{self.nodes[node]}_or_{fill:g}"
        return self.texts[key]

    def inside(self) -> str:
        """Ones within the sequence, zeros beyond its end."""
        self.valid = True
        return "valid"

    def any(self) -> str:
        """Something of each step, for its shape."""
        if not self.texts and self.node_of:
            self.text(next(iter(_leaves_of(self.node_of))))
        return next(iter(self.texts.values()), None) or self.inside()

    def _node(self, key: str, logged: bool, fill: float) -> Node:
        return log_of(self.node_of[key]) if logged else self.node_of[key]

    def parameters(self) -> list[str]:
        return list(self.nodes.values())

    def statements(self, given: Sequence[Code] | None = None) -> list[Statement]:
        """Statements that make chunks of the parameters, or of what is `given` in their place."""
        whole = dict(zip(self.nodes, map(Name, self.parameters()) if given is None else given, strict=True))
        named = {key: self._node(*key) for key in self.texts}
        together = {name: whole[named[key]] for key, name in self.texts.items() if key[2] == 0.0 and varies(named[key])}
        out: list[Statement] = []
        for key, name in self.texts.items():
            if name not in together:
                fill = () if key[2] == 0.0 else (key[2],)
                whole_chunks = call("to_chunks", whole[named[key]], "lead", self.size, len(named[key].axes), *fill)
                out.append(assign(name, whole_chunks))
        if together:
            made = call("chunks_of", "lead", self.size, *together.values())
            out.append(assign(tuple(together), made, several=len(together) == 1))
        if self.valid:
            ones = call("torch.ones", Items((Literal(1), Literal(1), Item(Name("lead"), Literal(2)))), **LIKE)
            out.append(assign("valid", call("to_chunks", ones, "lead", self.size, 0)))
        return out


def function(name: str, parameters: Iterable[str], doc: str, body: Body, **left_out: Part) -> Function:
    """A function of torch: what it makes is small, so that it lets go of nothing on the way. `left_out`: parameters that may be,
    and what they are then."""
    return Function(name, takes(*parameters, **left_out), doc, body, frees=False)


def printed(functions: Iterable[Function]) -> Definitions:
    return apart(launch_definition(finished_function(f)) for f in functions)


def _appended(to: str, name: str) -> Do:
    return Do(Method(Name(to), "append", (Name(name),)))


def of_chunk(x: Code) -> Code:
    """What belongs to one chunk, of all chunks."""
    return Item(x, Items((Slice(), Slice(), Name("n")), bare=True))


def varies(x: Node) -> bool:
    """Has a stream's tensor all axes? One that is made of constants alone may lack those of batches, heads and steps."""
    return any(y.attrs[0] != "constant" for y in leaves(x))


def at_boundary(state: str, direction: int) -> str:
    """A state as it enters each chunk, as the form over chunks calls it: S_0, or dS_C of a sweep backwards in time."""
    return f"{state}_{'0' if direction > 0 else 'C'}"


def own_arguments(body: Iterable[Statement], dims: tuple[str, ...]) -> list[str]:
    """What a function over chunks is given beside tensors: of the dtype, the device and sizes, what its statements read."""
    read = frozenset[str]().union(*map(reads, body))
    return ["lead", "size", *(x for x in ("dtype", "device", *(f"size_{d}" for d in dims)) if x in read)]


def _leaves_of(table: dict[str, Node]) -> list[Node]:
    return [leaf("stream", key, (ROW, *node.axes)) for key, node in table.items()]


def transition(x: Node, transitions: dict[tuple[Any, ...], str], streams: Streams, body: list[Statement]) -> Code:
    """A weight between states that are added to each other; their products are formed once."""
    positions, n, to, of = x.attrs[:4]
    direction = x.attrs[-1]
    key = (positions, n, direction, *x.args)
    if key not in transitions:
        transitions[key] = f"transitions_{len(transitions) + 1}"
        parts: list[Code] = []
        for (row, col), value in zip(positions, x.args, strict=True):
            parts.append(Items((Items((Literal(row), Literal(col))), _weight(value, row == col, streams))))
        made = call("TransitionMatrices", Items(tuple(parts), closed=True), n, direction, streams.inside())
        body.append(assign(transitions[key], made))
    late = (Literal(x.attrs[4]),) if x.op in ("transition_mask", "transition_in") else ()
    method = {
        "transition_mask": "mask",
        "transition_in": "incoming",
        "transition_out": "outgoing",
        "transition_all": "all",
    }[x.op]
    return Method(Name(transitions[key]), method, (Literal(to), Literal(of), *late))


def _weight(value: Node, diagonal: bool, streams: Streams) -> Code:
    """A step's weight of a state in another, or in itself, as it is beyond the sequence's end too."""
    if value.op != "const":
        return Name(streams.text(value, fill=1.0 if diagonal else 0.0))
    number = Literal(float(value.attrs[0]))
    if diagonal and value is ONE:
        return number
    inside = Name(streams.inside())
    return number * inside + (1.0 - inside) if diagonal else number * inside


def operation_of_chunks(
    x: Node, printer: TorchText, streams: Streams, transitions: dict[tuple[Any, ...], str], body: list[Statement]
) -> Code:
    """One of the operations of chunk programs."""
    if x.op in TRANSITIONS:
        return transition(x, transitions, streams, body)
    if x.op == "inverse":
        channels = {} if len(x.axes) == 2 else {"channels": Literal(True)}
        return call("triangular_inverse", printer.value(x.args[0]), Literal(x.attrs[0]), **channels)
    if x.op == "left_out":
        decay, *others = x.args
        numbers = [printer.aligned(y, axes) for y, axes in zip(others, _left_out_axes(x), strict=True)]
        return call("left_out", streams.text(decay, logged=True), *numbers, *map(Literal, x.attrs))
    if x.op in ("order_mask", "apart_mask"):
        return call(x.op, streams.size, *map(Literal, x.attrs), streams.any())
    dim = {"dim": Literal(-2)} if len(x.args[0].axes) > 1 else {}
    return call(x.op, streams.text(x.args[0], logged=True), *map(Literal, x.attrs), **dim)


def in_digits(name: str, roots: Iterable[Node], definitions: Mapping[Node, Node]) -> Code:
    """A function over chunks, as it is handed on: in float64 where corrections of a chunk are solved in turn, the first ones of
    all its steps before the second ones. Along alike keys their inverses grow, and float32 would lose digits that steps keep."""
    return call("in_float64", Fixed(name)) if _solves_in_turn(roots, definitions) else Fixed(name)


def _solves_in_turn(roots: Iterable[Node], definitions: Mapping[Node, Node]) -> bool:
    """Is an inverse made of another one?"""
    named = {d.attrs[1]: x for d, x in definitions.items()}
    inside: dict[Node, bool] = {}  # is an inverse in it?

    def solves(x: Node) -> bool:
        if x not in inside:
            below = solves(named[x.attrs[1]]) if x.op == "leaf" and x.attrs[0] == "inner" else False
            inside[x] = x.op == "inverse" or below or any([solves(a) for a in x.args])
        return inside[x]

    some = list(walk(*roots, *definitions.values()))
    return any(x.op == "inverse" and solves(x.args[0]) for x in some)


def _left_out_axes(x: Node) -> tuple[tuple[str, ...], ...]:
    """Of what `left_out` is given beside decays."""
    own = x.axes
    return own, own, (ROW, COL), own, own, own[1:]


def from_chunks(value: Code, node: Node, x: Node, size: Code = SIZE) -> Code:
    """The value of a chunk's node, of so many steps, as that of the quantity x at each step."""
    axes = tuple(sorted({ROW, *x.axes}))
    if node.axes != axes:
        value = along_axes(Group(value), node.axes, axes)
    if ROW not in node.axes:  # the same at each step of a chunk
        value = Method(value, "expand", (*[Literal(-1)] * 3, *(size if a == ROW else Literal(-1) for a in axes)))
    return call("from_chunks", value, "lead", len(x.axes))


class UnrollText:
    """The function of an `Unroll` stage: everything at once, from the states at chunk boundaries."""

    def __init__(self, name: str, stage: Unroll, dims: tuple[str, ...], named: Called) -> None:
        self.name, self.stage, self.dims = name, stage, dims
        self.streams = Streams(stage.streams, named)
        self.at_boundaries = {s.name: at_boundary(s.name, 1) for s in stage.forward}
        self.at_boundaries |= {s.name: at_boundary(s.name, -1) for s in stage.backward}
        self.transitions: dict[tuple[Any, ...], str] = {}
        self.body: list[Statement] = []
        self.printer = Chunked(self._leaf, self.body, self.streams)
        self.own: list[str] = []  # of what it is given, what isn't a tensor

    def made(self) -> Function:
        printer = self.printer
        printer.count([*self.stage.outputs.values(), *self.stage.definitions.values()])
        results = [from_chunks(printer.value(n), n, x) for x, n in self.stage.outputs.items()]
        edges = list(self.at_boundaries.values())
        whole = Return(Items(tuple(results), closed=True))
        body = (*self.streams.statements(), *self.body, whole)
        self.own = own_arguments(body, self.dims)
        doc = "State-adjoint products at each step, from the states at chunk boundaries and their gradients."
        return function(self.name, [*self.streams.parameters(), *edges, *self.own], doc, body)

    def _leaf(self, x: Node) -> str | Code:
        if x.op != "leaf":
            return operation_of_chunks(x, self.printer, self.streams, self.transitions, self.body)
        if x.attrs[0] == "inner":
            return self.printer.value(next(n for d, n in self.stage.definitions.items() if d.attrs[1] == x.attrs[1]))
        return self.streams.text(x) if x.attrs[0] == "stream" else self.at_boundaries[x.attrs[1]]


class Chunked(TorchText):
    """Statements over all chunks at once."""

    def __init__(self, of_leaf: Leaf, body: list[Statement], streams: Streams) -> None:
        super().__init__(of_leaf, body, {})
        self.streams = streams

    def fresh(self, x: Node) -> str:
        return self.streams.fresh.name(stem_of(x))

    def decay_code(self, mask: Node) -> Code:
        return Name(self.streams.text(mask.args[0], logged=True))


class _Dependence:
    """What the quantities of a sweep's chunk program are made of."""

    def __init__(self, definitions: Mapping[Node, Node]) -> None:
        self.definitions = definitions
        self.on_states: dict[Node, bool] = {}
        self.on_nothing: dict[Node, bool] = {}

    def depends(self, x: Node) -> bool:
        """Does x depend on the incoming states?"""
        if x not in self.on_states:
            if x.op == "leaf":
                kind = x.attrs[0]
                self.on_states[x] = kind == "state in" or (kind == "inner" and self.depends(self.definition(x)))
            else:
                self.on_states[x] = any(self.depends(a) for a in x.args)
        return self.on_states[x]

    def bare(self, x: Node) -> bool:
        """Is x the same for all chunks, made of no stream? Weights between states also depend on where the sequence ends."""
        if x not in self.on_nothing:
            if x.op == "leaf":
                self.on_nothing[x] = x.attrs[0] == "inner" and self.bare(self.definition(x))
            else:
                self.on_nothing[x] = x.op not in TRANSITIONS and all(self.bare(a) for a in x.args)
        return self.on_nothing[x]

    def definition(self, x: Node) -> Node:
        return next(n for d, n in self.definitions.items() if d.attrs[1] == x.attrs[1])


@dataclass
class _Kept:
    """What the loop over chunks keeps of each: values that are used after it, and states before the chunk, by name."""

    values: dict[Node, str] = field(default_factory=dict)
    entering: dict[str, str] = field(default_factory=dict)


class SweepText:
    """The function of one sweep."""

    def __init__(self, parent: Parent, s: Sweep, edges: tuple[str, ...], name: str = "") -> None:
        self.parent, self.s = parent, s
        self.edges = edges  # states whose value before each chunk is returned too
        self.name = name or f"_{parent.kind}_sweep_{len(parent.sweeps) + 1}"
        self.own: list[str] = []  # of what the function is given, what isn't a tensor
        self.streams = Streams(s.chunk.streams, parent.called)
        self.transitions: dict[tuple[Any, ...], str] = {}
        self.made_of = _Dependence(s.chunk.definitions)
        self.pre_text = _Phase(self, self._pre_leaf, "a")
        self.loop_text = _Phase(self, self._loop_leaf, "b")
        self.post_text = _Phase(self, self._post_leaf, "c")
        self.kept = _Kept()

    def made(self) -> Function:
        s, chunk = self.s, self.s.chunk
        roots = [*chunk.states.values(), *chunk.outputs.values(), *chunk.definitions.values()]
        for t in (self.pre_text, self.loop_text, self.post_text):
            t.count(roots)
        lasts: list[Code] = []
        for name, node in chunk.states.items():
            axes = chunk.state_axes[name]
            lasts.append(stored(self.loop_text.value(expand(node, axes)), axes))
        results: list[Code] = []
        for x, node in chunk.outputs.items():
            results.append(from_chunks(self.post_text.value(node), node, x))
        some = Name(self.streams.any())
        states = tuple(chunk.states)
        for n in self.edges:
            self.kept.entering[n] = at_boundary(n, s.direction)
        begin = [*self.streams.statements(), *self.pre_text.body]
        body = (*begin, *self._loop(some, lasts), *self.post_text.body)
        found = (*results, *(Name(self.kept.entering[n]) for n in self.edges), *map(Name, states))
        body += (Return(Items(found, bare=True)),)
        self.own = own_arguments(body, self.parent.c.step.dims)
        way = "forwards" if s.direction > 0 else "backwards"
        doc = f"An inter-chunk sweep {way} in time, which carries {', '.join(states)}."
        return function(self.name, [*self.streams.parameters(), *states, *self.own], doc, body)

    def _loop(self, some: Code, lasts: list[Code]) -> Body:
        """The loop over chunks, which keeps states before each chunk, and what is made of them; `some` has all chunks."""
        kept = {x: n for n, x in self.kept.entering.items()}
        made = {f"{name}_all": name for name in self.kept.values.values()}
        each: list[Statement] = [_appended(x, n) for x, n in kept.items()]
        each += self.loop_text.body
        each += [_appended(x, n) for x, n in made.items()]
        each.append(assign(tuple(self.s.chunk.states), Items(tuple(lasts), bare=True)))
        forwards = self.s.direction > 0
        order = call("range", "count") if forwards else call("range", Name("count") - 1, -1, -1)

        def stacked(x: str) -> Code:
            return call("torch.stack", x if forwards else Item(Name(x), Slice(step=Literal(-1))), 2)

        return (
            *(Set((x,), a_list()) for x in (*kept, *made)),
            assign("count", Item(Attribute(some, "shape"), Literal(2))),
            For(("n",), order, tuple(each)),
            *(assign(x, stacked(x)) for x in kept),
            *(assign(name, stacked(x)) for x, name in made.items()),
        )

    # --- leaves of the three phases

    def _pre_leaf(self, x: Node) -> str | Code:
        if x.op != "leaf":
            return operation_of_chunks(x, self.pre_text, self.streams, self.transitions, self.pre_text.body)
        if x.attrs[0] == "stream":
            return self.streams.text(x)
        return self.pre_text.value(self.made_of.definition(x))

    def _loop_leaf(self, x: Node) -> str | Code:
        if x.attrs[0] == "state in":
            return x.attrs[1]
        return self.loop_text.value(self.made_of.definition(x))

    def _post_leaf(self, x: Node) -> str | Code:
        if x.attrs[0] == "state in":
            return self.kept.entering.setdefault(x.attrs[1], at_boundary(x.attrs[1], self.s.direction))
        node = self.made_of.definition(x)
        if node in self.loop_text.names:
            name = self.loop_text.names[node]
            self.kept.values[node] = name
            return name
        return self.post_text.value(node)


class _Phase(TorchText):
    """Statements inside or after the loop over chunks; what doesn't depend on the states is computed before it."""

    def __init__(self, sweep: SweepText, of_leaf: Leaf, prefix: str) -> None:
        super().__init__(of_leaf, [], {}, prefix)
        self.sweep = sweep

    def fresh(self, x: Node) -> str:
        return self.sweep.streams.fresh.name(stem_of(x))

    def decay_code(self, mask: Node) -> Code:
        decay = Name(self.sweep.streams.text(mask.args[0], logged=True))
        return of_chunk(decay) if self.prefix == "b" else decay

    def value(self, x: Node) -> Code:
        if self.prefix == "a" or x.op in ("const", "number", "size"):
            return super().value(x)
        if self.sweep.made_of.depends(x):
            return super().value(x)
        before, bare = self.sweep.pre_text, self.sweep.made_of.bare(x)
        made = before.value(x)
        if not bare and not before.is_name(x):
            name = before.fresh(x)
            before.define(name, made)
            before.names[x], made = name, Name(name)
        if bare or self is self.sweep.post_text:
            return made
        if x in before.names:
            return of_chunk(made)
        return sorted_axes(of_chunk(leaf_code(before.of_leaf(x))), x.attrs[2])

    def names_leaf(self, x: Node) -> bool:
        return x.attrs[0] != "inner" or self.is_name(self.sweep.made_of.definition(x))
