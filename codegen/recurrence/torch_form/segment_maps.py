"""Print what a segment of a sequence needs from the segments before it: the maps of segments (see `segment_maps.py`) as torch.

`torch_forward_states` and `torch_backward_states` find the states that enter this segment. They make the map of the segment
for one group of states after the other, hand it to `exchange`, and get back the entering states; where the writes of a group
depend on what an earlier one reads, the earlier one is swept in between.
"""

from __future__ import annotations

from ...ir.code import Attribute, Code, Item, Items, Literal, Name, call
from ...ir.expr import COL, ROW, Node, dim_of, expand, leaf, walk
from ...ir.launch_ir import Function, Note, Return, Statement, assign, assign_groups, ref
from ...ir.python_code import Fixed, dictionary
from ...ir.words import Definitions
from ...printing.torch_expressions import TorchText, stored
from ..chunkwise.compiled import Compiled
from ..chunkwise.coupled_states import TRANSITIONS
from ..chunkwise.plan import Accumulate, Plan, Stage, Sweep, Unroll
from ..chunkwise.segment_maps import Affine, SegmentMap, composed, named, segment_map
from ..normal_form.form import StateForm
from .passes import SEQUENCES, PassText
from .sweep import LIKE, Called, Chunked, Streams, function, in_digits, operation_of_chunks, own_arguments, printed


def segment_definitions(c: Compiled) -> Definitions:
    """`torch_forward_states` and `torch_backward_states` of a chunk-parallel recurrence."""
    assert c.forward is not None and c.backward is not None
    forward = _States(c, c.forward, backward=False).functions()
    return printed([*forward, *_States(c, c.backward, backward=True).functions()])


