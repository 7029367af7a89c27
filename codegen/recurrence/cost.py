"""What a plan costs: bytes and floating-point operations per token and head, from shapes alone.

Bytes: each sweep reads each of its quantities once and writes its results once, as the Triton kernels do: inputs, outputs and
what one sweep keeps for another in the op's dtype; decays and unfinished sums in float32. A tile that reads again what its
neighbour has read finds it in the cache, and isn't counted. FLOPs: the contractions of each chunk, two for a multiplication
and an addition; elementwise work is left out. States stay in registers, and cost nothing per token, but for those that sweeps
leave at checkpoints. The memory lower bound reads each argument once and writes each result once: no implementation can do with
less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from chunkform.runtime.launch.varlen import BLOCK
from chunkform.runtime.torch_form.chunk_length import CHUNK

from ..ir.expr import COL, ROW, Node, dim_of, walk
from ..ir.launch_ir import Call, Launch, statements
from .chunkwise.compiled import Compiled
from .chunkwise.plan import Plan, Sweep
from .over_chunks import why_stepwise
from .triton import (
    CheckpointSchedule,
    FusedBackward,
    fused_backward_of,
    in_substeps,
    kernel_plan,
    scanned,
    schedule_of,
    simplified,
    triton_form,
)
from .triton.plan_passes.value_placement import Store, fuse

WIDE = 4  # bytes of a float32
WIDTH = 64
STARTS = frozenset(
    "cumulate cumulate_beside suffix_sum block_state_adjoint".split()
)  # functions that start a kernel each


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
    """Per token and head. `lower_bound` is the bytes that any implementation has to move."""

    read: float
    written: float
    flops: float
    lower_bound: float

    @property
    def bytes(self) -> float:
        return self.read + self.written


def forward_cost(c: Compiled, sizes: Sizes) -> Cost:
    """The cost of the forward plan; of a sequential one, of its single pass."""
    results = [sizes.of(axes) * sizes.element for axes in c.step.output_axes.values()]
    lower_bound = _arguments(c, sizes) + sum(results)
    if c.strata:
        return _of_all([forward_cost(p.compiled, sizes) for p in c.strata], lower_bound)
    if c.forward is None or scanned(c):
        nodes = [*c.step.updates.values(), *c.step.outputs.values()]
        alone = {*c.step.outputs.values()} <= {*c.step.updates.values()}  # outputs are states as they are
        kept = 0.0 if alone else _kept(c, sizes)
        return Cost(lower_bound - sum(results) + kept, sum(results) + kept, _flops(nodes, sizes), lower_bound)
    part, count = in_substeps(c)
    if count > 1:
        read = _arguments(c, sizes) + sum(results)
        return _around(part, count, forward_cost(part, sizes), sizes, read, sum(results), lower_bound)
    return _plan_cost(c, c.forward, sizes, lower_bound)


def backward_cost(c: Compiled, sizes: Sizes) -> Cost:
    """The cost of the backward plan; of a sequential one, of a second pass forwards and one backwards."""
    cotangents = sum(sizes.of(axes) * sizes.element for axes in c.step.output_axes.values())
    given = _arguments(c, sizes)
    lower_bound = 2 * given + cotangents
    if c.strata:
        return _of_all([backward_cost(p.compiled, sizes) for p in c.strata], lower_bound)
    if c.backward is None or scanned(c):
        a = c.adjoint.program
        nodes = [*c.step.updates.values(), *a.updates.values(), *a.outputs.values()]
        kept = 2 * _kept(c, sizes)
        return Cost((3 if kept else 2) * given + cotangents + kept, given + kept, _flops(nodes, sizes), lower_bound)
    part, count = in_substeps(c)
    if count > 1:
        read = 2 * given + cotangents + count * _arguments(part, sizes)  # gradients of streams
        return _around(part, count, backward_cost(part, sizes), sizes, read, given + count * cotangents, lower_bound)
    return _plan_cost(c, c.backward, sizes, lower_bound)


def _of_all(parts: list[Cost], lower_bound: float) -> Cost:
    """The cost of strata, one after the other."""
    read, written, flops = (sum(getattr(x, name) for x in parts) for name in ("read", "written", "flops"))
    return Cost(read, written, flops, lower_bound)


def _kept(c: Compiled, sizes: Sizes) -> float:
    """The bytes of a step's states, where scans leave them in memory."""
    return WIDE * sum(sizes.of(s.axes) for s in c.step.states) if scanned(c) else 0.0


def _around(
    part: Compiled, count: int, one: Cost, sizes: Sizes, read: float, written: float, lower_bound: float
) -> Cost:
    """The cost of a step of so many substeps, of that of one and of what is read and written for them, beside their streams."""
    written += count * (one.written + _arguments(part, sizes))
    return Cost(read + count * one.read, written, count * one.flops, lower_bound)


