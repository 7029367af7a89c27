"""The roles of a sweep that is joined with its prologue: beside the loader and the consumer a preparer, which makes what needs no
state: matrices over the steps of each chunk, masked by decays, and inverses of these.

A stage has several chunks. The loader and the preparer take them at once, the consumer one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ....ir.code import (
    Binary,
    Call,
    Cast,
    Code,
    Expanded,
    Group,
    Items,
    Literal,
    Load,
    Name,
    Negative,
    call,
    names_in,
    plus,
    times,
)
from ....ir.code_parts import substituted, walk_code
from ....ir.kernel_ir import Body, Let, Statement, Store, argument_of
from ....ir.warp_schedule import (
    Arrive,
    Await,
    Barriers,
    Blocks,
    Fence,
    Held,
    Invert,
    Layout,
    Leave,
    Make,
    Product,
    Put,
    Ring,
    Schedule,
    Settle,
    Tile,
)
from ....ir.warp_schedule import Role as Warps
from ....printing.cannot_print import CannotPrint
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel
from .consumer import Consumer, Wanted
from .derive import ELSEWHERE
from .parts import CHUNK, SweepParts
from .shapes import factors_of, parts_of_sum
from .straight import Straight, straight
from .whole_statements import STEPS, early_first, loaded_once, merged, subtracted_first

MATRICES = "prepared"  # the barriers of what the preparer makes
BUFFERS = 2  # stages of these
WARPS = 4  # of the preparer
AT_ONCE = 2  # products of it that are under way
OVER_STEPS = (STEPS, STEPS)


def schedule_of_joined(k: Kernel) -> Schedule:
    """The schedule of a sweep that is joined with its prologue.

    Raises CannotPrint: there are no roles for what it does.
    """
    parts = PreparedParts(*parts_of(k))
    consumer = PreparedConsumer(parts)
    role = consumer.role()
    if not parts.matrices:
        raise CannotPrint("nothing needs no state: these roles are for less")
    preparer = Preparer(parts).role()
    if any(isinstance(x, Put) and x.place not in parts.rings for x in preparer.steps):
        raise CannotPrint("what is prepared for several chunks at once has one place")
    loader = parts.loader()
    parts.refuse_others(role, preparer, loader)
    return Schedule(
        k.name,
        tuple(parts.setup),
        tuple(parts.indices.values()),
        tuple(parts.scalars.values()),
        tuple(parts.rings.values()),
        tuple(consumer.buffers),
        parts.groups,
        (role, preparer, loader),
        several=True,
        backwards=backwards(k),
    )


def parts_of(k: Kernel) -> tuple[Kernel, Straight]:
    """A kernel, and its statements as roles take them."""
    if not k.sweeps or k.tiled is None or k.whole or len(k.axes) != 2 or k.checkpoints:
        raise CannotPrint("these roles are for sweeps over chunks with states of two axes")
    missing = [a.name for a in k.arguments if a.role in ELSEWHERE]
    s = straight(k.function, frozenset(missing))
    loop, found = merged(s.loop)
    if set(found) & set(s.carried):
        raise CannotPrint("a state that is what something else is")
    states = frozenset[str]().union(*map(names_in, s.carried.values()))
    loop = early_first(subtracted_first(loaded_once(loop), states), states)
    return k, replace(s, setup=_whole_stages(s.setup) if backwards(k) else s.setup, loop=loop)


def backwards(k: Kernel) -> bool:
    return k.pieces[0].opened.direction < 0


def _whole_stages(setup: Body) -> Body:
    """Numbers of a program that takes stages from the last one on: the first may have chunks beyond the sequence's end."""
    found: list[Statement] = []
    for x in setup:
        match x:
            case Let(
                names=("count",), value=Cast(value=Call(function="tl.cdiv", arguments=(steps, Name(id="C"))) as y) as z
            ):
                of_stages = replace(y, arguments=(steps, times("C", "TOGETHER")))
                x = replace(x, value=replace(z, value=times(of_stages, "TOGETHER")))
        found.append(x)
    if found == [*setup]:
        raise CannotPrint("it isn't known how many chunks there are")
    return tuple(found)


