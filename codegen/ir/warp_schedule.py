"""A schedule with roles: which warps of a program make which value, where it lies, and who waits for whom.

A program has several roles, each of some warps, which take the chunks of a sequence one after the other, at the same time. What
one makes for another goes through a ring: buffers in shared memory, filled one after the other, each of which is behind two
barriers: `ready` once it is filled, `empty` once nobody needs what is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from .code import Call, Code, Name
from .kernel_ir import Body, KernelFunction


@dataclass(frozen=True)
class Accumulator:
    """Where a tile of [rows, columns] lies in registers: as tensor cores leave it."""

    rows: str
    columns: str


@dataclass(frozen=True)
class Operand:
    """As tensor cores take the left operand of a product that `of` is the result of."""

    of: Accumulator
    depth: str  # its columns


@dataclass(frozen=True)
class Blocks:
    """Tiles of [rows, columns] of all chunks of a stage at once, as tensor cores leave products of small matrices."""

    rows: str
    columns: str


Layout = Accumulator | Operand | Blocks


START, STOP = Name("t0"), Name("stop")  # the first step of a chunk, and that after the last of a sequence


@dataclass(frozen=True)
class Tile:
    """Rows of a tensor as the copy engine moves them, such as steps of one head: from `base` on, `width` numbers a row, rows
    `stride` apart, none at `stop` or after it. A program has those from `offset` on, at most so many as a block, of so many
    `rows` from `first` on, which for a chunk are its steps."""

    base: Code
    width: str
    stride: Code
    offset: Code
    block: str
    first: Code = START
    rows: str = "C"
    stop: Code = STOP


@dataclass(frozen=True)
class Ring:
    """Buffers in shared memory [C, X] or [C] or [1], one for each chunk that is under way. `tile`: the copy engine fills them;
    otherwise a role does, with float32, or with an `operand` of products in their dtype. `turned`: the value of this name is the
    transpose of what lies there."""

    name: str
    shape: tuple[str, ...]
    tile: Tile | None = None
    turned: bool = False
    operand: bool = False

    @property
    def is_operand(self) -> bool:
        """Do products take it from there?"""
        return self.operand or self.tile is not None


@dataclass(frozen=True)
class Buffer:
    """One buffer in shared memory, in the dtype of products; or, where the copy engine takes what is in it to a `tile`, in that
    of the tensor there, the argument `target`. `maybe`: a launch needn't give that argument, and then has no such buffer. Where
    several tensors leave through it, one after the other, each `Send` says where it goes."""

    name: str
    shape: tuple[str, str]
    tile: Tile | None = None
    target: str = ""
    maybe: bool = False


@dataclass(frozen=True)
class Barriers:
    """The two barriers of each stage of rings that are filled together: `ready` takes `arrivals` (the copy engine's bytes are
    one), `empty` those of `readers`. They have so many `stages`, or else as many as a launch says."""

    name: str
    rings: tuple[str, ...]
    arrivals: int
    readers: int
    stages: int | None = None


# --- what a role does -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Await:
    """Wait until a stage is ready, or empty."""

    barriers: str
    ready: bool


@dataclass(frozen=True)
class Arrive:
    barriers: str
    ready: bool


@dataclass(frozen=True)
class Fetch:
    """The copy engine is told to fill a stage of these rings, and arrives at `ready` when it has."""

    barriers: str
    rings: tuple[str, ...]


@dataclass(frozen=True)
class Make:
    """A value in this role's registers: a number (no layout), numbers of each step, or a tile, which lies so."""

    name: str
    value: Code
    layout: Layout | None = None
    note: str = ""


@dataclass(frozen=True)
class Put:
    """A value of this role goes into a stage of a ring, or into a buffer; `turned`: its transpose does."""

    place: str
    value: str
    turned: bool = False


@dataclass(frozen=True)
class Fence:
    """What this role has stored into shared memory, and loaded from there, comes before what the copy engine and tensor cores do
    there later."""


@dataclass(frozen=True)
class Shared:
    """An operand in shared memory: a ring's stage or a buffer, or its transpose."""

    place: str
    turned: bool


@dataclass(frozen=True)
class Held:
    """An operand in registers."""

    name: str


@dataclass(frozen=True)
class Product:
    """name = left right + onto, by tensor cores, which begin here; nothing is added where `onto` is None."""

    name: str
    left: Shared | Held
    right: Shared
    onto: str | None
    layout: Accumulator
    note: str = ""


@dataclass(frozen=True)
class Invert:
    """name = (I - value)^-1, of a value that is zero on its diagonal and on one side of it, by tensor cores, through buffers of
    its own."""

    name: str
    value: str
    layout: Blocks
    note: str = ""


