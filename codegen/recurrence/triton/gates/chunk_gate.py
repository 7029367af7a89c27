"""What must hold of kernels over chunks: run over exact numbers, they leave in memory what the chunk program says.

Each is run as it is printed, for two sequences and heads of two chunks and a tail, with tiles that are wider than their axes. Log
decays are whole numbers to base two, so that decays are exact. What is expected of a chunk is evaluated over the steps that it
has, without any beyond the sequence's end.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import pairwise, product
from typing import Any, ClassVar

import numpy as np

from chunkform.errors import GateError

from ....exact.jit_source import NoMeaning
from ....exact.memory import drawn
from ....exact.rationals import LN2, UNDEFINED, Rationals, array, in_field, is_in_field
from ....exact.run_kernel import Argument as Given
from ....exact.run_kernel import Called, Tensor, run
from ....ir.code import Items, Literal, Name, Not
from ....ir.evaluate import BEYOND, Env, aligned, evaluate
from ....ir.expr import COL, ROW, Node, dim_of, leaf, rebuild, rename, walk
from ....ir.kernel_ir import If, KernelFunction, Return, TileFunction, statements
from ....ir.step_program import DECAYS, PER_HEAD
from ...chunkwise import chunk_program
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel, Piece
from ..kernels.places import same_size
from ..plan_passes.hoist import HALVES, Opened, Own
from ..plan_passes.roles import INNER, STEPS, TRANSITION, at_row
from ..print.axis_names import block_name, dim_of_kept, size_name, tile_name
from .cases import CHUNK, PACKED, SEVERAL, Case, Chunks, OneSequence
from .kernel_gate import compare, runtime_function, strided

NUMBERS = Rationals()
B, H = 2, 2
SUMMED = "summed"  # what is known of a decay are sums of its logarithms
LOADED = ("input", "decay", "cotangent", "read", "write", "stored", "prologue", "constant", TRANSITION, *PER_HEAD)
FAR = 99  # so far log2 decays may reach in a chunk for two factors of them to fit into float32
QUARTERED = TileFunction(
    "rounded_and_rest",
    ("x", "DT"),
    "",
    (Return(Items((Name("x") * Literal(0.75), Name("x") * Literal(0.25)))),),
)
TOGETHER = "chunks together"  # in sizes: how many chunks values are of
Key = tuple[str, str]
Found = tuple[Env, dict[str, int]]  # what a piece of a kernel has of chunks, and sizes


@in_field
def gate_chunks(k: Kernel, functions: tuple[KernelFunction, ...]) -> None:
    """Raises GateError where what passes have made of a kernel over chunks, and of the one for chunks that it leaves, isn't what
    it is for."""
    whole = SEVERAL if k.slow_path else CHUNK
    try:
        for case in (
            Case(whole, large_range=bool(k.slow_path)),
            Case(whole, exact=True, even=True, turned=True, groups=0),
            Case(SEVERAL, exact=True, lengths=PACKED, groups=1),
        ):
            memory = Memory(k, case, random.Random(k.name))
            memory.launch(functions)
            _compare_prologue(k, memory)
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


@dataclass
class Memory:
    """What a kernel over chunks is given, and what it leaves."""

    loaded: ClassVar[tuple[str, ...]] = LOADED  # kinds of leaves that it loads
    k: Kernel
    case: Case
    random: random.Random
    values: dict[Key, np.ndarray] = field(
        default_factory=dict
    )  # by leaf: of each step [self.batch, T, H, ..], or of each head
    logs: dict[Key, np.ndarray] = field(default_factory=dict)  # of decays of each step, to base two
    given: dict[str, Given] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.done: dict[Node, Any] = {}  # values in one chunk, as nodes have much in common
        axes = (*self.k.axes, *self.k.parts)
        dims = {dim_of(a) for a in axes} | {x.attrs[0] for x in self.nodes if x.op == "size"}
        dims |= {dim_of(a) for x in self.nodes for a in x.axes if a not in STEPS}
        whole = sorted({dim_of_kept(d) for d in dims})
        self.sizes = {d: self.case.size(whole.index(dim_of_kept(d))) for d in dims}
        written = (w.right for p in self.k.pieces for s in p.group for w in s.writes)
        ahead = list(walk(*(n for p in self.k.pieces for n in p.opened.origins.values()), *written))
        others = {dim_of(a) for x in ahead for a in x.axes if a not in STEPS}
        others |= {x.attrs[0] for x in ahead if x.op == "size"}
        self.sizes |= dict.fromkeys(others - dims, 2)  # which only what is made before the kernel has
        self.given |= {size_name(d): n for d, n in self.sizes.items()}
        self.given |= {block_name(a): 4 for a in self.k.axes} | {tile_name(a): 2 for a in self.k.parts}
        for p in self.k.pieces:
            for node in p.opened.decays.values():
                self.log_of(node)
        for a in self.k.arguments:
            self.given |= self.passed(a)

    @property
    def diagonal(self) -> int:
        """Up to which diagonal matrices over steps that are given aren't zero: some are inverted."""
        return -1

    @property
    def batch(self) -> int:
        """Entries of the batch: packed sequences are in one."""
        return 1 if self.case.lengths else B

    @property
    def chunks(self) -> int:
        if self.case.lengths:
            return self.steps // self.case.chunk + len(self.case.lengths)
        return self.whole_chunks + (not self.case.even)

    @property
    def steps(self) -> int:
        if self.case.lengths:
            return sum(self.case.lengths)
        return self.whole_chunks * self.case.chunk + (not self.case.even)

    @cached_property
    def sequences(self) -> tuple[OneSequence, ...]:
        """Those that steps are of."""
        return tuple(self.case.packed()) or tuple(OneSequence(b, 0, self.steps) for b in range(B))

    @property
    def cuts(self) -> list[int]:
        """Where chunks begin, and the last of them ends."""
        return [t for s in self.sequences if s.b == 0 for _, t, _ in s.chunks(self.case.chunk)] + [self.steps]

    @property
    def whole_chunks(self) -> int:
        return 2

    @cached_property
    def nodes(self) -> list[Node]:
        return list(walk(*(n for p in self.k.pieces for n in nodes_of(p))))

    @cached_property
    def leaves(self) -> list[Node]:
        """One leaf of each name."""
        return list({x.attrs[:2]: x for x in reversed(self.nodes) if x.op == "leaf"}.values())[::-1]

    # --- drawing

    def draw(self, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers of many bits; whole ones in a field, which are had faster."""
        if is_in_field():
            return array([Fraction(1 + self.random.getrandbits(60)) for _ in range(prod(shape))]).reshape(shape)
        return drawn(self.random, shape)

    def draw_logs(self, shape: tuple[int, ...]) -> np.ndarray:
        """Logarithms of decays to base two, of each step or of each head; some are zero."""
        logs = array([Fraction(-self.random.randrange(3)) for _ in range(prod(shape))]).reshape(shape)
        if self.case.large_range and shape[:2] == (self.batch, self.steps):
            logs[:, self.case.chunk : 2 * self.case.chunk] *= 30
            logs[:, self.case.chunk : 2 * self.case.chunk, -1] -= 60
        return logs

    def log_of(self, node: Node) -> np.ndarray:
        """A decay's logarithms, of each step: [self.batch, T, H, ..]."""
        is_leaf = node.op == "leaf" and node.attrs[0] in DECAYS
        key: Key = node.attrs[:2] if is_leaf else ("decay of", node.key)
        if is_leaf:
            self.value(node)
        elif key not in self.logs:
            self.logs[key] = self.draw_logs((self.batch, self.steps, H, *self.shape(node.axes)))
        return np.broadcast_to(self.logs[key], (self.batch, self.steps, H, *self.shape(node.axes)))

    def value(self, x: Node) -> np.ndarray:
        """The values of a leaf, of each step or of each head."""
        kind, name, order = x.attrs
        if (kind, name) not in self.values:
            own = self.shape(tuple(a for a in order if a not in STEPS))
            lead: tuple[int, ...] = (self.batch, self.steps, H)
            lead = () if kind == "constant" else (H,) if kind in PER_HEAD else lead
            if kind in DECAYS:
                self.logs[kind, name] = self.draw_logs((*lead, *own))
                self.values[kind, name] = NUMBERS.fn("exp2", self.logs[kind, name])
            else:
                self.values[kind, name] = self.draw((*lead, *own))
            if self.is_grouped(x):
                for table in (t for t in (self.logs, self.values) if (kind, name) in t):
                    table[kind, name] = table[kind, name][:, :, ::2].repeat(2, axis=2)
        return self.values[kind, name]

    def is_grouped(self, x: Node) -> bool:
        """Has an input one head for two?"""
        if self.case.groups is None or x.attrs[0] not in ("input", "decay"):
            return False
        return bool((1 + self.numbered.get(x.attrs[1], 0) % 3) >> self.case.groups & 1)

    @cached_property
    def numbered(self) -> dict[str, int]:
        """The numbers of what is given of each step, from 1."""
        given = (a.source for a in self.k.arguments if a.layout == "step" and a.source is not None)
        return {name: n for n, name in enumerate(dict.fromkeys(x.attrs[1] for x in given), 1)}

    def number(self, key: Key, values: np.ndarray) -> np.ndarray:
        """The values of a leaf as the numbers that we compute with."""
        known: Key = (f"{key[0]} as a number", key[1])
        if known not in self.values:
            self.values[known] = NUMBERS.taken(values)
        return self.values[known]

    def matrix(self, x: Node) -> np.ndarray:
        """A matrix over the steps of each chunk that is given, with zeros beyond the end, and where a step reads what comes after
        it: [self.batch, H, chunks, C, C]."""
        if x.attrs[:2] not in self.values:
            made = self.draw((self.batch, H, self.chunks, self.case.chunk, self.case.chunk))
            order = slice(None, None, self.k.pieces[0].opened.direction)
            made[:, :, :, ~np.tri(self.case.chunk, k=self.diagonal, dtype=bool)[order, order]] = Fraction(0)
            for at in self.places():
                made[:, :, at.c, at.count :] = made[:, :, at.c, :, at.count :] = Fraction(0)
            self.values[x.attrs[:2]] = made
        return self.values[x.attrs[:2]]

    def shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.sizes[dim_of(a)] for a in axes)

    # --- arguments

    def cells(self, a: Argument | None) -> np.ndarray:
        found = self.given[a.name] if a is not None else None
        assert isinstance(found, Tensor)
        return found.cells

    def stored_of(self, a: Argument, at: Chunks) -> np.ndarray:
        """What a kernel has stored of chunks, over their steps."""
        cells = self.cells(a)
        if a.layout == "matrix":
            whole = cells.reshape(self.batch, H, self.chunks, self.case.chunk, self.case.chunk)
            return whole[at.b, at.h, at.c, : at.count, : at.count]
        if a.layout == "chunked":
            return cells.reshape(self.batch, H, self.steps, *self.shape(a.axes))[at.b[:, None], at.h[:, None], at.steps]
        return cells.reshape(self.batch, self.steps, H, *self.shape(a.axes))[at.step]

    def parts_of(self, a: Argument, at: Chunks) -> np.ndarray:
        """What a kernel has stored in parts of each step, [n, count, parts]."""
        return self.cells(a).reshape(self.batch, H, -1, self.steps)[at.b[:, None], at.h[:, None], :, at.steps]

    def of_chunks(self, a: Argument, at: Chunks, axes: tuple[str, ...]) -> np.ndarray:
        """What a kernel has stored of each chunk as a whole."""
        return self.cells(a).reshape(self.batch, H, self.chunks, *self.shape(axes))[at.b, at.h, at.c]

    def compare(self, what: Node, at: Chunks, found: np.ndarray, expected: np.ndarray, part: str = "") -> None:
        """What is left of each of some chunks."""
        self.compare_each(f"{what.attrs[1]}{part}", at, found, expected)

    def compare_each(
        self, what: str, places: Iterable[tuple[int, int, int]], found: np.ndarray, expected: np.ndarray
    ) -> None:
        for where, left, said in zip(places, array(found), array(expected), strict=True):
            compare(self.k.name, f"{what} of {where}", array(left), array(said))

    def passed(self, a: Argument) -> dict[str, Given]:
        x = a.source
        assert x is not None
        if a.layout == "size":
            return {a.name: self.sizes[x.attrs[0]]}
        if a.stored and not (
            self.case.exact and a.role in (Role.SUMS, Role.EXTENTS)
        ):  # which are made before, if exact
            return {a.name: Tensor.room(a.name, self.room(a))}
        if a.role in (Role.SUMS, Role.RESTS):
            return {a.name: self.sums_of(a)}
        if a.layout == "extent":
            return {a.name: Tensor(a.name, self.extents_of(x).ravel())}
        if a.layout == "matrix":
            return {a.name: Tensor(a.name, self.matrix(x).ravel())}
        values = self.value(x)
        if x.attrs[0] in DECAYS:
            values = array(self.logs[x.attrs[:2]] * LN2)
        if a.layout == "number":
            return {a.name: values.item()}
        if a.layout == "head":
            return {a.name: Tensor(a.name, values.ravel())}
        if a.layout == "chunked":  # by heads
            return {a.name: Tensor(a.name, values.swapaxes(1, 2).ravel())}
        if a.layout == "step":
            if self.is_grouped(x):
                values = values[:, :, ::2]
            return strided(a.base, values, gap=2 * self.numbered[x.attrs[1]])  # no two vectors have strides alike
        raise GateError(f"{self.k.name}: nothing is known of {a.name}")

    def room(self, a: Argument) -> int:
        if a.layout == "matrix":
            return self.batch * H * self.chunks * self.case.chunk**2
        if a.layout == "sums":
            return (
                self.batch
                * H
                * self.steps
                * next((o.counts[s] for o, s in self.owned() if o.prologue[s] == a.source), 1)
            )
        if a.layout == "extent":
            return self.batch * H * self.steps
        return self.batch * H * self.steps * prod(self.shape(a.axes))

    def owned(self) -> Iterator[tuple[Own, str]]:
        return ((o, slot) for p in self.k.pieces for o in p.opened.prologue.own for slot in o.prologue)

    def cumulated(self, node: Node) -> np.ndarray:
        """Cumulative sums inside chunks, [self.batch, T, H, ..]."""
        logs = self.log_of(node)
        return np.concatenate([np.cumsum(logs[:, t:stop], axis=1) for t, stop in pairwise(self.cuts)], axis=1)

    def sums_of(self, a: Argument) -> Given:
        assert a.source is not None
        if a.role is Role.RESTS and not self.case.exact:
            return None
        sums = self.cumulated(a.source)
        rests = np.vectorize(lambda x: Fraction(int(x) % 3), otypes=[object])(sums) if self.case.exact else sums * 0
        laid = rests if a.role is Role.RESTS else sums - rests
        return Tensor(a.name, array(laid if a.axes else laid.swapaxes(1, 2)).ravel())

    def extents_of(self, node: Node) -> np.ndarray:
        """How far sums reach, at the first step of each chunk, [self.batch, H, T]."""
        reach = -self.cumulated(node).min(axis=3)
        out = np.full((self.batch, H, self.steps), UNDEFINED, dtype=object)
        for t, stop in pairwise(self.cuts):
            out[..., t] = reach[:, t:stop].max(axis=1)
        return out

    # --- running

    def function(self, name: str) -> Called | None:
        """The functions of the runtime that a kernel calls. What rounding leaves may be anything, unless all is float32: a
        quarter of a number, say. It is nothing where both operands of a product are in parts: that of what is left isn't made."""
        if name == "rounded_and_rest" and not self.case.exact and not self.both_in_parts:
            return QUARTERED
        return runtime_function(name)

    @cached_property
    def both_in_parts(self) -> bool:
        rests = [x for x in statements(self.k.body) if isinstance(x, If) and x.condition == Not(Name("EXACT"))]
        return any(len(x.body) > 1 for x in rests)

    @property
    def tiles(self) -> int:
        """How many programs take a chunk."""
        return 1

    def launch(self, functions: tuple[KernelFunction, ...]) -> None:
        case, programs = self.case, self.batch * H * self.chunks
        levels = case.chunk.bit_length() - 1
        words: dict[str, Given] = {"C": case.chunk, "CHUNK": case.chunk, "LEVELS": levels, "EVEN": case.even}
        words |= {"EXACT": case.exact, "GROUP": 2, "STAGES": 1, "T": self.steps, "H": H, "chunks": self.chunks}
        words |= {"programs": programs, "DT": "tl.float32"}  # type: ignore[dict-item]
        words |= self.begins_and_stops()
        for n, f in enumerate(functions):
            count = -(-programs // 2) if n or self.k.queues else programs
            run(f, count * self.tiles, {**self.given, **words, "SMALL_RANGE": n == 0}, self.function)

    def begins_and_stops(self) -> dict[str, Given]:
        """Where the steps of each chunk's place are, if sequences are packed; at some places there are none."""
        if not self.case.lengths:
            return {"begins": None, "stops": None}
        chunk, begins, stops = self.case.chunk, [0] * self.chunks, [0] * self.chunks
        for s in self.sequences:
            for c in range(s.first, self.chunks):  # those of the sequences behind it are overwritten
                begins[c] = s.begin + (c - s.first) * chunk
                stops[c] = min(begins[c] + chunk, s.stop)
        return {n: Tensor(n, np.array(x, dtype=object)) for n, x in (("begins", begins), ("stops", stops))}

    # --- what is expected

    def places(self) -> Iterator[Chunks]:
        """All chunks of all sequences and heads, by how many steps they have."""
        found: dict[int, list[tuple[tuple[int, int, int], int]]] = {}
        for s, h in product(self.sequences, range(H)):
            for c, start, count in s.chunks(self.case.chunk):
                found.setdefault(count, []).append(((s.b, h, c), start))
        for count, chunks in found.items():
            yield Chunks.at((place for place, _ in chunks), (start for _, start in chunks), count)

    def env(self, p: Piece, at: Chunks, known: Env | None = None) -> Found:
        """The values of leaves over the steps of chunks: what is `known` already, and what the kernel is given."""
        self.done = {}
        o, count = p.opened, at.count
        sizes = {**self.sizes, ROW: count, COL: count, INNER: count, BEYOND: 0, TOGETHER: len(at)}
        env: Env = {}
        for x in self.leaves:
            if x.attrs[0] == "matrix" and not self.made_here(o, x):
                env[x.attrs[:2]] = self.number(x.attrs[:2], self.matrix(x))[at.b, at.h, at.c, :count, :count]
            if x.attrs[0] in self.loaded:
                values = self.number(x.attrs[:2], self.value(x))
                per_step = values.shape[:1] == (self.batch,) and x.attrs[0] not in (*PER_HEAD, "constant")
                per_head = x.attrs[0] in PER_HEAD
                env[x.attrs[:2]] = values[at.step] if per_step else values[at.h] if per_head else values
        env |= known or {}
        # what is both a decay and a factor of something else is loaded as a number for that
        for x, node in (*o.decays.items(), *o.streams.items()):
            env["stream", x.attrs[1]] = self.over(x, at_row(node), env, sizes)
        for d, node in o.decays.items():
            env[SUMMED, d.attrs[1]] = NUMBERS.fn("exp2", self.log_of(node)[at.step])
        for found in self.named(o):
            for x, node in found.items():
                env[x.attrs[:2]] = self.over(x, node, env, sizes)
        return env, sizes

    def in_turn(self, at: Chunks, made: Env) -> list[Found]:
        """What each piece of a kernel has of chunks: what is `made` already, and then what those before it have made."""
        found: list[Found] = []
        made = {**made}
        for p in self.k.pieces:
            o = p.opened
            env, sizes = self.env(p, at, made)
            for x, node in o.definitions.items():
                env[x.attrs[:2]] = self.over(x, node, env, sizes)
            for x, node in o.outputs.items():
                env[x.attrs[:2]] = made[x.attrs[:2]] = self.over(leaf("made", "x", (ROW, *x.axes)), node, env, sizes)
            for store in (s for s in p.stores if s.kind != "sums"):
                x = leaf("stored", "x", (ROW, *(next(t for t in o.tile if same_size(a, t)) for a in store.leaf.axes)))
                value = self.over(x, at_row(rename(store.node, o.rename)), env, sizes)
                env[store.leaf.attrs[:2]] = made[store.leaf.attrs[:2]] = value
            found.append((env, sizes))
        return found

    def made_here(self, o: Opened, x: Node) -> bool:
        """Does the kernel make a matrix, and isn't given it?"""
        return leaf("matrix", x.attrs[1], (ROW, COL)) in o.prologue.matrices

    def named(self, o: Opened) -> tuple[dict[Node, Node], ...]:
        """What is given names before all else."""
        return o.prologue.products, o.prologue.definitions

    def over(self, x: Node, node: Node, env: Env, sizes: dict[str, int]) -> np.ndarray:
        """A node over the axes of a leaf, as these are ordered there, in each of the chunks."""
        node = by_sums(node)
        made = array(aligned(array(evaluate(node, env, NUMBERS, sizes, self.done)), node.axes, x.axes))
        shape = (sizes[a] if a in STEPS else sizes[dim_of(a)] for a in x.axes)
        whole = np.broadcast_to(made, (sizes[TOGETHER], *shape))
        return whole.transpose([0, *(1 + x.axes.index(a) for a in x.attrs[2])])


@cache
def by_sums(x: Node) -> Node:
    """A node whose decays between steps are those that their cumulative sums say, whatever the value is that these are of."""
    where = 3 if x.op == "channel_solve" else 0
    if x.op in (*chunk_program.DECAYS, "left_out", "channel_solve"):
        before, decays, others = x.args[:where], x.args[where : where + 1], x.args[where + 1 :]
        summed = [leaf(SUMMED, *d.attrs[1:]) for d in decays]
        return rebuild(x, [*map(by_sums, before), *summed, *map(by_sums, others)])
    return rebuild(x, map(by_sums, x.args)) if x.args else x


def nodes_of(p: Piece) -> list[Node]:
    o = p.opened
    found: list[dict[Any, Node]] = [
        o.decays,
        o.streams,
        o.definitions,
        o.outputs,
        o.states,
        o.prologue.definitions,
        o.prologue.matrices,
        o.prologue.scaled,
        o.prologue.intra,
        o.prologue.products,
    ]
    nodes = [n for x in found for n in x.values()] + [n for s in o.prologue.own for n, _, _ in s.terms]
    nodes += [n for s in o.sums for n in s.reads.values()] + [rename(s.node, o.rename) for s in p.stores]
    return [at_row(n) for n in nodes]


def prod(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) if shape else 1


def _compare_prologue(k: Kernel, m: Memory) -> None:
    (piece,) = k.pieces
    o, there = piece.opened, {a.source for a in k.arguments if a.stored}
    if missing := [x for x in (*o.prologue.matrices, *o.prologue.scaled, *o.prologue.intra) if x not in there]:
        raise GateError(f"{k.name}: it doesn't store {missing[0].attrs[1]}")
    compare_prologue(k, piece, m)
    for a in k.arguments:
        if a.stored and a.role is Role.SUMS and not m.case.exact:
            _compare_sums(a, m)


def compare_prologue(k: Kernel, piece: Piece, m: Memory) -> None:
    """What a kernel stores of what a prologue makes."""
    o = piece.opened
    stored = {a.source: a for a in k.arguments if a.stored and a.role not in (Role.SUMS, Role.EXTENTS)}
    for at in m.places():
        env, sizes = m.env(piece, at)
        for x, node in (o.prologue.matrices | o.prologue.scaled | o.prologue.intra).items():
            if x in stored:
                m.compare(x, at, m.stored_of(stored[x], at), m.over(x, node, env, sizes))
        for sums in o.prologue.own:
            _compare_own(sums, stored, env, sizes, m, at)


def _compare_own(
    sums: Own,
    stored: Mapping[Node | None, Argument],
    env: Env,
    sizes: dict[str, int],
    m: Memory,
    at: Chunks,
) -> None:
    """Row sums of pairs inside a chunk, and column sums, which are subtracted, in parts."""
    expected: dict[tuple[str, str], Any] = {}
    for node, rows, columns in sums.terms:
        pairs = m.over(leaf("matrix", "pairs", (ROW, COL)), node, env, sizes)
        for slot, side, made in ((rows, "row", pairs.sum(2)), (columns, "column", -pairs.sum(1))):
            expected[slot, side] = expected.get((slot, side), 0) + made
    for (slot, side), made in expected.items():
        x, first = sums.prologue[slot], sums.first[slot, side]
        parts = m.parts_of(stored[x], at)[..., first : first + (1 if side == "row" else HALVES)]
        m.compare(x, at, parts.sum(2), made, f", {side}s")


def _compare_sums(a: Argument, m: Memory) -> None:
    """Sums of a decay that a kernel makes: how far they reach; all where that is too far for two factors, else those of whole
    chunks."""
    assert a.source is not None
    sums, extents = m.cumulated(a.source), m.extents_of(a.source)
    found, reached = m.cells(a).reshape(sums.shape), m.given[replace(a, role=Role.EXTENTS).name]
    assert isinstance(reached, Tensor)
    for at in m.places():
        first = at.b, at.h, at.steps[:, 0]
        m.compare(a.source, at, reached.cells.reshape(extents.shape)[first], extents[first], ", how far")
        for far in (True, False):
            some = at.among((extents[first] > FAR) == far)
            b, t, h = some.step
            t = t if far else t[:, -1:]
            m.compare(a.source, some, found[b, t, h], sums[b, t, h])
