"""Passes over the statements of a fused backward, before its warps have roles: what is made twice is made once, tiles have steps
in rows, and numbers of each step go to the side of a product that is in registers.

Few threads hold a row of a tile, so that its sum takes few steps; and a row of an output lies as the copy engine takes it.
Without roles tiles have channels in rows: what a product leaves in registers is the left operand of the next one there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
    Method,
    Name,
    Negative,
    call,
    names_in,
    plus,
    times,
)
from ....ir.code_parts import rebuilt, substituted
from ....ir.kernel_ir import Body, Do, If, Let, Statement, Store, expressions
from ....printing.cannot_print import CannotPrint
from .shapes import Shapes, factors_of, parts_of_sum
from .straight import Straight

STEPS = "C"


def with_steps_in_rows(s: Straight) -> Straight:
    """All passes, in order."""
    loop, found = merged(s.loop)
    s = replace(s, loop=loop, carried={n: substituted(x, found) for n, x in s.carried.items()})
    shapes = Shapes()
    shapes.note((*s.setup, *s.loop))
    s = replace(s, loop=_Turning(shapes, _turned_names(s.loop, shapes)).body(s.loop))
    return replace(s, loop=scaled_on_the_left(s.loop))


def changed(x: Statement, change: Callable[[Code], Code]) -> Statement:
    """A statement with other expressions."""
    match x:
        case Let(value=value):
            return replace(x, value=change(value))
        case Store(pointer=pointer, value=value, mask=mask):
            return replace(x, pointer=change(pointer), value=change(value), mask=None if mask is None else change(mask))
        case Do(call=called):
            return replace(x, call=change(called))
        case If(condition=condition, body=body, otherwise=otherwise):
            inside, other = (tuple(changed(y, change) for y in z) for z in (body, otherwise))
            return If(change(condition), inside, other, x.note)
    raise CannotPrint(f"a fused backward with roles has no {type(x).__name__.lower()}")


def merged(body: Body) -> tuple[Body, dict[str, Code]]:
    """Statements without those that make what another has made, and what stands for the names of these. Nothing that is loaded
    here is stored here."""
    known: dict[str, str] = {}
    found: dict[str, Code] = {}
    kept: list[Statement] = []
    for x in body:
        x = changed(x, lambda y: substituted(y, found))
        if isinstance(x, Let):
            (name,) = x.names
            if x.value.text in known:
                found[name] = Name(known[x.value.text])
                continue
            known[x.value.text] = name
        kept.append(x)
    return tuple(kept), found


def loaded_once(body: Body) -> Body:
    """Statements without loads of a tile that is loaded as its transpose as well, by a later one."""
    loads = {x.names[0]: x.value for x in body if isinstance(x, Let) and isinstance(x.value, Load)}
    found: dict[str, Code] = {}
    others: dict[str, str] = {}
    for n, (name, x) in enumerate(loads.items()):
        pointer, mask = _turned_place(x.pointer).text, _parts(x.mask, across=True)
        for other, y in list(loads.items())[n + 1 :]:
            if y.pointer.text == pointer != x.pointer.text and _parts(y.mask) == mask and y.other == x.other:
                found[name], others[name] = call("tl.trans", other), other
    made = {x.names[0]: x for x in body if isinstance(x, Let)}
    in_place = {name: made[other] for name, other in others.items()}
    kept: list[Statement] = []
    for statement in body:
        own = in_place.get(statement.names[0], statement) if isinstance(statement, Let) else statement
        if own not in kept or not isinstance(own, Let):
            kept.append(changed(own, lambda z: substituted(z, found)))
    return tuple(kept)


def _parts(mask: Code | None, across: bool = False) -> set[str]:
    found = () if mask is None else (mask,) if isinstance(mask, Expanded) else mask.parts
    return {(_turned_place(x) if across else x).text for x in found}


def _turned_place(x: Code) -> Code:
    """An expression of a tile's places, for those of its transpose."""
    if isinstance(x, Expanded) and len(x.own) == 2:
        return replace(x, own=x.own[::-1])
    return rebuilt(x, _turned_place)


