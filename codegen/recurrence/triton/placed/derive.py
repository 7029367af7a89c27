"""The pass that gives tiles places: the statements of a kernel that has each of its tiles once -> its steps.

Copies begin as early as there is room for them, in the order in which tiles are needed. Refused with CannotPrint is what the
steps have no name for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ....ir.code import (
    Binary,
    Call,
    Cast,
    Code,
    Expanded,
    Group,
    Literal,
    Load,
    Name,
    call,
    loads_in,
    names_in,
)
from ....ir.code_parts import rebuilt, walk_code
from ....ir.kernel_ir import If, Let, Note, Return, Statement, Store, argument_of, names_of, reads
from ....ir.placed_tiles import (
    CopiesAwaited,
    Copy,
    Kept,
    Left,
    Made,
    Operand,
    Place,
    PlacedKernel,
    ProductAwaited,
    ProductBegun,
    Step,
)
from ....printing.cannot_print import CannotPrint
from ....printing.placed_text import names_made
from ..kernels.arguments import Role
from ..kernels.chunk_kernel import Kernel
from ..print.axis_names import block_name
from ..warp_roles.shapes import ONE, parts_of_sum, ungrouped
from ..warp_roles.straight import folded

WORDS: dict[Code, Code] = {Name("SMALL_RANGE"): Literal(True), Name("EXACT"): Literal(False)}
ZERO = Literal(0)
STEPS, WIDE, NARROW = (
    64,
    128,
    64,
)  # sizes that room is counted for: of steps, of an axis that is whole, and of one in tiles
ROOM = 112 * 1024  # bytes of shared memory that a program has, of two on a multiprocessor
OFTEN = 3  # a tile that no product takes has a place where so many statements read it
ON_TENSOR_CORES = {"added_sum": 2, "later_sums": 3}  # tiles of two bytes that these have in shared memory meanwhile
SETTLES = frozenset((*ON_TENSOR_CORES, "diagonal", "tl.sum"))  # what needs shared memory of its own
OF_NUMBERS = frozenset(
    "program_id cdiv minimum maximum multiple_of arange full where exp exp2 abs zeros zeros_like sum cast".split()
)


def placed_if_any(k: Kernel) -> PlacedKernel | None:
    """A kernel that reads states, with places for its tiles, if there are steps for all that it does."""
    try:
        return placed_kernel(k)
    except CannotPrint:
        return None


def placed_kernel(k: Kernel) -> PlacedKernel:
    """The kernel with places for its tiles.

    Raises CannotPrint: it does what there are no steps for.
    """
    if not k.reads or k.tiled is None or len(k.axes) != 2 or not k.slow_path:
        raise CannotPrint("places are for tiles of kernels that read states of two axes, with a decay for each channel")
    found = _Placing(k).kernel()
    if not any(isinstance(x, ProductBegun) for x in found.steps):
        raise CannotPrint("a kernel without products has no use for places")
    return found


@dataclass
class _Placing:
    k: Kernel
    known: dict[str, Code] = field(default_factory=dict)  # names that are only another's, or a number
    shapes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    setup: list[Statement] = field(default_factory=list)
    indices: dict[str, Let] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)  # but for copies and waits
    products: dict[str, ProductBegun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arguments = {a.name: a for a in self.k.arguments}
        self.main = ("C", block_name(self.k.tiled or ""))

    def kernel(self) -> PlacedKernel:
        for x in self.k.body:
            self.statement(x)
        seldom = [n for n in self.places if not self.has_place(n)]
        for n, step in enumerate(self.steps):  # what is seldom read, and by no product, comes to registers
            if isinstance(step, Copy) and step.place.name in seldom:
                self.places.pop(step.place.name)
                self.steps[n] = Made(step.place.name, step.place.load, step.place.shape)
        sizes = {n: self.bytes_of(x) for n, x in self.places.items()}
        steps = tuple(_scheduled(list(self.kept()), self.places, sizes))
        indices = tuple(self.indices.values())
        made = PlacedKernel(self.k.function, tuple(self.needed(steps)), indices, self.main, steps)
        if taken := sorted(names_made(made) & names_of(self.k.function)):
            raise CannotPrint(f"its places would be called {', '.join(taken)}, which are names of the kernel")
        return made

    def needed(self, steps: tuple[Step, ...]) -> list[Statement]:
        """The numbers of a program that something reads."""
        used = frozenset[str]().union(*map(_read, steps), *map(reads, self.indices.values()))
        found: list[Statement] = []
        for x in reversed(self.setup):
            if not isinstance(x, Let) or used & set(x.names):
                used |= reads(x)
                found.append(x)
        return found[::-1]

    # --- statements

    def statement(self, x: Statement) -> None:
        match x:
            case Note():
                return
            case If(condition=condition, body=body, otherwise=otherwise):
                known = self.of(condition)
                if isinstance(known, Literal):
                    for y in body if known.value else otherwise:
                        self.statement(y)
                elif body == (Return(),) and not otherwise and not self.shape(known):
                    self.setup.append(If(known, body))
                else:
                    raise CannotPrint("a condition that is known to no launch")
            case Let(names=names, value=Call(function="chunk_of" | "place_of") as value):
                self.setup.append(Let(names, self.of(value)))
            case Let(names=(name,), sign="+=", value=value) if name in self.arguments:
                self.setup.append(Let((name,), self.of(value), "+="))
            case Let(names=(name,), sign="=", value=value, note=note):
                self.let(name, self.of(value), note)
            case Store(pointer=pointer, value=value, mask=mask, note=note):
                self.store(self.of(pointer), self.of(value), None if mask is None else self.of(mask), note)
            case _:
                raise CannotPrint(f"a kernel with places has no {type(x).__name__.lower()}")

    def let(self, name: str, value: Code, note: str) -> None:
        if name in self.shapes or name in self.known:
            raise CannotPrint(f"{name} is made twice")
        if isinstance(value, Name | Literal):
            self.known[name] = value
            return
        if isinstance(value, Call) and value.function == "tl.full" and value.arguments[1] == ZERO:
            self.known[name] = ZERO
            return
        if isinstance(value, Call) and value.function == "tl.dot":
            self.product(name, value, note)
            return
        found = self.shape(value)
        if len(found) == 2 and isinstance(value, Load):
            self.load(name, value, found)
            return
        value = self.loaded_apart(name, value)
        self.shapes[name] = found
        if not found:
            self.setup.append(Let((name,), value, note=note))
        elif len(found) == 1 and self.is_index(value):
            self.indices[name] = Let((name,), value)
        else:
            self.steps.append(Made(name, value, found, note))

    def is_index(self, x: Code) -> bool:
        return (
            not loads_in(x)
            and all(n in self.indices or not self.shapes.get(n) for n in names_in(x))
            and not _calls(x) & SETTLES
        )

    def loaded_apart(self, name: str, value: Code) -> Code:
        """A value with a name in the place of the tile that it loads."""

        def change(x: Code) -> Code:
            if isinstance(x, Load) and len(found := self.shape(x)) == 2:
                self.load(own := f"{name}_loaded", x, found)
                return Name(own)
            return rebuilt(x, change)

        return change(value)

    def load(self, name: str, x: Load, found: tuple[str, ...]) -> None:
        if x.other not in (Literal(0), Literal(0.0), None) or x.mask is None:
            raise CannotPrint(f"{name} isn't zero beyond its end")
        source = argument_of(x.pointer, frozenset(self.arguments))
        side_by_side = [y.own.index(True) for y in parts_of_sum(x.pointer) if isinstance(y, Expanded)]
        if source is None or len(side_by_side) != 1:
            raise CannotPrint(f"{name} has no entries side by side in memory")
        turned = side_by_side == [0]
        shape = found[::-1] if turned else found
        self.shapes[name] = found
        dtype = "tl.float32" if self.arguments[source].role is Role.SUMS else "DT"
        self.places[name] = Place(name, x, source, dtype, (shape[0], shape[1]), turned)
        self.steps.append(Copy(self.places[name]))

    def product(self, name: str, x: Call, note: str) -> None:
        left, right = map(self.operand, x.arguments[:2])
        if len(x.arguments) > 2:
            raise CannotPrint("a product that is added to something")
        shape = (self.side(left, 0), self.side(right, 1))
        self.shapes[name] = shape
        self.products[name] = ProductBegun(name, left, right, shape, note)
        self.steps.append(self.products[name])

    def operand(self, x: Code) -> Operand:
        turned = False
        while True:
            match x:
                case Group(value=value) | Cast(value=value, dtype="DT"):
                    x = value
                case Call(function="tl.trans", arguments=(value,)):
                    x, turned = value, not turned
                case Name(id=name) if name in self.places:
                    return Operand(name, turned != self.places[name].turned)
                case _:
                    raise CannotPrint(f"a product of {x.text}, which isn't loaded")

    def side(self, x: Operand, axis: int) -> str:
        return self.places[x.place].shape[1 - axis if x.turned else axis]

    def store(self, pointer: Code, value: Code, mask: Code | None, note: str) -> None:
        target = argument_of(pointer, frozenset(self.arguments))
        shape = self.shape(value)
        if target is None or len(shape) != 2:
            raise CannotPrint("what is stored is no tile")
        self.steps.append(Left(pointer, target, value, mask, (shape[0], shape[1]), note))

    # --- expressions

    def of(self, x: Code) -> Code:
        """An expression without what is known when it is printed, in the functions that kernels in Gluon call."""

        def change(y: Code) -> Code:
            if isinstance(y, Name):
                return self.known.get(y.id, WORDS.get(y, y))
            y = folded(rebuilt(y, change), WORDS)
            if isinstance(y, Expanded) and isinstance(y.value, Literal):
                return y.value
            return _in_parts(y) if isinstance(y, Call) else y

        return change(ungrouped(x))

    def shape(self, x: Code) -> tuple[str, ...]:
        match x:
            case Name(id=name):
                return self.shapes.get(name, ())
            case Expanded(value=value, own=own):
                (size,) = self.shape(value) or (ONE,)
                return tuple(size if y else ONE for y in own)
            case Call(function="tl.arange", arguments=(_, end)):
                return (end.text,)
            case Call(function="tl.full" | "tl.zeros"):
                raise CannotPrint(f"{x.text} has no place")
            case Call(function="tl.sum", arguments=(value,), keywords=((_, Literal(value=axis)),)):
                return tuple(y for n, y in enumerate(self.shape(value)) if n != axis)
            case Call(function="tl.trans", arguments=(value,)):
                return self.shape(value)[::-1]
            case Call(function="diagonal", arguments=(value, *_)):
                return self.shape(value)[:1]
            case Call(function="chunk_of" | "place_of"):
                return ()
            case Call(
                function="added_sum" | "from_state" | "from_start" | "to_start" | "later_sums" | "over_block",
                arguments=(value, *_),
            ):
                return self.shape(value)
            case Call(function=function, arguments=arguments):
                if function.removeprefix("tl.") not in OF_NUMBERS:
                    raise CannotPrint(f"kernels with places have no {function}")
                return _together(map(self.shape, arguments))
        return _together(map(self.shape, x.parts))

    # --- places

    def has_place(self, name: str) -> bool:
        """Does a tile lie in shared memory? Operands do, and what is read often; for all else registers do."""
        if self.places[name].turned or any(name in (p.left.place, p.right.place) for p in self.products.values()):
            return True
        alone = self.made_alone(name)
        return sum((name if alone is None else alone.name) in _read(x) for x in self.steps) >= OFTEN

    def made_alone(self, name: str) -> Made | None:
        """What is made of sums of decays that nothing else reads, and of no other tile."""
        readers = [x for x in self.steps if name in _read(x)]
        if self.places[name].dtype == "DT" or len(readers) != 1:
            return None
        x = readers[0]
        if not isinstance(x, Made) or any(len(self.shapes.get(n, ())) > 1 for n in _read(x) - {name}):
            return None
        return x if len(x.shape) == 2 else None

    def kept(self) -> Iterator[Step]:
        """The steps, where what is made of sums of decays alone is kept in their place."""
        found = {id(y): n for n in self.places if (y := self.made_alone(n)) is not None}
        for x in self.steps:
            yield Kept(x.name, found[id(x)], x.value, x.note) if isinstance(x, Made) and id(x) in found else x

    def bytes_of(self, x: Place) -> int:
        """The room that a place takes, at the sizes that room is counted for."""
        sizes = {"C": STEPS, self.main[1]: NARROW}
        each = 2 if x.dtype == "DT" else 4
        return each * sizes.get(x.shape[0], WIDE) * sizes.get(x.shape[1], WIDE)


def _calls(x: Code) -> frozenset[str]:
    return frozenset(y.function for y in walk_code(x) if isinstance(y, Call))


def _in_parts(x: Call) -> Code:
    """A call of a function of the runtime, of a small decay range and no rests, in the parts that kernels in Gluon call."""
    match x:
        case Call(function="added_sum", arguments=arguments):
            total, p, w, _, _, high, n_high, low, n_low, *_ = arguments
            forward, diagonal, *_ = arguments[-5:]
            _no_rests(n_high, n_low)
            return call(
                "added_sum", total, p, w * _factor(forward, not_(forward), high, low), "T", forward, diagonal, "DT"
            )
        case Call(function="decayed_sum", arguments=arguments):
            p, w, _, _, high, n_high, low, n_low, *_ = arguments
            forward, diagonal, *_ = arguments[-5:]
            _no_rests(n_high, n_low)
            none = call("tl.zeros_like", w)
            made = call(
                "added_sum", none, p, w * _factor(forward, not_(forward), high, low), "T", forward, diagonal, "DT"
            )
            return Binary("*", made, _factor(forward, forward, high, low))
        case Call(function="of_reads", arguments=(total, high, n_high, low, n_low, forward, *_)):
            _no_rests(n_high, n_low)
            return Binary("*", total, _factor(forward, forward, high, low))
        case Call(function="later_sums", arguments=(value, *_)):
            return call("later_sums", value, "T")
        case Call(function="diagonal", arguments=(value, *_)):
            return call("diagonal", value)
        case Call(function="from_state", arguments=(value, *_)):
            return call("from_state", value, "DT")
        case Call(function="span", arguments=(high, n_high, low, n_low)):
            _no_rests(n_high, n_low)
            return call("tl.exp2", high if low in (Literal(0), Literal(0.0)) else high - low)
    return x


def not_(x: Code) -> Code:
    if not isinstance(x, Literal):
        raise CannotPrint(f"a direction that isn't known: {x.text}")
    return Literal(not x.value)


def _factor(forward: Code, later: Code, high: Code, low: Code) -> Code:
    """The decays from a chunk's start to the later step of a pair, or those to the earlier one."""
    assert isinstance(later, Literal)
    return call("from_start" if later.value else "to_start", high if later.value else low, 0, forward, False, "DT")


