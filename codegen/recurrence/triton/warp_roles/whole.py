"""The roles of a fused backward: a loader that fetches what the forward pass was given and left, chunk after chunk from the last
to the first, and a consumer that has the gradient of the state in registers, and makes all that the backward pass yields."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....ir.code import Binary, Call, Cast, Code, Items, Literal, Method, Name, call, names_in, plus
from ....ir.code_parts import rebuilt, substituted
from ....ir.kernel_ir import Do, Let, Statement, Store, expressions
from ....ir.warp_schedule import (
    Arrive,
    Await,
    Barriers,
    Buffer,
    Drain,
    Fence,
    Fetch,
    Held,
    Layout,
    Leave,
    Make,
    Operand,
    Product,
    Put,
    Ring,
    Role,
    Schedule,
    Send,
    Settle,
    Shared,
    Tile,
)
from ....printing.cannot_print import CannotPrint
from ..kernels.chunk_kernel import Kernel
from .consumer import WARPS, Consumer, Wanted
from .derive import ELSEWHERE
from .parts import CHUNK, SweepParts, fetch, written
from .shapes import ONE, parts_of_sum
from .straight import KEPT, Straight, straight
from .whole_statements import STEPS, with_steps_in_rows

STATE = "state"  # the barriers of what the forward pass has left of the state before a chunk, which has one stage
OUT = "out_tile"  # the buffer that all outputs leave through
SUMS = KEPT - {"rows_of"}
ROOM = 4  # products of a chunk's steps by channels count as 2, those of steps by steps as 1: so many are in registers at once
DT = "DT"


def schedule_of_fused(k: Kernel) -> Schedule:
    """The schedule of a fused backward.

    Raises CannotPrint: there are no roles for what it does.
    """
    if not k.whole or len(k.axes) != 2:
        raise CannotPrint("these roles are for a fused backward of a state of two axes")
    missing = [a.name for a in k.arguments if a.role in ELSEWHERE]
    parts = WholeParts(k, with_steps_in_rows(straight(k.function, frozenset(missing), whole=True)))
    consumer = WholeConsumer(parts)
    role = consumer.role()
    loader = parts.loader()
    return Schedule(
        k.name,
        tuple(parts.setup),
        tuple(parts.indices.values()),
        tuple(parts.scalars.values()),
        tuple(parts.rings.values()),
        tuple(consumer.buffers),
        parts.groups,
        (role, loader),
        tuple(dict.fromkeys(consumer.outputs)),
    )


def fused_schedule_if_any(k: Kernel) -> Schedule | None:
    """The schedule of a fused backward, if there are roles for what it does."""
    try:
        return schedule_of_fused(k)
    except CannotPrint:
        return None


class WholeParts(SweepParts):
    """What the statements of a fused backward are: tiles are those that the copy engine moves without roles as well."""

    def __init__(self, k: Kernel, s: Straight) -> None:
        self.moved: dict[str, Call] = {}
        self.sums: dict[str, Code] = {}
        super().__init__(k, s)

    def _before(self, x: Statement) -> None:
        match x:
            case Let(names=(name,), value=Call(function="rows_of") as tiles):
                self.moved[name] = tiles
            case _:
                super()._before(x)

    @property
    def setup(self) -> list[Statement]:
        return [x for x in super().setup if isinstance(x, Let) and x.names[0] not in self.moved]

    def _inside(self, x: Statement) -> None:
        match x:
            case Let(names=(name,), value=value) if _sums_in(value):
                self.sums[name] = value
            case Let(names=(name,), value=Method(value=value, name="to")):
                self.tiles[name] = Let((name,), Cast(value, DT), note=x.note)
            case _:
                super()._inside(x)

    def _ring(self, name: str) -> Ring | None:
        x = self.tiles.get(name)
        if x is None or not isinstance(x.value, Method):
            return super()._ring(name)
        tile = self.tile_at(x.value)
        return Ring(name, (tile.rows, tile.block), tile)

    def tile_at(self, x: Method) -> Tile:
        """The tile that is loaded or stored so."""
        match x:
            case Method(value=Name(id=name), arguments=(Items(values=(first, _)), *_)) if name in self.moved:
                base, width, stride, stop, rows, block = self.moved[name].arguments
                made = self.scalars.get(first.id) if isinstance(first, Name) else None
                match made:
                    case Let(value=Cast(value=Name() as step)):
                        first = step
                return Tile(base, width.text, stride, Literal(0), block.text, first, rows.text, stop)
        raise CannotPrint(f"no tile is moved by {x.text}")

    @property
    def groups(self) -> tuple[Barriers, ...]:
        """Barriers of what lies by steps, and of states."""
        states = tuple(n for n, r in self.rings.items() if r.tile is not None and r.tile.rows != STEPS)
        steps = tuple(n for n in self.rings if n not in states)
        puts = any(self.rings[n].tile is None for n in steps)
        return Barriers(CHUNK, steps, 1 + puts, 1), Barriers(STATE, states, 1, 1, stages=1)

    def loader(self) -> Role:
        steps = list(super().loader().each)
        group, states = self.groups
        at = next(n for n, x in enumerate(steps) if isinstance(x, Fetch))
        steps[at] = fetch(CHUNK, (n for n in group.rings if self.rings[n].tile is not None))
        return Role("loader", 1, (), (*steps, Await(STATE, False), fetch(STATE, states.rings)), ())


def _sums_in(x: Code) -> bool:
    return (isinstance(x, Call) and x.function in SUMS) or any(map(_sums_in, x.parts))


@dataclass
class WholeConsumer(Consumer):
    """The role that has the gradient of the state. It begins products in the order of the kernel's statements, as many as there
    are registers for, and leaves sums and outputs as soon as what they are of is there."""

    sweep: WholeParts
    placed: dict[Code, Buffer] = field(default_factory=dict)  # operands that lie in buffers, by what they are
    waiting: list[Statement] = field(default_factory=list)  # statements that leave something in memory
    pending: dict[str, Wanted] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)  # the blocks of channels that they have

    def role(self) -> Role:
        self.waiting = [self._of_sums(x) for x in self.sweep.stores]
        self.pending = dict(self.products)
        for w in self.products.values():
            for x in (w.left, w.right):
                bare, _ = self._bare(x)
                if isinstance(bare, Cast) and isinstance(bare.value, Name) and bare.value.id in self.states:
                    self._placed(bare, w.name)
        self.steps += [Await(CHUNK, True), Await(STATE, True)]
        self._leave()
        while self.pending or len(self.settled) < len(self.issued):
            while (following := self._next_of(self.pending)) is not None:
                self._leave(following)
                del self.pending[following.name]
                self._begin(following)
            self._masks_ahead()
            under_way = next((n for n in self.issued if n not in self.settled), None)
            if under_way is None:
                raise CannotPrint("a product waits for none that is under way")
            self._settle(under_way)
            self._leave()
            self._place_ahead()
        if self.waiting:
            raise CannotPrint("what is left in memory waits for no product")
        for state, x in self.sweep.s.carried.items():
            self._pass(state, x)
        for b in (CHUNK, STATE):
            self._release_of(b)
        before = [self._initial(n) for n in self.states]
        after = [self._last(x) for x in self.sweep.s.after]
        return Role("consumer", WARPS, tuple(before), tuple(self.steps), (*after, Drain()))

    def _of_sums(self, x: Statement) -> Statement:
        """A statement with sums as they are made, in the place of their names."""
        match x:
            case Store(pointer=pointer, value=value, mask=mask):
                return Store(pointer, substituted(value, self.sweep.sums), mask)
            case Do(call=called):
                return Do(substituted(called, self.sweep.sums))
        raise CannotPrint("a store under a condition, in a fused backward")

    # --- the order

    def _next_of(self, pending: dict[str, Wanted]) -> Wanted | None:
        """The first that can begin; what the state becomes comes last."""
        taken = sum(self._size(n) for n in self.issued if self._is_live(n))
        early = [w for w in pending.values() if not self.of_state(w.name)]
        for w in early or pending.values():
            if all(self.needs(x) <= self.settled for x in w.operands):
                more = 0 if w.onto is not None else self._size(w.name)
                if not self.issued or taken + more <= ROOM:
                    return w
        return None

    def _size(self, name: str) -> int:
        return sum(x != STEPS for x in self.sweep.shapes.of(self.sweep.tiles[name].value)) + 1

    def _is_live(self, name: str) -> bool:
        """Is it under way, or does what comes still need it in registers?"""
        if name not in self.settled:
            return True
        users = [x for w in self.pending.values() for x in w.operands if self._bare(x)[0] not in self.placed]
        users += [y for x in self.waiting for y in expressions(x)]
        return any(name in self.needs(x) for x in users)

    def _masks_ahead(self) -> None:
        """Tiles that need no product, while the first ones are under way."""
        for w in self.pending.values():
            for x in (w.left, w.right):
                bare, _ = self._bare(x)
                if self._ring_of(bare) is None and self.needs(bare):
                    self._parts_ahead(bare, self.accumulator(bare))

    def _place_ahead(self) -> None:
        """Operands that are made of products go into buffers at once, so that what they are of needs no registers."""
        for w in self.pending.values():
            for x in (w.left, w.right):
                bare, _ = self._bare(x)
                if self._ring_of(bare) is None and self.needs(bare) and self.needs(bare) <= self.settled:
                    self._placed(bare, w.name)

    # --- what is left in memory

    def _leave(self, before: Wanted | None = None) -> None:
        """All that can be left by now; `before` a product takes what it is added to, what is of that."""
        for x in list(self.waiting):
            of = frozenset[str]().union(*map(self.needs, expressions(x)))
            if of <= self.settled and (before is None or (before.onto is not None and of & self.needs(before.onto))):
                self.waiting.remove(x)
                self._left_behind(x)

    def _left_behind(self, x: Statement) -> None:
        match x:
            case Do(call=Method(name="store", arguments=(_, value)) as store):
                self._output(store, value)
            case _:
                self.steps.append(Leave(self._call_of(x)))

    def _call_of(self, x: Statement) -> Call:
        """The function of the runtime that leaves these sums, and what it is given."""
        match x:
            case Do(call=Call(function="store_sums", arguments=(place, Call(function="over_rows", arguments=of), ok))):
                (left, turned), (right, too) = (self._bare(z) for z in of[:2])
                if not turned or not too:
                    raise CannotPrint("sums over the rows of a tile of steps")
                return call("store_row_sums", self._first(place), *self._tiles(left, right), self.sweep.there(ok))
            case Do(call=Call(function="store_partial_sums", arguments=(target, rows, columns, *where, ok))):
                pairs = {z.arguments[0] for z in (rows, columns) if isinstance(z, Call)}
                if len(pairs) != 1 or any(not isinstance(z, Call | Literal) for z in (rows, columns)):
                    raise CannotPrint("sums over several matrices of pairs")
                sides = [Literal(isinstance(z, Call)) for z in (rows, columns)]
                pair = self._tiles(*pairs)
                return call("store_pair_sums", target, *pair, *where, self.sweep.there(ok), *sides, "WARPS")
            case Store(
                pointer=pointer,
                value=Binary(
                    operator="*",
                    left=Name(id=number),
                    right=Call(function="paired_states", arguments=(S, dS, parts)),
                ),
                mask=None,
            ) if (ring := self._ring(number)) is not None and ring.shape == (ONE,):
                *begin, last = parts_of_sum(pointer)
                if last == call("tl.arange", 0, parts):
                    self.sweep.use(ring)
                    tiles = self._tiles(dS, S)
                    return call("store_state_products", plus(*begin), number, *tiles[::-1], parts)
        raise CannotPrint("something else than sums is left in memory")

    def _first(self, place: Code) -> Code:
        """Where the first step's number lies."""
        *first, last = parts_of_sum(place)
        if last != Name("i"):
            raise CannotPrint(f"numbers of steps that lie otherwise: {place.text}")
        return plus(*first)

    def _tiles(self, *tiles: Code) -> list[Code]:
        """The names of tiles in registers, all of which lie as the first one does."""
        layout = self.accumulator(tiles[0])
        return [Name(self.held(x, layout, f"{_stem(x)}_summed")) for x in tiles]

    def _output(self, store: Method, value: Code) -> None:
        tile = self.sweep.tile_at(store)
        bare, turned = self._bare(value)
        name = tile.base.text
        held = self.held(bare, self.accumulator(bare), f"{name}_made")
        if not any(b.name == OUT for b in self.buffers):
            self.buffers.append(Buffer(OUT, (tile.rows, tile.block)))
        self.outputs.append(tile.block)
        self.steps += [Drain(), Put(OUT, held, turned), Fence(), Send(OUT, tile, name)]

    # --- operands

    def _bare(self, x: Code) -> tuple[Code, bool]:
        """An operand without casts of what has the dtype of products already, and whether it is transposed."""
        turned = False
        while True:
            match x:
                case Call(function="tl.trans", arguments=(value,)):
                    x, turned = value, not turned
                case Cast(value=Call(function="tl.trans", arguments=(value,)), dtype="DT"):
                    x, turned = Cast(value, DT), not turned
                case Cast(value=Name(id=name) as value, dtype="DT") if self._is_rounded(name):
                    x = value
                case _:
                    return x, turned

    def _is_rounded(self, name: str) -> bool:
        x = self.sweep.tiles.get(name)
        if x is None:
            return False
        return self._ring(name) is not None or (isinstance(x.value, Cast) and x.value.dtype == DT)

    def _ring_of(self, bare: Code) -> Ring | None:
        ring = self._ring(bare.id) if isinstance(bare, Name) else None
        return None if ring is None or ring.tile is None else ring

    def _placed(self, bare: Code, product: str) -> Buffer:
        """The buffer that an operand lies in, and its transpose with it."""
        if bare not in self.placed:
            layout = self.accumulator(bare)
            value = self.held(bare, layout, f"{_stem(bare)}_operand")
            buffer = Buffer(f"{_stem(bare)}_buffer", (layout.rows, layout.columns))
            self.placed[bare] = buffer
            self.buffers.append(buffer)
            self.steps += [Put(buffer.name, value), Fence()]
        return self.placed[bare]

    def _left(self, w: Wanted) -> Shared | Held | None:
        if (shared := self._shared(w.left)) is not None:
            return shared
        bare, turned = self._bare(w.left)
        if self.needs(bare) or bare in self.placed:
            return Shared(self._placed(bare, w.name).name, turned)
        if turned:
            raise CannotPrint("a left operand that is the transpose of what is computed")
        layout = Operand(self.accumulator_of(w), self.sweep.shapes.of(bare)[1])
        return Held(self.held(bare, layout, f"{w.name}_left"))

    def _right(self, w: Wanted) -> Shared:
        if (shared := self._shared(w.right)) is not None:
            return shared
        bare, turned = self._bare(w.right)
        return Shared(self._placed(bare, w.name).name, turned)

    def named(self, name: str, layout: Layout) -> str:
        """A name of the kernel's in registers; of what lies in a ring, loaded from there."""
        ring = self._ring_of(Name(name))
        if ring is None:
            return super().named(name, layout)
        key = (Name(name), layout)
        if key not in self.made:
            self.sweep.use(ring)
            self.made[key] = f"{name}_{sum(n == Name(name) for n, _ in self.made) + 1}"
            self._make(Make(self.made[key], Name(name), layout))
        return self.made[key]

    def _resolved(self, x: Code, layout: Layout) -> Code:
        match x:
            case Call(function="tl.trans", arguments=(Name(id=name),)) if (
                ring := self._ring_of(Name(name))
            ) is not None:
                self.sweep.use(ring)
                return x
            case Name(id=name) if (ring := self._ring_of(x)) is not None:
                self.sweep.use(ring)
                return x
        return super()._resolved(x, layout)

    def _make(self, x: Make) -> None:
        written(_as_loaded(x.value))
        self.steps.append(x)
        assert x.layout is not None
        self.layouts[x.name] = x.layout

    # --- stages

    def _release_of(self, b: str) -> None:
        """Behind the last step that reads one of these rings, as `_release` of a sweep."""
        rings = {g.name: set(g.rings) for g in self.sweep.groups}[b]
        last, reading, order = -1, set[str](), list[str]()
        for n, x in enumerate(self.steps):
            match x:
                case Settle(name=name, outstanding=count):
                    done = order[: len(order) - count]
                    last, order = (n if reading & set(done) else last), order[len(order) - count :]
                    reading -= set(done)
                case Product(name=name, left=left, right=right):
                    order.append(name)
                    if any(isinstance(y, Shared) and y.place in rings for y in (left, right)):
                        reading.add(name)
                case Make(value=value) if names_in(value) & rings:
                    last = n
                case Leave(call=called) if names_in(called) & rings:
                    last = n
        if last < 0:
            raise CannotPrint("nothing is made of what is loaded for a chunk")
        since = max((n for n, x in enumerate(self.steps[: last + 1]) if isinstance(x, Fence)), default=0)
        loaded = any(r.tile is not None for x in self.steps[since : last + 1] for r in self._loaded(x))
        self.steps[last + 1 : last + 1] = [*([Fence()] if loaded else []), Arrive(b, False)]


def _as_loaded(x: Code) -> Code:
    """An expression without transposes of what is loaded."""
    match x:
        case Call(function="tl.trans", arguments=(Name() as value,)):
            return value
    return rebuilt(x, _as_loaded)


def _stem(x: Code) -> str:
    """What names of an expression begin with: that of its first name."""
    while not isinstance(x, Name):
        x = next(y for y in x.parts if y.names)
    return x.id
