"""A kernel over chunks, with what its launches need to know of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ....ir.expr import ROW, Node, dim_of, walk
from ....ir.kernel_ir import (
    Body,
    KernelFunction,
    Parameter,
    Slices,
)
from ....ir.placed_tiles import PlacedKernel
from ....ir.warp_schedule import Schedule
from ...normal_form.form import StateForm
from ..plan_passes.hoist import Opened
from ..plan_passes.roles import TRANSITION
from ..plan_passes.value_placement import Store
from ..print.axis_names import block_name, size_name, tile_name
from ..print.names import NameOf as NameOf
from .arguments import Argument, Role
from .tile_lowering import Tiles
from .tile_values import Cumulative


@dataclass(frozen=True)
class Alone:
    """What a sweep loads and stores for one of its reads, and the states whose decays' gradients it sums there."""

    loads: frozenset[str]
    stores: frozenset[Node]
    states: frozenset[str]


@dataclass(frozen=True, eq=False)
class Piece:
    """What a kernel computes: a sweep's program, of these states, and what is stored of it."""

    opened: Opened
    group: tuple[StateForm, ...] = ()
    stores: tuple[Store, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """A kernel, and what its launches need to know. `tiled` is the axis whose tiles have programs of their own, None for none."""

    name: str
    body: Body
    doc: str
    arguments: tuple[Argument, ...]
    axes: tuple[str, ...]  # axes with an index, a size and a block
    tiled: str | None
    sweeps: bool
    parts: tuple[str, ...] = ()  # axes that are swept in blocks
    finals: tuple[str, ...] = ()  # states whose last value it yields,
    each: bool = False  # that of each segment
    checkpoints: tuple[str, ...] = ()  # states that it stores at checkpoints
    reads: bool = False  # does it read states there?
    many: bool = False  # are there many?
    slow_path: Body = ()  # a second kernel, where it takes only chunks that are of a small decay range: for all others
    slices: tuple[Slices, ...] = ()  # axes that a sweep takes slice by slice
    pieces: tuple[Piece, ...] = ()  # what it is for, which a gate compares with what it leaves in memory
    spans: tuple[
        tuple[StateForm, StateForm], ...
    ] = ()  # states, and their gradients, of whose products it makes decays' gradients
    making: frozenset[str] = frozenset()  # decays whose sums it makes
    loads: tuple[tuple[str, str | None], ...] = ()  # what a sweep loads, as `loaded_tiles` has it
    heavy: bool = False  # does a sweep load more than one that makes several reads should?
    inside: frozenset[str] = frozenset()  # decays of which a sweep loads sums inside chunks
    replaces: tuple[str, ...] = ()  # decays whose sums it may replace: each program loads what it has of them alone
    few: bool = False  # can a prologue kernel of a sweep do with few registers?
    queues: bool = False  # does a program of a prologue kernel of a sweep take one chunk after the other?
    whole: bool = False  # does a sweep take blocks of steps, with states whole?
    rows: str | None = (
        None  # the axis in rows of the states that it stores at checkpoints, for a sweep that has them whole
    )
    inner: str | None = None  # where a sweep makes the matrix of a segment's map as well: the axis of its columns
    tails: bool = False  # and it may be zero over the last steps of a segment, which launches of their own sweep over
    slim: bool = False  # has that sweep the registers for four programs on a multiprocessor?
    carried: frozenset[str] = frozenset()  # what a sweep loads for states alone, not for what it yields
    products: frozenset[str] = frozenset()  # what a sweep loads whose elements may be products with the identity
    apart: tuple[Alone, ...] = ()  # a sweep's reads, where launches may make one each
    one_tile: bool = False  # must a program of a sweep have the axis whole that it has a tile of?
    roles: Schedule | None = None  # of the kernel in its place whose warps have roles, if there is one
    placed: PlacedKernel | None = None  # that in its place whose tiles are copied ahead of time, if there is one

    @cached_property
    def function(self) -> KernelFunction:
        """The kernel as it is before all passes."""
        sizes = dict.fromkeys(size_name(dim_of(x)) for x in (*self.axes, *self.parts))
        words = [*sizes, *(block_name(x) for x in self.axes), *map(tile_name, self.parts)]
        words += ["SMALL_RANGE", "GROUP"] if self.slow_path else []
        words += ["YIELD", "WARPS", "STAGES"] if self.sweeps else ["CHUNK"]
        words += [*(["PRODUCTS"] if self.products else []), *(["READ"] if self.apart else [])]
        words += ["TAIL"] if self.tails else []
        words += ["STAGES"] if self.queues else []
        words += ["BLOCK"] if self.checkpoints else []
        words += ["ROWS"] if self.rows else []
        words += ["C", "LEVELS", "EVEN", "EXACT", "DT"]
        places = ("starts", "segments", "length") if self.sweeps else ("begins", "stops", "programs")
        return KernelFunction(
            self.name,
            tuple(tuple(map(Parameter, a.parameters)) for a in self.arguments),
            ("T", "H", "chunks", *places),
            tuple(words),
            self.doc,
            self.body,
            ("T", "chunks", *(("segments", "length") if self.sweeps else ("programs",))),
            ("blocks",) if self.checkpoints else (),
            slices=self.slices,
        )

    @property
    def functions(self) -> tuple[KernelFunction, ...]:
        """The kernel, and that for what it leaves, if there is one."""
        return (self.function, self.for_slow_path().function) if self.slow_path else (self.function,)

    def for_slow_path(self) -> Kernel:
        """The kernel for what this one leaves."""
        return replace(
            self,
            name=slow_path_name(self.name),
            body=self.slow_path,
            doc="The slow path of the same, for chunks of a large decay range: a program looks at some, one after the other.",
        )


def slow_path_name(kernel: str) -> str:
    return f"{kernel}_slow"


def loaded_tiles(tiles: Tiles) -> tuple[tuple[str, str | None], ...]:
    """What a sweep loads for a chunk: the argument, and the axis beside steps, None for a matrix over these, ROW for numbers."""
    found: list[tuple[str, str | None]] = [*tiles.loaded]
    sums = [x.decay for x in sums_loaded(tiles) if x.edge != "end" and not x.rows]
    for a in tiles.arguments.values():
        if a.layout == "matrix":
            found.append((a.name, None))
        elif a.role is Role.SUMS:
            found += [(a.name, a.axes[0] if a.axes else ROW)] * sums.count(a.base)
        elif a.role is Role.BY_HEAD or _is_weight(a):
            found.append((a.name, ROW))
    return tuple(found)


def sums_loaded(tiles: Tiles) -> list[Cumulative]:
    """The cumulative sums of decays that a kernel loads."""
    return [x for x in tiles.loads if isinstance(x, Cumulative) and not x.rests]


def _is_weight(a: Argument) -> bool:
    """Is it how much of one state is in another, at each step?"""
    return a.source is not None and a.source.op == "leaf" and a.source.attrs[0] == TRANSITION


def by_channel(*nodes: Node) -> bool:
    """Are sums with a decay for each channel among these, over the steps of a chunk?"""
    return any(y.op == "decay_mask" and len(y.axes) > 2 for y in walk(*nodes))