def launches(c: Compiled) -> tuple[int, int]:
    """Triton kernels that a forward and a backward call start, without torch's own for what is left over. In recurrent form there
    is one for each."""
    if c.strata:
        each = [launches(p.compiled) for p in c.strata]
        return sum(x for x, _ in each), sum(x for _, x in each)
    if not scanned(c) and (c.forward is None or why_stepwise(c) is not None):
        return 1, 1
    return _launches_of(c)


def _launches_of(c: Compiled) -> tuple[int, int]:
    functions = triton_form(c).functions
    counts = []
    for name in ("forward", "backward_whole" if "triton_backward_whole" in functions else "backward"):
        used = [f"triton_{name}", f"substep_{name}", *(["substep_streams"] if "substep_streams" in functions else [])]
        found = [x for n in used if n in functions for x in statements(functions[n].body)]
        counts.append(sum(isinstance(x, Launch) or (isinstance(x, Call) and x.function in STARTS) for x in found))
    return counts[0], counts[1]


def sweep_flops(sweep: Sweep, sizes: Sizes) -> float:
    """FLOPs of one sweep, per token."""
    chunk = sweep.chunk
    nodes = [*chunk.definitions.values(), *chunk.outputs.values(), *chunk.states.values()]
    return _flops(nodes, sizes) / sizes.chunk


def _plan_cost(c: Compiled, plan: Plan, sizes: Sizes, lower_bound: float) -> Cost:
    forward = plan is c.forward
    if not forward and why_stepwise(c) is None:
        plan = kernel_plan(c, plan)
    alone = None if forward else _whole(c)
    if alone is not None:
        assert c.backward is not None
        plan = simplified(c.backward)
    fused = fuse(plan, tuple(plan.form.write_leaves()) if forward else ())
    read = written = flops = 0.0
    jointly: set[Node] = set()  # what one sweep loads once for all sweeps
    for k, stage in enumerate(plan.stages):
        if not isinstance(stage, Sweep):
            continue
        made = {x.attrs[:2] for x in stage.chunk.outputs}
        stores = fused.stores[k]
        needed = _sources([*stage.chunk.streams.values(), *(s.node for s in stores)])
        own = {x for x in needed if x.attrs[:2] not in made}
        if alone is None:
            read += _bytes(own, sizes)
        else:
            jointly |= own
        written += sum(_stored(c, s, sizes) for s in stores)
        inverses = _inverses(stage)
        moved = len(inverses) * sizes.chunk * sizes.element  # a row of each, which a prologue kernel writes
        read += moved + _bytes(_sources(stage.chunk.streams[x] for x in _streams(inverses, stage)), sizes)
        written += moved
        flops += sweep_flops(stage, sizes)
    for axes in {d.axes for stage in plan.sweeps for s in stage.group for d in s.decays}:
        read += WIDE * sizes.of(axes)  # the sums of log decays inside each chunk, by a prologue kernel
        written += WIDE * sizes.of(axes)
    read += _bytes(jointly, sizes)
    checkpoints = _checkpoints(c)
    stored = checkpoints.given if forward else checkpoints.stored
    loaded = frozenset() if forward else checkpoints.given | checkpoints.stored
    for s in {s.name: s for sweep in plan.sweeps for s in sweep.group}.values():
        state = sizes.of(s.axes) * sizes.element / BLOCK  # once for each block
        if alone is not None and s.name == alone.state.name:  # which the forward pass writes for it
            written += state
            read += state
        written += state * (s.name in stored)
        read += state * (s.name in loaded)
    for name, (late, early) in fused.state_adjoints.items():
        if name in checkpoints.whole:
            continue  # summed where its terms are made
        read += _bytes(_sources([late, early]), sizes)
        written += WIDE * sizes.of({*late.axes, *early.axes})
    for name, x in fused.values.items():
        if not (x.op == "leaf" and x.attrs[0] == "stored"):  # torch finishes it
            read += _bytes(_sources([x]), sizes)
            written += sizes.of(x.axes) * _element(c, name, sizes)
    return Cost(read, written, flops, lower_bound)


def _checkpoints(c: Compiled) -> CheckpointSchedule:
    """What is left and read at checkpoints: nothing where the kernels run in recurrent form."""
    return schedule_of(c) if why_stepwise(c) is None else CheckpointSchedule({})


def _whole(c: Compiled) -> FusedBackward | None:
    """The backward pass as a fused backward, where kernels make it so."""
    return fused_backward_of(c) if why_stepwise(c) is None else None


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


def _stored(c: Compiled, s: Store, sizes: Sizes) -> float:
    """Bytes that a sweep writes for one of its results."""
    if s.kind == "sums":
        return WIDE
    element = sizes.element if s.kind == "kept" else _element(c, s.root, sizes) if s.kind == "final" else WIDE
    return sizes.of(s.leaf.attrs[2]) * element


def _element(c: Compiled, name: str, sizes: Sizes) -> int:
    """Bytes of one entry of a result: the gradient of a decay is float32, everything else as the inputs are."""
    decays = {f"dlog_{v.name}" for v in c.step.variables if v.is_decay}
    return WIDE if name in decays else sizes.element


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
