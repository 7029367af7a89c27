"""What must hold of sweeps: run over exact numbers, chunk after chunk, they leave in memory what the sweep's program says.

Sequences of two chunks and a tail are swept as a whole, from no states, and in two segments, which states of their own enter;
packed ones are swept too, whose decays leave nothing of the states before their last chunks.
Matrices and quantities that a prologue kernel makes are drawn, so that each kernel is held by itself. Launches may do without
some arguments, and of each two of these one is given without the other, so that the guard of another is refused; and they may
make one of several reads.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from math import comb
from typing import Any, ClassVar

import numpy as np

from chunkform.errors import GateError

from ....exact.jit_source import NoMeaning
from ....exact.rationals import UNDEFINED, array, in_field
from ....exact.run_kernel import Argument as Given
from ....exact.run_kernel import Tensor, run
from ....ir.code import Name
from ....ir.code_parts import walk_code
from ....ir.evaluate import Env
from ....ir.expr import ROW, Node, add, dim_of, leaf, rebuild, rename, total
from ....ir.kernel_ir import If, KernelFunction, statements
from ...normal_form.form import StateForm
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel
from ..plan_passes.decay_sums import state_of
from ..plan_passes.hoist import Opened
from ..plan_passes.roles import TRANSITION, at_row
from ..print.axis_names import block_name
from .chunk_gate import CHUNK, FAR, LOADED, WIDE, B, Chunks, Found, H, Lengths, Memory, prod

TILE, WARPS, INTERVAL, ROWS = 2, 2, 2 * CHUNK, WIDE
AT_END = "transition at the end"
SOMETIMES = (Role.FIRST, Role.LAST, Role.CHECKPOINTS, Role.OUT)  # launches that yield may do without some of these
Stored = dict[tuple[Node | None, Role], Argument]
States = dict[str, np.ndarray]  # of each of some chunks


@in_field
def gate_sweep(k: Kernel, f: KernelFunction) -> None:
    """Raises GateError where what passes have made of a sweep's kernel isn't what it is for, where it yields."""
    try:
        for segments, exact in ((1, False), (2, True)):
            lengths = Lengths.WHOLE if exact else Lengths.TAIL
            memory = Swept(k, CHUNK, False, exact, random.Random(k.name), lengths, segment_count=segments)
            memory.sweep(f)
            memory.compare_all()
        packed = Swept(k, CHUNK, True, True, random.Random(k.name), Lengths.PACKED)
        packed.sweep(f)
        packed.compare_all()
        for given in launches_without(k):
            memory = Swept(k, CHUNK, False, True, random.Random(k.name), Lengths.WHOLE, only=given)
            memory.sweep(f)
            memory.compare_all()
        if k.apart:
            memory = Swept(k, CHUNK, False, True, random.Random(k.name), Lengths.WHOLE)
            memory.sweep_each_read(f)
            memory.compare_all()
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


def launches_without(k: Kernel) -> list[frozenset[str]]:
    """What launches are given of the arguments that one may do without: nothing; and of each two, one without the other."""
    guards = {y for x in statements(k.body) if isinstance(x, If) for y in walk_code(x.condition)}
    some = [a.name for a in k.arguments if _may_be_given(k, a) and Name(a.name).given in guards]
    count = next(n for n in range(len(some) + 1) if comb(n, n // 2) >= len(some))
    given = dict(zip(some, combinations(range(count), count // 2), strict=False))
    return [frozenset(), *(frozenset(n for n, launches in given.items() if m in launches) for m in range(count))]


def _may_be_given(k: Kernel, a: Argument) -> bool:
    """May a launch that yields be given this, and another one not?"""
    return a.role in SOMETIMES and (a.role is not Role.LAST or (a.source is not None and a.source.attrs[1] in k.finals))


@dataclass(frozen=True, eq=False)
class Segments:
    """Parts of sequences that have as many steps each, from which step on, and their chunks, as they are swept."""

    sequence: np.ndarray
    segment: np.ndarray
    begin: np.ndarray
    chunks: tuple[Chunks, ...]

    @property
    def place(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sequence, segment and head of each."""
        return self.sequence, self.segment, self.chunks[0].h

    def among(self, which: np.ndarray) -> Segments:
        chunks = tuple(at.among(which) for at in self.chunks)
        return Segments(self.sequence[which], self.segment[which], self.begin[which], chunks)


