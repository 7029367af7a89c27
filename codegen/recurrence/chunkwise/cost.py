"""What a plan costs: bytes and floating-point operations per token and head, from shapes alone.

Bytes: each sweep reads each of its quantities once and writes its results once, as the Triton kernels do: inputs, outputs and
what one sweep keeps for another in the op's dtype; decays and unfinished sums in float32. A tile that reads again what its
neighbour has read finds it in the cache, and isn't counted. FLOPs: the contractions of each chunk, two for a multiplication
and an addition; elementwise work is left out. States stay in registers, and cost nothing per token, but for those that sweeps
leave at checkpoints. The memory lower bound reads each argument once and writes each result once: no implementation can do with
less.

All is counted on a plan and on where its values lie, which is data: nothing here asks how kernels are made, so that any pass may
ask here. `compiled_cost.py` has the costs of a compiled recurrence, whose kernels say where values lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chunkform.runtime.launch.varlen import INTERVAL
from chunkform.runtime.torch_form.chunk_length import CHUNK

from ...ir.expr import COL, ROW, Node, dim_of, is_of_steps, walk
from .plan import Plan, Sweep

WIDE = 4  # bytes of a float32
WIDTH = 64


@dataclass(frozen=True)
class Sizes:
    """Sizes to count with: of each dim, of a chunk, and of an input's element in bytes."""

    dims: dict[str, int] = field(default_factory=dict)
    chunk: int = CHUNK
    element: int = 2

    def of(self, axes: Iterable[str]) -> int:
        product = 1
        for a in axes:
            product *= self.chunk if is_of_steps(a) else self.dims.get(dim_of(a), WIDTH)
        return product


@dataclass(frozen=True)
class Cost:
    """Per token and head. `lower_bound` is the bytes that any implementation has to move."""

    read: float
    written: float
    flops: float
    lower_bound: float

    @property
    def bytes(self) -> float:
        return self.read + self.written


class Stored(Protocol):
    """What a sweep writes besides its states: a tensor's leaf, what is in it, and the value that it is of.

    kind: `kept` for later stages, `final`, a `part` of a value, or `sums` over a tile.
    """

    @property
    def leaf(self) -> Node: ...
    @property
    def node(self) -> Node: ...
    @property
    def kind(self) -> str: ...
    @property
    def root(self) -> str: ...


@dataclass(frozen=True)
class Placed:
    """A plan, and where its values lie: what each sweep stores, by stage; `values` and `state_adjoints` (late, early) that are
    made of what sweeps have stored. `left` are the states that it leaves at checkpoints, `loaded` those that it loads there,
    `whole` those whose decay's terms sweeps sum themselves. `alone`: the state of a fused backward, which makes all of the plan.
    `wide`: the results in float32."""

    plan: Plan
    stores: Mapping[int, Sequence[Stored]]
    values: Mapping[str, Node]
    state_adjoints: Mapping[str, tuple[Node, Node]]
    left: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    alone: str | None = None
    wide: frozenset[str] = frozenset()


