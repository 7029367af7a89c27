"""Print what a segment of a sequence needs from the segments before it: the maps of segments (see `segment_maps.py`) as torch.

`torch_forward_states` and `torch_backward_states` find the states that enter this segment. They make the map of the segment
for one group of states after the other, hand it to `exchange`, and get back the entering states; where the writes of a group
depend on what an earlier one reads, the earlier one is swept in between.
"""

from __future__ import annotations

from ...ir.code import Code, Items, Literal, Name, Text, call
from ...ir.expr import COL, ROW, Node, dim_of, expand, leaf, walk
from ...printing.torch_expressions import TorchText, stored
from ..chunkwise.compiled import Compiled
from ..chunkwise.plan import Accumulate, Plan, Stage, Sweep, Unroll
from ..chunkwise.segment_maps import Affine, SegmentMap, composed, named, segment_map
from ..normal_form.form import StateForm
from .passes import PassText
from .sweep import INDENT, Called, Chunked, Streams, operation_of_chunks, own_arguments


def segments_source(c: Compiled) -> str:
    """`torch_forward_states` and `torch_backward_states` of a chunk-parallel recurrence."""
    assert c.forward is not None and c.backward is not None
    forward = _States(c, c.forward, backward=False).text()
    backward = _States(c, c.backward, backward=True).text()
    return "\n\n\n".join([*forward, *backward])


