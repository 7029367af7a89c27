"""How long a plan should take on a GPU: a model of bytes, products, exponentials and launches, from shapes alone.

A pass takes as long as the slower of two things, and its kernels' starts on top:

    moving        its bytes (chunkwise/cost.py counts them) at the rate of a large copy
    computing     each sweep's products at the rate that sweeps reach on tensor cores, and then the exponentials that decays
                  need; a product without the tiled axis is done again for every tile. A lone program reaches a part of that rate
                  only, so that few heads and batches leave the GPU idle: then the sequence is cut into segments, for a sweep
                  more over the states alone

The rates are those of one machine, measured with a first hand-written sweep, so a prediction says what the plan would take with
kernels like that one: a kernel that is slower has something to gain, and one that is faster has beaten the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..ir.expr import Node, dim_of, walk
from .chunkwise.chunk_program import DECAYS
from .chunkwise.compiled import Compiled
from .chunkwise.cost import Cost, Sizes
from .chunkwise.plan import Plan, Sweep
from .compiled_cost import backward_cost, forward_cost, launches
from .over_chunks import why_stepwise
from .triton import in_substeps, kernel_plan, scanned

TILE = 64  # width of the tile of the state that a program keeps
SEGMENTS = tuple(2**i for i in range(7))
SHORTEST = 4  # chunks in a segment


@dataclass(frozen=True)
class Machine:
    """Rates of a GPU, per second."""

    name: str
    copy: float  # bytes, read and written together
    processors: int
    products: float  # FLOPs of a multiprocessor in a sweep
    alone: float  # FLOPs of a lone program in a sweep
    exponentials: float  # of a multiprocessor
    launch: float  # seconds of one kernel's start


# The copy was measured; `products` and `alone` from a sweep of a scalar decay at B T H = 8 x 4096 x 16 (226 us) and at
# 1 x 32768 x 16 (1394 us), D = 128; exponentials are 16 a clock at 1.75 GHz.
H200 = Machine("NVIDIA H200", 4.26e12, 132, 2.2e12, 1.45e12, 28e9, 3e-6)


@dataclass(frozen=True)
class Pass:
    """Seconds of one pass, by part, and of the memory lower bound; useful FLOPs; into how many segments sweeps are cut."""

    moving: float
    computing: float
    starting: float
    lower_bound: float
    flops: float
    segments: int

    @property
    def seconds(self) -> float:
        return max(self.moving, self.computing) + self.starting


@dataclass(frozen=True)
class Prediction:
    """Both passes, at one shape on one machine."""

    machine: Machine
    shape: tuple[int, int, int, int]
    forward: Pass
    backward: Pass


def predict(
    c: Compiled,
    shape: tuple[int, int, int, int] = (8, 4096, 16, 128),
    machine: Machine = H200,
    chunk: int = 64,
    element: int = 2,
) -> Prediction | None:
    """The time of both passes at a shape (B, T, H, D); None where the Triton kernels run in recurrent form."""
    if c.forward is None or c.backward is None or why_stepwise(c):
        return None
    sizes = Sizes({d: shape[3] for d in c.step.dims}, chunk, element)
    started = launches(c)
    part, times = in_substeps(c)
    assert part.forward is not None and part.backward is not None
    if scanned(c):  # which computes next to nothing
        plans = Plan(part.forward.form, (), ()), Plan(part.backward.form, (), ())
    else:
        plans = part.forward, kernel_plan(part, part.backward)
    forward = _pass(plans[0], forward_cost(c, sizes), started[0], shape, sizes, machine, times)
    backward = _pass(plans[1], backward_cost(c, sizes), started[1], shape, sizes, machine, times)
    return Prediction(machine, shape, forward, backward)


def as_data(p: Prediction) -> dict[str, Any]:
    """A prediction as plain data, in microseconds."""

    def data(x: Pass) -> dict[str, Any]:
        times = {"us": x.seconds, "lower_bound_us": x.lower_bound, "moving_us": x.moving}
        times |= {"computing_us": x.computing, "starting_us": x.starting}
        rounded = {name: round(1e6 * t, 1) for name, t in times.items()}
        return {
            **rounded,
            "floor_us": rounded["lower_bound_us"],
            "segments": x.segments,
        }  # its former name, for one version

    shape = dict(zip("BTHD", p.shape, strict=True))
    return {"machine": p.machine.name, "shape": shape, "forward": data(p.forward), "backward": data(p.backward)}


def _pass(
    plan: Plan,
    cost: Cost,
    started: int,
    shape: tuple[int, int, int, int],
    sizes: Sizes,
    machine: Machine,
    times: int,
) -> Pass:
    """The pass, cut into as many segments as make it fastest. The plan is of `times` substeps for each step."""
    batch, steps, heads, _ = shape
    tokens = batch * steps * heads

    def cut(segments: int) -> Pass:
        computing, more_bytes, more_started = 0.0, 0.0, 0
        for sweep in plan.sweeps:
            work = [_nodes(sweep)]
            if segments > 1:  # the states at the segments' boundaries first, and a scan over them
                work.append(list(sweep.chunk.states.values()))
                more_bytes += times * _streams(sweep, sizes) + 4 * 2 * _states(sweep, sizes) * segments / steps
                more_started += 2
            computing += sum(_sweep(x, sweep, segments, batch * heads, times * tokens, sizes, machine) for x in work)
        moving = tokens * (cost.bytes + more_bytes) / machine.copy
        starting = (started + more_started) * machine.launch
        return Pass(
            moving, computing, starting, tokens * cost.lower_bound / machine.copy, tokens * cost.flops, segments
        )

    possible = [n for n in SEGMENTS if n == 1 or n * SHORTEST * sizes.chunk <= steps]
    return min((cut(n) for n in possible), key=lambda p: p.seconds)


def _sweep(
    nodes: list[Node], sweep: Sweep, segments: int, lanes: int, tokens: int, sizes: Sizes, machine: Machine
) -> float:
    """Seconds that a sweep computes for."""
    tile = sweep.group[0].col if sweep.side == "row" else sweep.group[0].row
    tiles = 1 if tile is None else math.ceil(sizes.of((tile,)) / TILE)
    flops, exponentials = _work(nodes, dim_of(tile) if tile is not None else None, tiles, sizes)
    programs = lanes * tiles * segments
    rate = min(machine.processors * machine.products, programs * machine.alone)
    busy = min(machine.processors, programs)
    return tokens / sizes.chunk * (flops / rate + exponentials / (busy * machine.exponentials))


def _nodes(sweep: Sweep) -> list[Node]:
    chunk = sweep.chunk
    return [*chunk.definitions.values(), *chunk.outputs.values(), *chunk.states.values()]


def _work(nodes: Iterable[Node], tile: str | None, tiles: int, sizes: Sizes) -> tuple[float, float]:
    """(FLOPs of products, exponentials) of one chunk, over all tiles."""
    flops = exponentials = 0.0
    levels = max(1, int(math.log2(sizes.chunk)))
    for x in walk(*nodes):
        again = tiles if all(dim_of(a) != tile for a in (*x.axes, *(a for y in x.args for a in y.axes))) else 1
        if x.op == "sum":
            flops += again * 2 * sizes.of(x.args[0].axes)
        elif x.op == "inverse":  # by doubling
            flops += 2 * sizes.chunk**3 * levels
        elif x.op == "decay_mask" and len(x.axes) > 2:  # halves within halves, each with factors of its own
            exponentials += again * levels * sizes.of(x.axes[1:])
        elif x.op in DECAYS:
            exponentials += again * sizes.of(x.axes)
    return flops, exponentials


def _streams(sweep: Sweep, sizes: Sizes) -> float:
    """Bytes for each token and head that a sweep over the states alone reads."""
    leaves = {x for x in walk(*sweep.chunk.states.values()) if x.op == "leaf" and x.attrs[0] == "stream"}
    return sum(sizes.of(x.axes) for x in leaves) / sizes.chunk * sizes.element


def _states(sweep: Sweep, sizes: Sizes) -> float:
    """Entries of the states of a sweep."""
    return sum(sizes.of(s.axes) for s in sweep.group)