def plan_cost(x: Placed, sizes: Sizes, lower_bound: float) -> Cost:
    read = written = flops = 0.0
    jointly: set[Node] = set()  # what one sweep loads once for all sweeps
    for k, stage in enumerate(x.plan.stages):
        if not isinstance(stage, Sweep):
            continue
        made = {y.attrs[:2] for y in stage.chunk.outputs}
        needed = _sources([*stage.chunk.streams.values(), *(s.node for s in x.stores[k])])
        own = {y for y in needed if y.attrs[:2] not in made}
        if x.alone is None:
            read += _bytes(own, sizes)
        else:
            jointly |= own
        written += sum(_stored(s, x.wide, sizes) for s in x.stores[k])
        inverses = _inverses(stage)
        moved = len(inverses) * sizes.chunk * sizes.element  # a row of each, which a prologue kernel writes
        read += moved + _bytes(_sources(stage.chunk.streams[y] for y in _streams(inverses, stage)), sizes)
        written += moved
        flops += sweep_flops(stage, sizes)
    for axes in {d.axes for stage in x.plan.sweeps for s in stage.group for d in s.decays}:
        read += WIDE * sizes.of(axes)  # the sums of log decays inside each chunk, by a prologue kernel
        written += WIDE * sizes.of(axes)
    read += _bytes(jointly, sizes)
    for s in {s.name: s for sweep in x.plan.sweeps for s in sweep.group}.values():
        state = sizes.of(s.axes) * sizes.element / INTERVAL  # once for each checkpoint interval
        if s.name == x.alone:  # which the forward pass writes for it
            written += state
            read += state
        written += state * (s.name in x.left)
        read += state * (s.name in x.loaded)
    for name, (late, early) in x.state_adjoints.items():
        if name in x.whole:
            continue  # summed where its terms are made
        read += _bytes(_sources([late, early]), sizes)
        written += WIDE * sizes.of({*late.axes, *early.axes})
    for name, y in x.values.items():
        if not (y.op == "leaf" and y.attrs[0] == "stored"):  # torch finishes it
            read += _bytes(_sources([y]), sizes)
            written += sizes.of(y.axes) * _element(name, x.wide, sizes)
    return Cost(read, written, flops, lower_bound)


def sweep_flops(sweep: Sweep, sizes: Sizes) -> float:
    """FLOPs of one sweep, per token."""
    chunk = sweep.chunk
    nodes = [*chunk.definitions.values(), *chunk.outputs.values(), *chunk.states.values()]
    return flops_of(nodes, sizes) / sizes.chunk


def _inverses(sweep: Sweep) -> list[Node]:
    chunk = sweep.chunk
    return [x for x in walk(*chunk.definitions.values(), *chunk.outputs.values()) if x.op == "inverse"]


def _streams(nodes: list[Node], sweep: Sweep) -> set[Node]:
    """The streams below nodes, through the inner quantities of a sweep."""
    streams = {x.attrs[:2]: x for x in sweep.chunk.streams}
    inner = {x.attrs[:2]: node for x, node in sweep.chunk.definitions.items()}
    found, stack, seen = set(), list(nodes), set()
    while stack:
        for y in walk(stack.pop()):
            if y.op != "leaf" or y.attrs[:2] in seen:
                continue
            seen.add(y.attrs[:2])
            if y.attrs[:2] in streams:
                found.add(streams[y.attrs[:2]])
            elif y.attrs[:2] in inner:
                stack.append(inner[y.attrs[:2]])
    return found


def _stored(s: Stored, wide: frozenset[str], sizes: Sizes) -> float:
    """Bytes that a sweep writes for one of its results."""
    if s.kind == "sums":
        return WIDE
    element = sizes.element if s.kind == "kept" else _element(s.root, wide, sizes) if s.kind == "final" else WIDE
    return sizes.of(s.leaf.attrs[2]) * element


def _element(name: str, wide: frozenset[str], sizes: Sizes) -> int:
    """Bytes of one entry of a result."""
    return WIDE if name in wide else sizes.element


def _sources(nodes: Iterable[Node]) -> set[Node]:
    """The quantities of each step below nodes."""
    kinds = ("input", "decay", "cotangent", "read", "write", "state-adjoint product", "stored", "sums")
    return {y for x in nodes for y in walk(x) if y.op == "leaf" and y.attrs[0] in kinds}


def _bytes(leaves: Iterable[Node], sizes: Sizes) -> float:
    total = 0
    for x in {y.attrs[:2]: y for y in leaves}.values():
        narrow = x.attrs[0] in ("input", "cotangent", "read", "write")
        total += sizes.of(x.axes) * (sizes.element if narrow else WIDE)
    return total


def flops_of(nodes: Iterable[Node], sizes: Sizes) -> float:
    """Two for each multiplication and addition of a contraction; a triangular inverse of n rows takes n^3 / 3."""
    flops = 0.0
    for x in walk(*nodes):
        if x.op == "sum":
            flops += 2 * sizes.of(x.args[0].axes)
        elif x.op == "inverse":
            flops += sizes.of((ROW, ROW, COL)) / 3
    return flops
