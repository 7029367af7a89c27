"""What must hold of sweeps: run over exact numbers, chunk after chunk, they leave in memory what the sweep's program says.

Sequences of two chunks and a tail are swept as a whole, from no states, and in two segments, which states of their own enter.
Matrices and quantities that a prologue kernel makes are drawn, so that each kernel is held by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from chunkform.errors import GateError

from ....exact.jit_source import NoMeaning
from ....exact.rationals import UNDEFINED, array, in_field
from ....exact.run_kernel import Argument as Given
from ....exact.run_kernel import Tensor, run
from ....ir.code import Name
from ....ir.evaluate import Env
from ....ir.expr import ROW, Node, add, dim_of, leaf, rebuild, rename, total
from ....ir.kernel_ir import If, KernelFunction, statements
from ...normal_form.form import StateForm
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel
from ..plan_passes.decay_sums import decay_sum
from ..plan_passes.hoist import Opened
from ..plan_passes.roles import TRANSITION, at_row
from ..print.axis_names import block_name
from .cases import CHUNK, PACKED, SEVERAL, Case, Chunks, some_missing
from .chunk_gate import LOADED, Found, H, Memory, prod

TILE, ROWS = 2, 4
OF_MAPS = Role.LINEAR, Role.TAIL, Role.TAIL_MAP, Role.LIVE
AT_END = "transition at the end"
Stored = dict[tuple[Node | None, Role], Argument]
States = dict[str, np.ndarray]  # of each of some chunks


CASES = (
    Case(SEVERAL, large_range=True),
    Case(CHUNK, exact=True, even=True, segments=2, turned=True, groups=0),
    Case(SEVERAL, exact=True, lengths=PACKED, groups=1),
)
FEW = Case(CHUNK, lengths=(CHUNK,))  # steps for launches that give some things alone


@in_field
def gate_sweep(k: Kernel, f: KernelFunction) -> None:
    """Raises GateError where what passes have made of a sweep's kernel isn't what it is for, where it yields."""
    gate_cases(Swept, k, f, CASES)


def gate_cases(of: type[Swept], k: Kernel, f: KernelFunction, cases: Iterable[Case]) -> None:
    """Cases that are given all, and then some of what launches can do without."""
    try:
        for case in cases:
            memory = of(k, case, random.Random(k.name))
            memory.sweep(f)
            memory.compare_all()
        if k.apart:
            memory = of(k, FEW, random.Random(k.name))
            memory.sweep_apart(f)
            memory.compare_all()
        for missing in missing_in_turn(k):
            memory = of(k, replace(FEW, warps=case.warps), random.Random(k.name))
            memory.leave_out(missing)
            memory.sweep(f)
            memory.compare_all()
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


def missing_in_turn(k: Kernel) -> list[frozenset[str]]:
    """What launches that yield do without, beside the first case, which has no states that enter, and all else."""
    guards = [x.condition for x in statements(k.body) if isinstance(x, If)]
    found = {a.name: a.role for a in k.arguments if Name(a.name).given in guards and a.role not in OF_MAPS}
    firsts = [n for n, role in found.items() if role is Role.FIRST]
    return some_missing([n for n in found if n not in firsts], firsts)


@dataclass(frozen=True, eq=False)
class Segments:
    """Parts of sequences that have as many steps each, and their chunks, as they are swept."""

    sequence: np.ndarray
    segment: np.ndarray
    h: np.ndarray
    chunks: tuple[Chunks, ...]

    @property
    def place(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sequence, segment and head of each."""
        return self.sequence, self.segment, self.h

    def among(self, which: np.ndarray) -> Segments:
        sequence, segment, h = (x[which] for x in self.place)
        return Segments(sequence, segment, h, tuple(at.among(which) for at in self.chunks))