@dataclass
class Swept(Memory):
    """What a sweep is given, and what it leaves. Each sequence has `segment_count` segments."""

    loaded: ClassVar[tuple[str, ...]] = (*LOADED, "scaled", "intra")
    block: ClassVar[int] = INTERVAL  # steps between checkpoints

    segment_count: int = 1
    warps: int = WARPS
    only: frozenset[str] | None = (
        None  # what it is given of what it may do without; else all, and states where segments begin
    )
    states: dict[str, np.ndarray] = field(default_factory=dict)  # those that enter segments: [B, segments, H, ..]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.length = self.steps if self.segment_count == 1 else 2 * self.chunk
        self.given |= {block_name(a): TILE for a in self.k.axes}
        if self.only is not None:
            sometimes = frozenset().union(*launches_without(self.k))
            self.given |= dict.fromkeys(sometimes - self.only, None)

    @property
    def unshared(self) -> int:
        return int(self.only is not None)

    @property
    def whole_chunks(self) -> int:
        return 3 if self.packed else 2 * self.segment_count if self.even else 2

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
            states = self.draw((self.sequences, self.segment_count, H, *self.shape(a.axes)))
            given = self.segment_count > 1 if self.only is None else a.name in self.only
            self.states[x.attrs[1]] = states if given else array(states * 0)
            return {a.name: Tensor(a.name, states.ravel()) if given else None}
        if a.layout == "state" or a.layout == "checkpoint":
            kept = a.layout == "checkpoint" or (a.role is Role.LAST and x.attrs[1] in self.k.finals)
            count = self.sequences * self.segment_count if a.role is Role.LAST else B * self.blocks
            shape = (
                self.shape(a.axes)
                if a.role is Role.LAST or self.k.rows is None
                else (ROWS, *self.shape(self.in_columns(a.axes)))
            )
            return {a.name: Tensor.room(a.name, count * H * prod(shape)) if kept else None}
        if a.layout == "sums" and a.stored:
            each = self.chunks * prod(self.shape(x.axes)) if x.axes else self.rows_of_sums * self.steps
            return {a.name: Tensor.room(a.name, B * H * each)}
        if a.layout == "out" and not a.axes:  # numbers of each step are the same in all tiles
            return {a.name: Tensor(a.name, Tensor.room(a.name, self.room(a)).cells, alike=True)}
        return super().passed(a)

    @property
    def blocks(self) -> int:
        return self.steps // self.block + self.sequences if self.packed else -(-self.steps // self.block)

    @property
    def sequences(self) -> int:
        return len(self.starts) - 1 if self.packed else B

    def draw_logs(self, shape: tuple[int, ...]) -> np.ndarray:
        """Behind the first chunk, decays may leave nothing of what was before a chunk."""
        logs = super().draw_logs(shape)
        if self.large_range and shape[:2] == (B, self.steps):
            logs[:, self.chunk :] = logs[:, self.chunk :] * 3 - 2 * FAR
        return logs

    @property
    def rows_of_sums(self) -> int:
        return 1 if self.k.tiled is None else self.tiles * self.warps

    def sweep(self, f: KernelFunction, some: Iterable[int] | None = None, **more: int) -> None:
        words: dict[str, Any] = {"C": self.chunk, "LEVELS": self.chunk.bit_length() - 1, "EVEN": self.even, "STAGES": 1}
        words |= {"EXACT": self.exact, "T": self.steps, "H": H, "chunks": self.chunks, "DT": "tl.float32"}
        starts = Tensor("starts", np.array(self.starts, dtype=object)) if self.packed else None
        words |= {"starts": starts, "segments": self.segment_count, "length": self.length, "blocks": self.blocks}
        words |= {
            "YIELD": True,
            "WARPS": self.warps,
            "PRODUCTS": not self.packed,
            "READ": 0,
            "TAIL": 0,
            "BLOCK": self.block,
            "ROWS": ROWS,
        }
        words |= more
        some = self.programs() if some is None else some
        run(f, self.sequences * self.segment_count * H * self.tiles, {**self.given, **words}, self.function, some=some)

    def sweep_each_read(self, f: KernelFunction) -> None:
        """A launch for each read, of which the first stores what no read is needed for; each fills what is its own."""
        rooms = {a.source: a.name for a in self.k.arguments if a.role is Role.OUT and a.source is not None}
        once = {a.name: self.given[a.name] for a in self.k.arguments if a.role in (Role.LAST, Role.CHECKPOINTS)}
        found = dict(once)
        for n, alone in enumerate(self.k.apart, 1):
            self.given |= {a.name: x for a in self.k.arguments if a.role is Role.OUT for x in self.passed(a).values()}
            self.sweep(f, READ=n)
            own = {rooms[x] for x in alone.stores}
            sums = {rooms[x] for x in rooms if x.attrs[0] == "sums" and state_of(x) in alone.states}
            made = self.filled(rooms.values())
            if not own <= made <= (own | sums) - found.keys():
                raise GateError(f"{self.k.name}: the launch of read {n} doesn't make what is for it alone")
            found |= {name: self.given[name] for name in made}
            self.given |= dict.fromkeys(once, None)
        self.given |= found

    def filled(self, names: Iterable[str]) -> set[str]:
        """Which of these hold anything."""
        rooms = {n: self.given[n] for n in names}
        return {n for n, x in rooms.items() if isinstance(x, Tensor) and any(y is not UNDEFINED for y in x.cells)}

    def programs(self) -> Iterator[int]:
        for sequence, segment, h in self.swept():
            first = ((sequence * self.segment_count + segment) * H + h) * self.tiles
            yield from range(first, first + self.tiles)

    def swept(self) -> Iterator[tuple[int, int, int]]:
        """Sequence, segment and head of those that are run: of sequences in segments those whose number is their head's, as
        offsets of the others are seen where they are whole."""
        for sequence, segment, h in np.ndindex(self.sequences, self.segment_count, H):
            if self.segment_count == 1 or sequence == h:
                yield sequence, segment, h

    # --- what is expected

    def segments(self) -> Iterator[Segments]:
        """All that are swept, by how many steps these have."""
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        for sequence, segment, h in self.swept():
            begin = self.starts[sequence] if self.packed else segment * self.length
            stop = self.starts[sequence + 1] if self.packed else min(begin + self.length, self.steps)
            found.setdefault(stop - begin, []).append((sequence, segment, h, begin))
        for steps, places in found.items():
            sequences, segments, _, begins = np.array(places).T
            chunks = []
            for t in range(0, steps, self.chunk)[:: self.opened.direction]:
                at = [self.chunk_at(sequence, h, begin, t) for sequence, _, h, begin in places]
                chunks.append(Chunks.at(at, begins + t, min(self.chunk, steps - t)))
            yield Segments(sequences, segments, begins, tuple(chunks))

    def chunk_at(self, sequence: int, h: int, begin: int, t: int) -> tuple[int, int, int]:
        """Row, head and number of the chunk that begins t steps behind a segment's first."""
        if self.packed:
            return 0, h, begin // self.chunk + sequence + t // self.chunk
        return sequence, h, (begin + t) // self.chunk

    def compare_all(self) -> None:
        arguments = {(a.source, a.role): a for a in self.k.arguments if a.stored}
        for x in self.segments():
            states = {s.name: self.number(("state in", s.name), self.states[s.name])[x.place] for s in self.group}
            for at in x.chunks:
                self.compare_checkpoints(arguments, states, x, at)
                states = self.compare_chunk(arguments, states, at)
            ends = np.full(len(x.segment), True) if self.k.each else x.segment == self.last_segment
            sequence, segment, h = (y[ends] for y in x.place)
            for s in self.group:
                a = arguments.get((leaf("last", s.name, s.axes), Role.LAST))
                if a is not None and self.given[a.name] is not None and s.name in self.k.finals:
                    cells = self.cells(a).reshape(-1, H, *self.shape(s.axes))
                    left = cells[sequence * self.segment_count + segment if self.k.each else sequence, h]
                    self.compare(leaf("last", s.name), x.chunks[-1].among(ends), left, states[s.name][ends])

    @property
    def last_segment(self) -> int:
        return self.segment_count - 1 if self.opened.direction > 0 else 0

    def compare_checkpoints(self, arguments: Stored, states: States, x: Segments, at: Chunks) -> None:
        """States as blocks of steps find them."""
        start, stop = at.steps[:, 0] - x.begin, at.steps[:, -1] + 1 - x.begin
        first = at is x.chunks[0]
        begins = start % self.block == 0 if self.opened.direction > 0 else (stop % self.block == 0) | first
        blocks = x.begin // self.block + start // self.block + (x.sequence if self.packed else 0)
        some, block, count = at.among(begins), blocks[begins], self.blocks
        for s in self.group:
            a = arguments.get((leaf("checkpoint", s.name, s.axes), Role.CHECKPOINTS))
            if a is None or self.given[a.name] is None:
                continue
            if self.k.rows is None:
                found = self.cells(a).reshape(B, H, count, *self.shape(s.axes))[some.b, some.h, block]
            else:
                rows = self.cells(a).reshape(B, count, ROWS, H, -1)[some.b, block, :, some.h]
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
                x = leaf("sums", f"{boundary.state}.{boundary.kind}", node.axes)
                cells = self.of_chunks(arguments[x, Role.OUT], at, x.axes)
                self.compare(x, at, cells, self.over(x, node, env, sizes))
                continue
            for slot, node in boundary.reads.items():
                x = leaf("sums", f"{boundary.state}.{boundary.kind}.{slot}")
                self.compare_sums(x, arguments[x, Role.OUT], node, (env, sizes), at)
        for store in piece.stores:
            x, node = store.leaf, at_row(rename(store.node, o.rename))
            a = arguments[x, Role.OUT]
            if self.given[a.name] is None:
                continue  # a launch that doesn't want it
            if store.kind == "sums":
                self.compare_sums(x, a, node, (env, sizes), at)
            else:
                expected = self.over(leaf("stored", "x", (ROW, *a.axes)), node, env, sizes)
                self.compare(x, at, self.stored_of(a, at), expected)
        return {s.name: self.over(leaf("state", s.name, s.axes), o.states[s.name], env, sizes) for s in self.group}

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