class PreparedParts(SweepParts):
    """What the statements are: of tiles, those that need no state and are made of products are matrices that the preparer
    makes, those of them that products of states take."""

    def __init__(self, k: Kernel, s: Straight) -> None:
        self.sums: dict[str, Code] = {}
        super().__init__(k, s)
        layouts = {a.name: a.layout for a in k.arguments}
        left = [x for x in self.stores if isinstance(x, Store) and layouts.get(self._target(x)) in ("matrix", "sums")]
        self.stores = [x for x in self.stores if x not in left]
        self.left = [self._of_sums(x) for x in left]  # matrices and sums that are stored

    def may_move(self, a: Argument) -> bool:
        """Whatever makes a joined kernel, it says that tensors have the dtype of products."""
        return bool(a.axes)

    def refuse_others(self, *roles: Warps) -> None:
        """Raises CannotPrint where a role takes a sum over an axis, which is stored alone, or a number of a chunk, which one
        beyond the end hasn't: there a state would be multiplied by another chunk's."""
        made = [x.value for r in roles for x in r.steps if isinstance(x, Make)]
        if any(names_in(value) & self.sums.keys() for value in made):
            raise CannotPrint("a role that takes a sum over an axis")
        given = frozenset(a.name for a in self.k.arguments if a.role is Role.WHOLE and a.layout == "chunked")
        loads = [x for value in made for x in walk_code(value) if isinstance(x, Load) and x.mask is None]
        if any(argument_of(x.pointer, given) for x in loads):
            raise CannotPrint("a number of a chunk as a whole")

    def _target(self, x: Store) -> str:
        return argument_of(x.pointer, frozenset(a.name for a in self.k.arguments)) or ""

    def _of_sums(self, x: Store) -> Store:
        return replace(x, value=substituted(x.value, self.sums))

    def _inside(self, x: Statement) -> None:
        match x:
            case Let(names=(name,), value=Call(function="tl.sum") as sums):
                self.sums[name] = sums
                return
        super()._inside(x)
        match x:
            case Let(names=(name,), value=Load() as load) if name in self.numbers and self._is_sum(load):
                there = Binary(
                    "<", Name("t0"), Name("stop")
                )  # a stage may have chunks beyond the end: nothing decays there
                self.numbers[name] = replace(x, value=call("tl.where", there, load, Literal(0.0)))

    def _is_sum(self, x: Load) -> bool:
        """Is it of sums of a decay's logarithms?"""
        return bool({a.name for a in self.k.arguments if a.role is Role.SUMS} & names_in(x.pointer))

    @property
    def products(self) -> set[str]:
        return {n for n, x in self.tiles.items() if isinstance(x.value, Call) and x.value.function == "tl.dot"}

    def with_states(self, x: Code) -> bool:
        """Is it made of states?"""
        found = names_in(x)
        return bool(found & set(self.s.carried)) or any(
            self.with_states(self.tiles[n].value) for n in found if n in self.tiles
        )

    def of_products(self, x: Code) -> bool:
        found = names_in(x) & set(self.tiles)
        return bool(found & self.products) or any(self.of_products(self.tiles[n].value) for n in found)

    def is_matrix(self, name: str) -> bool:
        """Does the preparer make it?"""
        x = self.tiles.get(name)
        if x is None or self.shapes.known[name] != OVER_STEPS or name in self.products:
            return False
        return self.of_products(x.value) and not self.with_states(x.value)

    def _ring(self, name: str) -> Ring | None:
        if self.is_matrix(name):
            return Ring(name, OVER_STEPS, operand=True)
        if name in self.tiles and isinstance(load := self.tiles[name].value, Load) and self._is_of_matrix(load):
            return Ring(name, OVER_STEPS, self.matrix_of(load))
        return super()._ring(name)

    def _is_of_matrix(self, x: Load) -> bool:
        found = {a.name for a in self.k.arguments if a.source is not None and a.source.attrs[:1] == ("matrix",)}
        return bool(found & names_in(x.pointer))

    def matrix_of(self, x: Load | Store) -> Tile:
        """The matrix of a chunk, among those of a head, as the copy engine moves it."""
        size = Name(STEPS)
        match parts_of_sum(x.pointer):
            case [Name() as base, places, rows, columns] if x.mask is None:
                number, *sizes = factors_of(places)
                before, c = parts_of_sum(number) if len(parts_of_sum(number)) == 2 else (None, None)
                laid = [rows, columns] == [times(Name("i").along(0, 2), size), Name("i").along(1, 2)]
                if c is not None and before == times("bh", "chunks") and sizes == [size, size] and laid:
                    first = plus(base, times("bh", "chunks", size, size))
                    return Tile(first, STEPS, size, Literal(0), STEPS, times(c, size), STEPS, times("chunks", size))
        raise CannotPrint(f"no matrix of a chunk lies at {x.pointer.text}")

    @property
    def matrices(self) -> list[Ring]:
        """Those that the preparer makes for the consumer."""
        return [r for r in self.rings.values() if r.operand]

    @property
    def groups(self) -> tuple[Barriers, ...]:
        """Barriers of what is loaded, which the consumer and the preparer read, and of what is prepared."""
        loaded = [r for r in self.rings.values() if not r.operand]
        puts = any(r.tile is None for r in loaded)
        return (
            Barriers(CHUNK, tuple(r.name for r in loaded), 1 + puts, 2),
            Barriers(MATRICES, tuple(r.name for r in self.matrices), 1, 1, stages=BUFFERS),
        )

    def loader(self) -> Warps:
        matrices = {r.name for r in self.matrices}
        self.rings, rings = {n: r for n, r in self.rings.items() if n not in matrices}, self.rings
        role = super().loader()
        self.rings = rings
        return replace(role, together=True)