@dataclass
class Swept(Memory):
    """What a sweep is given, and what it leaves."""

    loaded: ClassVar[tuple[str, ...]] = (*LOADED, "scaled", "intra")
    blocked: ClassVar[int] = 2  # chunks between checkpoints

    states: dict[str, np.ndarray] = field(
        default_factory=dict
    )  # those that enter segments: [sequences, segments, H, ..]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.given |= {block_name(a): TILE for a in self.k.axes}

    @property
    def block(self) -> int:
        """Steps between checkpoints."""
        return self.blocked * self.case.chunk

    @property
    def length(self) -> int:
        """Steps of a segment."""
        return self.steps if self.case.segments == 1 else 2 * self.case.chunk

    @property
    def whole_chunks(self) -> int:
        return 2 * self.case.segments if self.case.even else 2

    @property
    def parts(self) -> int:
        """How many segments all sequences have together."""
        return len(self.sequences) * self.case.segments

    @property
    def entered(self) -> bool:
        """Do states enter sequences?"""
        return self.case.segments > 1 or bool(self.case.lengths)

    @property
    def opened(self) -> Opened:
        return self.k.pieces[0].opened

    @property
    def group(self) -> list[StateForm]:
        names = self.opened.rename
        return [replace(s, axes=tuple(names.get(a, a) for a in s.axes)) for s in self.k.pieces[0].group]

    @property
    def tiles(self) -> int:
        return 1 if self.k.tiled is None or self.k.one_tile else -(-self.sizes[dim_of(self.k.tiled)] // TILE)

    def made_here(self, o: Opened, x: Node) -> bool:
        return False

    def named(self, o: Opened) -> tuple[dict[Node, Node], ...]:
        return ()

    def passed(self, a: Argument) -> dict[str, Given]:
        x = a.source
        assert x is not None
        if a.role is Role.FIRST:
            states = self.draw((len(self.sequences), self.case.segments, H, *self.shape(a.axes)))
            self.states[x.attrs[1]] = states if self.entered else array(states * 0)
            return {a.name: Tensor(a.name, states.ravel()) if self.entered else None}
        if a.layout == "state" or a.layout == "checkpoint":
            kept = a.role is Role.LAST or a.layout == "checkpoint"
            count = self.parts if a.role is Role.LAST else self.batch * self.blocks
            shape = (
                self.shape(a.axes)
                if a.role is Role.LAST or self.k.rows is None
                else (ROWS, *self.shape(self.in_columns(a.axes)))
            )
            return {a.name: Tensor.room(a.name, count * H * prod(shape)) if kept else None}
        if a.layout == "sums" and a.stored:
            each = self.chunks * prod(self.shape(x.axes)) if x.axes else self.rows_of_sums * self.steps
            return {a.name: Tensor.room(a.name, self.batch * H * each)}
        if a.layout == "out" and not a.axes:  # numbers of each step are the same in all tiles
            return {a.name: Tensor(a.name, Tensor.room(a.name, self.room(a)).cells, alike=True)}
        return super().passed(a)

    @property
    def blocks(self) -> int:
        if self.case.lengths:
            return self.steps // self.block + len(self.case.lengths)
        return -(-self.steps // self.block)

    @property
    def rows_of_sums(self) -> int:
        return 1 if self.k.tiled is None else self.tiles * self.case.warps

    def sweep(self, f: KernelFunction, some: Iterable[int] | None = None, **more: int) -> None:
        case = self.case
        words: dict[str, Any] = {"C": case.chunk, "LEVELS": case.chunk.bit_length() - 1, "EVEN": case.even, "STAGES": 1}
        words |= {"EXACT": case.exact, "T": self.steps, "H": H, "chunks": self.chunks, "DT": "tl.float32"}
        words |= {"starts": self.starts(), "segments": case.segments, "length": self.length, "blocks": self.blocks}
        words |= {"YIELD": True, "WARPS": case.warps, "PRODUCTS": True, "READ": 0, "TAIL": 0}
        words |= {"BLOCK": self.block, "ROWS": ROWS} | more
        some = self.programs() if some is None else some
        run(f, self.parts * H * self.tiles, {**self.given, **words}, self.function, some=some)

    def sweep_apart(self, f: KernelFunction) -> None:
        """Launches that make one read each, which store what no other one stores."""
        made: dict[str, Given] = {}
        given = {a.name: self.given[a.name] for a in self.k.arguments if a.stored and a.role is Role.OUT}
        for n in range(1, len(self.k.apart) + 1):
            own = {name: x.emptied() for name, x in given.items() if isinstance(x, Tensor)}
            self.given |= own
            self.sweep(f, READ=n)
            for name, x in own.items():
                if any(y is not UNDEFINED for y in x.cells):
                    if name in made:
                        raise GateError(f"{self.k.name}: two launches for one read each store {name}")
                    made[name] = x
        self.given |= made

    def starts(self) -> Given:
        """Where packed sequences begin, and the last of them ends."""
        if not self.case.lengths:
            return None
        return Tensor("starts", np.array([*(s.begin for s in self.sequences), self.steps], dtype=object))

    def leave_out(self, missing: Iterable[str]) -> None:
        """Give a launch nothing for these: states that don't enter are zero."""
        self.given |= dict.fromkeys(missing)
        for a in self.k.arguments:
            if a.role is Role.FIRST and a.source is not None and self.given[a.name] is None:
                self.states[a.source.attrs[1]] *= 0

    def programs(self) -> Iterator[int]:
        """Those that are run: of sequences in segments those whose number is their head's, as offsets of the others are seen
        where they are whole."""
        for n, segment, h, tile in np.ndindex(len(self.sequences), self.case.segments, H, self.tiles):
            if self.case.segments == 1 or n == h:
                yield ((n * self.case.segments + segment) * H + h) * self.tiles + tile

    # --- what is expected

    def segments(self) -> Iterator[Segments]:
        """All that are swept, by how many steps these have."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        for n, segment, h in np.ndindex(len(self.sequences), self.case.segments, H):
            if self.case.segments == 1 or n == h:
                found.setdefault(len(range(*self.span(n, segment))), []).append((n, segment, h))
        for steps, places in found.items():
            if not steps and not self.entered:
                continue
            chunks = []
            for t in range(0, steps, self.case.chunk)[:: self.opened.direction]:
                starts = [self.span(n, segment)[0] + t for n, segment, _ in places]
                at = (
                    (
                        self.sequences[n].b,
                        h,
                        self.sequences[n].first + (start - self.sequences[n].begin) // self.case.chunk,
                    )
                    for (n, _, h), start in zip(places, starts, strict=True)
                )
                chunks.append(Chunks.at(at, starts, min(self.case.chunk, steps - t)))
            n, segment, h = np.array(places).T
            yield Segments(n, segment, h, tuple(chunks))

    def span(self, n: int, segment: int) -> tuple[int, int]:
        """The first step of a sequence's segment, and the one after its last."""
        s = self.sequences[n]
        begin = s.begin + segment * self.length
        return begin, max(begin, min(begin + self.length, s.stop))

    def compare_all(self) -> None:
        arguments = {(a.source, a.role): a for a in self.k.arguments if a.stored}
        for x in self.segments():
            states = {s.name: self.number(("state in", s.name), self.states[s.name])[x.place] for s in self.group}
            for at in x.chunks:
                self.compare_checkpoints(arguments, states, x, at)
                states = self.compare_chunk(arguments, states, at)
            ends = np.full(len(x.segment), True) if self.k.each else x.segment == self.last_segment
            for s in self.group:
                a = arguments.get((leaf("last", s.name, s.axes), Role.LAST))
                if a is not None and self.asks(a) and s.name in self.k.finals:
                    n, segment, h = (y[ends] for y in x.place)
                    cells = self.cells(a).reshape(-1, H, *self.shape(s.axes))
                    left = cells[n * self.case.segments + segment if self.k.each else n, h]
                    self.compare_each(f"the last {s.name}", zip(n, segment, h, strict=True), left, states[s.name][ends])

    @property
    def last_segment(self) -> int:
        return self.case.segments - 1 if self.opened.direction > 0 else 0

    def compare_checkpoints(self, arguments: Stored, states: States, x: Segments, at: Chunks) -> None:
        """States as blocks of steps find them."""
        begin = np.array([self.sequences[n].begin for n in x.sequence])
        start, stop, first = at.steps[:, 0] - begin, at.steps[:, -1] + 1 - begin, at is x.chunks[0]
        begins = start % self.block == 0 if self.opened.direction > 0 else (stop % self.block == 0) | first
        before = begin // self.block + np.array([self.sequences[n].before for n in x.sequence])
        some, block, count = at.among(begins), (before + start // self.block)[begins], self.blocks
        for s in self.group:
            a = arguments.get((leaf("checkpoint", s.name, s.axes), Role.CHECKPOINTS))
            if a is None or not self.asks(a):
                continue
            if self.k.rows is None:
                found = self.cells(a).reshape(self.batch, H, count, *self.shape(s.axes))[some.b, some.h, block]
            else:
                rows = self.cells(a).reshape(self.batch, count, ROWS, H, -1)[some.b, block, :, some.h]
                found = rows[:, : self.sizes[dim_of(self.k.rows)]]
                found = found if s.axes[0] == self.k.rows else found.swapaxes(1, 2)
            self.compare(leaf("checkpoint", s.name), some, found, states[s.name][begins])

    def in_columns(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes that aren't in rows, of states that are laid out for a sweep that has them whole."""
        return tuple(a for a in axes if a != self.k.rows)

    def compare_chunk(self, arguments: Stored, states: States, at: Chunks) -> States:
        """Compare what chunks leave; the states after them."""
        piece, o = self.k.pieces[0], self.opened
        env, sizes = self.env(piece, at)
        env |= self.at_the_last(env)
        env |= {("state in", n): state for n, state in states.items()}
        for x, node in o.definitions.items():
            env[x.attrs[:2]] = self.over(x, node, env, sizes)
        for x, node in o.outputs.items():
            env[x.attrs[:2]] = self.over(leaf(x.attrs[0], x.attrs[1], (ROW, *x.axes)), node, env, sizes)
        for boundary in o.sums:
            if boundary.totals:
                node = total(add(*boundary.reads.values()), ROW)
                x = decay_sum(boundary.state, boundary.kind, axes=node.axes)
                if self.asks(a := arguments[x, Role.OUT]):
                    cells = self.of_chunks(a, at, x.axes)
                    self.compare(x, at, cells, self.over(x, node, env, sizes))
                continue
            for slot, node in boundary.reads.items():
                x = decay_sum(boundary.state, boundary.kind, slot)
                if self.asks(a := arguments[x, Role.OUT]):
                    self.compare_sums(x, a, node, (env, sizes), at)
        for store in piece.stores:
            x, node = store.leaf, at_row(rename(store.node, o.rename))
            if not self.asks(a := arguments[x, Role.OUT]):
                continue
            if store.kind == "sums":
                self.compare_sums(x, a, node, (env, sizes), at)
            else:
                expected = self.over(leaf("stored", "x", (ROW, *a.axes)), node, env, sizes)
                self.compare(x, at, self.stored_of(a, at), expected)
        return {s.name: self.over(leaf("state", s.name, s.axes), o.states[s.name], env, sizes) for s in self.group}

    def asks(self, a: Argument) -> bool:
        """Does the launch want what goes there?"""
        return self.given[a.name] is not None

    def at_the_last(self, env: Env) -> Env:
        """Weights of the last step that the sweep takes of a chunk."""
        return {
            (AT_END, x[1]): v[:, -1 if self.opened.direction > 0 else 0] for x, v in env.items() if x[0] == TRANSITION
        }

    def compare_sums(self, x: Node, a: Argument, node: Node, found: Found, at: Chunks) -> None:
        """What is summed for each step, in each tile for each warp."""
        node = total(node, *(set(node.axes) - {ROW}))
        self.compare(x, at, self.parts_of(a, at).sum(2), self.over(leaf("sums", "x", (ROW,)), node, *found))

    def over(self, x: Node, node: Node, env: Env, sizes: dict[str, int]) -> np.ndarray:
        return super().over(x, at_the_end(node), env, sizes)


@cache
def at_the_end(x: Node) -> Node:
    """A node whose weights over no axis are those of the last step that a sweep takes of a chunk."""
    if x.op == "leaf" and x.attrs[0] == TRANSITION and not x.axes:
        return leaf(AT_END, x.attrs[1])
    return rebuild(x, map(at_the_end, x.args)) if x.args else x
