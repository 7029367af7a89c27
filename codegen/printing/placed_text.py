"""Kernels printed whose tiles have places in shared memory: in Gluon, where tiles in registers lie as tensor cores leave them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..ir.code import Attribute, Call, Cast, Code, Expanded, Items, Literal, Method, Name, call, names_in
from ..ir.code import shape as sizes_of
from ..ir.code_parts import rebuilt
from ..ir.kernel_ir import Body, Do, If, Let, Statement, Store, assigned, let
from ..ir.placed_tiles import (
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
    Tile,
)
from ..ir.words import Bound, Defined, Definition, Said, Words, definition, inset, listed, path
from .cannot_print import CannotPrint
from .formatting import AS_LAID
from .gluon_names import WARPS, gl_name, in_gluon, size
from .kernel_text import GLUON, signature, word_lines

CONSTANT = f"{GLUON}.constexpr"
AT_ONCE = 16  # bytes: rows of arguments begin at multiples, as launches have seen to, whatever is known of strides
GLUON_NAMES = {
    n: f"{n}_gluon"
    for n in "chunk_of place_of over_block from_start to_start from_state added_sum diagonal later_sums".split()
}


def placed_definition(x: PlacedKernel) -> Definition:
    """The kernel as a file has it."""
    k = x.function
    unspecialised = listed((Said(f'"{n}"'),) for n in k.unspecialised)
    lines: list[Words] = [
        ("@", *path("gluon.jit"), "(do_not_specialize=[", *unspecialised, "])"),
        ("def ", Defined(x.name), "("),
        *inset(signature(k, CONSTANT)),
        ("    ", Bound(WARPS), ": ", *path(CONSTANT), ","),
        ("):", AS_LAID),
        ("    ", Said(f'"""{k.doc} Tiles are copied to shared memory ahead of time."""')),
        *inset(word_lines(_Printed(x).body(), GLUON)),
    ]
    return definition(lines)


def names_made(x: PlacedKernel) -> frozenset[str]:
    """The names that the text gives to what the kernel of Triton doesn't have."""
    mine = {n for y in (*x.setup, *x.indices) if isinstance(y, Let) for n in y.names}
    mine |= {y.name for y in x.steps if isinstance(y, Made | ProductBegun)}
    return frozenset[str]().union(*map(assigned, _Printed(x).body())) - mine


def layout_name(shape: tuple[str, ...]) -> str:
    return "_".join(("of", *(x.removeprefix("block_") for x in shape)))


