"""What must hold of a schedule: its roles, in any order, leave in memory what the sweep's program says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from chunkform.errors import GateError

from ....exact.jit_source import NoMeaning
from ....exact.rationals import in_field
from ....exact.run_kernel import Argument as Given
from ....exact.run_kernel import Tensor, Value
from ....ir.evaluate import Env
from ....ir.expr import Node
from ....ir.warp_schedule import Schedule
from ..gates.cases import CHUNK, Case, Chunks
from ..gates.chunk_gate import B, Found, H, compare_prologue
from ..gates.fused_gate import MANY, Fused
from ..gates.sweep_gate import TILE, Swept
from ..kernels.arguments import Argument
from ..kernels.chunk_kernel import Kernel, Piece
from ..plan_passes.hoist import Opened
from ..print.axis_names import block_name
from .run_schedule import run_schedule

SEVERAL = 2  # chunks of a stage
ORDERS = 2  # orders of roles that each sweep is tried in
WHOLE = 4  # a block that holds an axis whole
CHUNK_OF_MANY = 4  # steps of a chunk that many warps have parts of


@in_field
def gate_schedule(k: Kernel, s: Schedule, orders: int = ORDERS) -> None:
    """Raises GateError where the roles of a sweep don't leave what it is for."""
    maybe = [b.target for b in s.buffers if b.maybe]
    try:
        for segments in (1, 2):
            for n in range(orders):
                memory = Scheduled(k, Case(CHUNK, segments=segments), random.Random(f"{k.name} {n}"))
                if (segments + n) % 2 == 0:
                    memory.given |= dict.fromkeys(maybe)
                memory.run(s)
                memory.compare_all()
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


@in_field
def gate_joined_schedule(k: Kernel, s: Schedule, orders: int = ORDERS) -> None:
    """Raises GateError where the roles of a sweep that is joined with its prologue don't leave what both are for."""
    try:
        for segments in (1, 2):
            for n in range(orders):
                memory = JoinedScheduled(k, Case(CHUNK, segments=segments), random.Random(f"{k.name} {n}"))
                if (segments + n) % 2 == 0:
                    memory.given |= dict.fromkeys(b.target for b in s.buffers if b.maybe)
                memory.run(s)
                memory.compare_all()
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


@in_field
def gate_fused_schedule(k: Kernel, s: Schedule, orders: int = ORDERS) -> None:
    """Raises GateError where the roles of a fused backward don't leave what it is for."""
    try:
        for segments in (1, 2):
            for n in range(orders):
                seed = random.Random(f"{k.name} {n}")
                memory = FusedScheduled(k, Case(CHUNK_OF_MANY, segments=segments, warps=MANY), seed)
                memory.run(s)
                memory.compare_all()
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


def _words(x: Fused | Swept) -> dict[str, Value]:
    """What every schedule over chunks is launched with."""
    return {
        "C": x.case.chunk,
        "T": x.steps,
        "H": H,
        "chunks": x.chunks,
        "DT": "tl.float32",
        "starts": None,
        "segments": x.case.segments,
        "length": x.length,
        "WARPS": x.case.warps,
    }


@dataclass
class FusedScheduled(Fused):
    """What the schedule of a fused backward is given, and what it leaves."""

    def run(self, s: Schedule) -> None:
        run_schedule(s, B * self.case.segments * H, {**self.given, **_words(self)}, 2, self.random, self.programs())


@dataclass
class Scheduled(Swept):
    """What a schedule is given, and what it leaves: states before each chunk."""

    blocked: ClassVar[int] = 1

    def run(self, s: Schedule) -> None:
        words = _words(self) | {"blocks": self.blocks, "ROWS": WHOLE}
        words |= {"TOGETHER": SEVERAL, "LEVELS": self.case.chunk.bit_length() - 1}
        words |= {block_name(a): TILE if a == self.k.tiled and not self.k.one_tile else WHOLE for a in self.k.axes}
        run_schedule(
            s, B * self.case.segments * H * self.tiles, {**self.given, **words}, 2, self.random, self.programs()
        )


@dataclass
class JoinedScheduled(Scheduled):
    """What the schedule of a sweep that is joined with its prologue is given, and what it leaves: matrices are made on the way.
    Sequences have so many chunks that stages are filled anew, and end in the middle of one."""

    @property
    def length(self) -> int:
        return self.steps if self.case.segments == 1 else self.whole_chunks * self.case.chunk

    def compare_all(self) -> None:
        super().compare_all()
        compare_prologue(self.k, self.prologue, self)

    def places(self) -> Iterator[Chunks]:
        """The chunks of what is swept."""
        yield from (at if self.case.segments == 1 else at.among(at.b == at.h) for at in super().places())

    def passed(self, a: Argument) -> dict[str, Given]:
        if any(own.prologue[slot] == a.source for own, slot in self.owned()):
            return {a.name: Tensor.room(a.name, self.room(a))}
        return super().passed(a)

    @property
    def whole_chunks(self) -> int:
        return 2 * SEVERAL

    @property
    def prologue(self) -> Piece:
        return self.k.pieces[1]

    def made_here(self, o: Opened, x: Node) -> bool:
        return any(x.attrs[:2] == y.attrs[:2] for y in self.prologue.opened.prologue.matrices)

    def named(self, o: Opened) -> tuple[dict[Node, Node], ...]:
        return (o.prologue.products, o.prologue.definitions) if o is self.prologue.opened else ()

    def env(self, p: Piece, at: Chunks, known: Env | None = None) -> Found:
        o = self.prologue.opened
        env, sizes = super().env(self.prologue, at)
        made = {x.attrs[:2]: self.over(x, node, env, sizes) for x, node in o.matrices.items()}
        return super().env(p, at, {**(known or {}), **made})


@in_field
def gate_loaded_schedule(k: Kernel, s: Schedule, orders: int = ORDERS) -> None:
    """Raises GateError where the roles of a sweep that loads its matrices don't leave what it is for."""
    try:
        for segments in (1, 2):
            for n in range(orders):
                memory = LoadedScheduled(k, Case(CHUNK, segments=segments), random.Random(f"{k.name} {n}"))
                memory.run(s)
                memory.compare_all()
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


@dataclass
class LoadedScheduled(Scheduled):
    """What the schedule of a sweep that loads its matrices is given, and what it leaves."""

    @property
    def length(self) -> int:
        return self.steps if self.case.segments == 1 else self.whole_chunks * self.case.chunk

    @property
    def whole_chunks(self) -> int:
        return 2 * SEVERAL