class _States(PassText):
    """One of the two functions, with three functions for the map of each group."""

    def __init__(self, c: Compiled, p: Plan, backward: bool) -> None:
        super().__init__(c, p, backward)
        self.kind = "backward_states" if backward else "forward_states"
        self.prefix = len("d") if backward else 0  # of a gradient's name, before its state's
        self.needed: set[Node] = set()
        self.pending: list[tuple[Affine, str, str]] = []

    def functions(self) -> list[Function]:
        rest = ["saved", "cotangents", "final_cotangents"] if self.backward else []
        what = (
            "The gradients of the states that leave this segment of a sequence, by what comes after it."
            if self.backward
            else "The states that enter this segment of a sequence, by what comes before it."
        )
        self._open()
        first = self._first_sweeps()
        maps = {n: segment_map(s.group, s.solve, self.p.form.reads) for n, s in first.items()}
        self.needed = self._needed(tuple(maps.values()))
        sweeps = iter(range(len(self.p.sweeps)))
        for stage in self.p.stages:
            if not isinstance(stage, Sweep):
                self._between(stage)
                continue
            n, sweep = next(sweeps), stage
            if n in maps:
                size = self._size(sweep) if _pairs_steps(maps[n]) else Fixed("LONG_CHUNK")
                self._map(maps[n], f"{self.kind}_{list(maps).index(n) + 1}", size)
            if self.needed & set(sweep.chunk.outputs) or self.edges(sweep):
                self._exchange()
                self._sweep(sweep)
        self._exchange()
        names = (s.name for sweep in first.values() for s in sweep.group)
        self.body.append(Return(dictionary((n[self.prefix :], ref(self._entering(n))) for n in names)))
        own = ["given", "states", "constants", *rest, "exchange"]
        return [*self.sweeps, function(f"torch_{self.kind}", own, what, tuple(self.body))]

    def _first_sweeps(self) -> dict[int, Sweep]:
        """For each group that this pass carries from part to part, the first sweep over it, by its place."""
        way = -1 if self.backward else 1
        found: dict[tuple[StateForm, ...], int] = {}
        for n, s in enumerate(self.p.sweeps):
            if s.direction == way:
                found.setdefault(s.group, n)
        return {n: self.p.sweeps[n] for n in found.values()}

    def _needed(self, maps: tuple[SegmentMap, ...]) -> set[Node]:
        """Reads, solved writes and state-adjoint products that the maps are made of, directly or not."""
        stack = [node for m in maps for node in m.streams.values()]
        found: set[Node] = set()
        makers = {x: s for s in self.p.sweeps for x in s.chunk.outputs}
        state_adjoints = {p.leaf: p for p in self.p.form.state_adjoints}
        while stack:
            for x in self.p.form.parts(stack.pop()):
                if x in found or x in self.p.saved:
                    continue
                found.add(x)
                if x in makers:
                    stack += makers[x].chunk.streams.values()
                    continue
                swept = self._swept(x)
                stack += [node for s in self.p.sweeps if swept & set(s.finals) for node in s.chunk.streams.values()]
                stack += [state_adjoints[x].late, state_adjoints[x].early] if x in state_adjoints else []
        return found

    def _entering(self, name: str) -> str:
        return f"{name}_last" if self.backward else f"{name}_first"

    def edges(self, s: Sweep) -> tuple[str, ...]:
        paired = {name for x in self.needed for name in self._swept(x)}
        return tuple(n for n in super().edges(s) if n in paired)

    def _swept(self, x: Node) -> set[str]:
        """The states whose values before each chunk a state-adjoint product is made of."""
        names = {(p.state, f"d{p.state}") for p in self.p.form.state_adjoints if p.leaf is x}
        names |= {(c.state, c.gradient) for c in self.p.form.crosses if c.leaf is x}
        groups = [{s.name for s in g} for g in self.p.form.groups]
        return {n for pair in names for own in groups if own & set(pair) for n in own}

    def _between(self, stage: Stage) -> None:
        """What a decay made of states needs: products of states and gradients."""
        if isinstance(stage, Accumulate) and stage.state_adjoint.leaf in self.needed:
            self._accumulate(stage)
        elif isinstance(stage, Unroll) and self.needed & set(stage.outputs):
            self._unroll(stage)

    def _map(self, m: SegmentMap, name: str, size: Code) -> None:
        """The map of this segment, which `exchange` waits for."""
        chunks = SegmentMapText(f"_{name}_chunks", m, self.c.step.dims, self.called)
        self.sweeps += [chunks.made(), law(f"_{name}_composed", m.affine), application(f"_{name}_applied", m.affine)]
        streams = self.text_of.arguments(chunks.streams.nodes)
        digits = in_digits(f"_{name}_chunks", (*m.affine.linear.values(), *m.affine.local.values()), m.definitions)
        laws = (digits, Fixed(f"_{name}_composed"))
        made = call("map_of_segment", *laws, streams, "lead", m.direction, size, *chunks.own[2:])
        self.assign(f"map_{len(self.sweeps)}", made)
        self.pending.append((m.affine, name, f"map_{len(self.sweeps)}"))

    def _exchange(self) -> None:
        if not self.pending:
            return
        parts: list[Code] = []
        entering: list[tuple[str, ...]] = []
        for affine, name, value in self.pending:
            entering.append(tuple(self._entering(s.name) for s in affine.group))
            states = Items(tuple(map(Name, entering[-1])))
            own = Items(tuple(Literal(s.name[self.prefix :]) for s in affine.group))
            blocks = len(affine.shape)
            both = (Name(value)[:blocks], Name(value)[blocks:])
            parts.append(call("Segment", own, Fixed(f"_{name}_composed"), Fixed(f"_{name}_applied"), *both, states))
        names = [s.name for affine, _, _ in self.pending for s in affine.group]
        self.body.append(Note(f"what enters, of {', '.join(names)}"))
        self.body.append(assign_groups(entering, call("exchange", Items(tuple(parts)))))
        self.pending = []


def _pairs_steps(m: SegmentMap) -> bool:
    """Has the map quantities for each pair of a chunk's steps? Else a chunk may be as long as memory allows."""
    nodes = [*m.affine.linear.values(), *m.affine.local.values(), *m.definitions.values()]
    return any(x.op in TRANSITIONS or {ROW, COL} <= set(x.axes) for x in walk(*nodes))


