"""The role that has the states of a sweep in registers, and makes what is of two axes: in which order it begins products, and
when it waits for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count

from ....ir.code import Binary, Call, Cast, Code, Expanded, Group, Literal, Load, Name, Negative, both, names_in
from ....ir.code_parts import rebuilt
from ....ir.kernel_ir import If, Let, Statement, Store, argument_of, reads
from ....ir.warp_schedule import (
    Accumulator,
    Arrive,
    Await,
    Buffer,
    Drain,
    Fence,
    Held,
    Layout,
    Make,
    Operand,
    Pass,
    Plain,
    Product,
    Put,
    Ring,
    Role,
    Send,
    Settle,
    Shared,
    Step,
    WhereGiven,
)
from ....printing.cannot_print import CannotPrint
from .parts import CHUNK, SweepParts, written

WARPS = "num_warps"


@dataclass(frozen=True)
class Wanted:
    """A product of the loop, before it is known when it begins."""

    name: str
    left: Code
    right: Code
    onto: Code | None
    note: str

    @property
    def operands(self) -> tuple[Code, ...]:
        return (self.left, self.right) if self.onto is None else (self.left, self.right, self.onto)


@dataclass
class Consumer:
    """The role that has the states, and makes what is of two axes."""

    sweep: SweepParts
    steps: list[Step] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    made: dict[tuple[Code, Layout], str] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)  # of what is in registers
    operands: dict[str, Make] = field(default_factory=dict)  # of states, made for the next chunk
    issued: list[str] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)
    added_to: set[str] = field(default_factory=set)  # products that others were added to while they were under way
    known: dict[str, frozenset[str]] = field(default_factory=dict)  # what tiles need

    def __post_init__(self) -> None:
        self.products = {n: w for n, x in self.sweep.tiles.items() if (w := self._wanted(x)) is not None}
        if set(self.sweep.s.carried) - set(self.sweep.initial):
            raise CannotPrint("what is carried along the sequence isn't tiles alone")
        self.states = {n: self.accumulator(self.sweep.initial[n].value) for n in self.sweep.s.carried}
        self.layouts |= self.states

    def _wanted(self, x: Let) -> Wanted | None:
        match x.value:
            case Call(function="tl.dot", arguments=(left, right, *onto)):
                zero = onto and self._is_zero(onto[0])
                return Wanted(x.names[0], left, right, onto[0] if onto and not zero else None, x.note)
        return None

    def _is_zero(self, x: Code) -> bool:
        made = self.sweep.tiles.get(x.id) if isinstance(x, Name) else None
        value = x if made is None else made.value
        return isinstance(value, Call) and value.function == "tl.zeros"

    def accumulator(self, x: Code) -> Accumulator:
        shape = self.sweep.shapes.of(x)
        if len(shape) != 2:
            raise CannotPrint(f"a tile of {len(shape)} axes")
        return Accumulator(*shape)

    # --- what needs what

    def needs(self, x: Code) -> frozenset[str]:
        """The products of this chunk that an expression is made of."""
        found: set[str] = set()
        for n in names_in(x):
            if n in self.products:
                found.add(n)
            elif n in self.sweep.tiles:
                if n not in self.known:
                    self.known[n] = self.needs(self.sweep.tiles[n].value)
                found |= self.known[n]
        return frozenset(found)

    def depth(self, name: str) -> int:
        """How long the chain of products is that begins with this one; one step more through shared memory."""
        users = [w for w in self.products.values() if any(name in self.needs(x) for x in w.operands)]
        return max((self.depth(w.name) + 1 + (name in self.needs(w.right)) for w in users), default=0)

    def of_state(self, name: str) -> bool:
        """Is a product what a state becomes?"""
        return any(name in self.needs(x) or x == Name(name) for x in self.sweep.s.carried.values())

    @property
    def feeds_back(self) -> bool:
        """Does a state wait for several products, one after the other?"""
        return any(self.of_state(n) and any(self.needs(x) for x in (w.left, w.right)) for n, w in self.products.items())

    # --- the role

    def role(self) -> Role:
        pending = dict(self.products)
        for x in self.sweep.stores:
            if not isinstance(x, Store) and self._maybe_output(x) is None:
                self._checkpoint(x)
        self.steps.append(Await(CHUNK, True))
        while pending:
            if (w := self._next(pending)) is not None:
                del pending[w.name]
                self._begin(w)
                continue
            self._make_ahead(pending)
            under_way = next((n for n in self.issued if n not in self.settled | self.added_to), None)
            if under_way is None:
                raise CannotPrint("a product waits for none that is under way")
            self._settle(under_way)
        self._finish()
        self._release()
        before = [self._initial(n) for n in self.states]
        after = [self._last(x) for x in self.sweep.s.after]
        each = tuple(self._drained(x) for x in self.steps)
        return Role("consumer", WARPS, (*before, *self.operands.values()), each, (*after, Drain()))

    def _next(self, pending: dict[str, Wanted]) -> Wanted | None:
        """The product to begin now: of those whose operands are there, the one that most others wait for. What a state becomes
        comes last, unless it is what the next chunk waits for."""
        ready = [w for w in pending.values() if all(self._is_there(x, w) for x in w.operands)]
        late = [w for w in ready if self.of_state(w.name)]
        if not self.feeds_back:
            ready = [w for w in ready if w not in late] or (late if self._are_last(late, pending) else [])
        order = {n: k for k, n in enumerate(self.products)}
        return min(
            ready, key=lambda w: (-self.depth(w.name) - (self.feeds_back and w in late), order[w.name]), default=None
        )

    def _are_last(self, late: list[Wanted], pending: dict[str, Wanted]) -> bool:
        """Is there nothing else to begin than what states become?"""
        return len(late) == len(pending)

    def _is_there(self, x: Code, w: Wanted) -> bool:
        """May a product begin with this?"""
        return self.needs(x) <= self.settled

    def _make_ahead(self, pending: dict[str, Wanted]) -> None:
        """What products that follow need, and no product that is under way. A state in registers is left alone until a product of
        this chunk has been waited for: the assembler would wait for all of them before it is used (C7517)."""
        for w in pending.values():
            self._left(w)
            if self.needs(w.right) <= self.settled:
                self._right(w)
            else:
                self._parts_ahead(w.right, self.accumulator(self._bare(w.right)[0]))
        for w in pending.values():
            if w.onto is not None and self.needs(w.onto) <= self.settled and self.settled:
                self.held(w.onto, self.accumulator_of(w), f"{w.name}_onto")

    def _parts_ahead(self, x: Code, layout: Layout) -> None:
        """Tiles of an operand, such as masks, that need no product."""
        for n in sorted(names_in(x)):
            if n in self.sweep.tiles and n not in self.products and self.sweep.ring_of(n) is None:
                if self.needs(Name(n)) <= self.settled:
                    self.named(n, layout)
                else:
                    self._parts_ahead(self.sweep.tiles[n].value, layout)

    def accumulator_of(self, w: Wanted) -> Accumulator:
        return self.accumulator(self.sweep.tiles[w.name].value)

    def _begin(self, w: Wanted) -> None:
        layout = self.accumulator_of(w)
        left = self._left(w)
        assert left is not None
        right = self._right(w)
        onto = w.onto if w.onto is None else self._onto(w, layout)
        self.steps.append(Product(w.name, left, right, onto, layout, w.note))
        self.layouts[w.name] = layout
        self.issued.append(w.name)

    def _onto(self, w: Wanted, layout: Layout) -> str:
        assert w.onto is not None
        if isinstance(w.onto, Name) and w.onto.id in self.issued and w.onto.id not in self.settled:
            self.added_to.add(w.onto.id)  # which is under way
            return w.onto.id
        return self.held(w.onto, layout, f"{w.name}_onto")

    def _settle(self, name: str) -> None:
        self.steps.append(Settle(name, len(self.issued) - self.issued.index(name) - 1))
        self.settled |= set(self.issued[: self.issued.index(name) + 1])

    def _finish(self) -> None:
        """Wait for what is under way, hand on states, and store outputs, each as soon as it is there."""
        stores = [y for x in self.sweep.stores if (y := self._maybe_output(x)) is not None]
        passed = dict(self.sweep.s.carried)
        for n in [*self.issued]:
            if n not in self.settled | self.added_to:
                self._settle(n)
            for state, x in list(passed.items()):
                if self.needs(x) <= self.settled and not any(state in names_in(y.value) for y in stores):
                    if self._is_taken(state):
                        continue
                    self._pass(state, passed.pop(state))
            for store in [x for x in stores if self.needs(x.value) <= self.settled]:
                stores.remove(store)
                self._send(store)
        for state, x in passed.items():
            self._pass(state, x)

    def _is_taken(self, state: str) -> bool:
        """Is a product under way that takes an operand which is made of a state?"""
        operands = {n for n, y in self.operands.items() if state in names_in(y.value)}
        under_way = [x for x in self.steps if isinstance(x, Product) and x.name not in self.settled]
        return any(isinstance(x.left, Held) and x.left.name in operands for x in under_way)

    def _release(self) -> None:
        """Say that the rings' stages may be filled anew, right behind the last step that reads one: a product reads until it is
        waited for, whatever else is made of a ring when it is made."""
        readers = [n for n, x in enumerate(self.steps) if isinstance(x, Settle) or self._loaded(x)]
        if not readers:
            raise CannotPrint("nothing is made of what is loaded for a chunk")
        last = readers[-1]
        since = max((n for n, x in enumerate(self.steps[:last]) if isinstance(x, Fence)), default=0)
        tiles = any(r.tile is not None for x in self.steps[since : last + 1] for r in self._loaded(x))
        self.steps[last + 1 : last + 1] = [*([Fence()] if tiles else []), Arrive(CHUNK, False)]

    def _loaded(self, x: Step) -> list[Ring]:
        """The rings that a step loads from, into registers."""
        return (
            [r for n in names_in(x.value) if (r := self.sweep.rings.get(n)) is not None] if isinstance(x, Make) else []
        )

    def _pass(self, state: str, x: Code) -> None:
        self.steps.append(Pass(state, self.held(x, self.states[state], f"{state}_next")))
        self.steps += [y for y in self.operands.values() if state in names_in(y.value)]

    def _maybe_output(self, x: Statement) -> Store | None:
        """The store of an output, perhaps one that a launch needn't want."""
        match x:
            case If(
                condition=Binary(operator="is not", left=Name(id=argument)), body=(Store() as store,), otherwise=()
            ) if argument in {a.name for a in self.sweep.k.arguments if a.layout == "out"}:
                return store
        return x if isinstance(x, Store) else None

    def _send(self, x: Store) -> None:
        tile, turned = self.sweep.target_of(x)
        shape = self.sweep.shapes.of(x.value)
        name = argument_of(x.pointer, frozenset(a.name for a in self.sweep.k.arguments))
        if name is None:
            raise CannotPrint(f"a store at {x.pointer.text}, which is no argument's")
        buffer = Buffer(f"{name}_tile", ("C", tile.block), tile, name, maybe=x not in self.sweep.stores)
        self.buffers.append(buffer)
        value = self.held(x.value, Accumulator(*shape), f"{name}_made")
        sent = self._sent(buffer, value, turned)
        self.steps += [WhereGiven(name, sent)] if buffer.maybe else sent

    def _checkpoint(self, x: Statement) -> None:
        """A state that enters a chunk is left for a backward pass, where a launch wants it: before anything waits for what is
        loaded, as no product that uses it is under way there."""
        match x:
            case If(
                condition=Binary(operator="is not", left=Name(id=argument)),
                body=(Store(value=Name(id=state)) as store,),
            ):
                if state not in self.states or x.otherwise:
                    raise CannotPrint("what is left before a chunk is no state")
            case _:
                raise CannotPrint("a store under a condition")
        tile, turned = self.sweep.checkpoint_of(store)
        buffer = Buffer(f"{argument}_tile", (tile.rows, tile.block), tile, argument, maybe=True)
        self.buffers.append(buffer)
        self.steps.append(WhereGiven(argument, self._sent(buffer, state, turned)))

    def _sent(self, buffer: Buffer, value: str, turned: bool) -> tuple[Step, ...]:
        return Drain((buffer.name,)), Put(buffer.name, value, turned), Fence(), Send(buffer.name)

    def _drained(self, x: Step) -> Step:
        """Of waits for the copy engine, those for a buffer that is filled next: all others have been sent once since it was."""
        if isinstance(x, WhereGiven):
            return replace(x, steps=tuple(map(self._drained, x.steps)))
        if isinstance(x, Drain):
            return Drain(tuple(b.name for b in self.buffers if b.tile is not None and b.name not in x.under_way))
        return x

    def _initial(self, state: str) -> Make:
        x = self.sweep.initial[state]
        return Make(state, self._written_out(x.value, self.sweep.initial), self.states[state])

    def _written_out(self, x: Code, definitions: dict[str, Let]) -> Code:
        if isinstance(x, Name) and x.id in definitions:
            return self._written_out(definitions[x.id].value, definitions)
        return rebuilt(x, lambda y: self._written_out(y, definitions))

    def _last(self, x: Statement) -> Plain:
        """A statement after the loop, on states."""
        found = {n for n in reads(x) if n in self.states}
        if len(found) != 1 or not isinstance(x, Store | If):
            raise CannotPrint("what is done after the loop isn't for one state")
        return Plain((x,), self.states[found.pop()])

    # --- operands

    def _bare(self, x: Code) -> tuple[Code, bool]:
        """An operand without casts to the dtype of what is loaded, and whether it is transposed."""
        turned = False
        while True:
            match x:
                case Call(function="tl.trans", arguments=(value,)):
                    x, turned = value, not turned
                case Cast(value=value, dtype="DT") if (inside := self._in_ring(value)) is not None:
                    return inside[0], turned != inside[1]
                case _:
                    return x, turned

    def _in_ring(self, x: Code) -> tuple[Code, bool] | None:
        """What products take from a ring, and whether it is the transpose of that."""
        bare, turned = self._bare(x)
        ring = self._ring(bare.id) if isinstance(bare, Name) else None
        return (bare, turned) if ring is not None and ring.is_operand else None

    def _ring(self, name: str) -> Ring | None:
        return self.sweep.ring_of(name)

    def _shared(self, x: Code) -> Shared | None:
        bare, turned = self._bare(x)
        ring = self._ring(bare.id) if isinstance(bare, Name) else None
        if ring is None or not ring.is_operand:
            return None
        self.sweep.use(ring)
        return Shared(ring.name, turned != ring.turned)

    def _left(self, w: Wanted) -> Shared | Held | None:
        if (shared := self._shared(w.left)) is not None:
            return shared
        if not self.needs(w.left) <= self.settled:
            return None
        layout = Operand(self.accumulator_of(w), self.sweep.shapes.of(w.left)[1])
        if isinstance(w.left, Call):
            raise CannotPrint("a left operand that is the transpose of what is computed")
        used = names_in(w.left)
        if used & set(self.states) and not used & set(self.sweep.tiles) and not used & set(self.sweep.numbers):
            return Held(self._of_states(w.left, layout))
        return Held(self.held(w.left, layout, f"{w.name}_left"))

    def _of_states(self, x: Code, layout: Layout) -> str:
        """An operand that is made of states alone: made once they are there, for the next chunk."""
        for y in self.operands.values():
            if y.value == x and y.layout == layout:
                return y.name
        used = sorted(names_in(x) & set(self.states))
        if len(used) != 1:
            raise CannotPrint("an operand of several states")
        state = used[0]
        name = f"{state}_operand" if not self.operands else f"{state}_operand{len(self.operands) + 1}"
        self.operands[name] = Make(name, x, layout)
        self.layouts[name] = layout
        return name

    def _right(self, w: Wanted) -> Shared:
        """The right operand, which is in shared memory: what is computed goes there."""
        if (shared := self._shared(w.right)) is not None:
            return shared
        bare, turned = self._bare(w.right)
        if any(x.name == f"{w.name}_buffer" for x in self.buffers):
            return Shared(f"{w.name}_buffer", turned)
        shape = self.sweep.shapes.of(bare)
        buffer = Buffer(f"{w.name}_buffer", (shape[0], shape[1]))
        self.buffers.append(buffer)
        value = self.held(bare, Accumulator(*shape), f"{w.name}_right")
        self.steps += [Put(buffer.name, value), Fence()]
        return Shared(buffer.name, turned)

    # --- values in registers

    def held(self, x: Code, layout: Layout, wish: str) -> str:
        """The name of a value in registers that lie so, made if it isn't there."""
        if isinstance(x, Name):
            return self.named(x.id, layout)
        key = (x, layout)
        if key not in self.made:
            own = self._own_layout(x, layout)
            if own != layout:
                inside = self.held(x, own, f"{wish}_made")
                self._make(Make(wish, Name(inside), layout))
            else:
                self._make(Make(wish, self._resolved(x, layout), layout))
            self.made[key] = wish
        return self.made[key]

    def named(self, name: str, layout: Layout) -> str:
        """A name of the kernel's, in registers that lie so."""
        if self.layouts.get(name) == layout:
            return name
        key = (Name(name), layout)
        if key in self.made:
            return self.made[key]
        x = self.sweep.tiles.get(name)
        if name in self.layouts and (x is None or name in self.products or self._own_layout(x.value, layout) != layout):
            wish = self._other(name)
            self._make(Make(wish, Name(name), layout))
        else:
            if x is None:
                raise CannotPrint(f"{name} is no tile of this chunk")
            wish = self._other(name)
            self._make(Make(wish, self._resolved(x.value, layout), layout, x.note))
        self.made[key] = wish
        return wish

    def _other(self, name: str) -> str:
        wish, n = name, 1
        while wish in self.layouts:
            wish, n = f"{name}_moved{n if n > 1 else ''}", n + 1
        return wish

    def _make(self, x: Make) -> None:
        written(x.value)
        self.steps.append(x)
        assert x.layout is not None
        self.layouts[x.name] = x.layout

    def _own_layout(self, x: Code, layout: Layout) -> Layout:
        """Where an expression is computed best: where its tiles in registers lie, if it takes none from shared memory."""
        found: set[Layout] = set()
        for n in self._leaves(x):
            ring = self._ring(n)
            if ring is not None:
                if ring.tile is not None:
                    return layout
            elif n in self.products or n in self.states:
                found.add(self.layouts[n])
        return found.pop() if len(found) == 1 else layout

    def _leaves(self, x: Code) -> frozenset[str]:
        found: set[str] = set()
        for n in names_in(x):
            if n in self.sweep.tiles and n not in self.products and self._ring(n) is None:
                found |= self._leaves(self.sweep.tiles[n].value)
            else:
                found.add(n)
        return frozenset(found)

    def _resolved(self, x: Code, layout: Layout) -> Code:
        """An expression over what lies in registers as `layout` says, and rings."""
        x = self._masked_once(x)
        if isinstance(x, Load):
            raise CannotPrint(f"{x.text} is loaded where no role fetches it")
        if isinstance(x, Expanded) and len(self.sweep.shapes.of(x.value)) == 1 and not isinstance(x.value, Name):
            return self._number(x)
        if isinstance(x, Name):
            if x.id in self.states or x.id in self.products:
                return Name(self.named(x.id, layout))
            ring = self._ring(x.id)
            if ring is not None:
                self.sweep.use(ring)
            elif x.id in self.sweep.tiles:
                return Name(self.named(x.id, layout))
            return x
        if isinstance(x, Call) and x.function in ("tl.dot", "tl.trans", "tl.zeros"):
            raise CannotPrint(f"{x.function} in the middle of an expression")
        return rebuilt(x, lambda y: self._resolved(y, layout))

    def _number(self, x: Expanded) -> Code:
        """Numbers of each step that are an expression: made by the loader, under a name."""
        if not any(n in self.sweep.numbers for n in names_in(x.value)):
            return x
        name = next((n for n, y in self.sweep.numbers.items() if y.value == x.value), None)
        if name is None:
            taken = self.sweep.numbers.keys() | self.sweep.definitions.keys()
            name = next(n for n in map("number{}".format, count(1)) if n not in taken)
            self.sweep.known.pop(name, None)
            self.sweep.numbers[name] = Let((name,), x.value)
            self.sweep.shapes.known[name] = self.sweep.shapes.of(x.value)
        ring = self.sweep.ring_of(name)
        assert ring is not None
        self.sweep.use(ring)
        return replace(x, value=Name(name))

    def _masked_once(self, x: Code) -> Code:
        """What is loaded as zero beyond its end needn't be masked again."""
        match x:
            case Call(function="tl.where", arguments=(mask, value, Literal(value=0.0))) if self._is_zero_beyond(
                value, mask
            ):
                return value
        return x

    def _is_zero_beyond(self, x: Code, mask: Code) -> bool:
        """Is it zero wherever a mask doesn't let it pass, as it is made of what is loaded as zero there?"""
        match x:
            case Name(id=name):
                load = self.sweep.tiles.get(name)
                return load is not None and isinstance(load.value, Load) and load.value.mask in (mask, _swapped(mask))
            case Cast(value=value) | Group(value=value) | Negative(value=value):
                return self._is_zero_beyond(value, mask)
            case Binary(operator="+" | "-", left=left, right=right):
                return self._is_zero_beyond(left, mask) and self._is_zero_beyond(right, mask)
            case Binary(operator="*", left=left, right=right):
                return self._is_zero_beyond(left, mask) or self._is_zero_beyond(right, mask)
        return False


def _swapped(x: Code) -> Code:
    return both(*reversed(x.parts)) if len(x.parts) == 2 else x