@dataclass
class PreparedConsumer(Consumer):
    """The role that has the states."""

    sweep: PreparedParts
    gone: list[Store] = field(default_factory=list)  # sums that were left

    def _wanted(self, x: Let) -> Wanted | None:
        found = super()._wanted(x)
        own = self.sweep.shapes.known[x.names[0]] != OVER_STEPS or self.sweep.with_states(x.value)
        return found if own else None

    def of_state(self, name: str) -> bool:
        """Is a product what a state becomes, or what that is added to?"""
        others = [w for w in self.products.values() if w.onto == Name(name)]
        return super().of_state(name) or any(self.of_state(w.name) for w in others)

    def _is_there(self, x: Code, w: Wanted) -> bool:
        """May a product begin with this? What it is added to may be under way, if it began last; what a state becomes waits for
        products that have the state in registers."""
        last = self.issued[-1] if self.issued else None
        if self.of_state(w.name) and any(self._has_state(n) for n in self.issued if n not in self.settled):
            return False
        return super()._is_there(x, w) or (x is w.onto and x == Name(last or ""))

    def _are_last(self, late: list[Wanted], pending: dict[str, Wanted]) -> bool:
        return all(map(self.of_state, pending))

    def _has_state(self, name: str) -> bool:
        left = self.products[name].left
        return self.sweep.with_states(left) and not self.needs(left)

    def _settle(self, name: str) -> None:
        super()._settle(name)
        self._leave()

    def _leave(self) -> None:
        """Sums over tiles of products that are there."""
        for x in self.sweep.left:
            tile = _summed(x.value)
            if self.sweep.with_states(x.value) and self.needs(tile) <= self.settled and x not in self.gone:
                self.gone.append(x)
                held = self.held(tile, self.accumulator(tile), f"{self.sweep._target(x)}_summed")
                self.steps.append(Leave(_sums_left(x, held, self.sweep, "store_tile_sums", "WARPS")))

    def _begin(self, w: Wanted) -> None:
        super()._begin(w)
        x = self.steps[-1]
        assert isinstance(x, Product)
        if x.layout.rows == STEPS:
            raise CannotPrint("a product of states with few steps in rows, of which tensor cores take 64 at once")
        r = self._ring(x.right.place)
        if r is not None and r.operand and Await(MATRICES, True) not in self.steps:
            self.steps.insert(-1, Await(MATRICES, True))

    def _release(self) -> None:
        super()._release()
        if not self.sweep.matrices:
            return
        last = max(n for n, x in enumerate(self.steps) if isinstance(x, Settle | Arrive))
        self.steps.insert(last + 1, Arrive(MATRICES, False))


