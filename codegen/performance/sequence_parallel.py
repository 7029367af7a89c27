"""What a sequence in segments costs on N GPUs: bytes between them, and the time of computing and of communicating.

A pass over a segment takes what was measured for a sequence of about that length (`measured_times.py`), times what `predict.py`
says that the segment differs by; or what `predict.py` says, of a recurrence that wasn't measured. In each pass the maps of the
segments (see `segment_maps.py`), whose size doesn't depend on the length of the sequence, travel once: written into the memory of
others within a node, gathered, or in a scan over ranks in log steps, where that takes less (`runtime/parallel/links.py`, which
calls choose by as well):

    bytes of a map   4 B H (entries of the linear part and of the states)
    in a node        (N - 1) maps reach each GPU over its link
    between nodes    the maps of all other nodes' GPUs reach a node over its GPUs' network, evenly
    latency          one hop for each GPU of a node, as in a ring, and one for each doubling of the nodes, as in a tree
    in a scan        one map reaches each GPU in each of log2(N) rounds, over its network where the group is more than a node
    composing        a few small kernels, which sweep over the segments that a GPU cuts its own sequence into, and over the ranks

Nothing is taken off for what overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from chunkform.errors import ArgumentError
from chunkform.runtime.parallel.links import Links, rounds, seconds_of, way

from ..recurrence.chunkwise.compiled import Compiled
from ..recurrence.chunkwise.cost import Sizes
from ..recurrence.chunkwise.plan import Plan, Sweep
from ..recurrence.chunkwise.segment_maps import Affine, segment_map
from ..recurrence.compiled_cost import forward_cost
from ..recurrence.predict import H200, Machine, predict
from .measured_times import Shape, corrected

WIDE = 4  # bytes of a map's entries
JOINING = 3  # kernels that compose two maps, by torch
KERNELS = 3  # small ones, for the decays of a GPU's own segments, for their map, and for what enters
COLUMNS, ALONE = (
    32,
    0.33e12,
)  # of a matrix that a program has, and FLOPs a second of its float32 products: 3.2 us for 128 rows


@dataclass(frozen=True)
class Step:
    """Forward and backward of one layer on `gpus` GPUs. Seconds; bytes are those that reach one GPU in both passes."""

    recurrence: str
    gpus: int
    steps: int  # of each segment
    map_bytes: int  # of one rank, one pass
    received: int
    compute: float
    communicate: float
    compose: float
    memory: int  # bytes of arguments, outputs and all their gradients on one GPU
    exchange: str  # "write" within a node, "gather", or "scan" in log steps
    measured: Shape | None  # of the kernels that `compute` follows from, or None: it is the model's alone

    @property
    def seconds(self) -> float:
        return self.compute + self.communicate + self.compose


def link_plan(
    c: Compiled,
    shape: tuple[int, int, int, int],
    gpus: int,
    links: Links | None = None,
    machine: Machine = H200,
    element: int = 2,
    lasting: bool = False,
) -> Step:
    """One layer at a shape (B, T, H, D) whose sequences lie in equal segments on `gpus` GPUs.

    `lasting`: decays that forget little, where that was measured; the model knows of none.

    Raises:
        ArgumentError: the recurrence runs in recurrent form, or there are more GPUs than steps.
    """
    batch, steps, heads, width = shape
    if c.forward is None or c.backward is None:
        raise ArgumentError(
            f"{c.name}: a plan needs a recurrence that is affine in its state; this one runs in recurrent form"
        )
    if gpus < 1 or gpus > steps:
        raise ArgumentError(f"{c.name}: gpus must be 1 to the {steps} steps of the sequence, got {gpus}")
    links = links or Links()
    part = math.ceil(steps / gpus)
    predicted = predict(c, (batch, part, heads, width), machine, element=element)
    if predicted is None:
        raise ArgumentError(f"{c.name}: its kernels run in recurrent form, which no model of this compiler predicts")
    sizes = Sizes({d: width for d in c.step.dims}, element=element)
    maps = [m for plan, way in ((c.forward, 1), (c.backward, -1)) for m in _maps(plan, way)]
    own = max(sum(WIDE * batch * heads * _entries(m, sizes) for m in _maps(p, w)) for p, w in _ways(c))
    passes = 2 * (gpus > 1)
    how = way(own, gpus, links)
    scan = how == "scan"
    count = rounds(gpus) if scan else gpus - 1
    compute, like = corrected(c, predicted, (batch, part, heads, width), machine, element, lasting)
    return Step(
        c.name,
        gpus,
        part,
        own,
        passes * count * own,
        compute,
        passes * seconds_of(how, own, gpus, links) if passes else 0.0,
        sum(_composing(m, batch * heads, count, scan, sizes, machine) for m in maps) if gpus > 1 else 0.0,
        int(batch * heads * part * _tensors(c, sizes)),
        how,
        None if like is None else like.shape,
    )


def sizes_up_to(gpus: int) -> list[int]:
    """1, 2, 4, ... up to and including `gpus`."""
    return sorted({1, *(2**k for k in range(gpus.bit_length()) if 2**k <= gpus), gpus})


def as_data(steps: Iterable[Step], shape: tuple[int, int, int, int], links: Links, machine: Machine) -> dict[str, Any]:
    """The plan as plain data: seconds, bytes, and what was assumed."""
    rows = list(steps)
    one = {s.recurrence: s.seconds for s in rows if s.gpus == 1}
    found = [
        asdict(s) | {"seconds": s.seconds, "speedup": one[s.recurrence] / s.seconds if s.recurrence in one else None}
        for s in rows
    ]
    return {
        "shape": dict(zip("BTHD", shape, strict=True)),
        "machine": asdict(machine),
        "links": asdict(links),
        "steps": found,
    }


def table(steps: Iterable[Step], title: str) -> Table:
    """One row for each number of GPUs."""
    out = Table(title=title, title_justify="left")
    times_of = ("compute ms", "links ms", "compose ms", "step ms")
    for column in ("recurrence", "GPUs", "steps each", "received", *times_of, "exchange"):
        out.add_column(column, justify="left" if column == "recurrence" else "right")
    out.add_column("faster", justify="right")
    out.add_column("of ideal", justify="right")
    out.add_column("tensors each", justify="right")
    out.add_column("kernels measured at")
    one: dict[str, float] = {}
    for s in steps:
        one.setdefault(s.recurrence, s.seconds * s.gpus)
        faster = one[s.recurrence] / s.seconds
        times = (f"{1e3 * x:.3f}" for x in (s.compute, s.communicate, s.compose, s.seconds))
        amount = (
            _amount(s.received),
            *times,
            s.exchange if s.gpus > 1 else "",
            f"{faster:.2f}",
            f"{100 * faster / s.gpus:.0f}%",
            _amount(s.memory),
            "" if s.measured is None else " x ".join(f"{n:,}" for n in s.measured),
        )
        out.add_row(s.recurrence, str(s.gpus), f"{s.steps:,}", *amount)
    return out


# --- the model --------------------------------------------------------------------------------------------------------


def _ways(c: Compiled) -> list[tuple[Plan, int]]:
    assert c.forward is not None and c.backward is not None
    return [(c.forward, 1), (c.backward, -1)]


def _maps(plan: Plan, way: int) -> list[Affine]:
    """The maps that a pass hands on: of each group of states that it carries along."""
    first: dict[tuple[Any, ...], Sweep] = {}
    for s in plan.sweeps:
        if s.direction == way:
            first.setdefault(s.group, s)
    return [segment_map(s.group, s.solve, plan.form.reads).affine for s in first.values()]


def _entries(a: Affine, sizes: Sizes) -> int:
    """Numbers of a map, for one head."""
    return sum(sizes.of(axes) for axes in a.shape.values()) + sum(sizes.of(s.axes) for s in a.group)


def _composing(a: Affine, lanes: int, count: int, scan: bool, sizes: Sizes, machine: Machine) -> float:
    """Seconds in which the last rank makes the map of its own segment, and what enters from the `count` maps that it receives.

    In a scan it composes each twice: with what it received before, and with its own besides.
    """
    moved = 3 * WIDE * lanes * ((2 * count if scan else count) + 1) * _entries(a, sizes)
    seconds = (KERNELS + (2 * JOINING * count if scan else 0)) * machine.launch + moved / machine.copy
    inner = set(a.inner.values())
    matrices = [axes for axes in a.shape.values() if inner & set(axes)]
    if matrices:
        rows = max(sizes.of((x,)) for axes in matrices for x in axes)
        columns = (max(sizes.of(axes) for axes in matrices) + sum(sizes.of(s.axes) for s in a.group)) / rows
        programs = lanes * math.ceil(columns / COLUMNS)
        own = max(1, 2 * machine.processors // max(1, lanes * math.ceil(rows / COLUMNS / 2)))
        step = math.ceil(programs / machine.processors) * 2 * rows * rows * COLUMNS / ALONE
        seconds += (own + (2 * count if scan else count)) * step
    return seconds


def _tensors(c: Compiled, sizes: Sizes) -> float:
    """Bytes for each step and head of arguments, outputs and the gradients of both."""
    return 2 * forward_cost(c, sizes).lower_bound


def _amount(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
