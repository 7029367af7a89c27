"""What a plan costs: bytes and floating-point operations per token and head, from shapes alone.

Bytes: each sweep reads each of its quantities once and writes its results once, inputs and outputs in the op's dtype, decays
and everything between the sweeps in float32. FLOPs: the contractions of each chunk, two for a multiplication and an addition;
elementwise work is left out. States stay in registers, and cost nothing per token. The floor reads each argument once and
writes each result once: no implementation can do with less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .ir import COL, ROW, Node, dim_of, walk
from .pipeline import Compiled
from .plan import Accumulate, Map, Plan, Sweep

WIDE = 4  # bytes of a float32
CHUNK = 64
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
            product *= self.chunk if a.startswith("%") else self.dims.get(dim_of(a), WIDTH)
        return product


@dataclass(frozen=True)
class Cost:
    """Per token and head. `floor` is the bytes that any implementation has to move."""

    read: float
    written: float
    flops: float
    floor: float

    @property
    def bytes(self) -> float:
        return self.read + self.written


def forward_cost(c: Compiled, sizes: Sizes) -> Cost:
    """The cost of the forward plan; of a sequential one, of its single pass."""
    results = [sizes.of(axes) * sizes.element for axes in c.step.output_axes.values()]
    floor = _arguments(c, sizes) + sum(results)
    if c.forward is None:
        nodes = [*c.step.updates.values(), *c.step.outputs.values()]
        return Cost(floor - sum(results), sum(results), _flops(nodes, sizes), floor)
    return _plan_cost(c, c.forward, sizes, floor)


def backward_cost(c: Compiled, sizes: Sizes) -> Cost:
    """The cost of the backward plan; of a sequential one, of a second pass forwards and one backwards."""
    cotangents = sum(sizes.of(axes) * sizes.element for axes in c.step.output_axes.values())
    given = _arguments(c, sizes)
    floor = 2 * given + cotangents
    if c.backward is None:
        a = c.adjoint.program
        nodes = [*c.step.updates.values(), *a.updates.values(), *a.outputs.values()]
        return Cost(2 * given + cotangents, given, _flops(nodes, sizes), floor)
    return _plan_cost(c, c.backward, sizes, floor)


def launches(plan: Plan) -> int:
    """Kernels that a pass starts: one for each sweep, and one for each sum over the sequence that follows them."""
    return len(plan.sweeps) + sum(isinstance(s, Accumulate) for s in plan.stages)


def sweep_flops(sweep: Sweep, sizes: Sizes) -> float:
    """FLOPs of one sweep, per token."""
    chunk = sweep.chunk
    nodes = [*chunk.definitions.values(), *chunk.outputs.values(), *chunk.states.values()]
    return _flops(nodes, sizes) / sizes.chunk


def _plan_cost(c: Compiled, plan: Plan, sizes: Sizes, floor: float) -> Cost:
    results = {x.attrs[:2] for x in plan.form.values.values() if x.op == "leaf"}
    read = written = flops = 0.0
    for stage in plan.stages:
        match stage:
            case Sweep():
                read += _bytes(_sources(stage.chunk.streams.values()), results, sizes)
                written += _bytes(stage.chunk.outputs, results, sizes)
                flops += sweep_flops(stage, sizes)
            case Accumulate(pairing):
                read += _bytes(_sources([pairing.late, pairing.early]), results, sizes)
                written += sizes.of(pairing.leaf.axes) * WIDE
            case Map(values):
                made = {n: x for n, x in values.items() if x.op != "leaf"}
                read += _bytes(_sources(made.values()), results, sizes)
                written += sum(sizes.of(x.axes) * _element(c, n, sizes) for n, x in made.items())
    return Cost(read, written, flops, floor)


def _element(c: Compiled, name: str, sizes: Sizes) -> int:
    """Bytes of one entry of a result: the gradient of a decay is float32, everything else as the inputs are."""
    return WIDE if name.startswith("dlog_") and c.step.variable(name[5:]).is_decay else sizes.element


def _sources(nodes: Iterable[Node]) -> set[Node]:
    """The quantities of each step below nodes."""
    kinds = ("input", "decay", "cotangent", "read", "write", "pairing")
    return {y for x in nodes for y in walk(x) if y.op == "leaf" and y.attrs[0] in kinds}


def _bytes(leaves: Iterable[Node], results: set[tuple], sizes: Sizes) -> float:
    total = 0
    for x in {y.attrs[:2]: y for y in leaves}.values():
        narrow = x.attrs[0] in ("input", "cotangent") or x.attrs[:2] in results
        total += sizes.of(a for a in x.attrs[2] if not a.startswith("%")) * (sizes.element if narrow else WIDE)
    return total


def _arguments(c: Compiled, sizes: Sizes) -> float:
    return sum(sizes.of(v.axes) * (WIDE if v.is_decay else sizes.element) for v in c.step.variables if v.per_step)


def _flops(nodes: Iterable[Node], sizes: Sizes) -> float:
    """Two for each multiplication and addition of a contraction; a triangular inverse of n rows takes n^3 / 3."""
    flops = 0.0
    for x in walk(*nodes):
        if x.op == "sum":
            flops += 2 * sizes.of(x.args[0].axes)
        elif x.op == "inverse":
            flops += sizes.of((ROW, ROW, COL)) / 3
    return flops
