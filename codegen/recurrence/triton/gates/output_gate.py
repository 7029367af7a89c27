"""What must hold of kernels that read checkpointed states: run over exact numbers, they leave in memory what the plan says.

States at checkpoints are drawn, and each block of steps is held by itself, as a program has it: what a kernel before this one
makes is what the chunk program says of the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from chunkform.errors import GateError

from ....exact.jit_source import NoMeaning
from ....exact.rationals import array, in_field, mapped
from ....exact.run_kernel import Argument as Given
from ....exact.run_kernel import Tensor
from ....ir.evaluate import Env, evaluate
from ....ir.expr import COL, ROW, Node, add, dim_of, expand, leaf, make, rename, total, walk
from ....ir.kernel_ir import KernelFunction
from ....ir.step_program import PER_HEAD
from ...normal_form.form import StateForm
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel, Piece
from ..plan_passes.decay_sums import ENDS, STATE_ADJOINT, decay_sum, part_of, state_of
from ..plan_passes.hoist import Opened, Sums
from ..plan_passes.roles import STEPS, at_row
from ..plan_passes.value_placement import Store
from ..print.axis_names import block_name
from .cases import CHUNK, PACKED, SEVERAL, Case, Chunks
from .chunk_gate import NUMBERS, Found, H, Memory, prod

TILE = 2


@in_field
def gate_outputs(k: Kernel, functions: tuple[KernelFunction, ...]) -> None:
    """Raises GateError where what passes have made of a kernel that reads checkpointed states isn't what it is for."""
    try:
        for case in (
            Case(SEVERAL if k.slow_path else CHUNK, large_range=True, even=True),
            Case(CHUNK, exact=True, turned=True, groups=0),
            Case(SEVERAL, exact=True, lengths=PACKED, groups=1),
        ):
            memory = Blocks(k, case, random.Random(k.name))
            memory.launch(functions)
            memory.compare_all()
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