@dataclass(frozen=True)
class Settle:
    """Wait for a product; so many that began after it may go on."""

    name: str
    outstanding: int


@dataclass(frozen=True)
class Drain:
    """Wait until the copy engine has read all buffers that it was told to take, but for those that it was told last: as many as
    `under_way` names that this launch has."""

    under_way: tuple[str, ...] = ()


@dataclass(frozen=True)
class Send:
    """The copy engine is told to take a buffer to where it belongs; or, of one that several tensors leave through, to a `tile` of
    the argument `target`."""

    buffer: str
    tile: Tile | None = None
    target: str = ""


@dataclass(frozen=True)
class Pass:
    """A name of the next round is a value of this one."""

    name: str
    value: str


@dataclass(frozen=True)
class Plain:
    """A statement on memory as it is, of tiles that lie so."""

    body: Body
    layout: Layout | None


@dataclass(frozen=True)
class Leave:
    """Sums over tiles of this role are left in memory, for each step or for each warp, by a function of the runtime."""

    call: Call


@dataclass(frozen=True)
class WhereGiven:
    """Steps of launches that give this argument."""

    argument: str
    steps: tuple[Step, ...]


Step = (
    Await
    | Arrive
    | Fetch
    | Make
    | Put
    | Fence
    | Product
    | Invert
    | Settle
    | Drain
    | Send
    | Pass
    | Plain
    | Leave
    | WhereGiven
)


@dataclass(frozen=True)
class Role:
    """Some warps: what they do before the first chunk, for each chunk, and after the last. `together`: where stages have several
    chunks, it does it for all of a stage at once; otherwise it waits for a stage at the first of these, and is done with it at
    the last."""

    name: str
    warps: int | str
    before: tuple[Step, ...]
    each: tuple[Step, ...]
    after: tuple[Step, ...]
    together: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them, with those of some launches alone."""
        return tuple(flat((*self.before, *self.each, *self.after)))

    @cached_property
    def made(self) -> frozenset[str]:
        """The names that it makes itself."""
        return frozenset(x.name for x in self.steps if isinstance(x, (Make, Product, Invert)))

    @cached_property
    def made_in_blocks(self) -> frozenset[str]:
        """Those of them that lie in blocks."""
        made = (x for x in self.steps if isinstance(x, (Make, Invert)))
        return frozenset(x.name for x in made if isinstance(x.layout, Blocks))


def flat(steps: Iterable[Step]) -> Iterator[Step]:
    for x in steps:
        if isinstance(x, WhereGiven):
            yield from flat(x.steps)
        else:
            yield x


@dataclass(frozen=True)
class Schedule:
    """`setup` are the numbers that all roles have: of a program. `indices`: vectors of numbers along an axis, by name, of which
    each tile makes its own. `scalars`: numbers of a chunk, which each role makes that needs them. `alike`: blocks of axes that a
    launch makes the same size. `several`: a stage has so many chunks as a launch says, or else one;
    `backwards`: the first that is taken of them is the last in memory."""

    name: str
    setup: Body
    indices: Body
    scalars: Body
    rings: tuple[Ring, ...]
    buffers: tuple[Buffer, ...]
    barriers: tuple[Barriers, ...]
    roles: tuple[Role, ...]
    alike: tuple[str, ...] = ()
    several: bool = False
    backwards: bool = False

    @cached_property
    def rings_by_name(self) -> dict[str, Ring]:
        return {x.name: x for x in self.rings}

    @cached_property
    def barriers_by_name(self) -> dict[str, Barriers]:
        return {x.name: x for x in self.barriers}

    @cached_property
    def _barriers_by_ring(self) -> dict[str, Barriers]:
        return {n: x for x in reversed(self.barriers) for n in x.rings}

    def ring(self, name: str) -> Ring | None:
        return self.rings_by_name.get(name)

    def buffer(self, name: str) -> Buffer | None:
        return next((x for x in self.buffers if x.name == name), None)

    @property
    def prepares(self) -> bool:
        """Does a role make what needs no state, of all chunks of a stage at once?"""
        return len(self.roles) > 2

    def barriers_of(self, ring: str) -> Barriers:
        return self._barriers_by_ring[ring]


@dataclass(frozen=True)
class WithRoles:
    """A kernel whose warps have roles: it is given what `function`, before all passes over it, is given."""

    function: KernelFunction
    schedule: Schedule

    @property
    def name(self) -> str:
        return with_roles_name(self.function.name)


def with_roles_name(kernel: str) -> str:
    """What it is called, beside the kernel without roles."""
    return f"{kernel}_roles"