@dataclass
class Preparer(Consumer):
    """The role that makes matrices over steps, of all chunks of a stage at once."""

    sweep: PreparedParts
    targets: dict[str, Let] = field(default_factory=dict)  # the matrices
    waiting: list[Store] = field(default_factory=list)  # what is left in memory

    def __post_init__(self) -> None:
        self.states = {}
        self.targets = {r.name: self.sweep.tiles[r.name] for r in self.sweep.matrices}
        self.waiting = [x for x in self.sweep.left if not self.sweep.with_states(x.value)]
        made = [*(x.value for x in self.targets.values()), *(x.value for x in self.waiting)]
        wanted = set[str]().union(*map(self._below, made))
        found = {n: self._wanted(self.sweep.tiles[n]) for n in self.sweep.products if n in wanted}
        order = list(self.sweep.tiles)
        self.products = {n: w for n, w in sorted(found.items(), key=lambda x: order.index(x[0])) if w is not None}

    def _below(self, x: Code) -> set[str]:
        """The tiles that it is made of."""
        own = names_in(x) & set(self.sweep.tiles)
        return set(own).union(*(self._below(self.sweep.tiles[n].value) for n in own))

    def role(self) -> Warps:
        blocks = Blocks(*OVER_STEPS)
        self.steps.append(Await(CHUNK, True))
        pending = list(self.products.values())
        for w in pending[:AT_ONCE]:
            self._begin_alone(w)
        for made in [*(x.value for x in self.targets.values()), *(x.value for x in self.waiting)]:
            self._parts_ahead(made, blocks)
        for at, n in enumerate(list(self.products)):
            self._settle(n)
            self._made_of_settled(blocks)
            for w in pending[AT_ONCE + at : AT_ONCE + at + 1]:
                self._begin_alone(w)
        self._release()
        self.steps.append(Await(MATRICES, False))
        inverted = {n: x for n, x in self.targets.items() if _inverted(x) is not None}
        for n in self.targets:
            if n not in inverted:
                self._put(n, blocks)
        for n, x in inverted.items():
            what = _inverted(x)
            assert what is not None
            self.steps.append(Invert(n, self.held(what, blocks, f"{n}_of"), blocks, x.note))
            self.layouts[n] = blocks
            self._put(n, blocks)
        self.steps += [Fence(), Arrive(MATRICES, True)]
        return Warps("preparer", WARPS, (), tuple(self.steps), (), together=True)

    def _begin_alone(self, w: Wanted) -> None:
        if self.needs(w.left) | self.needs(w.right) or w.onto is not None:
            raise CannotPrint("what is prepared has products of products")
        self._begin(w)
        begun = self.steps[-1]
        if isinstance(begun, Product) and isinstance(begun.left, Held) and self._has_steps(Name(begun.left.name)):
            raise CannotPrint("an operand of what is prepared has the numbers of steps in it")

    def _has_steps(self, x: Code) -> bool:
        """Does a value of this role need to know which steps of a chunk its rows are?"""
        values = {y.name: y.value for y in self.steps if isinstance(y, Make)}
        indices = {n for n, y in self.sweep.indices.items() if self.sweep.shapes.of(y.value) == (STEPS,)}
        return any(n in indices or (n in values and self._has_steps(values[n])) for n in names_in(x))

    def _made_of_settled(self, layout: Layout) -> None:
        """What products that were waited for are for: then these need no registers."""
        for n, x in self.targets.items():
            value = _inverted(x) or x.value
            if self.needs(value) <= self.settled:
                if value is x.value:
                    self.named(n, layout)
                else:
                    self.held(value, layout, f"{n}_of")
        for store in list(self.waiting):
            tile = _summed(store.value)
            if self.needs(tile) <= self.settled:
                self.waiting.remove(store)
                held = self.held(tile, layout, f"{self.sweep._target(store)}_left")
                self.steps.append(Leave(_left_of_blocks(store, held, self.sweep)))

    def _put(self, name: str, layout: Layout) -> None:
        rounded = Cast(Name(self.named(name, layout) if name not in self.layouts else name), "DT")
        self.steps.append(Make(f"{name}_rounded", rounded, layout))
        self.steps.append(Put(name, f"{name}_rounded"))

    def _own_layout(self, x: Code, layout: Layout) -> Layout:
        return layout

    def _ring(self, name: str) -> Ring | None:
        return None if self.sweep.is_matrix(name) else super()._ring(name)


