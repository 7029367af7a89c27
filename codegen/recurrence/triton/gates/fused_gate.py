"""What must hold of a fused backward pass: run over exact numbers, block after block, it leaves in memory what the sweeps of the
plan that it stands for say.

The states that the forward pass leaves at each block are drawn. What a block adds to a decay's gradient is left in parts where
the sweep has many warps, and in one number for each step where it has few: both are run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from ....exact.rationals import UNDEFINED, array, in_field
from ....exact.run_kernel import Argument as Given
from ....exact.run_kernel import Tensor
from ....ir.evaluate import Env
from ....ir.expr import COL, ROW, Node, dim_of, leaf, make, rename, total
from ....ir.kernel_ir import KernelFunction
from ...chunkwise.plan import ENTERING
from ...normal_form.form import StateForm
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel
from ..plan_passes.decay_sums import OWN, SPANS, part_of
from ..plan_passes.hoist import Opened, made_here
from ..plan_passes.roles import at_row
from ..print.axis_names import block_name
from .cases import CHUNK, PACKED, SEVERAL, Case, Chunks
from .chunk_gate import Found, H
from .kernel_gate import strided
from .sweep_gate import States, Stored, Swept, gate_cases

FEW, MANY = 4, 8  # warps


CASES = (
    Case(CHUNK, warps=FEW),
    Case(SEVERAL, exact=True, even=True, segments=2, warps=MANY, turned=True, groups=0),
    Case(SEVERAL, exact=True, lengths=PACKED, warps=FEW, groups=1),
)


@in_field
def gate_fused(k: Kernel, f: KernelFunction) -> None:
    """Raises GateError where what passes have made of a fused backward pass isn't what it is for."""
    gate_cases(Fused, k, f, CASES)


