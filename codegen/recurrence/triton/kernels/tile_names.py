"""Names, axes and arguments of a kernel over chunks while its statements are made.

A value is a tensor of at most two axes, in the order steps, full axis, tile axis; in a sweep the tile axis comes first, so that
what one product leaves in registers is the left operand of the next one, and goes through no shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as replaced

from ....ir.code import (
    Code,
    Expanded,
    Name,
    both,
    code,
)
from ....ir.expr import (
    Node,
    factors_of,
    leaf,
    plain_name,
)
from ....ir.kernel_ir import Statement, let
from ..plan_passes.hoist import Opened
from ..plan_passes.roles import STEPS, TRANSITION
from ..print.axis_names import axis_name, block_name
from ..print.reserved import RESERVED
from .arguments import Argument, Role, names_of_arguments
from .tile_values import Value, zeros_of

NAMED = ("read", "write", "stored", "scaled", "intra", "matrix", "prologue", TRANSITION)
TAKEN = frozenset("i c h b bh sh t0 at row step first last tl T H C DT".split())  # names that each kernel has


@dataclass(frozen=True)
class Scope:
    """What the statements of a kernel are made over: axes that a program has whole, and those that it has tiles of; the direction
    of time; decays and streams of each step; and the definitions of what the kernel makes."""

    full: tuple[str, ...]
    tile: tuple[str, ...]
    direction: int
    decays: dict[Node, Node]
    streams: dict[Node, Node]
    definitions: dict[Node, Node]
    name_of: Callable[[Node], str]
    sweeps: bool = False  # does the kernel take chunk after chunk?

    @classmethod
    def of(
        cls, o: Opened, definitions: dict[Node, Node], name_of: Callable[[Node], str], sweeps: bool = False
    ) -> Scope:
        return cls(o.full, o.tile, o.direction, o.decays, o.streams, definitions, name_of, sweeps)


class TileNames:
    """The `body` of a kernel so far, the names in it, and its arguments."""

    def __init__(self, scope: Scope) -> None:
        self.full, self.tile, self.forward, self.sweeps = scope.full, scope.tile, scope.direction > 0, scope.sweeps
        self.name_of = scope.name_of
        self.body: list[Statement] = []
        self.head: list[Statement] = []  # loads at the start of a chunk, so that nothing waits for them
        self.memo: dict[Node, Value] = {}
        self.definitions = scope.definitions
        self.wishes: dict[Node, str] = {}  # what nodes are for, by which their values are called
        self.arguments: dict[str, Argument] = {}
        self.names = {*TAKEN, *(plain_name(axis_name(a)) for a in (*self.full, *self.tile))}  # in plain letters

    def value(self, x: Node) -> Value:
        """A node as a value, made once; `Tiles` knows how."""
        raise NotImplementedError

    @property
    def chunk(self) -> str:
        """The steps of a chunk; a kernel that doesn't sweep may take several at once."""
        return "C" if self.sweeps else "CHUNK"

    def rank(self, axis: str) -> tuple[int, str]:
        if axis in STEPS:
            return STEPS.index(axis), ""
        return (3 if axis in self.full else -1 if self.sweeps else 4), axis

    def ordered(self, axes: set[str] | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(axes, key=self.rank))

    def index(self, axis: str) -> str:
        return "i" if axis in STEPS else axis_name(axis)

    def ok(self, axis: str) -> str:
        return f"{self.index(axis)}_ok"

    def along(self, x: Code | str, axis: str, axes: tuple[str, ...]) -> Code:
        """A vector over an axis, to be broadcast over two."""
        return code(x) if len(axes) < 2 else Expanded(code(x), (axes[0] == axis, axes[0] != axis))

    def inside(self, axes: tuple[str, ...]) -> Code:
        """Where a tile has an entry."""
        return both(*(self.along(self.ok(a), a, axes) for a in axes))

    def zeros(self, axes: tuple[str, ...]) -> Code:
        return zeros_of("C" if a in STEPS else block_name(a) for a in axes)

    def _in_slices(self, axis: str) -> bool:
        """Does a sweep take an axis slice by slice, so that sums over it are added up?"""
        return self.sweeps and axis in self.full

    def fresh(self, wish: str) -> str:
        stem = plain_name(wish)
        name, n = stem, 1
        while name in self.names:
            n += 1
            name = f"{stem}{n}"
        self.names.add(name)
        return wish if n == 1 else f"{wish}{n}"

    def called(self, x: Node, name: str) -> Node:
        """x, which is called `name` where it is made; of a definition, what that is."""
        node: Node | None = x
        while node is not None and node.op == "leaf" and node.attrs[0] == "inner":
            node = next((made for d, made in self.definitions.items() if d.attrs[1] == node.attrs[1]), None)
        if node is not None:
            self.wishes.setdefault(node, name)
        return x

    def wish(self, x: Node, other: str) -> str:
        """What a value is called: by what it is for, or by the two tiles that it is a product of, or else as an `other`."""
        if x in self.wishes:
            return self.wishes[x]
        tiles = [y for y in factors_of(x.args[0]) if len(y.axes) == 2] if x.op == "sum" else []
        if len(tiles) != 2:
            return other
        names = [self._name_of_tile(y) for y in sorted(tiles, key=lambda y: min(map(_place, {*x.axes} & {*y.axes})))]
        name = "_".join(filter(None, names))
        taken = RESERVED | {plain_name(y) for n in names if n for y in names_of_arguments(n)}
        return other if plain_name(name) in taken or not all(names) else name

    def _name_of_tile(self, x: Node) -> str | None:
        if x.op == "leaf" and x.attrs[0] in NAMED:
            return self.name_of(leaf(*x.attrs[:2]))
        v = self.memo.get(x)
        return v.name if v is not None and v.named and "_" not in v.name else None

    def assign(self, wish: str, x: Code, axes: tuple[str, ...], raw: bool = False, note: str = "") -> Value:
        name = self.fresh(wish)
        self.body.append(let(name, x, note=note))
        return Value(Name(name), axes, raw)

    def argument(
        self,
        base: str,
        role: Role,
        layout: str,
        source: Node | None = None,
        axes: tuple[str, ...] = (),
        stores: bool = False,
    ) -> str:
        """The name of an argument that is loaded, or that the kernel `stores` to."""
        new = Argument(base, role, layout, source, axes, loaded=False)
        name = new.name
        self.names.add(plain_name(name))
        known = self.arguments.get(name, new)
        assert known.layout == layout, name
        self.arguments[name] = replaced(known, loaded=known.loaded or not stores, stored=known.stored or stores)
        return name


def _place(axis: str) -> tuple[int, str]:
    """In which order mathematics has axes: first steps that read, then those that write."""
    return (STEPS.index(axis), "") if axis in STEPS else (len(STEPS), axis)