@dataclass
class Blocks(Memory):
    """What a kernel that reads checkpointed states is given, and what it leaves."""

    states: dict[str, np.ndarray] = field(default_factory=dict)  # at checkpoints: [B, H, blocks, ..]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k.tiled is not None:
            self.given[block_name(self.k.tiled)] = TILE
        states = {("state in", n): NUMBERS.taken(x) for n, x in self.states.items()}
        self.found = [
            (at, self.in_turn(at, {x: values[at.b, at.h, at.c] for x, values in states.items()}))
            for at in self.places()
        ]
        for a in self.k.arguments:
            if a.source is not None and a.source.attrs[:2] in self.prologue and not a.stored:
                self.fill(a, a.source)

    @property
    def diagonal(self) -> int:
        return 0

    @cached_property
    def prologue(self) -> dict[tuple[str, str], int]:
        """What a prologue kernel makes, and for which piece."""
        pieces = [p.opened for p in self.k.pieces]
        return {x.attrs[:2]: n for n, o in enumerate(pieces) for x in (*o.prologue.matrices, *o.prologue.scaled)}

    def named(self, o: Opened) -> tuple[dict[Node, Node], ...]:
        return o.prologue.products, o.prologue.definitions, o.prologue.matrices, o.prologue.scaled, o.prologue.intra

    @property
    def tiles(self) -> int:
        return 1 if self.k.tiled is None else -(-self.sizes[dim_of(self.k.tiled)] // TILE)

    # --- what it is given

    def value(self, x: Node) -> np.ndarray:
        """What is made for a kernel in its prologue is what it stands for, and so is what is written of reads: terms with it
        cancel others with that."""
        kind, name, order = x.attrs
        meant = {"prologue": self.origins, "write": self.written_of_reads}.get(kind, {})
        if (kind, name) not in self.values and name in meant:
            (node, axes), given = meant[name], tuple(a for a in order if a not in STEPS)
            own = axes if {*axes} != {*given} else given  # another piece may call them otherwise
            env: Env = {}
            for y in (y for y in walk(node) if y.op == "leaf"):
                values = self.value(y)
                values = self.number(y.attrs[:2], values)
                env[y.attrs[:2]] = values[None, None] if y.attrs[0] in PER_HEAD else values
            made = mapped(Fraction, array(evaluate(expand(node, own), env, NUMBERS, self.sizes)))
            self.values[kind, name] = np.broadcast_to(made, (self.batch, self.steps, H, *self.shape(own)))
        return super().value(x)

    @cached_property
    def written_of_reads(self) -> dict[str, tuple[Node, tuple[str, ...]]]:
        """By its name, what is written that depends on reads, and its axes as a piece calls them: numbers of each step, which the
        kernel is given."""
        writes = [(p.opened.rename, w) for p in self.k.pieces for s in p.group for w in s.writes]
        return {
            w.leaf.attrs[1]: (rename(w.right, names), tuple(names.get(a, a) for a in w.leaf.axes if a not in STEPS))
            for names, w in writes
            if w.leaf is not None
        }

    @cached_property
    def origins(self) -> dict[str, tuple[Node, tuple[str, ...]]]:
        """By the name of what is made in the prologue, and its axes."""
        made = [(o.streams[x], y) for o in (p.opened for p in self.k.pieces) for x, y in o.origins.items()]
        return {x.attrs[1]: (y, tuple(a for a in x.axes if a not in STEPS)) for x, y in made}

    def passed(self, a: Argument) -> dict[str, Given]:
        x = a.source
        assert x is not None
        if a.role is Role.CHECKPOINTS:
            self.states[x.attrs[1]] = self.draw((self.batch, H, self.chunks, *self.shape(a.axes)))
            return {a.name: Tensor(a.name, self.states[x.attrs[1]].ravel())}
        if a.stored or x.attrs[:2] in self.prologue:
            return {a.name: Tensor.room(a.name, self.room(a))}
        return super().passed(a)

    def room(self, a: Argument) -> int:
        x = a.source
        if a.layout == "sums" and x is not None:
            return self.batch * H * (self.chunks * prod(self.shape(x.axes)) if x.axes else self.tiles * self.steps)
        return super().room(a)

    def fill(self, a: Argument, x: Node) -> None:
        """What a prologue kernel makes."""
        cells, shape = self.cells(a), (self.batch, H, self.steps, *self.shape(a.axes))
        if a.layout == "matrix":
            cells[:] = Fraction(0)
            shape = (self.batch, H, self.chunks, self.case.chunk, self.case.chunk)
        for at, found in self.found:
            value = mapped(Fraction, found[self.prologue[x.attrs[:2]]][0][x.attrs[:2]])
            if a.layout == "matrix":
                cells.reshape(shape)[at.b, at.h, at.c, : at.count, : at.count] = value
            else:
                cells.reshape(shape)[at.b[:, None], at.h[:, None], at.steps] = value

    # --- what is expected

    def compare_all(self) -> None:
        arguments = {a.source: a for a in self.k.arguments if a.stored and a.source is not None}
        for at, found in self.found:
            self.compare_chunks(arguments, at, found)

    def compare_chunks(self, arguments: dict[Node, Argument], at: Chunks, found: list[Found]) -> None:
        for n, p in enumerate(self.k.pieces):
            for store in (s for s in p.stores if s.leaf in arguments):  # what isn't stored nothing else loads
                self.compare_store(store, n, arguments[store.leaf], at, found)
            for x in p.opened.outputs if not p.group else ():  # products of states and their gradients at each step
                a = arguments[x]
                left = self.stored_of(a, at) if x.axes else self.summed(a, at)
                self.compare(x, at, left, found[n][0][x.attrs[:2]])
        for s, gradient in self.k.spans:
            ends = decay_sum(s.name, ENDS, axes=self.axes_of(s))
            if ends in arguments:  # the decay times <S, dS> after a block's last step, for each channel
                left = self.of_chunks(arguments[ends], at, ends.axes)
                self.compare(ends, at, left, self.spans_of(s, gradient, found) - self.written(s, found))
                continue
            (x,) = (x for x in arguments if (state_of(x), part_of(x)) == (s.name, (STATE_ADJOINT,)))
            self.compare_state_adjoint(x, s, gradient, arguments[x], at, found)

    def axes_of(self, s: StateForm) -> tuple[str, ...]:
        """The axes of a state's decay, as a kernel calls them."""
        _, p, _ = next(self.pieces_of(s))
        return tuple(p.opened.rename.get(a, a) for a in s.decay_axes)

    def compare_store(self, store: Store, n: int, a: Argument, at: Chunks, found: list[Found]) -> None:
        x, o = store.leaf, self.k.pieces[n].opened
        env, sizes = found[n]
        if store.kind != "sums":
            self.compare(x, at, self.stored_of(a, at), env[x.attrs[:2]])
            return
        self.done = {}
        node = at_row(rename(store.node, o.rename))
        expected = self.over(leaf("sums", "x", (ROW,)), total(node, *(set(node.axes) - {ROW})), env, sizes)
        self.compare(x, at, self.summed(a, at), expected)

    def summed(self, a: Argument, at: Chunks) -> np.ndarray:
        """What all tiles have left of each step."""
        return array(self.parts_of(a, at).sum(2))

    def compare_state_adjoint(
        self, x: Node, s: StateForm, gradient: StateForm, a: Argument, at: Chunks, found: list[Found]
    ) -> None:
        """The decay times <S, dS> at each step, as `run_plan.py` has it from checkpoints: that of the whole block, less what is
        written before the step, and what is read from it on."""
        spans, steps = self.spans_of(s, gradient, found), range(at.count)
        if s.decay_axes:
            end = spans - self.written(s, found)
            late = next(env[y] for env, _ in found for y in [("stored", f"{s.name}.late")] if y in env)
            per_step = np.stack([end + late[:, t:].sum(1) for t in steps], 1)
            self.compare(x, at, self.stored_of(a, at), per_step)
            return
        made = self.sums_of_block(s, found, at)
        late, early, before, early_before = (
            made[y] for y in (("in", "late"), ("in", "early"), ("out", "late"), ("out", "early"))
        )
        inside = [late[:, t:].sum(1) + early[:, t + 1 :].sum(1) for t in steps]
        outside = [before[:, :t].sum(1) + early_before[:, : t + 1].sum(1) for t in steps]
        per_step = np.stack([spans + y - z for y, z in zip(inside, outside, strict=True)], 1)
        self.compare(x, at, self.summed(a, at), per_step)

    def pieces_of(self, s: StateForm) -> Iterator[tuple[int, Piece, Sums]]:
        for n, p in enumerate(self.k.pieces):
            for sums in p.opened.sums:
                if sums.state == s.name:
                    yield n, p, sums

    def spans_of(self, s: StateForm, gradient: StateForm, found: list[Found]) -> np.ndarray:
        """The decays of a block times <S before it, dS after it>."""
        n, p, _ = next(iter(self.pieces_of(s)))
        env, sizes = found[n]
        assert s.decay is not None
        decay = rename(s.decay, p.opened.rename)
        (d,) = (d for d, x in p.opened.decays.items() if x == decay)
        axes = [tuple(p.opened.rename.get(a, a) for a in x.axes) for x in (s, gradient)]
        kept = make("decay_all", (d,), (), set(d.axes) - {ROW})
        product = kept * leaf("state in", s.name, axes[0]) * leaf("state in", gradient.name, axes[1])
        node = total(product, *(set(axes[0]) - set(d.axes)))
        self.done = {}
        return self.over(leaf("spans", "x", tuple(a for a in axes[0] if a in d.axes)), node, env, sizes)

    def written(self, s: StateForm, found: list[Found]) -> np.ndarray:
        """What the steps of a block write of what comes from beyond it, for each channel."""
        made = array(0)
        for n, _, sums in self.pieces_of(s):
            if sums.kind == "out":
                self.done = {}
                node = total(add(*sums.reads.values()), ROW)
                made = array(made + self.over(leaf("sums", "x", node.axes), node, *found[n]))
        return made

    def sums_of_block(self, s: StateForm, found: list[Found], at: Chunks) -> dict[tuple[str, str], np.ndarray]:
        """What is read at each step of a block, late and early, with pairs inside it, and what is written."""
        zero = np.full(at.steps.shape, 0, dtype=object)
        sums_of = {(kind, slot): zero for kind in ("in", "out") for slot in ("late", "early")}
        for n, _, sums in self.pieces_of(s):
            self.done = {}
            for slot, node in sums.reads.items():
                node = total(node, *(set(node.axes) - {ROW}))
                made = self.over(leaf("sums", "x", (ROW,)), node, *found[n])
                sums_of[sums.kind, slot] = sums_of[sums.kind, slot] + made
            for node, rows, columns in sums.own:
                pairs = self.over(leaf("matrix", "pairs", (ROW, COL)), node, *found[n])
                sums_of["in", rows] = sums_of["in", rows] + pairs.sum(2)
                sums_of["in", columns] = sums_of["in", columns] - pairs.sum(1)
        return sums_of
