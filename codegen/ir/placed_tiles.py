"""A kernel that has each of its tiles once, as one program in Gluon does it: tiles are copied from memory to places of their own
in shared memory, while others are used; products begin, and are waited for, apart."""

from __future__ import annotations

from dataclasses import dataclass

from .code import Code, Load
from .kernel_ir import Body, KernelFunction

Tile = tuple[str, str]  # the names of its sizes


@dataclass(frozen=True)
class Place:
    """Shared memory [rows, columns] for the tile `name`, as memory has it: `turned`, it is the transpose of that. It is copied
    from where `load` says, of the argument `source`. `dtype` is that of its entries."""

    name: str
    load: Load
    source: str
    dtype: str
    shape: Tile
    turned: bool = False


@dataclass(frozen=True)
class Copy:
    """A copy to a place begins."""

    place: Place


@dataclass(frozen=True)
class CopiesAwaited:
    """All copies are there but for so many that began last."""

    under_way: int


@dataclass(frozen=True)
class Operand:
    """A tile in its place, or the transpose of what is there."""

    place: str
    turned: bool


@dataclass(frozen=True)
class ProductBegun:
    """name = left right begins."""

    name: str
    left: Operand
    right: Operand
    shape: Tile
    note: str = ""


@dataclass(frozen=True)
class ProductAwaited:
    """A product is there; so many that began after it may go on."""

    name: str
    under_way: int


@dataclass(frozen=True)
class Made:
    """A name of a tile, or of numbers along an axis, in registers."""

    name: str
    value: Code
    shape: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Kept:
    """What is made of the tile at a place alone takes that place, and is read from there by this name."""

    name: str
    place: str
    value: Code
    note: str = ""


@dataclass(frozen=True)
class Left:
    """A tile goes to memory."""

    pointer: Code
    target: str
    value: Code
    mask: Code | None
    shape: Tile
    note: str = ""


Step = Copy | CopiesAwaited | ProductBegun | ProductAwaited | Made | Kept | Left


@dataclass(frozen=True)
class PlacedKernel:
    """Such a kernel. It is given what `function` is given, before all passes over it. `setup` are the numbers of a program,
    `indices` vectors of numbers along an axis, by name; `main` are the sizes of the tiles whose rows and columns have all other
    vectors beside them."""

    function: KernelFunction
    setup: Body
    indices: Body
    main: Tile
    steps: tuple[Step, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The arguments of which tiles are copied, in the dtype of products."""
        copied = (x.place for x in self.steps if isinstance(x, Copy))
        return tuple(dict.fromkeys(x.source for x in copied if x.dtype == "DT"))

    @property
    def name(self) -> str:
        return placed_name(self.function.name)


def placed_name(kernel: str) -> str:
    return f"{kernel}_placed"
