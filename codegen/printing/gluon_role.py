"""The function of a role printed: Gluon text of the steps of a schedule, and of the expressions in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..ir.code import Call, Code, Expanded, Items, Name, Text, call, names_in
from ..ir.kernel_ir import Body, If, KernelFunction, Let, Statement, Store, expressions, statements
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
    tiles_name,
)
from .kernel_text import indented

EACH = "each"  # where numbers of each step lie


def role_name(s: Schedule, role: Role) -> str:
    return f"{s.name}_{role.name}"


def registers_word(role: Role) -> str:
    return f"{role.name.upper()}_REGISTERS"


def words_of(k: KernelFunction) -> tuple[str, ...]:
    """What a kernel is compiled for."""
    return (*k.words, *(x for line in k.more_words for x in line))


def descriptor(x: Ring | Buffer, several: bool) -> list[str]:
    """What the copy engine is told of a tile, made by the role that tells it; `several`: it moves those of so many chunks."""
    t = x.tile
    assert t is not None
    t = replace(t, rows=SEVERAL) if several else t
    line = (
        f"{tiles_name(x)} = tma.make_tensor_descriptor({scalar(t.base).text}, [{scalar(t.stop).text}, {t.width}], "
        f"[{scalar(t.stride).text}, 1], [{t.rows}, {t.block}], swizzled({t.block}, {dtype_of(x)}))"
    )
    return where_given(x.target, [line]) if isinstance(x, Buffer) and x.maybe else [line]


def where_given(argument: str, lines: Iterable[str]) -> list[str]:
    return [f"if {argument} is not None:", *indented(lines)]


# --- a role ---------------------------------------------------------------------------------------------------------


@dataclass
class RolePrinter:
    """The function of one role."""

    k: KernelFunction
    s: Schedule
    role: Role
    layouts: dict[Layout, str] = field(default_factory=dict)  # the names that they have
    held: dict[str, Layout] = field(default_factory=dict)
    slices: dict[str, str] = field(default_factory=dict)  # of layouts, by the names that they have

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
        self.warps = str(self.role.warps) if self.together else WARPS

    def function(self) -> str:
        before = self.lines(self.role.before)
        each = self.round()
        after = self.lines(self.role.after)
        words = {*words_of(self.k), TOGETHER}
        parameters = ", ".join(f"{n}: gl.constexpr" if n in words else n for n in self.parameters)
        tiles = [line for x in self.moved() for line in descriptor(x, self.together)]
        rounds = f"for turn in range(gl.cdiv(count, {TOGETHER})):" if self.s.several else "for n in range(count):"
        lines = [*self.named_layouts(), *tiles, *before, rounds, *indented(each), *after]
        return "\n".join(["@gluon.jit", f"def {role_name(self.s, self.role)}({parameters}):", *indented(lines)])

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

    def round(self) -> list[str]:
        """What is done for a stage."""
        lines = [f"stage = {self.turn} % {STAGES}", f"phase = {self.turn} // {STAGES} & 1"]
        scalars = [f"{x.names[0]} = {scalar(x.value).text}" for x in self.needed_scalars()]
        steps = self.lines(self.role.each)
        if self.together:
            last = f" + {TOGETHER} - 1" if self.s.backwards else ""
            n = [f"n = turn * {TOGETHER}{last}"] if scalars else []
            return [*lines, *n, *self.scalars_of_stages(), *steps]
        if self.in_turn:
            n = [f"n = turn * {TOGETHER} + {WITHIN}"] if scalars else []
            return [*lines, f"for {WITHIN} in gl.static_range({TOGETHER}):", *indented([*n, *scalars, *steps])]
        return [*lines, *scalars, *steps]

    def scalars_of_stages(self) -> list[str]:
        """Numbers of a stage's first chunk in memory, where tiles are; then those of the chunk that each step is in."""
        moved = self.moved(self.role.each)
        calls = [x for x in flat(self.role.each) if isinstance(x, Leave)]
        places = {n for x in moved if x.tile is not None for n in names_in(x.tile.first)}
        places = self.with_scalars(places.union(*(names_in(x.call) for x in calls)))
        others = [x for x in flat(self.role.each) if not isinstance(x, Leave)]
        each = self.with_scalars({n for x in others for n in self.reads(x)})
        lines = [f"{x.names[0]} = {scalar(x.value).text}" for n, x in self.scalars.items() if n in places]
        for n, x in self.scalars.items():
            if n in each:
                lines.append(f"{n}_each = {self.number(x.value).text}")
        return lines

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

    def named_layouts(self) -> list[str]:
        lines = []
        for layout, name in self.layouts.items():
            match layout:
                case Accumulator(rows="C", columns=columns) if self.in_turn:
                    text = f"few_rows({columns}, {self.warps})"
                case Accumulator(rows=rows, columns=columns):
                    text = f"accumulator({self.size(rows)}, {self.size(columns)}, {self.warps})"
                case Blocks():
                    text = f"small_products({TOGETHER}, {self.warps})"
                case Operand(of=of):
                    result = f"accumulator({self.size(of.rows)}, {self.size(of.columns)}, {self.warps})"
                    text = f"gl.DotOperandLayout(operand_index=0, parent={result}, k_width=2)"
            lines.append(f"{name}: gl.constexpr = {text}")
        return [*lines, *(f"{n}: gl.constexpr = {x}" for n, x in self.slices.items())]

    def size(self, axis: str) -> str:
        """The size of an axis of a tile."""
        return SEVERAL if self.together and axis == "C" else axis

    def layout(self, x: Layout) -> str:
        if x not in self.layouts:
            stem = "tile" if isinstance(x, Accumulator) else "blocks" if isinstance(x, Blocks) else "left"
            self.layouts[x] = f"{stem}{sum(n.startswith(stem) for n in self.layouts.values()) + 1}"
        return self.layouts[x]

    def sliced(self, of: str, axis: int, last: int = 1) -> str:
        """Where numbers along an axis of a tile lie, by the name that this has."""
        return self.named(f"{of}_{('rows', 'columns')[axis]}", f"gl.SliceLayout({last - axis}, {of})")

    def steps(self) -> str:
        """Where numbers of each step lie, in the one warp that makes them."""
        return self.named(EACH, OF_SEVERAL if self.together else NUMBERS)

    def named(self, name: str, layout: str) -> str:
        self.slices[name] = layout
        return name

    def lines(self, steps: Iterable[Step]) -> list[str]:
        return [line for x in steps for line in self.step(x)]

    def step(self, x: Step) -> Iterator[str]:
        match x:
            case Await() | Arrive() if self.in_turn:
                yield f"if {WITHIN} == {f'{TOGETHER} - 1' if isinstance(x, Arrive) else 0}:"
                yield from indented(self.barrier(x))
            case Await() | Arrive():
                yield from self.barrier(x)
            case Fetch(barriers=b, rings=names):
                yield from self.fetch(b, [r for n in names if (r := self.s.ring(n)) is not None])
            case Make():
                yield self.make(x)
            case Put(place=place, value=value, turned=turned):
                yield self.put(place, value, turned)
            case Fence():
                yield "fence_async_shared()"
            case Product():
                yield self.product(x)
            case Invert(name=name, value=value):
                note = f"  # {x.note}" if x.note else ""
                yield f"{name} = inverses({value}, {name}_places.index(0), {name}_places.index(1), LEVELS){note}"
            case Settle(name=name, outstanding=n):
                yield f"{name} = warpgroup_mma_wait({n}, deps=({name},))"
            case _:
                yield from self.leaving(x)

    def barrier(self, x: Await | Arrive) -> Iterator[str]:
        match x:
            case Await(barriers=b, ready=True):
                yield f"mbarrier.wait({b}_ready.index({self.stage(b)}), {self.phase(b)})"
            case Await(barriers=b):
                yield f"mbarrier.wait({b}_empty.index({self.stage(b)}), {self.phase(b)} ^ 1)"
            case Arrive(barriers=b, ready=ready):
                yield f"mbarrier.arrive({b}_{'ready' if ready else 'empty'}.index({self.stage(b)}), count=1)"

    def leaving(self, x: Step) -> Iterator[str]:
        """A step that hands on what a chunk leaves."""
        match x:
            case Drain(under_way=names):
                yield f"tma.store_wait({self.number_of(names)})"
            case Send(buffer=name):
                buffer = self.sent(x)
                assert buffer.tile is not None
                yield f"tma.async_copy_shared_to_global({tiles_name(buffer)}, {place_of(buffer.tile)}, {name})"
            case WhereGiven(argument=argument, steps=steps):
                yield from where_given(argument, self.lines(steps))
            case Pass(name=name, value=value):
                yield f"{name} = {value}"
            case Plain(body=body, layout=layout):
                yield from self.plain(body, layout)
            case Leave(call=called):
                yield f"{called.function}({', '.join(map(self.argument, called.arguments))})"

    def argument(self, x: Code) -> str:
        """What a function of the runtime is given: a tile of this role, a ring's stage, or a number."""
        r = self.s.ring(x.id) if isinstance(x, Name) and x.id not in self.held else None
        return scalar(x).text if r is None else self.stage_of(r)

    def barriers(self, name: str) -> Barriers:
        return next(b for b in self.s.barriers if b.name == name)

    def stage(self, barriers: str) -> str:
        count = self.barriers(barriers).stages
        return "stage" if count is None else "0" if count == 1 else f"{self.turn} % {count}"

    def phase(self, barriers: str) -> str:
        count = self.barriers(barriers).stages
        return "phase" if count is None else f"({self.turn}{'' if count == 1 else f' // {count}'} & 1)"

    def stage_of(self, r: Ring) -> str:
        whole = f"{ring_name(r)}.index({self.stage(self.s.barriers_of(r.name).name)})"
        at = f"({TOGETHER} - 1 - {WITHIN})" if self.s.backwards else WITHIN
        return f"{whole}.slice({at} * C, {r.shape[0]})" if self.in_turn else whole

    def sent(self, x: Send) -> Buffer:
        """What leaves by a buffer, under the name of what it goes to."""
        found = self.s.buffer(x.buffer)
        assert found is not None
        return found if x.tile is None else Buffer(x.target, found.shape, x.tile)

    def number_of(self, buffers: Iterable[str]) -> str:
        """How many of these buffers a launch has."""
        found = [b for n in buffers if (b := self.s.buffer(n)) is not None]
        sure = sum(not b.maybe for b in found)
        some = [f"({sure + n + 1} if {b.target} is not None else {sure + n})" for n, b in enumerate(found) if b.maybe]
        if len(some) > 1:
            raise NotImplementedError("two buffers that a launch may not have")
        return some[0].strip("()") if some else str(sure)

    def fetch(self, barriers: str, rings: list[Ring]) -> Iterator[str]:
        yield f"ready = {barriers}_ready.index({self.stage(barriers)})"
        yield f"mbarrier.expect(ready, {' + '.join(f'{tiles_name(r)}.block_type.nbytes' for r in rings)})"
        for r in rings:
            assert r.tile is not None
            yield f"tma.async_copy_global_to_shared({tiles_name(r)}, {place_of(r.tile)}, ready, {self.stage_of(r)})"

    def make(self, x: Make) -> str:
        note = f"  # {x.note}" if x.note else ""
        if x.layout is None:
            return f"{x.name} = {self.number(x.value).text}{note}"
        others = {self.held[n] for n in names_in(x.value) if n in self.held}
        if len(others) == 1 and x.layout not in others:
            (own,) = others
            text = f"gl.convert_layout({self.tile(x.value, own).text}, {self.layout(x.layout)})"
            if isinstance(x.layout, Blocks):
                text = f"on_diagonal({self.tile(x.value, own).text}, {TOGETHER}, {self.layout(x.layout)})"
        else:
            text = self.tile(x.value, x.layout).text
        return f"{x.name} = {text}{note}"

    def put(self, place: str, value: str, turned: bool) -> str:
        r = self.s.ring(place)
        if r is None:
            buffer = self.s.buffer(place)
            rounded = f"{value}.to({place}.dtype)" if buffer is not None and buffer.target else value
            return f"{place}{'.permute((1, 0))' if turned else ''}.store({rounded})"
        if self.together and r.operand:
            value = f"gl.reshape({value}, [{SEVERAL}, {r.shape[1]}])"
        elif r.shape == ("1",) and not self.together:
            value = f"gl.full([1], {value}, gl.float32, layout={self.named('one', ONE)})"
        elif r.shape == ("1",) and not self.of_chunk(value):
            value = f"gl.full([{SEVERAL}], {value}, gl.float32, layout={self.steps()})"
        return f"{self.stage_of(r)}.store({value})"

    def of_chunk(self, name: str) -> bool:
        """Is a number that this role makes another one for each chunk?"""
        made = {x.name: names_in(x.value) for x in self.role.each if isinstance(x, Make)}
        found = made.get(name, frozenset())
        return bool(found & self.scalars.keys()) or any(map(self.of_chunk, found & made.keys() - {name}))

    def product(self, x: Product) -> str:
        left = x.left.name if isinstance(x.left, Held) else self.shared(x.left)
        note = f"  # {x.note}" if x.note else ""
        if x.onto is None:
            return f"{x.name} = begun({left}, {self.shared(x.right)}, {self.layout(x.layout)}){note}"
        return f"{x.name} = warpgroup_mma({left}, {self.shared(x.right)}, {x.onto}, is_async=True){note}"

    def shared(self, x: Shared) -> str:
        r = self.s.ring(x.place)
        text = x.place if r is None else self.stage_of(r)
        return f"{text}.permute((1, 0))" if x.turned else text

    def plain(self, body: Body, layout: Layout | None) -> Iterator[str]:
        for x in body:
            yield from self.statement(x, layout)

    def statement(self, x: Statement, layout: Layout | None) -> Iterator[str]:
        assert layout is not None
        match x:
            case If(condition=condition, body=body):
                yield f"if {scalar(condition).text}:"
                yield from indented(self.plain(body, layout))
            case Store(pointer=pointer, value=value, mask=mask):
                where = "" if mask is None else f", mask={self.tile(mask, layout).text}"
                yield f"gl.store({self.tile(pointer, layout).text}, {self.tile(value, layout).text}{where})"

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
                    return Text(f"{self.stage_of(r)}.load({self.sliced(of, 0)})[:, None]")
                return Text(f"{self.shared(Shared(name, r.turned))}.load({of})")
            case Call(function="tl.trans", arguments=(Name(id=name),)) if (r := self.s.ring(name)) is not None:
                return Text(f"{self.shared(Shared(name, not r.turned))}.load({of})")
            case Call(function="tl.zeros", arguments=(sizes, dtype)):
                return call("gl.zeros", sizes, gl_name(dtype.text), layout=Name(of))
            case Items():
                return x
        return in_gluon(x, lambda y: self.tile(y, layout))

    def of_blocks(self, x: Code, axis: int, of: str) -> Code:
        """Numbers of the steps of each chunk of a stage, along an axis of tiles of these."""
        layout = self.sliced(of, axis, 2)
        if isinstance(x, Name) and (r := self.s.ring(x.id)) is not None:
            found = Text(f"{self.stage_of(r)}.reshape([{TOGETHER}, C]).load({layout})")
            return Expanded(found, (True, axis == 0, axis == 1))
        alone = self.named(f"{layout}_alone", f"gl.SliceLayout(0, {layout})")
        return Expanded(self.vector(x, alone), (False, axis == 0, axis == 1))

    def vector(self, x: Code, layout: str) -> Code:
        """An expression of one axis, over registers that lie so."""
        match x:
            case Name(id="n") if self.together:
                return Text(f"(n {'-' if self.s.backwards else '+'} gl.arange(0, {SEVERAL}, layout={layout}) // C)")
            case Call(function="tl.arange") if self.together and layout == EACH:
                return Text(f"(gl.arange(0, {SEVERAL}, layout={layout}) % C)")
            case Name(id=name) if self.together and name in self.scalars:
                return Name(f"{name}_each")
            case Name(id=name) if name in self.indices:
                inside = self.vector(self.indices[name].value, layout)
                return Text(f"({inside.text})") if inside.level < 3 else inside
            case Name(id=name) if (r := self.s.ring(name)) is not None and self.role.warps != 1:
                return Text(f"{self.stage_of(r)}.load({layout})")
            case Call(function="tl.arange", arguments=arguments):
                return Call("gl.arange", arguments, (("layout", Name(layout)),))
        return in_gluon(x, lambda y: self.vector(y, layout))

    def number(self, x: Code) -> Code:
        """An expression over numbers of each step, or of a chunk."""
        return self.vector(x, self.steps())