def early_first(body: Body, kept: frozenset[str]) -> Body:
    """Statements in which a sum of two products begins with that of which the operands are there first: where it ended with it,
    as it waited for the other one's, which are made of products. Those that are `kept` stay what they are."""
    tiles = {x.names[0]: x for x in body if isinstance(x, Let)}
    products = {n for n, x in tiles.items() if _is_product(x.value)}

    def waits(x: Code) -> bool:
        return any(n in products or (n in tiles and waits(tiles[n].value)) for n in names_in(x))

    found = list(body)
    for x in body:
        match x:
            case Let(
                value=Call(function="tl.dot", arguments=(left, right, Name(id=before))) as last,
            ) if before in products - kept and not waits(left) and not waits(right):
                first = tiles[before]
                uses = sum(before in frozenset().union(*map(names_in, expressions(y))) for y in body)
                match first.value:
                    case Call(arguments=(a, b, onto)) if uses == 1 and (waits(a) or waits(b)) and not waits(onto):
                        found.remove(first)
                        at = found.index(x)
                        found[at : at + 1] = [
                            replace(first, value=replace(last, arguments=(left, right, onto)), note=x.note),
                            replace(x, value=replace(last, arguments=(a, b, Name(before))), note=first.note),
                        ]
    return tuple(found)


def subtracted_first(body: Body, kept: frozenset[str]) -> Body:
    """Statements in which a product that is subtracted from what another is added to is one of the negative left operand, and is
    added to that: both are in the same registers then. Those that are `kept` stay what they are."""
    tiles = {x.names[0]: x for x in body if isinstance(x, Let)}
    found = list(body)
    for x in body:
        match x:
            case Let(value=Call(function="tl.dot", arguments=(left, right, onto)) as last):
                parts = parts_of_sum(onto)
                less = [y for y in parts if isinstance(y, Negative) and isinstance(y.value, Name)]
                rest = [y for y in parts if y not in less[-1:]]
                name = less[-1].value.text if less else ""
                uses = sum(name in frozenset[str]().union(*map(names_in, expressions(y))) for y in body)
                first = tiles.get(name)
                if first is None or name in kept or uses != 1 or not rest or not _is_alone(first.value, tiles):
                    continue
                assert isinstance(first.value, Call)
                bare = first.value.arguments[0]
                bare = bare.value if isinstance(bare, Cast) else bare
                negative = Cast(Group(Negative(Cast(bare, "tl.float32"))), "DT")
                found.remove(first)
                at = found.index(x)
                arguments = negative, first.value.arguments[1], plus(*rest)
                found[at : at + 1] = [
                    replace(first, value=replace(first.value, arguments=arguments)),
                    replace(x, value=replace(last, arguments=(left, right, Name(name)))),
                ]
    return tuple(found)


def _is_alone(x: Code, tiles: dict[str, Let]) -> bool:
    """Is it a product that is added to nothing?"""
    if not _is_product(x) or not isinstance(x, Call):
        return False
    onto = x.arguments[2] if len(x.arguments) > 2 else None
    value = tiles[onto.id].value if isinstance(onto, Name) and onto.id in tiles else onto
    return value is None or (isinstance(value, Call) and value.function == "tl.zeros")


def _is_product(x: Code) -> bool:
    return isinstance(x, Call) and x.function == "tl.dot"


# --- steps in rows --------------------------------------------------------------------------------------------------


def _across(x: Code, shapes: Shapes) -> bool:
    """Is it a tile of channels by steps?"""
    shape = shapes.of(x)
    return len(shape) == 2 and shape[1] == STEPS != shape[0]


def _turned_names(body: Body, shapes: Shapes) -> frozenset[str]:
    lets = [x for x in body if isinstance(x, Let) and not _is_sum(x.value)]
    return frozenset(x.names[0] for x in lets if _across(x.value, shapes))


