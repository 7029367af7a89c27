"""What must hold of sweeps that make the maps of segments: run over exact numbers, from zero states, they leave the states after
each segment, and the matrix that a state before it is multiplied by.

That matrix is tried on a state that is drawn. Where launches of their own sweep over a segment's last steps, these are run, and
what they leave is composed with what is made of the steps before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chunkform.errors import GateError

from ....exact.jit_source import NoMeaning
from ....exact.rationals import array, in_field, over_ordered
from ....exact.run_kernel import Argument as Given
from ....exact.run_kernel import Tensor
from ....ir.expr import dim_of, leaf
from ....ir.kernel_ir import KernelFunction
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel
from .cases import CHUNK, SEVERAL, Case, Chunks
from .chunk_gate import NUMBERS, H, prod
from .kernel_gate import compare
from .sweep_gate import TILE, Segments, States, Swept

MAPS = (Role.LINEAR, Role.TAIL_MAP)


def makes_ends(k: Kernel) -> bool:
    """May a launch of a sweep make nothing but the states after segments?"""
    last = {a.source.attrs[1] for a in k.arguments if a.role is Role.LAST and a.source is not None}
    return last == {s.name for s in k.pieces[0].group}


def gate_segments(k: Kernel, f: KernelFunction) -> None:
    """Raises GateError where a sweep that makes nothing but the states after segments, or their maps, makes others."""
    try:
        _gate_ends(k, f)
        _gate_maps(k, f)
    except NoMeaning as why:
        raise GateError(f"{k.name}: there is no exact meaning for {why}") from why


@over_ordered
def _gate_ends(k: Kernel, f: KernelFunction) -> None:
    """What decays leave nothing of isn't swept, so that numbers need an order."""
    memory = Ends(k, Case(SEVERAL, large_range=True, segments=2), random.Random(k.name))
    memory.sweep(f, YIELD=False)
    memory.compare_all()


@in_field
def _gate_maps(k: Kernel, f: KernelFunction) -> None:
    if k.inner is not None:
        memory = Ends(k, Case(CHUNK, segments=2, turned=True), random.Random(k.name), alone=True)
        memory.sweep(f, YIELD=False, some=range(memory.tiles))
        first = next(memory.segments()).among(np.array([0]))
        memory.compare_map(first, first.chunks, None, Role.LINEAR)
    if k.tails:
        for case in (Case(SEVERAL, segments=2), Case(CHUNK, segments=2, turned=True)):
            memory = Ends(k, case, random.Random(k.name))
            for which in (1, 2):
                memory.sweep(f, YIELD=False, TAIL=which, TAIL_STEPS=case.chunk)
            memory.compare_tails()


@dataclass
class Ends(Swept):
    """What such a sweep is given, and what it leaves. `alone`: it makes the matrices of maps, and no states."""

    alone: bool = False

    def draw_logs(self, shape: tuple[int, ...]) -> np.ndarray:
        """In a chunk that others come before, decays may leave nothing of these."""
        return super().draw_logs(shape) * (3 if self.case.large_range else 1)

    def passed(self, a: Argument) -> dict[str, Given]:
        x = a.source
        assert x is not None
        if (
            a.role is Role.FIRST
            or a.layout == "checkpoint"
            or a.role is Role.OUT
            or (self.alone and a.role is Role.LAST)
        ):
            return {a.name: None}
        size = self.shape(a.axes)
        if a.role in MAPS:
            size = (self.columns, self.columns)
        if a.role is Role.LIVE:
            size = (-(-self.columns // TILE),)
        if a.layout == "state":
            return {a.name: Tensor.room(a.name, self.parts * H * prod(size))}
        return super().passed(a)

    @property
    def columns(self) -> int:
        """How many columns a matrix of a segment's map has."""
        return 0 if self.k.inner is None else self.sizes[dim_of(self.k.inner)]

    @property
    def tiles(self) -> int:
        return (0 if self.alone else super().tiles) + -(-self.columns // TILE)

    # --- what is expected

    def compare_all(self) -> None:
        for x in self.segments():
            self.compare_map(x, x.chunks, Role.LAST, Role.LINEAR)

    def compare_tails(self) -> None:
        """What is left of the last chunk of a segment, whether anything before it is seen after it, and what is before it."""
        for x in self.segments():
            self.compare_map(x, x.chunks[-1:], Role.TAIL, Role.TAIL_MAP)
            live = self.left(Role.LIVE, x, (-(-self.columns // TILE),))
            matrix = self.left(Role.TAIL_MAP, x, (self.columns, self.columns))
            tiles = [(matrix[..., t : t + TILE] != 0).any((1, 2)) for t in range(0, self.columns, TILE)]
            some = np.array(tiles).T
            self.compare_nearly(x, "whether a map is zero,", live, array(some.astype(int)))
            if some.any():
                seen = x.among(np.asarray(some.any(1)))
                self.compare_map(seen, seen.chunks[:-1], Role.LAST, Role.LINEAR)

    def compare_map(self, x: Segments, chunks: tuple[Chunks, ...], ends: Role | None, map_: Role) -> None:
        zero = {s.name: np.full((len(x.segment), *self.shape(s.axes)), 0, dtype=object) for s in self.group}
        after = self.after(zero, chunks)
        for s in self.group:
            if ends is not None:
                found = self.left(ends, x, self.shape(s.axes), s.name)
                self.compare_nearly(x, f"the end of {s.name}", found, after[s.name])
        if self.k.inner is not None:
            (s,) = self.group
            before = {s.name: NUMBERS.taken(self.draw(zero[s.name].shape))}
            moved = array(self.after(before, chunks)[s.name] - after[s.name])
            matrix = self.left(map_, x, (self.columns, self.columns))
            first = s.axes.index(self.k.inner) == 0
            made = matrix @ (before[s.name] if first else before[s.name].swapaxes(1, 2))
            self.compare_nearly(x, f"the map of {s.name}", array(made if first else made.swapaxes(1, 2)), moved)

    def after(self, states: States, chunks: tuple[Chunks, ...]) -> States:
        """The states after some chunks."""
        for at in chunks:
            env, sizes = self.env(self.k.pieces[0], at)
            env |= self.at_the_last(env) | {("state in", n): x for n, x in states.items()}
            for x, node in self.opened.definitions.items():
                env[x.attrs[:2]] = self.over(x, node, env, sizes)
            states = {
                s.name: self.over(leaf("state", s.name, s.axes), self.opened.states[s.name], env, sizes)
                for s in self.group
            }
        return states

    def left(self, role: Role, x: Segments, shape: tuple[int, ...], state: str | None = None) -> np.ndarray:
        (a,) = (
            a
            for a in self.k.arguments
            if a.role is role and a.source is not None and state in (None, a.source.attrs[1])
        )
        return array(self.cells(a).reshape(-1, self.case.segments, H, *shape)[x.place])

    def compare_nearly(self, x: Segments, what: str, found: np.ndarray, expected: np.ndarray) -> None:
        """Up to what is zero in float32."""
        whole = expected if not self.case.large_range else np.vectorize(_nearest, otypes=[object])(found, expected)
        for n, place in enumerate(zip(*(y.tolist() for y in x.place), strict=True)):
            compare(self.k.name, f"{what} in {place}", array(found[n]), array(whole[n]))


def _nearest(found: object, expected: object) -> object:
    if isinstance(found, Fraction) and isinstance(expected, Fraction) and abs(found - expected) < Fraction(1, 2**100):
        return found
    return expected