@dataclass
class Fused(Swept):
    """What a fused backward pass is given, and what it leaves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        width = MANY if self.apart else 4  # rows of a state, as many as warps at least
        self.given |= {block_name(a): width for a in self.k.axes}

    @property
    def apart(self) -> bool:
        return self.case.warps > FEW

    @cached_property
    def carried(self) -> int:
        """The piece that is over the gradient of the state."""
        ((_, gradient),) = self.k.spans
        return next(n for n, p in enumerate(self.k.pieces) if gradient.name in p.opened.states)

    @cached_property
    def yielded(self) -> frozenset[Node]:
        """What sweeps yield, beside sums for a decay's gradient."""
        return frozenset(store.leaf for p in self.k.pieces for store in p.stores)

    @property
    def opened(self) -> Opened:
        return self.k.pieces[self.carried].opened

    @property
    def group(self) -> list[StateForm]:
        return [gradient for _, gradient in self.k.spans]

    def made_here(self, o: Opened, x: Node) -> bool:
        """An inverse, with which a sweep solves for its writes, is given: a kernel before has made it."""
        node = o.matrices.get(leaf("matrix", x.attrs[1], (ROW, COL)))
        return node is not None and made_here(node, replace(o, tile=()))

    def named(self, o: Opened) -> tuple[dict[Node, Node], ...]:
        alone = replace(o, tile=(), definitions={})  # definitions take the inverses that are given
        prologue = {x: node for x, node in o.prologue.definitions.items() if made_here(node, alone)}
        return o.prologue.products, prologue, {x: node for x, node in o.matrices.items() if self.made_here(o, x)}

    # --- what it is given

    def passed(self, a: Argument) -> dict[str, Given]:
        x = a.source
        assert x is not None
        if a.role is Role.CHECKPOINTS:
            return {a.name: self.checkpoints(a)}
        if a.stored and a.layout == "step":
            return strided(a.base, np.full((self.batch, self.steps, H, *self.shape(a.axes)), UNDEFINED, dtype=object))
        if a.stored and a.layout == "sums":
            return {a.name: Tensor.room(a.name, self.batch * H * self.rows_of(a))}
        return super().passed(a)

    def checkpoints(self, a: Argument) -> Tensor:
        """States that blocks begin with, with an axis in rows: [B, blocks * ROWS, H, X], zero beyond that axis."""
        ((s, _),) = self.k.spans
        rows, columns = self.opened.tile[0], self.opened.full[0]
        self.begun = self.draw((self.batch, H, self.chunks, *self.shape(s.axes)))
        width = MANY if self.apart else 4
        cells = array([Fraction(0)]).repeat(self.batch * self.chunks * width * H * self.sizes[dim_of(columns)])
        cells = cells.reshape(self.batch, self.chunks, width, H, -1)
        turned = self.begun if s.axes.index(rows) == 0 else self.begun.swapaxes(3, 4)
        cells[:, :, : self.sizes[dim_of(rows)]] = turned.transpose(0, 2, 3, 1, 4)
        return Tensor(a.name, cells.ravel())

    def rows_of(self, a: Argument) -> int:
        """How many numbers a kernel stores of the steps of a head: of a decay's gradient by kind, and of others one for each."""
        if a.source in self.yielded:
            return self.steps
        _, kind, *_ = a.source.attrs[1].split(".") if a.source is not None else ("", "")
        if kind == "spans":
            return self.chunks * (self.case.warps if self.apart else 1)
        return self.steps * (self.parts_of_pairs(a) if kind == "own" else 1)

    def parts_of_pairs(self, a: Argument) -> int:
        """How many sums are stored of pairs inside a block: parts of those of rows, and of columns."""
        assert a.source is not None
        slot = a.source.attrs[1].split(".")[-1]
        own = [x for p in self.k.pieces for s in p.opened.sums for x in s.own]
        rows = any(row == slot for _, row, _ in own) * self.case.warps // FEW
        columns = any(column == slot for _, _, column in own) * (4 if self.apart else 1)
        return rows + columns

    # --- what is expected

    def compare_checkpoints(self, *_: object) -> None:
        """It leaves none."""

    def compare_chunk(self, arguments: Stored, states: States, at: Chunks) -> States:
        ((s, gradient),) = self.k.spans
        known: Env = {
            ("state in", s.name): self.number(("begun", s.name), self.begun)[at.b, at.h, at.c],
            ("state in", gradient.name): states[gradient.name],
        }
        found = self.in_turn(at, known)
        by_source = {x: a for (x, _), a in arguments.items()}
        for (env, sizes), p in zip(found, self.k.pieces, strict=True):
            for store in p.stores:
                if store.leaf not in by_source:
                    continue  # nothing loads it but this kernel
                a = by_source[store.leaf]
                expected = env.get(store.leaf.attrs[:2])
                if store.kind == "sums":
                    self.done = {}
                    node = at_row(rename(store.node, p.opened.rename))
                    node = total(node, *(set(node.axes) - {ROW}))
                    expected = self.over(leaf("sums", "x", (ROW,)), node, env, sizes)
                self.compare(store.leaf, at, self.left(a, at), array(expected))
        sums = dict(self.sums_of_block(found))
        for x, a in by_source.items():
            if x is not None and x.attrs[0] == "sums" and x not in self.yielded:
                self.compare_sums_of(a, sums, at, found[self.carried])
        self.done = {}
        env, sizes = found[self.carried]
        after = self.over(leaf("state", gradient.name, gradient.axes), self.opened.states[gradient.name], env, sizes)
        return {gradient.name: after}

    def left(self, a: Argument, at: Chunks) -> np.ndarray:
        """What is stored of the steps of blocks."""
        if a.layout == "sums":
            return self.parts_of(a, at)[..., 0]
        if a.layout != "step":
            return self.stored_of(a, at)
        cells = np.concatenate([self.cells(a), array([UNDEFINED])]).reshape(self.batch, self.steps, H, -1)
        return cells[at.step][..., :-1]

    def spans(self, found: Found) -> np.ndarray:
        """The decays of a block times <S before it, dS after it>."""
        ((s, gradient),) = self.k.spans
        assert s.decay is not None
        decay = rename(s.decay, self.opened.rename)
        (d,) = (d for d, x in self.opened.decays.items() if x == decay)
        kept = make("decay_all", (d,), (), ())
        product = kept * leaf("state in", s.name, s.axes) * leaf("state in", gradient.name, gradient.axes)
        self.done = {}
        return self.over(leaf("spans", "x"), total(product, *s.axes), *found)

    def sums_of_block(self, found: list[Found]) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
        """What a block adds to a decay's gradient at each step."""
        made: dict[tuple[str, ...], np.ndarray] = {}
        for (env, sizes), p in zip(found, self.k.pieces, strict=True):
            self.done = {}
            for sums in p.opened.sums:
                for slot, node in sums.reads.items():
                    node = total(node, *(set(node.axes) - {ROW}))
                    made[sums.kind, slot] = self.over(leaf("sums", "x", (ROW,)), node, env, sizes)
                for node, rows, columns in sums.own:
                    pairs = self.over(leaf("matrix", "pairs", (ROW, COL)), node, env, sizes)
                    for slot, value in ((rows, pairs.sum(2)), (columns, -pairs.sum(1))):
                        made[OWN, slot] = array(made.get((OWN, slot), 0) + value)
        yield from made.items()

    def compare_sums_of(self, a: Argument, sums: dict[tuple[str, ...], np.ndarray], at: Chunks, found: Found) -> None:
        """In parts of each kind; or of all kinds, with what is read of the state in that of the whole block."""
        x = a.source
        assert x is not None
        part = part_of(x)
        if part == (SPANS,):
            read = [v.sum(1) for (kind, _), v in sums.items() if kind == ENTERING and not self.apart]
            left = self.cells(a).reshape(self.batch, H, self.chunks, -1)[at.b, at.h, at.c].sum(1)
            self.compare(x, at, left, array(self.spans(found) + sum(read)))
        elif (len(part) > 1) == self.apart:
            slots = [part] if self.apart else [n for n in sums if self.goes_to(n) == part]
            self.compare(x, at, self.parts_of(a, at).sum(2), array(sum(sums[n] for n in slots)))

    def goes_to(self, part: tuple[str, ...]) -> tuple[str, ...]:
        """The slot that sums of a kind are added to: early ones count as late where there is no other."""
        slot = part[-1:]
        stored = {part_of(a.source) for a in self.k.arguments if a.stored and a.source is not None}
        return slot if slot in stored else ("late",)