def _is_sum(x: Code) -> bool:
    return isinstance(x, Call) and x.function in ("row_sums", "column_sums", "over_rows")


@dataclass(frozen=True)
class _Turning:
    """Makes the transpose of each tile of these names, under the same name."""

    shapes: Shapes
    names: frozenset[str]

    def body(self, body: Body) -> Body:
        return tuple(self.statement(x) for x in body)

    def statement(self, x: Statement) -> Statement:
        if isinstance(x, Let) and x.names[0] in self.names:
            return replace(x, value=self.turned(x.value))
        return changed(x, self.kept)

    def kept(self, x: Code) -> Code:
        """An expression that is what it was."""
        if isinstance(x, Call) and x.function == "tl.trans":
            return self.turned(x.arguments[0])
        if self._has(x) and _across(x, self.shapes) and not _is_sum(x):
            return call("tl.trans", self.turned(x))
        return rebuilt(x, self.kept)

    def _has(self, x: Code) -> bool:
        return bool(x.names & self.names)

    def turned(self, x: Code) -> Code:
        """The transpose of a tile."""
        match x:
            case Name(id=name):
                return x if name in self.names or len(self.shapes.of(x)) < 2 else call("tl.trans", x)
            case Expanded(value=value, own=own) if len(own) == 2:
                return Expanded(value, own[::-1])
            case Call(function="tl.trans", arguments=(value,)):
                return self.kept(value)
            case Call(function="tl.dot", arguments=(left, right, *onto), keywords=keywords):
                return Call("tl.dot", tuple(map(self.turned, (right, left, *onto))), keywords)
            case Call(function="tl.zeros", arguments=(Items(values=(a, b)), dtype)):
                return call("tl.zeros", Items((b, a), shape=True), dtype)
            case Cast() | Binary() | Group() | Method(name="to"):
                return rebuilt(x, self.turned)
        if len(self.shapes.of(x)) < 2:
            return x
        return rebuilt(x, self.turned) if x.parts else call("tl.trans", x)


# --- numbers of each step -------------------------------------------------------------------------------------------


def scaled_on_the_left(body: Body) -> Body:
    """Of a product over steps whose right side is a loaded tile times a number of each step, the left one takes the number: it
    goes through registers then, and the right side lies in shared memory as it was loaded."""
    made = {x.names[0]: x.value for x in body if isinstance(x, Let)}

    def scaled(x: Code) -> Code:
        if not isinstance(x, Call) or x.function != "tl.dot":
            return x
        left, right, *onto = x.arguments
        found = _number_and_tile(right, made)
        if found is None or not _is_loaded(left, made):
            return x
        number, tile = found
        bare = left.value if isinstance(left, Cast) else left
        more = Cast(times(Expanded(number, (False, True)), Cast(bare, "tl.float32")), "DT")
        return Call("tl.dot", (more, Cast(tile, "DT"), *onto), x.keywords)

    return tuple(replace(x, value=scaled(x.value)) if isinstance(x, Let) else x for x in body)


def _number_and_tile(x: Code, made: dict[str, Code]) -> tuple[Code, Code] | None:
    """The number of each step, and the loaded tile, that an operand is the product of."""
    while isinstance(x, Cast | Group) or (isinstance(x, Name) and isinstance(made.get(x.id), Cast)):
        x = made[x.id] if isinstance(x, Name) else x.value
    match factors_of(x):
        case [Expanded(value=number, own=(True, False)), Cast(value=Name() as tile)] if _is_loaded(tile, made):
            return number, tile
    return None


def _is_loaded(x: Code, made: dict[str, Code]) -> bool:
    match x:
        case Cast(value=value) | Call(function="tl.trans", arguments=(value,)):
            return _is_loaded(value, made)
        case Name(id=name):
            value = made.get(name, Literal(None))
            return isinstance(value, Method) and value.name == "load"
    return False
