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
from ....exact.rationals import array, in_field
from ....exact.run_kernel import Argument as Given
from ....exact.run_kernel import Tensor, run
from ....ir.code import Name
from ....ir.evaluate import Env
from ....ir.expr import ROW, Node, add, dim_of, leaf, rebuild, rename, total
from ....ir.kernel_ir import If, KernelFunction, statements
from ...normal_form.form import StateForm
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel
from ..plan_passes.hoist import Opened
from ..plan_passes.roles import TRANSITION, at_row
from ..print.axis_names import block_name
from .chunk_gate import CHUNK, LOADED, B, Chunks, Found, H, Memory, prod

TILE, WARPS, INTERVAL, ROWS = 2, 2, 2 * CHUNK, 4
AT_END = "transition at the end"
Stored = dict[tuple[Node | None, Role], Argument]
States = dict[str, np.ndarray]  # of each of some chunks


@in_field
def gate_sweep(k: Kernel, f: KernelFunction) -> None:
    """Raises GateError where what passes have made of a sweep's kernel isn't what it is for, where it yields."""
    try:
        for segments, exact in ((1, False), (2, True)):
            memory = Swept(k, CHUNK, False, exact, random.Random(k.name), even=exact, segment_count=segments)
            memory.sweep(f)
            memory.compare_all()
        memory.sweep_bare(f)
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


