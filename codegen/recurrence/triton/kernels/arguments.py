"""What a kernel is given: what each argument is for (`Role`), how it lies in memory, and what the kernel does there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ....ir.expr import Node


class Role(Enum):
    """What an argument is for; the value is how its name ends, after that of what it is of."""

    GIVEN = "_p"  # what the op is given, or what a kernel before this one has made
    OUT = "_out"  # what the kernel makes
    WHOLE = ""  # a matrix over the steps of a chunk, or a weight
    SUMS = "_sums"  # the cumulative sums of a decay's logarithms,
    RESTS = "_rests"  # what these leave,
    EXTENTS = "_extents"  # and how far they reach in a chunk
    BY_HEAD = "_by_head"  # a number of each step, laid out by heads
    CHECKPOINTS = "_checkpoints"  # a state at checkpoints
    FIRST = "_first"  # a state before the first step,
    LAST = "_last"  # after the last,
    LINEAR = "_linear"  # the matrix of a segment's map,
    TAIL = "_tail"  # a state, and
    TAIL_MAP = "_tail_map"  # that matrix, over a segment's last steps,
    LIVE = "_live"  # and whether it is anything but zero there
    NUMBER = "_c"  # a constant
    SIZE = "_all"  # the size of a dim


STRIDES = "bthg"  # how the names of a tensor's strides end, and of how many heads share one of its own


def names_of_arguments(base: str) -> frozenset[str]:
    """All names of arguments that are of this."""
    return frozenset((*(f"{base}{role.value}" for role in Role), *(f"{base}_{x}" for x in STRIDES)))


@dataclass(frozen=True)
class Argument:
    """A tensor (or number) that a kernel is given, named by what it is of and its role. layout:

    step    [B, T, H, X] with strides            sums, tile   what `Store` says
    head    [H, X]                               number, size a float, or the size of a dim
    chunked [B, H, T, X]                         matrix       [B, H, chunks, C, C]
    state   [B, H, *axes], or None

    `loaded`, `stored`: does the kernel load what it is given, and does it store there?
    """

    base: str
    role: Role
    layout: str
    source: Node | None = None
    axes: tuple[str, ...] = ()
    loaded: bool = True
    stored: bool = False

    @property
    def name(self) -> str:
        return f"{self.base}{self.role.value}"

    @property
    def parameters(self) -> list[str]:
        """Its name in the kernel, with those of its strides, and of how many heads share one of its own."""
        strides = [f"{self.base}_{x}" for x in STRIDES] if self.layout == "step" else []
        return [self.name, *strides]