# --- what is left in memory


def _summed(x: Code) -> Code:
    """The tile that sums are of; or a matrix that is stored."""
    match x:
        case Negative(value=value):
            return _summed(value)
        case Call(function="tl.sum" | "tl.reshape", arguments=(value, *_)):
            return _summed(value)
    return x


def _sums_left(x: Store, tile: str, sweep: PreparedParts, function: str, *more: str) -> Call:
    """The function of the runtime that leaves sums over the rows of a tile, in so many parts of these: [parts, T]."""
    match x:
        case Store(
            pointer=pointer,
            value=Call(function="tl.sum", arguments=(Call(function="tl.reshape"),)),
            mask=Expanded(value=Name() as ok, own=(False, True)),
        ):
            return call(function, _first_of_parts(pointer), tile, "T", sweep.there(ok), *more)
    raise CannotPrint(f"sums that lie otherwise: {x.pointer.text}")


def _first_of_parts(pointer: Code) -> Code:
    """Where the first step's number of the first part lies."""
    match parts_of_sum(pointer):
        case [base, Binary(operator="*", left=Expanded(value=rows, own=(True, False)), right=Name(id="T")), *at, last]:
            *before, parts = parts_of_sum(rows)
            if last == Name("i").along(1, 2) and isinstance(parts, Call) and parts.function == "tl.arange":
                return plus(base, times(plus(*before), "T"), *at)
    raise CannotPrint(f"sums that lie otherwise: {pointer.text}")


def _left_of_blocks(x: Store, tile: str, sweep: PreparedParts) -> Call:
    """The function of the runtime that leaves a matrix of each chunk, or its sums."""
    rest = Name("stop") - "t0"
    match x.value:
        case Call(function="tl.sum", arguments=(Name() | Group(),)):
            *first, last = parts_of_sum(x.pointer)
            if last != Name("i") or x.mask != Name("i_ok"):
                raise CannotPrint(f"sums that lie otherwise: {x.pointer.text}")
            return call("store_sums_of_rows", plus(*first), tile, rest)
        case Negative(value=Call(function="tl.sum", arguments=(Call(function="tl.reshape", arguments=(_, sizes)),))):
            assert isinstance(sizes, Items)
            place = _first_of_parts(x.pointer)
            return call("store_sums_of_columns", place, tile, "T", rest, sizes.values[0])
        case Call():
            raise CannotPrint("something else than a matrix or its sums is left in memory")
    there = sweep.matrix_of(x)
    return call("store_matrices", plus(there.base, times(there.first, there.stride)), tile, rest)


def _inverted(x: Let) -> Code | None:
    """What a tile is the inverse of I minus."""
    match x.value:
        case Call(function="inverse", arguments=(value, *_)):
            return value
    return None
