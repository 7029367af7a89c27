"""The shapes of what a kernel computes, as the names of sizes: found in its expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....ir.code import (
    Binary,
    Call,
    Cast,
    Code,
    Either,
    Expanded,
    Group,
    Items,
    Literal,
    Load,
    Method,
    Name,
    Negative,
)
from ....ir.code_parts import rebuilt
from ....ir.kernel_ir import Body, Let
from ....ir.spellings import Function, Power
from ....printing.cannot_print import CannotPrint

Shape = tuple[str, ...]
ONE = "1"


@dataclass
class Shapes:
    """By name; what no statement makes is a number of the launch, or a pointer."""

    known: dict[str, Shape] = field(default_factory=dict)
    moved: dict[str, Shape] = field(default_factory=dict)  # of the tiles of a tensor that the copy engine moves

    def note(self, body: Body) -> None:
        for x in body:
            if isinstance(x, Let):
                if isinstance(x.value, Call) and x.value.function == "rows_of":
                    self.moved[x.names[0]] = tuple(y.text for y in x.value.arguments[4:6])
                self.known[x.names[0]] = self.of(x.value)

    def of(self, x: Code) -> Shape:
        match x:
            case Name(id=name):
                return self.known.get(name, ())
            case Expanded(value=value, own=own):
                sizes = list(self.of(value))
                if len(sizes) != sum(own):
                    raise CannotPrint(f"{x.text}, of {len(sizes)} axes")
                return tuple(sizes.pop(0) if y else ONE for y in own)
            case Call():
                return self.of_call(x)
            case Method(value=Name(id=name), name="load"):
                return self.moved.get(name, ())
            case Method(value=value, name="to"):
                return self.of(value)
            case Load(pointer=pointer, mask=mask):
                return _together(self.of(pointer), () if mask is None else self.of(mask))
            case Binary(left=left, right=right):
                return _together(self.of(left), self.of(right))
            case Either(then=then, otherwise=otherwise):
                return _together(self.of(then), self.of(otherwise))
            case (
                Cast(value=value)
                | Function(value=value)
                | Group(value=value)
                | Negative(value=value)
                | Power(value=value)
            ):
                return self.of(value)
        return ()

    def of_call(self, x: Call) -> Shape:
        match x:
            case Call(function="tl.arange", arguments=(_, size)):
                return (size.text,)
            case Call(function="tl.zeros", arguments=(Items(values=sizes), *_)):
                return tuple(y.text for y in sizes)
            case Call(function="tl.dot", arguments=(a, b, *_)):
                left, right = self.of(a), self.of(b)
                if len(left) != 2 or len(right) != 2:
                    raise CannotPrint("a product that isn't of two matrices")
                return left[0], right[1]
            case Call(function="tl.reshape", arguments=(_, Items(values=sizes))):
                return tuple(y.text for y in sizes)
            case Call(function="tl.sum", arguments=(value,), keywords=((_, Literal(value=axis)),)):
                return tuple(y for n, y in enumerate(self.of(value)) if n != axis)
            case Call(function="tl.trans", arguments=(value,)):
                return self.of(value)[::-1]
            case Call(function="inverse", arguments=(value, *_)):
                return self.of(value)
            case Call(function="rows_of" | "store_sums" | "store_partial_sums"):
                return ()
            case Call(function="row_sums" | "column_sums" | "over_rows", arguments=(value, *_)):
                return ONE, self.of(value)[1]
            case Call(function="paired_states", arguments=(_, _, parts)):
                return (parts.text,)
            case Call(arguments=arguments):
                return _together(*map(self.of, arguments))
        return ()


def _together(*shapes: Shape) -> Shape:
    """The shape of what has operands of these."""
    longest = max(shapes, key=len, default=())
    if any(x and len(x) != len(longest) for x in shapes):
        raise CannotPrint(f"operands of shapes {', '.join(map(str, shapes))}")
    return tuple(next((y for y in column if y != ONE), ONE) for column in zip(*(x for x in shapes if x), strict=True))


def parts_of_sum(x: Code) -> list[Code]:
    """The terms of a sum, with those of sums inside it."""
    match x:
        case Binary(operator="+", left=left, right=right):
            return [*parts_of_sum(left), *parts_of_sum(right)]
        case Group(value=value):
            return parts_of_sum(value)
    return [x]


def ungrouped(x: Code) -> Code:
    """An expression without the parentheses that it was written with: those that it needs are no part of a tree."""
    return ungrouped(x.value) if isinstance(x, Group) else rebuilt(x, ungrouped)


def factors_of(x: Code) -> list[Code]:
    match x:
        case Binary(operator="*", left=left, right=right):
            return [*factors_of(left), *factors_of(right)]
        case Group(value=value):
            return factors_of(value)
    return [x]


def expanded_along(x: Code, definitions: Mapping[str, Let]) -> tuple[str, int] | None:
    """The vector that a term is along which of two axes, if it is one."""
    match x:
        case Expanded(value=Name(id=name), own=own) if len(own) == 2:
            return name, own.index(True)
    return None
