"""The stages of a plan, as data: what `plan.py` decides, and the printers print."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...ir.expr import Node, leaf_names
from ..normal_form.form import NormalForm, Read, StateAdjointProduct, StateForm
from .chunk_program import ChunkProgram

ENTERING = "in"  # sums of reads of the state before the chunk
LEAVING = "out"  # of the gradient after it


@dataclass(frozen=True)
class BoundarySums:
    """What one sweep sums for the state-adjoint product of `state`: see `decay_gradient_sums.py`.

    `reads` has for each slot a node over ROW, and perhaps an axis of the state, over which it is summed; those of the gradient
    are negative. `own` has matrices over (ROW, COL), the slot of their row sums, and that of their column sums, which are
    subtracted. With `totals`, of a decay for each channel, reads are summed over the chunk instead, and stay over the channels.
    """

    state: str
    kind: str  # ENTERING | LEAVING
    streams: dict[Node, Node]
    reads: dict[str, Node]
    own: tuple[tuple[Node, str, str], ...] = ()
    totals: bool = False


@dataclass(frozen=True)
class Sweep:
    """One sweep over the sequence. `side` is the axis that its reads contract; `finals` the states whose last value it keeps."""

    group: tuple[StateForm, ...]
    solve: bool
    side: str
    reads: tuple[Read, ...]
    finals: tuple[str, ...]
    chunk: ChunkProgram
    boundary_sums: tuple[BoundarySums, ...] = ()

    @property
    def direction(self) -> int:
        return self.group[0].direction

    @property
    def yields(self) -> bool:
        """Does it yield anything but sums at chunk boundaries? These are for kernels; torch has `Accumulate.direct`."""
        return self.solve or bool(self.reads or self.finals)

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.group)

    @property
    def given(self) -> dict[Node, Node]:
        """What it is given, as step-level nodes by stream."""
        return {**self.chunk.streams, **{x: n for boundary in self.boundary_sums for x, n in boundary.streams.items()}}


@dataclass(frozen=True)
class Unroll:
    """The products <S_{t-1}, dT_t> of a coupled group, or of a decay's state and its gradient, chunk by chunk, from the states at
    chunk boundaries. `definitions` are inner quantities, over the steps of a chunk, in order."""

    forward: tuple[StateForm, ...]
    backward: tuple[StateForm, ...]
    streams: dict[Node, Node]
    outputs: dict[Node, Node]
    definitions: dict[Node, Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Accumulate:
    """The state-adjoint product of one state's decay, summed from the end of the sequence.

    `direct` has it chunk by chunk instead, from the states at chunk boundaries: more products, and no cancellation.
    `at_boundaries` says that two sweeps have it in their sums (see `BoundarySums`): products of matrices over a chunk's steps
    only.
    """

    state_adjoint: StateAdjointProduct
    direct: Unroll
    at_boundaries: bool = False

    @property
    def by_channel(self) -> bool:
        """Is the decay one for each channel?"""
        return bool(self.state_adjoint.leaf.axes)


@dataclass(frozen=True)
class Map:
    """Quantities of each step alone, by name."""

    values: dict[str, Node]


Stage = Sweep | Accumulate | Unroll | Map


@dataclass(frozen=True)
class Plan:
    """The stages, and the form that they compute. `saved` are leaves that come from the forward plan."""

    form: NormalForm
    stages: tuple[Stage, ...]
    saved: tuple[Node, ...]

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        return tuple(s for s in self.stages if isinstance(s, Sweep))

    @property
    def waits_for_decays(self) -> bool:
        """Is a sweep given what is made of the gradient of a decay, as where what another state reads is one?"""
        nodes = (x for s in self.sweeps for x in s.given.values())
        return any(kind == "state-adjoint product" for x in nodes for kind, _ in leaf_names(x))
