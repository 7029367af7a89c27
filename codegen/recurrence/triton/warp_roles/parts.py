"""What the statements of a sweep are: numbers of a program and of a chunk, indices, numbers of each step, tiles that the copy
engine can move; and the role that loads."""

from __future__ import annotations

from collections.abc import Iterable

from ....ir.code import Binary, Call, Code, Expanded, Literal, Load, Name, loads_in, names_in, plus, times
from ....ir.code_parts import walk_code
from ....ir.functions import TRITON
from ....ir.kernel_ir import Let, Statement, Store, argument_of
from ....ir.spellings import Function, called
from ....ir.warp_schedule import Arrive, Await, Barriers, Fetch, Make, Put, Ring, Role, Step, Tile
from ....printing.cannot_print import CannotPrint
from ..kernels.arguments import Argument
from ..kernels.chunk_kernel import Kernel
from .shapes import ONE, Shapes, expanded_along, factors_of, parts_of_sum, ungrouped
from .straight import Straight

GLUON = frozenset(
    "abs arange cast cdiv cos erf exp exp2 log log2 maximum minimum program_id rsqrt sin sqrt where zeros zeros_like".split()
)
CHUNK = "chunk"


class SweepParts:
    """What the statements of a sweep are: numbers of a program and of a chunk, indices, numbers of each step, and tiles. Raises
    CannotPrint where no step changes a state: roles know a state by the product that is added to it."""

    def __init__(self, k: Kernel, s: Straight) -> None:
        if any(x.op == "leaf" for piece in k.pieces for x in piece.opened.states.values()):
            raise CannotPrint("a state that no step changes")
        self.k, self.s = k, s
        self.shapes = Shapes()
        self.shapes.note((*s.setup, *s.loop))
        self.definitions = {x.names[0]: x for x in (*s.setup, *s.loop) if isinstance(x, Let)}
        self.indices: dict[str, Let] = {}
        self.scalars: dict[str, Let] = {}
        self.initial: dict[str, Let] = {}  # tiles that are made before the loop
        self.numbers: dict[str, Let] = {}  # of each step, and of a chunk's end, in floats
        self.tiles: dict[str, Let] = {}  # what is made in the loop, of two axes
        self.stores: list[Statement] = []
        self.rings: dict[str, Ring] = {}  # that are used, and
        self.known: dict[str, Ring | None] = {}  # that there may be
        for x in s.setup:
            self._before(x)
        for x in s.loop:
            self._inside(x)
        for x in (*self.setup, *self.indices.values(), *self.scalars.values(), *self.initial.values()):
            if isinstance(x, Let):
                written(x.value)

    def _before(self, x: Statement) -> None:
        if not isinstance(x, Let):
            raise CannotPrint("a statement before the loop that makes no name")
        rank = len(self.shapes.of(x.value))
        if rank:
            (self.indices if rank == 1 else self.initial)[x.names[0]] = x

    @property
    def setup(self) -> list[Statement]:
        """The numbers of a program."""
        return [x for x in self.s.setup if isinstance(x, Let) and not self.shapes.of(x.value)]

    def _inside(self, x: Statement) -> None:
        if not isinstance(x, Let):
            self.stores.append(x)
            return
        (name,), rank = x.names, len(self.shapes.of(x.value))
        loaded = bool(loads_in(x.value)) or any(n in self.numbers for n in names_in(x.value))
        if rank > 1:
            self.tiles[name] = x
        elif loaded:
            self.numbers[name] = x
        elif rank == 1:
            self.indices[name] = x
        else:
            self.scalars[name] = x

    # --- what is loaded

    def ring_of(self, name: str) -> Ring | None:
        """The ring that a name is the value of, if it is loaded for each chunk: a tile, or numbers of each step."""
        if name not in self.known:
            self.known[name] = self._ring(name)
        return self.known[name]

    def _ring(self, name: str) -> Ring | None:
        if name in self.numbers:
            return Ring(name, self.shapes.known[name] or (ONE,))
        if name in self.tiles and isinstance(load := self.tiles[name].value, Load):
            tile, turned = self.tile_of(load)
            return Ring(name, ("C", tile.block), tile, turned)
        return None

    def use(self, ring: Ring) -> None:
        """It is read by another role."""
        self.rings[ring.name] = ring

    def tile_of(self, x: Load) -> tuple[Tile, bool]:
        """What the copy engine loads in the place of a load, and whether its steps are columns there."""
        argument = argument_of(x.pointer, frozenset(self.definitions))
        base, *terms = parts_of_sum(x.pointer)
        given = {a.name: a.base for a in self.k.arguments if a.layout == "step" and self.may_move(a)}
        found = self._pointed(base, given)
        if argument is None or found is None or len(terms) != 3:
            raise CannotPrint(f"no tile of a tensor of steps is loaded from {x.pointer.text}")
        stride = Name(f"{found}_t")
        at, steps, channels = terms
        if at != times("t0", stride):
            raise CannotPrint(f"a tile that begins at no chunk: {x.pointer.text}")
        rows, columns = factors_of(steps)[0], expanded_along(channels, self.definitions)
        along = expanded_along(rows, self.definitions)
        if columns is None or along is None or along[0] != "i" or factors_of(steps)[1:] != [stride]:
            raise CannotPrint(f"a tile of no steps by channels: {x.pointer.text}")
        width = self._width(x.mask, ("i", along[1]), columns)
        if x.other != Literal(0.0):
            raise CannotPrint("a tile that isn't zero beyond its end")
        return Tile(base, width, stride, *self._axis(columns[0])), along[1] == 1

    def may_move(self, a: Argument) -> bool:
        """Is it what the op is given, whose dtype is known before the first launch?"""
        return a.source is not None and a.source.op == "leaf" and a.source.attrs[0] == "input"

    def _pointed(self, base: Code, arguments: dict[str, str]) -> str | None:
        """The stem of the argument that a pointer of this program points into."""
        if not isinstance(base, Name):
            return None
        x = self.definitions.get(base.id)
        first = base if x is None else parts_of_sum(x.value)[0]
        return arguments.get(first.id) if isinstance(first, Name) else None

    def _axis(self, index: str) -> tuple[Code, str]:
        """Where a program's part of an axis begins, and how much of it that is, by the name of its index."""
        *before, own = parts_of_sum(self.definitions[index].value)
        if not isinstance(own, Call) or own.function != "tl.arange":
            raise CannotPrint(f"{index} is no index along an axis")
        return plus(*before) if before else Literal(0), own.arguments[1].text

    def _width(self, mask: Code | None, *among: tuple[str, int]) -> str:
        """The channels that a mask lets pass, which is one of these indices along these axes: the last is that of channels."""
        parts = () if mask is None else (mask,) if isinstance(mask, Expanded) else mask.parts
        bounds: dict[tuple[str, int], Code] = {}
        for x in parts:
            made = self.definitions.get(x.value.id) if isinstance(x, Expanded) and isinstance(x.value, Name) else None
            match made, x:
                case Let(value=Binary(operator="<", left=Name(id=index), right=right)), Expanded(own=own):
                    bounds[index, own.index(True)] = right
        if set(bounds) != set(among) or len(parts) != len(bounds):
            raise CannotPrint(f"a tile is masked by {None if mask is None else mask.text}")
        return bounds[among[-1]].text

    def target_of(self, x: Store) -> tuple[Tile, bool]:
        """Where the copy engine puts what a store stores, and whether its steps are columns."""
        base, *terms = parts_of_sum(x.pointer)
        outs = {a.name for a in self.k.arguments if a.layout == "out"}
        if not isinstance(base, Name) or base.id not in outs or len(terms) != 3:
            raise CannotPrint(f"no tile of an output is stored at {x.pointer.text}")
        at, steps, channels = terms
        rows, columns = factors_of(steps)[0], expanded_along(channels, self.definitions)
        along = expanded_along(rows, self.definitions)
        if columns is None or along is None or along[0] != "i":
            raise CannotPrint(f"a tile of no steps by channels: {x.pointer.text}")
        width = self._width(x.mask, ("i", along[1]), columns)
        if at != times("step", width) or factors_of(steps)[1:] != [Name("H"), Name(width)]:
            raise CannotPrint(f"an output's steps lie otherwise: {x.pointer.text}")
        first = plus(base, times(plus(times("b", "T", "H"), "h"), width))
        return Tile(first, width, times("H", width), *self._axis(columns[0])), along[1] == 1

    def checkpoint_of(self, x: Store) -> tuple[Tile, bool]:
        """Where the copy engine puts a state that a store leaves before a block of steps, and whether its rows are columns there:
        the states of a sequence's blocks lie one after the other, in rows that all heads have side by side."""
        checkpoints = {a.name for a in self.k.arguments if a.layout == "checkpoint"}
        match parts_of_sum(x.pointer):
            case [
                Name(id=argument) as base,
                Binary(operator="*", left=places, right=Name(id=width)),
                Expanded() as channels,
            ] if argument in checkpoints:
                rows = parts_of_sum(factors_of(parts_of_sum(places)[0])[0])[-1]
                at, columns = (expanded_along(y, self.definitions) for y in (rows, channels))
            case _:
                at = columns = None
        if at is None or columns is None:
            raise CannotPrint(f"no state is left at {x.pointer.text}")
        here = plus(times("b", "blocks"), "first_block", "n")
        there = plus(base, times(plus(times(plus(times(here, "ROWS"), rows), "H"), "h"), width), channels)
        if there != ungrouped(x.pointer) or self._width(x.mask, columns) != width:
            raise CannotPrint(f"a state is left otherwise: {x.pointer.text}")
        first, block = self._axis(at[0])
        tile = Tile(
            plus(base, times(plus(times("b", "blocks", "ROWS", "H"), "h"), width)),
            width,
            times("H", width),
            *self._axis(columns[0]),
            plus(times(plus("first_block", "n"), "ROWS"), first),
            block,
            times("blocks", "ROWS"),
        )
        return tile, at[1] == 1

    def there(self, ok: Code) -> Code:
        """How many steps a chunk has, by the vector that says which."""
        match self.indices.get(ok.id) if isinstance(ok, Name) else None:
            case Let(value=Binary(operator="<", left=Name(id="i"), right=right)):
                return right
        raise CannotPrint(f"a mask that isn't of a chunk's first steps: {ok.text}")

    # --- the loader

    @property
    def barriers(self) -> Barriers:
        puts = any(x.tile is None for x in self.rings.values())
        return Barriers(CHUNK, tuple(self.rings), 1 + puts, 1)

    def loader(self) -> Role:
        """Fetches tiles, and makes numbers of each step: what it loads of these is under way while it waits for room."""
        fetched = fetch(CHUNK, (x.name for x in self.rings.values() if x.tile is not None))
        put = [x.name for x in self.rings.values() if x.tile is None]
        needed: set[str] = set(put)
        for name, x in reversed(self.numbers.items()):
            if name in needed:
                needed |= names_in(x.value)
        made = [Make(n, x.value, note=x.note) for n, x in self.numbers.items() if n in needed]
        for each in made:
            written(each.value)
        loads = [x for x in made if loads_in(x.value)]
        steps: list[Step] = [*loads, Await(CHUNK, False), fetched]
        steps += [x for x in made if x not in loads]
        steps += [Put(n, n) for n in put]
        steps += [Arrive(CHUNK, True)] if put else []
        return Role("loader", 1, (), tuple(steps), ())


def fetch(barriers: str, rings: Iterable[str]) -> Fetch:
    """What the copy engine is told to fill. It arrives at a barrier once its bytes have: there must be some."""
    if not (found := tuple(rings)):
        raise CannotPrint("nothing for the copy engine, as where states are scaled and nothing is added to them")
    return Fetch(barriers, found)


def written(x: Code) -> None:
    """Refuse what Gluon has no name for."""
    for y in walk_code(x):
        names: set[str] = set()
        if isinstance(y, Function):
            names = {x.removeprefix("tl.") for x in called(y.name, TRITON)}
        elif isinstance(y, Call) and y.function != "float":
            names = {y.function.removeprefix("tl."), *(n for n, _ in y.keywords)}
        if not names <= GLUON:
            raise CannotPrint(f"Gluon has no {', '.join(sorted(names - GLUON))}")