@dataclass
class _Printed:
    x: PlacedKernel
    lines: list[Statement] = field(default_factory=list)
    layouts: dict[str, Let] = field(default_factory=dict)
    vectors: dict[tuple[str, str], str] = field(default_factory=dict)  # by name and layout: what it is called there
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)  # names in registers, and their shapes
    places: dict[str, Place] = field(default_factory=dict)  # by the names of what is there
    begun: set[str] = field(default_factory=set)  # products under way

    def __post_init__(self) -> None:
        self.indices = {y.names[0]: y for y in self.x.indices if isinstance(y, Let)}

    def body(self) -> Body:
        setup = [self.of_program(y) for y in self.x.setup]
        for y in self.x.steps:
            self.step(y)
        return (*setup, *self.layouts.values(), *self.lines)

    def of_program(self, y: Statement) -> Statement:
        match y:
            case Let(value=value):
                return replace(y, value=self.number(value), note="")
            case If(condition=condition):
                return replace(y, condition=self.number(condition))
        raise CannotPrint("a statement before all tiles that makes no number")

    # --- layouts

    def layout(self, shape: tuple[str, ...]) -> str:
        """Where a tile lies as tensor cores leave it, or numbers along an axis of the main tile."""
        name = layout_name(shape)
        if name not in self.layouts:
            if len(shape) == 2:
                made: Code = call("accumulator", *map(size, shape), WARPS)
            else:
                made = self.sliced_layout(self.layout(self.x.main), 1 - self.x.main.index(shape[0]))
            self.constant(name, made)
        return name

    def constant(self, name: str, made: Code) -> None:
        self.layouts[name] = Let((name,), made, constant=True)

    def sliced_layout(self, of: str, axis: int) -> Code:
        return call("gl.SliceLayout", axis, of)

    def sliced(self, of: str, axis: int) -> str:
        """The layout of what a tile that lies `of` that way has beside its rows (0) or columns (1)."""
        name = f"{of}_{('rows', 'columns')[axis]}"
        if name not in self.layouts:
            self.constant(name, self.sliced_layout(of, 1 - axis))
        return name

    def as_copied(self, place: Place) -> str:
        """How threads copy the tile of a place."""
        name = "_".join(
            ("copied", *(x.removeprefix("block_") for x in place.shape), *(["wide"] if place.dtype != "DT" else []))
        )
        if name not in self.layouts:
            self.constant(name, call("copied_layout", *map(size, place.shape), gl_name(place.dtype), WARPS))
        return name

    def as_stored(self, target: str, shape: Tile) -> str:
        """Where a tile lies when it goes to the argument `target`."""
        name = f"stored_{target.removesuffix('_out')}"
        if name not in self.layouts:
            self.constant(name, call("stored_layout", *map(size, shape), dtype_of(target), WARPS))
        return name

    # --- steps

    def step(self, y: Step) -> None:
        match y:
            case Copy(place=place):
                self.copy(place)
            case CopiesAwaited(under_way=n):
                self.lines.append(Do(call("copies_awaited", n)))
            case ProductBegun(name=name, left=left, right=right, shape=shape, note=note):
                product = call("begun", self.operand(left), self.operand(right), self.layout(shape))
                self.hold(name, product, shape, note)
                self.begun.add(name)
            case ProductAwaited(name=name, under_way=n):
                self.lines.append(let(name, call("product_awaited", name, n)))
                self.begun.discard(name)
            case Made(name=name, value=value, shape=shape, note=note):
                made = (
                    self.vector(value, self.layout(shape)) if len(shape) == 1 else self.tile(value, self.layout(shape))
                )
                self.hold(name, made, shape, note)
            case Kept(name=name, place=place, value=value, note=note):
                at = self.places[place]
                made = self.tile(value, self.layout(at.shape))
                self.lines.append(Do(Method(Name(room_name(at)), "store", (made,)), note=note))
                self.places[name] = at
            case Left(pointer=pointer, target=target, value=value, mask=mask, shape=shape, note=note):
                layout = self.as_stored(target, shape)
                rounded = Cast(self.tile(value, self.layout(shape)), dtype_of(target).text)
                converted = call("gl.convert_layout", rounded, layout)
                where = None if mask is None else self.tile(mask, layout)
                self.lines.append(Store(self.tile(pointer, layout), converted, where, note))

    def hold(self, name: str, made: Code, shape: tuple[str, ...], note: str) -> None:
        self.lines.append(let(name, made, note=note))
        self.held[name] = shape

    def copy(self, place: Place) -> None:
        self.places[place.name] = place
        room = call("room", gl_name(place.dtype), *map(size, place.shape))
        self.lines.append(let(room_name(place), room))
        layout = self.as_copied(place)
        pointer, mask = place.load.pointer, place.load.mask
        assert mask is not None
        if place.turned:
            pointer, mask = _turned(pointer), _turned(mask)
        from_rows = self.tile(pointer, layout)
        if place.dtype == "DT":
            from_rows = call("gl.multiple_of", from_rows, Items((Literal(1), Literal(AT_ONCE))))
        self.lines.append(Do(call("copy_begun", room_name(place), from_rows, self.tile(mask, layout))))

    def operand(self, x: Operand) -> Code:
        found = Name(room_name(self.places[x.place]))
        return Method(found, "permute", (Items((Literal(1), Literal(0))),)) if x.turned else found

    # --- expressions

    def number(self, x: Code) -> Code:
        """A number of a program."""
        return _called(in_gluon(x, self.number))

    def tile(self, x: Code, of: str) -> Code:
        """An expression of two axes, over registers that lie so."""
        match x:
            case Expanded(value=value, own=own):
                return Expanded(self.vector(value, self.sliced(of, own.index(True))), own)
            case Name(id=name) if name in self.places:
                return Method(Name(room_name(self.places[name])), "load", (Name(of),))
            case Name(id=name) if name in self.held:
                lies = self.layout(self.held[name])
                return x if lies == of else self.converted(x, of)
            case Call(function="added_sum", arguments=(total, p, writer, *rest)):
                matrix = p if isinstance(p, Name) else p.parts[0]
                at = self.layout(self.held[matrix.text])
                return _called(
                    Call("added_sum", (self.tile(total, of), self.tile(p, at), self.tile(writer, of), *rest))
                )
            case Call(function="tl.zeros_like") if of == self.layout(self.x.main):
                return call("gl.zeros", sizes_of(*map(size, self.x.main)), "gl.float32", layout=Name(of))
        return _called(in_gluon(x, lambda y: self.tile(y, of)))

    def vector(self, x: Code, of: str) -> Code:
        """An expression of one axis, over registers that lie so."""
        match x:
            case Name(id=name) if name in self.indices:
                return Name(self.index(name, of))
            case Name(id=name) if name in self.held:
                own = self.layout(self.held[name])
                alike = self.sliced(self.layout(self.x.main), self.x.main.index(self.held[name][0]))
                return x if of in (own, alike) else self.converted(x, of)
            case Call(function="tl.arange", arguments=arguments):
                return Call("gl.arange", arguments, (("layout", Name(of)),))
            case Call(function="diagonal", arguments=(Name(id=name), *_)):
                return call(GLUON_NAMES["diagonal"], name, of)
            case Call(function="tl.sum", arguments=(value,), keywords=((_, Literal(value=axis)),)):
                return call("gl.convert_layout", self.total(value, axis == 0), of)
        return _called(in_gluon(x, lambda y: self.vector(y, of)))

    def converted(self, x: Code, of: str) -> Code:
        """What lies otherwise, which takes shared memory: perhaps that of a tile which a product under way still reads."""
        if self.begun:
            raise CannotPrint(f"{x.text} lies otherwise while products are under way")
        return call("gl.convert_layout", x, of)

    def total(self, x: Code, of_rows: bool) -> Code:
        """The sum of a tile's rows, or of its columns."""
        tiles = [n for n in sorted(names_in(x)) if n in self.places or len(self.held.get(n, ())) == 2]
        turned = [n for n in tiles if n in self.places and self.places[n].turned]
        if turned and turned == tiles:  # as memory has them
            place = self.places[tiles[0]]
            return call("gl.sum", self.tile(_turned(x), self.as_copied(place)), axis=Literal(int(of_rows)))
        if turned:
            raise CannotPrint("tiles of which some lie the other way")
        shapes = {self.places[n].shape if n in self.places else self.held[n] for n in tiles}
        (shape,) = shapes
        return call("gl.sum", self.tile(x, self.layout(shape)), axis=Literal(int(not of_rows)))

    def index(self, name: str, of: str) -> str:
        """What a vector of numbers along an axis is called, where it lies so."""
        if (name, of) not in self.vectors:
            self.vectors[name, of] = own = f"{name}_{of}"
            value = self.vector(self.indices[name].value, of)
            self.lines.append(let(own, value))
        return self.vectors[name, of]


def dtype_of(argument: str) -> Code:
    return Attribute(Name(argument), "dtype.element_ty")


def room_name(x: Place) -> str:
    return f"{x.name}_place"


def _turned(x: Code) -> Code:
    """An expression of two axes, of which each has the place of the other."""
    return Expanded(x.value, x.own[::-1]) if isinstance(x, Expanded) else rebuilt(x, _turned)


def _called(x: Code) -> Code:
    return replace(x, function=GLUON_NAMES[x.function]) if isinstance(x, Call) and x.function in GLUON_NAMES else x