def _no_rests(*rests: Code) -> None:
    if any(x not in (Literal(0), Literal(0.0)) for x in rests):
        raise CannotPrint("sums of decays leave something")


def _together(shapes: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    found = [x for x in shapes if x]
    longest = max(found, key=len, default=())
    if any(len(x) != len(longest) for x in found):
        raise CannotPrint(f"operands of shapes {found}")
    return tuple(next((y for y in column if y != ONE), ONE) for column in zip(*found, strict=True))


def _read(x: Step) -> frozenset[str]:
    """The names that a step reads."""
    match x:
        case ProductBegun(left=left, right=right):
            return frozenset((left.place, right.place))
        case Made(value=value) | Kept(value=value):
            return names_in(value)
        case Left(pointer=pointer, value=value, mask=mask):
            return names_in(value) | names_in(pointer) | (frozenset() if mask is None else names_in(mask))
        case Copy(place=place):
            return names_in(place.load)
    return frozenset()


def _scheduled(steps: list[Step], places: dict[str, Place], sizes: dict[str, int]) -> Iterator[Step]:
    """All steps: copies as early as there is room for them, and waits for these and for products where something reads them."""
    names = {x.name: x.place for x in steps if isinstance(x, Kept)} | {n: n for n in places}
    todo = [x for x in steps if not isinstance(x, Copy)]
    read = [{names[n] for n in _read(x) if n in names} for x in todo]
    order = list(places)
    ends = _ends(todo, read)
    first = {n: min(at for at, r in enumerate(read) if n in r) for n in ends}
    begins = _begins(todo, dict(sorted(first.items(), key=lambda y: (y[1], order.index(y[0])))), ends, sizes)
    under_way: list[str] = []  # copies, as they began
    there: set[str] = set()
    products: list[str] = []
    for at, x in enumerate(todo):
        now = [n for n in begins if begins[n] == at]
        needed = {n for n in _read(x) if n in products}
        if products and (now or isinstance(x, Left) or (not isinstance(x, ProductBegun) and _settles(x))):
            needed |= set(products)
        while needed:
            name = products.pop(0)
            needed.discard(name)
            yield ProductAwaited(name, len(products))
        for n in now:
            under_way.append(n)
            yield Copy(places[n])
        missing = read[at] - there
        if missing:
            last = max(map(under_way.index, missing))
            there |= set(under_way[: last + 1])
            yield CopiesAwaited(len(under_way) - 1 - last)
        if isinstance(x, ProductBegun):
            products.append(x.name)
        yield x


def _settles(x: Step) -> bool:
    return isinstance(x, Made) and bool(_calls(x.value) & SETTLES)


def _ends(steps: Sequence[Step], read: list[set[str]]) -> dict[str, int]:
    """The last step that needs each place: for a product's operands the one that waits for it."""
    found: dict[str, int] = {}
    for at, (x, r) in enumerate(zip(steps, read, strict=True)):
        until = at
        if isinstance(x, ProductBegun):
            until = next((n for n, y in enumerate(steps) if n > at and x.name in _read(y)), at)
        for n in r:
            found[n] = max(found.get(n, 0), until)
    return found


def _begins(
    steps: Sequence[Step], first: dict[str, int], ends: dict[str, int], sizes: dict[str, int]
) -> dict[str, int]:
    """The steps before which copies begin."""
    taken = [_meanwhile(x) for x in steps]
    found: dict[str, int] = {}
    for n in first:
        size = sizes[n]
        for at in range(first[n] + 1):
            if all(taken[m] + size <= ROOM for m in range(at, ends[n] + 1)):
                break
        else:
            raise CannotPrint(f"there is no room for {n}")
        found[n] = at
        for m in range(at, ends[n] + 1):
            taken[m] += size
    return dict(sorted(found.items(), key=lambda y: y[1]))


def _meanwhile(x: Step) -> int:
    """Bytes that a step has in shared memory for itself."""
    if isinstance(x, Made | Left):
        tiles = max((ON_TENSOR_CORES.get(y, 0) for y in _calls(x.value)), default=0)
        return 2 * STEPS * NARROW * max(tiles, 1 if isinstance(x, Left) else 0)
    return 0