class SegmentMapText:
    """The function that makes the maps of all chunks at once."""

    def __init__(self, name: str, m: SegmentMap, dims: tuple[str, ...], named: Called) -> None:
        self.name, self.map, self.dims = name, m, dims
        self.streams = Streams(m.streams, named)
        self.mixes: dict = {}
        self.body: list[Statement] = []
        self.printer = Chunked(self._leaf, self.body, self.streams)
        self.own: list[str] = []  # of what it is given, what isn't a tensor

    def made(self) -> Function:
        affine, printer = self.map.affine, self.printer
        blocks = [(affine.linear.get(pair), axes) for pair, axes in affine.shape.items()]
        local = [(affine.local[s.name], s.axes) for s in affine.group]
        roots = [x for x, _ in (*blocks, *local) if x is not None]
        printer.count([*roots, *self.map.definitions.values()])
        some = Name(self.streams.any())
        results: list[Code] = []
        for x, axes in (*blocks, *local):
            shape = Items((SEQUENCES, Name("count"), *(printer.dialect.size(dim_of(a)) for a in axes)))
            if x is None or not any(y.op == "leaf" for y in walk(x)):
                value = Literal(0.0) if x is None else printer.value(expand(x, tuple(sorted(axes))))
            else:
                value = stored(printer.value(expand(x, axes)), axes)
            results.append(call("over_chunks", value, shape, *LIKE))
        ways = "forwards" if self.map.direction > 0 else "backwards"
        names = ", ".join(s.name for s in affine.group)
        doc = f"The map of each chunk, {ways} in time, for {names}: linear parts, then local parts."
        count = assign("count", Item(Attribute(some, "shape"), Literal(2)))
        whole = Return(Items(tuple(results), closed=True))
        body = (*self.streams.statements(), count, *self.body, whole)
        self.own = own_arguments(body, self.dims)
        return function(self.name, [*self.streams.parameters(), *self.own], doc, body)

    def _leaf(self, x: Node) -> str | Code:
        if x.op != "leaf":
            return operation_of_chunks(x, self.printer, self.streams, self.mixes, self.body)
        if x.attrs[0] == "stream":
            return self.streams.text(x)
        return self.printer.value(next(n for d, n in self.map.definitions.items() if d.attrs[1] == x.attrs[1]))


def law(name: str, a: Affine) -> Function:
    """The function that composes two maps, each its linear parts and then its local parts."""
    made = composed(a)
    results = [(made.linear[p], tuple(sorted(axes))) for p, axes in a.shape.items()]
    results += [(made.local[s.name], s.axes) for s in a.group]
    values = {
        (kind, part): Item(Name(kind), Literal(n))
        for kind in ("later", "earlier")
        for n, part in enumerate([*(f"{to}<-{of}" for to, of in a.shape), *(s.name for s in a.group)])
    }
    return _function(name, ["later", "earlier"], "The map of two segments from the map of each.", values, results)


def application(name: str, a: Affine) -> Function:
    """The function that applies a map to states."""
    entering = {s.name: leaf("entering", s.name, s.axes) for s in a.group}
    applied = named(a, "map").applied(entering)
    parts = [*(f"{to}<-{of}" for to, of in a.shape), *(s.name for s in a.group)]
    values = {("map", part): Item(Name("maps"), Literal(n)) for n, part in enumerate(parts)}
    values |= {("entering", s.name): Item(Name("states"), Literal(n)) for n, s in enumerate(a.group)}
    doc = "The states that leave a segment, from those that enter it."
    return _function(name, ["maps", "states"], doc, values, [(applied[s.name], s.axes) for s in a.group])


def _function(
    name: str,
    arguments: list[str],
    doc: str,
    values: dict[tuple[str, str], Item],
    results: list[tuple[Node, tuple[str, ...]]],
) -> Function:
    body: list[Statement] = []
    printer = TorchText(lambda x: values[x.attrs[0], x.attrs[1]], body, {}, "a")
    printer.count([x for x, _ in results])
    found = tuple(stored(printer.value(expand(x, axes)), axes) for x, axes in results)
    body.append(Return(Items(found, closed=True)))
    return function(name, arguments, doc, tuple(body))
