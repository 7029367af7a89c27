"""What a step's kernel does where states are small numbers, with a scale for each row along their last axis.

A head's states are whole in one program, as a scale is of a whole row. `runtime/chunk_kernels/small_numbers.py` has how numbers
are rounded. At random, a count of each row and head's steps tells one step's random numbers from another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import mul

from ....ir.code import Binary, Code, Literal, Load, Name, call, summed
from ....ir.kernel_ir import Do, If, Statement, Store, added, let
from ..kernel import Axes, Kernel, both, count_of, over

COUNT, DRAWN = "drawn_at", "drawn"
SCALES = "small numbers, and a scale for each of their rows"


class SmallStates:
    """Statements for the states that have axes; the others are numbers, which stay as they are."""

    def __init__(self, k: Kernel) -> None:
        self.k = k
        self.axes = {s.name: s.axes for s in k.c.step.states if s.axes}
        self.scales = {n: k.names.fresh(f"{n}_scales") for n in self.axes}
        self.at = {n: k.names.fresh(f"{n}_scales_at") for n in self.axes}

    @property
    def pointers(self) -> tuple[str, ...]:
        """Scales of each state, and the counts of steps: None where states aren't small; these alone where nothing is random."""
        return (*self.at.values(), COUNT) if self.at else ()

    @property
    def given(self) -> Code:
        return Name(next(iter(self.at.values()))).given

    def moves(self) -> Iterator[Statement]:
        """Pointers to where a program starts."""
        place = Name("row") * "heads" + "head"
        if self.at:
            rows = {n: [count_of(axes[:-1])] if axes[1:] else [] for n, axes in self.axes.items()}
            moved = (added(at, reduce(mul, rows[n], place)) for n, at in self.at.items())
            yield If(self.given, tuple(moved), note=SCALES)
            yield If(Name(COUNT).given, (added(COUNT, place),))

    def loads(self) -> Iterator[Statement]:
        if self.at:
            loads = []
            for n, axes in self.axes.items():
                at, mask = self._lies(n)
                loads.append(let(self.scales[n], Load(at, mask, Literal(0.0)) if axes[1:] else Load(at)))
            yield If(self.given, (*loads, let(DRAWN, call("drawn_before", COUNT))))

    def widened(self, state: str, name: str) -> Iterator[Statement]:
        if state in self.at:
            yield If(self.given, (let(name, Name(name) * self.scales[state]),))

    def stored(self, state: str, plain: Store) -> Statement:
        """The store of a state, or of what it is rounded to and its scales."""
        if state not in self.at:
            return plain
        scales_at, mask = self._lies(state)
        number = list(self.at).index(state)
        assert plain.mask is not None and isinstance(plain.pointer, Binary)
        numbers = plain.pointer.left, plain.pointer.right, plain.value, plain.mask
        small = call("store_small", *numbers, scales_at, mask, COUNT, DRAWN, number)
        return If(self.given, (Do(small),), (plain,))

    def _lies(self, state: str) -> tuple[Code, Code]:
        """Where the scales of a state are, which broadcast over its numbers, and their mask."""
        axes: Axes = self.axes[state]
        if len(axes) < 2:
            return Name(self.at[state]), Literal(None)
        return Name(self.at[state]) + self._offsets(axes), both(over(axes, "in_{}")[:-1])

    def _offsets(self, axes: Axes) -> Code:
        parts = []
        for i, at in enumerate(over(axes, "at_{}")[:-1]):
            rest = axes[i + 1 : -1]
            parts.append(at * count_of(rest) if rest else at)
        return summed(*parts)
