"""The function of a role: the steps of a schedule as statements of a kernel in Gluon, and the expressions in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..ir.code import (
    Attribute,
    Binary,
    Call,
    Code,
    Either,
    Expanded,
    Group,
    Items,
    Literal,
    Method,
    Name,
    atom,
    call,
    code,
    names_in,
    plus,
    shape,
    times,
)
from ..ir.kernel_ir import Body, Do, For, If, KernelFunction, Let, Statement, Store, expressions, let, statements
from ..ir.warp_schedule import (
    Accumulator,
    Arrive,
    Await,
    Barriers,
    Blocks,
    Buffer,
    Drain,
    Fence,
    Fetch,
    Held,
    Invert,
    Layout,
    Leave,
    Make,
    Operand,
    Pass,
    Plain,
    Product,
    Put,
    Ring,
    Role,
    Schedule,
    Send,
    Settle,
    Shared,
    Step,
    WhereGiven,
    flat,
)
from ..ir.words import Bound, Defined, Definition, definition, inset, listed, path
from .gluon_names import (
    NUMBERS,
    OF_SEVERAL,
    ONE,
    SEVERAL,
    STAGES,
    TOGETHER,
    WARPS,
    WITHIN,
    dtype_of,
    gl_name,
    in_gluon,
    place_of,
    ring_name,
    scalar,
    size,
    tiles_name,
)
from .kernel_text import GLUON, word_lines

EACH = "each"  # where numbers of each step lie


def role_name(s: Schedule, role: Role) -> str:
    return f"{s.name}_{role.name}"


def registers_word(role: Role) -> str:
    return f"{role.name.upper()}_REGISTERS"


def words_of(k: KernelFunction) -> tuple[str, ...]:
    """What a kernel is compiled for."""
    return (*k.words, *(x for line in k.more_words for x in line))


def _turned(x: Code, turned: bool) -> Code:
    """A tile in shared memory, or its transpose."""
    return Method(x, "permute", (Items((Literal(1), Literal(0))),)) if turned else x


def _loaded(x: Code, layout: str) -> Code:
    """What lies in shared memory, in registers."""
    return Method(x, "load", (Name(layout),))


def descriptor(x: Ring | Buffer, several: bool) -> Statement:
    """What the copy engine is told of a tile, made by the role that tells it; `several`: it moves those of so many chunks."""
    t = x.tile
    assert t is not None
    sizes, strides = shape(scalar(t.stop), size(t.width)), shape(scalar(t.stride), 1)
    rows, block = SEVERAL if several else size(t.rows), size(t.block)
    swizzled = call("swizzled", block, dtype_of(x))
    made = call("tma.make_tensor_descriptor", scalar(t.base), sizes, strides, shape(rows, block), swizzled)
    told = let(tiles_name(x), made)
    return where_given(x.target, [told]) if isinstance(x, Buffer) and x.maybe else told


def where_given(argument: str, body: Iterable[Statement], otherwise: Body = ()) -> If:
    return If(Name(argument).given, tuple(body), otherwise)


# --- a role ---------------------------------------------------------------------------------------------------------


@dataclass
class RoleFunction:
    """What makes the function of one role."""

    k: KernelFunction
    s: Schedule
    role: Role
    layouts: dict[Layout, str] = field(default_factory=dict)  # the names that they have
    held: dict[str, Layout] = field(default_factory=dict)
    slices: dict[str, Code] = field(default_factory=dict)  # of layouts, by the names that they have

    def __post_init__(self) -> None:
        self.indices = {x.names[0]: x for x in self.s.indices if isinstance(x, Let)}
        self.scalars = {x.names[0]: x for x in self.s.scalars if isinstance(x, Let)}
        for x in self.role.steps:
            if isinstance(x, Make) and x.layout is not None:
                self.held[x.name] = x.layout
            if isinstance(x, Product | Invert):
                self.held[x.name] = x.layout
        self.together = self.s.several and self.role.together  # does it take several chunks at once,
        self.in_turn = self.s.several and not self.role.together  # or one after the other?
        self.turn = "turn" if self.s.several else "n"
        self.warps = code(self.role.warps if self.together else WARPS)

    def definition(self) -> Definition:
        body = self.body()
        words = {*words_of(self.k), TOGETHER}
        constant = (": ", *path(f"{GLUON}.constexpr"))
        parameters = listed((Bound(n), *(constant if n in words else ())) for n in self.parameters)
        head = ("def ", Defined(role_name(self.s, self.role)), "(", *parameters, "):")
        return definition([("@", *path("gluon.jit")), head, *inset(word_lines(body, GLUON))])

    def body(self) -> Body:
        """What the role does, as statements of kernels."""
        before, each, after = self.all(self.role.before), self.round(), self.all(self.role.after)
        count = call("gl.cdiv", "count", TOGETHER) if self.s.several else Name("count")
        rounds = For("turn" if self.s.several else "n", call("range", count), each)
        tiles = [descriptor(x, self.together) for x in self.moved()]
        return (*self.named_layouts(), *tiles, *before, rounds, *after)

    # --- what it is given

    @property
    def parameters(self) -> list[str]:
        """What the role's function reads, in the order in which the kernel has it; then all that the kernel is compiled for."""
        used = {"count", *self.places()} | self.names(self.role.steps) | self.names_of_scalars()
        for x in self.moved():
            assert x.tile is not None
            used |= {x.tile.width, x.tile.block, x.tile.rows}
            used = used.union(*map(names_in, (x.tile.base, x.tile.stride, x.tile.stop)))
        known = [p.name for line in self.k.parameters for p in line] + [*self.k.integers, *self.k.counts]
        known += [x.names[0] for x in self.s.setup if isinstance(x, Let)]
        found = [n for n in dict.fromkeys(known) if n in used]
        words = (*words_of(self.k), *([TOGETHER] if self.s.several else []))
        return [*found, *self.places(), *(n for n in words if n in used | self.sizes())]

    def sizes(self) -> set[str]:
        """What the kernel is compiled for that the role's function has in layouts, and to find its way."""
        found = {STAGES, WARPS, "C", "DT", TOGETHER}
        for x in self.role.steps:
            found |= {"LEVELS"} if isinstance(x, Invert) else set()
            if isinstance(x, Make | Product | Plain) and x.layout is not None:
                of = x.layout.of if isinstance(x.layout, Operand) else x.layout
                found |= {of.rows, of.columns}
        return found

    def places(self) -> list[str]:
        """Rings, buffers, and barriers."""
        found: dict[str, None] = {}
        for x in self.role.steps:
            match x:
                case Fetch(rings=rings):
                    for n in rings:
                        r = self.s.ring(n)
                        assert r is not None
                        found[ring_name(r)] = None
                case Await(barriers=b) | Arrive(barriers=b):
                    found |= {f"{b}_ready": None, f"{b}_empty": None}
                case Put(place=place):
                    found[self.place(place)] = None
                case Send(buffer=name):
                    found[name] = None
                case Invert(name=name):
                    found[f"{name}_places"] = None
                case Product(left=left, right=right):
                    found |= {self.place(y.place): None for y in (left, right) if isinstance(y, Shared)}
            if not (isinstance(x, Make) and self.role.warps == 1):
                read = self.reads(x)
                found |= {ring_name(r): None for r in self.s.rings if r.name in read}
        return list(found)

    def moved(self, steps: Iterable[Step] | None = None) -> list[Ring | Buffer]:
        """What the copy engine moves, as this role tells it."""
        found: list[Ring | Buffer | None] = []
        for x in self.role.steps if steps is None else flat(steps):
            match x:
                case Fetch(rings=rings):
                    found += [self.s.ring(n) for n in rings]
                case Send():
                    found.append(self.sent(x))
        return [x for x in found if x is not None]

    def place(self, name: str) -> str:
        r = self.s.ring(name)
        return name if r is None else ring_name(r)

    def reads(self, x: Step) -> frozenset[str]:
        match x:
            case Make(value=value):
                return names_in(value)
            case Plain(body=body):
                return frozenset[str]().union(*(names_in(e) for y in statements(body) for e in expressions(y)))
            case Leave(call=called):
                return names_in(called)
        return frozenset()

    def names(self, steps: Iterable[Step]) -> set[str]:
        """All names that are read, of numbers and in indices too."""
        found = {n for x in flat(steps) for n in self.reads(x)}
        for y in self.moved(steps):
            assert y.tile is not None
            found |= names_in(y.tile.first) | names_in(y.tile.offset)
        found |= {x.argument for x in steps if isinstance(x, WhereGiven)}
        return self.with_scalars(found)

    def names_of_scalars(self) -> set[str]:
        return {m for x in self.needed_scalars() for m in names_in(x.value)}

    def needed_scalars(self) -> list[Let]:
        used = self.names(self.role.each)
        return [x for n, x in self.scalars.items() if n in used]

    # --- lines

    def round(self) -> Body:
        """What is done for a stage."""
        turn, chunk = Name(self.turn), times("turn", TOGETHER)
        begin = let("stage", turn % STAGES), let("phase", turn // STAGES & Literal(1))
        scalars = [let(x.names[0], scalar(x.value)) for x in self.needed_scalars()]
        steps = self.all(self.role.each)
        if self.together:
            first = let("n", chunk + TOGETHER - 1 if self.s.backwards else chunk)
            return (*begin, *([first] if scalars else []), *self.scalars_of_stages(), *steps)
        if self.in_turn:
            n = [let("n", chunk + WITHIN)] if scalars else []
            return (*begin, For(WITHIN, call("gl.static_range", TOGETHER), (*n, *scalars, *steps)))
        return (*begin, *scalars, *steps)

    def scalars_of_stages(self) -> list[Let]:
        """Numbers of a stage's first chunk in memory, where tiles are; then those of the chunk that each step is in."""
        moved = self.moved(self.role.each)
        calls = [x for x in flat(self.role.each) if isinstance(x, Leave)]
        places = {n for x in moved if x.tile is not None for n in names_in(x.tile.first)}
        places = self.with_scalars(places.union(*(names_in(x.call) for x in calls)))
        others = [x for x in flat(self.role.each) if not isinstance(x, Leave)]
        each = self.with_scalars({n for x in others for n in self.reads(x)})
        made = [let(x.names[0], scalar(x.value)) for n, x in self.scalars.items() if n in places]
        return [*made, *(let(f"{n}_each", self.number(x.value)) for n, x in self.scalars.items() if n in each)]

    def with_scalars(self, found: set[str]) -> set[str]:
        """Names, with those that these numbers of a chunk, and indices, are made of."""
        before: set[str] = set()
        while before != found:
            before = set(found)
            for n in before:
                for known in (self.indices, self.scalars):
                    if n in known:
                        found |= names_in(known[n].value)
        return found

    def named_layouts(self) -> list[Let]:
        found: dict[str, Code] = {}
        for layout, name in self.layouts.items():
            match layout:
                case Accumulator(rows="C", columns=columns) if self.in_turn:
                    found[name] = call("few_rows", size(columns), self.warps)
                case Accumulator():
                    found[name] = self.accumulator(layout)
                case Blocks():
                    found[name] = call("small_products", TOGETHER, self.warps)
                case Operand(of=of):
                    parent = self.accumulator(of)
                    found[name] = call("gl.DotOperandLayout", operand_index=0, parent=parent, k_width=2)
        return [replace(let(n, x), constant=True) for n, x in (found | self.slices).items()]

    def accumulator(self, x: Accumulator) -> Code:
        return call("accumulator", self.size(x.rows), self.size(x.columns), self.warps)

    def size(self, axis: str) -> Code:
        """The size of an axis of a tile."""
        return SEVERAL if self.together and axis == "C" else size(axis)

    def layout(self, x: Layout) -> str:
        if x not in self.layouts:
            stem = "tile" if isinstance(x, Accumulator) else "blocks" if isinstance(x, Blocks) else "left"
            self.layouts[x] = f"{stem}{sum(n.startswith(stem) for n in self.layouts.values()) + 1}"
        return self.layouts[x]

    def sliced(self, of: str, axis: int, last: int = 1) -> str:
        """Where numbers along an axis of a tile lie, by the name that this has."""
        return self.named(f"{of}_{('rows', 'columns')[axis]}", call("gl.SliceLayout", last - axis, of))

    def steps(self) -> str:
        """Where numbers of each step lie, in the one warp that makes them."""
        return self.named(EACH, OF_SEVERAL if self.together else NUMBERS)

    def named(self, name: str, layout: Code) -> str:
        self.slices[name] = layout
        return name

    def all(self, steps: Iterable[Step]) -> Body:
        return tuple(y for x in steps for y in self.step(x))

    def step(self, x: Step) -> Iterator[Statement]:
        match x:
            case Await() | Arrive() if self.in_turn:
                last = Name(TOGETHER) - 1
                yield If(Name(WITHIN).equals(last if isinstance(x, Arrive) else 0), (self.barrier(x),))
            case Await() | Arrive():
                yield self.barrier(x)
            case Fetch(barriers=b, rings=names):
                yield from self.fetch(b, [r for n in names if (r := self.s.ring(n)) is not None])
            case Make():
                yield self.make(x)
            case Put(place=place, value=value, turned=turned):
                yield self.put(place, value, turned)
            case Fence():
                yield Do(call("fence_async_shared"))
            case Product():
                yield self.product(x)
            case Invert(name=name, value=value):
                places = (self.at(f"{name}_places", n) for n in (0, 1))
                yield Let((name,), call("inverses", value, *places, "LEVELS"), note=x.note)
            case Settle(name=name, outstanding=n):
                yield let(name, call("warpgroup_mma_wait", n, deps=Items((Name(name),))))
            case _:
                yield from self.leaving(x)

    @staticmethod
    def at(place: str, stage: Code | int) -> Code:
        """A stage of what has several."""
        return Method(Name(place), "index", (code(stage),))

    def barrier(self, x: Await | Arrive) -> Do:
        at = self.at(f"{x.barriers}_{'ready' if x.ready else 'empty'}", self.stage(x.barriers))
        if isinstance(x, Arrive):
            return Do(call("mbarrier.arrive", at, count=1))
        phase = self.phase(x.barriers)
        return Do(call("mbarrier.wait", at, phase if x.ready else Binary("^", phase, Literal(1))))

    def leaving(self, x: Step) -> Iterator[Statement]:
        """A step that hands on what a chunk leaves."""
        match x:
            case Drain(under_way=names):
                yield Do(call("tma.store_wait", self.number_of(names)))
            case Send(buffer=name):
                buffer = self.sent(x)
                assert buffer.tile is not None
                yield Do(call("tma.async_copy_shared_to_global", tiles_name(buffer), place_of(buffer.tile), name))
            case WhereGiven(argument=argument, steps=steps):
                yield where_given(argument, self.all(steps))
            case Pass(name=name, value=value):
                yield let(name, Name(value))
            case Plain(body=body, layout=layout):
                yield from self.plain(body, layout)
            case Leave(call=called):
                yield Do(call(called.function, *map(self.argument, called.arguments)))

    def argument(self, x: Code) -> Code:
        """What a function of the runtime is given: a tile of this role, a ring's stage, or a number."""
        r = self.s.ring(x.id) if isinstance(x, Name) and x.id not in self.held else None
        return scalar(x) if r is None else self.stage_of(r)

    def barriers(self, name: str) -> Barriers:
        return next(b for b in self.s.barriers if b.name == name)

    def stage(self, barriers: str) -> Code:
        count = self.barriers(barriers).stages
        return Name("stage") if count is None else Literal(0) if count == 1 else Name(self.turn) % count

    def phase(self, barriers: str) -> Code:
        count, turn = self.barriers(barriers).stages, Name(self.turn)
        return Name("phase") if count is None else Group((turn if count == 1 else turn // count) & Literal(1))

    def stage_of(self, r: Ring) -> Code:
        whole = self.at(ring_name(r), self.stage(self.s.barriers_of(r.name).name))
        at = Name(TOGETHER) - 1 - WITHIN if self.s.backwards else Name(WITHIN)
        return Method(whole, "slice", (at * "C", size(r.shape[0]))) if self.in_turn else whole

    def sent(self, x: Send) -> Buffer:
        """What leaves by a buffer, under the name of what it goes to."""
        found = self.s.buffer(x.buffer)
        assert found is not None
        return found if x.tile is None else Buffer(x.target, found.shape, x.tile, found.target and x.target)

    def number_of(self, buffers: Iterable[str]) -> Code:
        """How many of these buffers a launch has."""
        found = [b for n in buffers if (b := self.s.buffer(n)) is not None]
        sure, some = sum(not b.maybe for b in found), [b for b in found if b.maybe]
        if len(some) > 1:
            raise NotImplementedError("two buffers that a launch may not have")
        return Either(Literal(sure + 1), Name(some[0].target).given, Literal(sure)) if some else Literal(sure)

    def fetch(self, barriers: str, rings: list[Ring]) -> Iterator[Statement]:
        yield let("ready", self.at(f"{barriers}_ready", self.stage(barriers)))
        sizes = (Attribute(Name(tiles_name(r)), "block_type.nbytes") for r in rings)
        yield Do(call("mbarrier.expect", "ready", plus(*sizes)))
        for r in rings:
            assert r.tile is not None
            given = tiles_name(r), place_of(r.tile), "ready", self.stage_of(r)
            yield Do(call("tma.async_copy_global_to_shared", *given))

    def make(self, x: Make) -> Let:
        if x.layout is None:
            return Let((x.name,), self.number(x.value), note=x.note)
        others = {self.held[n] for n in names_in(x.value) if n in self.held}
        if len(others) == 1 and x.layout not in others:
            (own,) = others
            if isinstance(x.layout, Blocks):
                made: Code = call("on_diagonal", self.tile(x.value, own), TOGETHER, self.layout(x.layout))
            else:
                made = call("gl.convert_layout", self.tile(x.value, own), self.layout(x.layout))
        else:
            made = self.tile(x.value, x.layout)
        return Let((x.name,), made, note=x.note)

    def put(self, place: str, value: str, turned: bool) -> Do:
        r, x = self.s.ring(place), Name(value)
        if r is None:
            buffer = self.s.buffer(place)
            rounded = x.to(f"{place}.dtype") if buffer is not None and buffer.target else x
            return Do(Method(_turned(Name(place), turned), "store", (rounded,)))
        made: Code = x
        if self.together and r.operand:
            made = call("gl.reshape", x, shape(SEVERAL, size(r.shape[1])))
        elif r.shape == ("1",) and not self.together:
            made = call("gl.full", shape(1), x, "gl.float32", layout=self.named("one", ONE))
        elif r.shape == ("1",) and not self.of_chunk(value):
            made = call("gl.full", shape(SEVERAL), x, "gl.float32", layout=self.steps())
        return Do(Method(self.stage_of(r), "store", (made,)))

    def of_chunk(self, name: str) -> bool:
        """Is a number that this role makes another one for each chunk?"""
        made = {x.name: names_in(x.value) for x in self.role.each if isinstance(x, Make)}
        found = made.get(name, frozenset())
        return bool(found & self.scalars.keys()) or any(map(self.of_chunk, found & made.keys() - {name}))

    def product(self, x: Product) -> Let:
        left: Code = Name(x.left.name) if isinstance(x.left, Held) else self.shared(x.left)
        if x.onto is None:
            made = call("begun", left, self.shared(x.right), self.layout(x.layout))
        else:
            made = call("warpgroup_mma", left, self.shared(x.right), x.onto, is_async=True)
        return Let((x.name,), made, note=x.note)

    def shared(self, x: Shared) -> Code:
        r = self.s.ring(x.place)
        return _turned(Name(x.place) if r is None else self.stage_of(r), x.turned)

    def plain(self, body: Body, layout: Layout | None) -> Iterator[Statement]:
        for x in body:
            assert layout is not None
            match x:
                case If(condition=condition, body=inside):
                    yield If(scalar(condition), tuple(self.plain(inside, layout)))
                case Store(pointer=pointer, value=value, mask=mask):
                    where = None if mask is None else self.tile(mask, layout)
                    yield Store(self.tile(pointer, layout), self.tile(value, layout), where)

    # --- expressions

    def tile(self, x: Code, layout: Layout) -> Code:
        """An expression of two axes, over registers that lie so."""
        of = self.layout(layout)
        match x:
            case Expanded(value=value, own=own) if isinstance(layout, Blocks):
                return self.of_blocks(value, own.index(True), of)
            case Expanded(value=value, own=own):
                axis = own.index(True)
                return Expanded(self.vector(value, self.sliced(of, axis)), own)
            case Name(id=name) if (r := self.s.ring(name)) is not None and name not in self.held:
                if r.tile is None:
                    return Expanded(_loaded(self.stage_of(r), self.sliced(of, 0)), (True, False))
                return _loaded(self.shared(Shared(name, r.turned)), of)
            case Call(function="tl.trans", arguments=(Name(id=name),)) if (r := self.s.ring(name)) is not None:
                return _loaded(self.shared(Shared(name, not r.turned)), of)
            case Call(function="tl.zeros", arguments=(sizes, dtype)):
                return call("gl.zeros", sizes, gl_name(dtype.text), layout=Name(of))
            case Items():
                return x
        return in_gluon(x, lambda y: self.tile(y, layout))

    def of_blocks(self, x: Code, axis: int, of: str) -> Code:
        """Numbers of the steps of each chunk of a stage, along an axis of tiles of these."""
        layout = self.sliced(of, axis, 2)
        if isinstance(x, Name) and (r := self.s.ring(x.id)) is not None:
            found = Method(self.stage_of(r), "reshape", (shape(TOGETHER, "C"),))
            return Expanded(_loaded(found, layout), (True, axis == 0, axis == 1))
        alone = self.named(f"{layout}_alone", call("gl.SliceLayout", 0, layout))
        return Expanded(self.vector(x, alone), (False, axis == 0, axis == 1))

    def vector(self, x: Code, layout: str) -> Code:
        """An expression of one axis, over registers that lie so."""
        match x:
            case Name(id="n") if self.together:
                within = call("gl.arange", 0, SEVERAL, layout=layout) // "C"
                return Group(x - within if self.s.backwards else x + within)
            case Call(function="tl.arange") if self.together and layout == EACH:
                return Group(call("gl.arange", 0, SEVERAL, layout=layout) % "C")
            case Name(id=name) if self.together and name in self.scalars:
                return Name(f"{name}_each")
            case Name(id=name) if name in self.indices:
                return atom(self.vector(self.indices[name].value, layout))
            case Name(id=name) if (r := self.s.ring(name)) is not None and self.role.warps != 1:
                return _loaded(self.stage_of(r), layout)
            case Call(function="tl.arange", arguments=arguments):
                return Call("gl.arange", arguments, (("layout", Name(layout)),))
        return in_gluon(x, lambda y: self.vector(y, layout))

    def number(self, x: Code) -> Code:
        """An expression over numbers of each step, or of a chunk."""
        return self.vector(x, self.steps())
