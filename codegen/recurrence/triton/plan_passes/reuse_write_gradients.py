"""A solved write that is a gradient but for scalar factors: what comes after its sweep loads that gradient, so that only one of
the two is stored.

With p solved for and a gradient g = b p, later sweeps have b in all that they make of p: what they write, what they read with,
or what is made of their reads. In products b p becomes g. A plan in which b would be left over is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace as dc_replace

from ....ir.expr import COL, ROW, Node, add, factors_of, leaf, mul, power, rename, replace, terms_of, walk
from ...chunkwise.chunk_program import ChunkProgram
from ...chunkwise.plan import Accumulate, BoundarySums, Map, Plan, Stage, Sweep
from ...normal_form.form import StateAdjointProduct


def reused(plan: Plan) -> Plan:
    """The plan, with gradients in the place of the solved writes that they are made of."""
    values = {n: x for stage in plan.stages if isinstance(stage, Map) for n, x in stage.values.items()}
    for k, stage in enumerate(plan.stages):
        for p in stage.chunk.outputs if isinstance(stage, Sweep) and stage.solve else ():
            for name, node in values.items():
                scalars = [f for f in factors_of(node) if f.attrs[:2] != p.attrs[:2]]
                simple = all(f.op == "leaf" and f.attrs[0] == "input" and not f.axes for f in scalars)
                if simple and len(scalars) == len(factors_of(node)) - 1 and len(set(scalars)) == len(scalars):
                    try:
                        return _Reuse(plan, k, p, leaf("stored", name, node.axes), tuple(scalars)).plan()
                    except _LeftOver:
                        continue
    return plan


class _LeftOver(Exception):
    """A scalar factor that no product takes up."""


class _Reuse:
    def __init__(self, plan: Plan, k: int, write: Node, gradient: Node, scalars: tuple[Node, ...]) -> None:
        self.old, self.k, self.write, self.gradient, self.scalars = plan, k, write, gradient, scalars
        self.scaled: set[Node] = set()  # reads that later sweeps make with the scalars

    def plan(self) -> Plan:
        stages: list[Stage] = []
        for k, stage in enumerate(self.old.stages):
            if isinstance(stage, Sweep) and k > self.k:
                stage = self.sweep(stage)
            elif isinstance(stage, Accumulate):
                p = stage.state_adjoint
                stage = dc_replace(
                    stage, state_adjoint=StateAdjointProduct(p.leaf, p.state, self.value(p.late), self.value(p.early))
                )
            elif isinstance(stage, Map):
                stage = Map({n: self.value(x) for n, x in stage.values.items()})
            stages.append(stage)
        return dc_replace(self.old, stages=tuple(stages))

    def is_write(self, x: Node) -> bool:
        return x.op == "leaf" and x.attrs[:2] == self.write.attrs[:2]

    def inverse(self, *steps: str) -> Node:
        """1 over the scalars, of a step on its own or of one of a chunk's."""
        return mul(*(power(self.over(f, *steps), -1) for f in self.scalars))

    def over(self, scalar: Node, *steps: str) -> Node:
        return leaf("stream", scalar.key[:12], steps) if steps else scalar

    def value(self, x: Node) -> Node:
        """A step-level node by the reads that are scaled."""
        named = {y.attrs[:2] for y in self.scaled}
        found = {y: mul(self.inverse(), y) for y in walk(x) if y.op == "leaf" and y.attrs[:2] in named}
        return _free(replace(x, found), x) if found else x

    # --- a sweep ----------------------------------------------------------------------------------------------------

    def sweep(self, sweep: Sweep) -> Sweep:
        own = sweep.chunk
        streams = {x: n for x, n in own.streams.items() if x in own.decays}
        given = dict(own.streams)
        scales: dict[tuple[str, str], str] = {}  # quantities of a chunk that are made with the scalars, of which step

        def made(x: Node) -> Node:
            found: dict[Node, Node] = {}
            for y in (y for y in walk(x) if y.op == "leaf"):
                if y.attrs[0] == "stream":
                    found[y] = self.stream(y, given, streams)
                elif (axis := scales.get(y.attrs[:2])) is not None:
                    base = next(d for d in own.definitions if d.attrs[:2] == y.attrs[:2])
                    found[y] = mul(self.inverse(y.attrs[2][base.attrs[2].index(axis)]), y)
            return replace(x, found)

        definitions: dict[Node, Node] = {}
        for x, node in own.definitions.items():
            definitions[x], axis = self.whole(made(node), (a for a in (ROW, COL) if a in x.axes))
            if axis is not None:
                scales[x.attrs[:2]] = axis
        outputs: dict[Node, Node] = {}
        for x, node in own.outputs.items():
            outputs[x], axis = self.whole(made(node), (ROW,))
            self.scaled |= {x} if axis is not None else set()
        states = {n: self.whole(made(node), ())[0] for n, node in own.states.items()}
        chunk = dc_replace(own, streams=streams, definitions=definitions, outputs=outputs, states=states)
        return dc_replace(sweep, chunk=chunk, boundary_sums=tuple(self.boundary(x, own) for x in sweep.boundary_sums))

    def boundary(self, boundary: BoundarySums, chunk: ChunkProgram) -> BoundarySums:
        streams = {x: n for x, n in boundary.streams.items() if x in chunk.decays}

        def made(x: Node) -> Node:
            found = {
                y: self.stream(y, boundary.streams, streams)
                for y in walk(x)
                if y.op == "leaf" and y.attrs[0] == "stream"
            }
            return self.whole(replace(x, found), ())[0]

        reads = {slot: made(x) for slot, x in boundary.reads.items()}
        own = tuple((made(x), rows, columns) for x, rows, columns in boundary.own)
        return dc_replace(boundary, streams=streams, reads=reads, own=own)

    def stream(self, y: Node, given: dict[Node, Node], streams: dict[Node, Node]) -> Node:
        """A stream of a chunk as scalars, or their inverses, times a stream without them."""
        base = next(s for s in given if s.attrs[1] == y.attrs[1])
        node = self.value(given[base])
        step, *axes = y.attrs[2]
        factors = factors_of(node)
        has = node is not given[base] or set(self.scalars) & set(factors) or any(map(self.is_write, walk(node)))
        if base in streams or not has:
            streams[base] = given[base]
            return y
        outside = [self.over(f, step) for f in factors if f in self.scalars]
        inside = [f for f in factors if f not in self.scalars]
        if any(map(self.is_write, inside)):
            outside.append(self.inverse(step))
            inside = [rename(self.gradient, _axes(self.gradient, f)) if self.is_write(f) else f for f in inside]
        if any(self.is_write(z) for f in inside for z in walk(f)):
            raise _LeftOver
        streams |= {self.over(f, ROW): f for f in self.scalars}
        rest = mul(*inside)
        if rest.op == "const":
            return mul(rest, *outside)
        x = leaf("stream", rest.key[:12], (ROW, *rest.axes))
        streams[x] = rest
        own = dict(zip(base.attrs[2][1:], axes, strict=True))
        return mul(leaf("stream", rest.key[:12], (step, *(own[a] for a in rest.axes))), *outside)

    def whole(self, x: Node, steps: Iterable[str]) -> tuple[Node, str | None]:
        """x without inverses: as it is, or times the scalars of one of these steps."""
        if not _inverses(x):
            return x, None
        for step in steps:
            scalars = [self.over(f, step) for f in self.scalars]
            more = add(*(mul(*scalars, t) for t in terms_of(x)))
            if not _inverses(more) & {*scalars}:
                return _free(more, x), step
        raise _LeftOver


def _axes(x: Node, y: Node) -> dict[str, str]:
    return dict(zip(x.axes, y.axes, strict=True))


def _inverses(x: Node) -> set[Node]:
    """What is divided by, of scalars of a chunk's steps."""
    return {y.args[0] for y in walk(x) if y.op == "pow" and y.attrs[0] < 0 and y.args[0].op == "leaf"}


def _free(x: Node, before: Node) -> Node:
    """x, if it divides by nothing that it hadn't divided by before."""
    if not _inverses(x) <= _inverses(before):
        raise _LeftOver
    return x