class _States(PassText):
    """One of the two functions, with three functions for the map of each group."""

    def __init__(self, c: Compiled, p: Plan, backward: bool) -> None:
        super().__init__(c, p, backward)
        self.kind = "backward_states" if backward else "forward_states"
        self.prefix = len("d") if backward else 0  # of a gradient's name, before its state's
        self.needed: set[Node] = set()
        self.pending: list[tuple[Affine, str, str]] = []

    def text(self) -> list[str]:
        rest = "saved, cotangents, final_cotangents, exchange" if self.backward else "exchange"
        head = f"def torch_{self.kind}(given, states, constants, {rest}):"
        what = (
            "The gradients of the states that leave this segment of a sequence, by what comes after it"
            if self.backward
            else "The states that enter this segment of a sequence, by what comes before it"
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
                size = self._size(sweep) if _pairs_steps(maps[n]) else "LONG_CHUNK"
                self._map(maps[n], f"{self.kind}_{list(maps).index(n) + 1}", size)
            if self.needed & set(sweep.chunk.outputs) or self.edges(sweep):
                self._exchange()
                self._sweep(sweep)
        self._exchange()
        names = ((f"{s.name}", self._entering(s.name)) for sweep in first.values() for s in sweep.group)
        self.lines.append("return {" + ", ".join(f'"{n[self.prefix :]}": {text}' for n, text in names) + "}")
        return [*self.sweeps, "\n".join([head, f'{INDENT}"""{what}."""', *(INDENT + x for x in self.lines)])]

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

    def _map(self, m: SegmentMap, name: str, size: str) -> None:
        """The map of this segment, which `exchange` waits for."""
        printer = SegmentMapText(f"_{name}_chunks", m, self.c.step.dims, self.called)
        self.sweeps += [
            printer.text(),
            law_text(f"_{name}_composed", m.affine),
            apply_text(f"_{name}_applied", m.affine),
        ]
        arguments = self.text_of.arguments(printer.streams.nodes)
        streams = f"({', '.join(arguments)}{',' if len(arguments) == 1 else ''})"
        rest = "".join(f", {x}" for x in printer.own[2:])
        self.lines.append(
            f"map_{len(self.sweeps)} = map_of_segment(_{name}_chunks, _{name}_composed, {streams}, lead, {m.direction}, "
            f"{size}{rest})"
        )
        self.pending.append((m.affine, name, f"map_{len(self.sweeps)}"))

    def _exchange(self) -> None:
        if not self.pending:
            return
        parts, results = [], []
        for affine, name, value in self.pending:
            states = "".join(f"{self._entering(s.name)}, " for s in affine.group)
            blocks = len(affine.shape)
            own = "".join(f'"{s.name[self.prefix :]}", ' for s in affine.group)
            parts.append(
                f"Segment(({own}), _{name}_composed, _{name}_applied, {value}[:{blocks}], {value}[{blocks}:], ({states}))"
            )
            results.append(f"({states})")
        names = [s.name for affine, _, _ in self.pending for s in affine.group]
        self.lines.append(f"# what enters, of {', '.join(names)}")
        self.lines.append(f"{', '.join(results)}, = exchange(({', '.join(parts)},))")
        self.pending = []


def _pairs_steps(m: SegmentMap) -> bool:
    """Has the map quantities for each pair of a chunk's steps? Else a chunk may be as long as memory allows."""
    nodes = [*m.affine.linear.values(), *m.affine.local.values(), *m.definitions.values()]
    return any(x.op.startswith("mix_") or {ROW, COL} <= set(x.axes) for x in walk(*nodes))


class SegmentMapText:
    """The function that makes the maps of all chunks at once."""

    def __init__(self, name: str, m: SegmentMap, dims: tuple[str, ...], named: Called) -> None:
        self.name, self.map, self.dims = name, m, dims
        self.streams = Streams(m.streams, named)
        self.mixes: dict = {}
        self.lines: list[str] = []
        self.printer = Chunked(self._leaf, self.lines, self.streams)
        self.own: list[str] = []  # of what it is given, what isn't a tensor

    def text(self) -> str:
        affine, printer = self.map.affine, self.printer
        blocks = [(affine.linear.get(pair), axes) for pair, axes in affine.shape.items()]
        local = [(affine.local[s.name], s.axes) for s in affine.group]
        roots = [x for x, _ in (*blocks, *local) if x is not None]
        printer.count([*roots, *self.map.definitions.values()])
        any_stream = self.streams.any()
        results = []
        for x, axes in (*blocks, *local):
            shape = Items((Text("*lead[:2]"), Name("count"), *(printer.dialect.size(dim_of(a)) for a in axes)))
            printer.asked |= shape.names
            if x is None or not any(y.op == "leaf" for y in walk(x)):
                value = Literal(0.0) if x is None else printer.value(expand(x, tuple(sorted(axes))))
            else:
                value = stored(printer.value(expand(x, axes)), axes)
            results.append(call("over_chunks", value, shape, "dtype", "device").text)
        ways = "forwards" if self.map.direction > 0 else "backwards"
        names = ", ".join(s.name for s in affine.group)
        doc = f'"""The map of each chunk, {ways} in time, for {names}: linear parts, then local parts."""'
        self.own = own_arguments(printer.asked | self.streams.asked() | {"dtype", "device"}, self.dims)
        head = [*self.streams.parameters(), *self.own]
        body = [doc, *self.streams.lines(), f"count = {any_stream}.shape[2]", *self.lines]
        body.append(f"return ({', '.join(results)},)")
        return "\n".join([f"def {self.name}({', '.join(head)}):", *(INDENT + x for x in body)])

    def _leaf(self, x: Node) -> str | Code:
        if x.op != "leaf":
            return operation_of_chunks(x, self.printer, self.streams, self.mixes, self.lines)
        if x.attrs[0] == "stream":
            return self.streams.text(x)
        return self.printer.value(next(n for d, n in self.map.definitions.items() if d.attrs[1] == x.attrs[1]))


def law_text(name: str, a: Affine) -> str:
    """The function that composes two maps, each its linear parts and then its local parts."""
    law = composed(a)
    results = [(law.linear[p], tuple(sorted(axes))) for p, axes in a.shape.items()]
    results += [(law.local[s.name], s.axes) for s in a.group]
    names = {
        (kind, part): f"{kind}[{n}]"
        for kind in ("later", "earlier")
        for n, part in enumerate([*(f"{to}<-{of}" for to, of in a.shape), *(s.name for s in a.group)])
    }
    doc = '"""The map of two segments from the map of each."""'
    return _function(name, "later, earlier", doc, names, results)


def apply_text(name: str, a: Affine) -> str:
    """The function that applies a map to states."""
    entering = {s.name: leaf("entering", s.name, s.axes) for s in a.group}
    applied = named(a, "map").applied(entering)
    parts = [*(f"{to}<-{of}" for to, of in a.shape), *(s.name for s in a.group)]
    names = {("map", part): f"maps[{n}]" for n, part in enumerate(parts)}
    names |= {("entering", s.name): f"states[{n}]" for n, s in enumerate(a.group)}
    doc = '"""The states that leave a segment, from those that enter it."""'
    return _function(name, "maps, states", doc, names, [(applied[s.name], s.axes) for s in a.group])


def _function(
    name: str, arguments: str, doc: str, names: dict[tuple[str, str], str], results: list[tuple[Node, tuple[str, ...]]]
) -> str:
    lines: list[str] = []
    printer = TorchText(lambda x: names[x.attrs[0], x.attrs[1]], lines, {}, "a")
    printer.count([x for x, _ in results])
    values = [stored(printer.value(expand(x, axes)), axes).text for x, axes in results]
    body = [doc, *lines, f"return ({', '.join(values)},)"]
    return "\n".join([f"def {name}({arguments}):", *(INDENT + x for x in body)])