@dataclass(frozen=True, eq=False)
class Segments:
    """Parts of sequences that have as many steps each, and their chunks, as they are swept."""

    segment: np.ndarray
    chunks: tuple[Chunks, ...]

    @property
    def place(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sequence, segment and head of each."""
        return self.chunks[0].b, self.segment, self.chunks[0].h

    def among(self, which: np.ndarray) -> Segments:
        return Segments(self.segment[which], tuple(at.among(which) for at in self.chunks))


@dataclass
class Swept(Memory):
    """What a sweep is given, and what it leaves. Each sequence has `segment_count` segments."""

    loaded: ClassVar[tuple[str, ...]] = (*LOADED, "scaled", "intra")
    block: ClassVar[int] = INTERVAL  # steps between checkpoints

    segment_count: int = 1
    warps: int = WARPS
    states: dict[str, np.ndarray] = field(default_factory=dict)  # those that enter segments: [B, segments, H, ..]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.length = self.steps if self.segment_count == 1 else 2 * self.chunk
        self.given |= {block_name(a): TILE for a in self.k.axes}

    @property
    def whole_chunks(self) -> int:
        return 2 * self.segment_count if self.even else 2

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
            states = self.draw((B, self.segment_count, H, *self.shape(a.axes)))
            self.states[x.attrs[1]] = states if self.segment_count > 1 else array(states * 0)
            return {a.name: Tensor(a.name, states.ravel()) if self.segment_count > 1 else None}
        if a.layout == "state" or a.layout == "checkpoint":
            kept = a.role is Role.LAST or a.layout == "checkpoint"
            count = self.segment_count if a.role is Role.LAST else self.blocks
            shape = (
                self.shape(a.axes)
                if a.role is Role.LAST or self.k.rows is None
                else (ROWS, *self.shape(self.in_columns(a.axes)))
            )
            return {a.name: Tensor.room(a.name, B * count * H * prod(shape)) if kept else None}
        if a.layout == "sums" and a.stored:
            each = self.chunks * prod(self.shape(x.axes)) if x.axes else self.rows_of_sums * self.steps
            return {a.name: Tensor.room(a.name, B * H * each)}
        if a.layout == "out" and not a.axes:  # numbers of each step are the same in all tiles
            return {a.name: Tensor(a.name, Tensor.room(a.name, self.room(a)).cells, alike=True)}
        return super().passed(a)

    @property
    def blocks(self) -> int:
        return -(-self.steps // self.block)

    @property
    def rows_of_sums(self) -> int:
        return 1 if self.k.tiled is None else self.tiles * self.warps

    def sweep(self, f: KernelFunction, some: Iterable[int] | None = None, **more: int) -> None:
        words: dict[str, Any] = {"C": self.chunk, "LEVELS": self.chunk.bit_length() - 1, "EVEN": self.even, "STAGES": 1}
        words |= {"EXACT": self.exact, "T": self.steps, "H": H, "chunks": self.chunks, "DT": "tl.float32"}
        words |= {"starts": None, "segments": self.segment_count, "length": self.length, "blocks": self.blocks}
        words |= {
            "YIELD": True,
            "WARPS": self.warps,
            "PRODUCTS": True,
            "READ": 0,
            "TAIL": 0,
            "BLOCK": self.block,
            "ROWS": ROWS,
        }
        words |= more
        some = self.programs() if some is None else some
        run(f, B * self.segment_count * H * self.tiles, {**self.given, **words}, self.function, some=some)

    def sweep_bare(self, f: KernelFunction) -> None:
        """Programs of a sequence's first segment and its second, in a launch that gives nothing which it can do without."""
        guards = [x.condition for x in statements(self.k.body) if isinstance(x, If)]
        bare = {n: None for n, x in self.given.items() if isinstance(x, Tensor) and Name(n).given in guards}
        self.given |= bare
        self.sweep(f, some=(0, H * self.tiles))

    def programs(self) -> Iterator[int]:
        """Those that are run: of sequences in segments those whose number is their head's, as offsets of the others are seen
        where they are whole."""
        for b, segment, h, tile in np.ndindex(B, self.segment_count, H, self.tiles):
            if self.segment_count == 1 or b == h:
                yield ((b * self.segment_count + segment) * H + h) * self.tiles + tile

    # --- what is expected

    def segments(self) -> Iterator[Segments]:
        """All that are swept, by how many steps these have."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        for b, segment, h in np.ndindex(B, self.segment_count, H):
            if self.segment_count == 1 or b == h:
                steps = min(self.length, self.steps - segment * self.length)
                found.setdefault(steps, []).append((b, segment, h))
        for steps, places in found.items():
            chunks = []
            for t in range(0, steps, self.chunk)[:: self.opened.direction]:
                starts = [segment * self.length + t for _, segment, _ in places]
                at = ((b, h, start // self.chunk) for (b, _, h), start in zip(places, starts, strict=True))
                chunks.append(Chunks.at(at, starts, min(self.chunk, steps - t)))
            yield Segments(np.array([segment for _, segment, _ in places]), tuple(chunks))

    def compare_all(self) -> None:
        arguments = {(a.source, a.role): a for a in self.k.arguments if a.stored}
        for x in self.segments():
            states = {s.name: self.number(("state in", s.name), self.states[s.name])[x.place] for s in self.group}
            for at in x.chunks:
                self.compare_checkpoints(arguments, states, at, at is x.chunks[0])
                states = self.compare_chunk(arguments, states, at)
            ends = np.full(len(x.segment), True) if self.k.each else x.segment == self.last_segment
            b, segment, h = (y[ends] for y in x.place)
            for s in self.group:
                a = arguments.get((leaf("last", s.name, s.axes), Role.LAST))
                if a is not None and s.name in self.k.finals:
                    cells = self.cells(a).reshape(-1, H, *self.shape(s.axes))
                    left = cells[b * self.segment_count + segment if self.k.each else b, h]
                    self.compare(leaf("last", s.name), x.chunks[-1].among(ends), left, states[s.name][ends])

    @property
    def last_segment(self) -> int:
        return self.segment_count - 1 if self.opened.direction > 0 else 0

    def compare_checkpoints(self, arguments: Stored, states: States, at: Chunks, first: bool) -> None:
        """States as blocks of steps find them."""
        start, stop = at.steps[:, 0], at.steps[:, -1] + 1
        begins = start % self.block == 0 if self.opened.direction > 0 else (stop % self.block == 0) | first
        some, block, count = at.among(begins), (start // self.block)[begins], self.blocks
        for s in self.group:
            a = arguments.get((leaf("checkpoint", s.name, s.axes), Role.CHECKPOINTS))
            if a is None:
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
