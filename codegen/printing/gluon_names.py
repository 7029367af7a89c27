"""What Gluon text is made of: names of what a schedule has, and numbers of a program or of a chunk, as Gluon writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.code import Call, Cast, Code, Literal, Load, Name, call, code, shape, times
from ..ir.code_parts import rebuilt
from ..ir.functions import GLUON
from ..ir.spellings import Function, Power
from ..ir.warp_schedule import Barriers, Buffer, Ring, Tile

STAGES, WARPS, TOGETHER = "STAGES", "WARPS", "TOGETHER"
SEVERAL = times(TOGETHER, "C")  # steps of a stage of several chunks,
WITHIN = "within"  # one of which this is


def in_one_warp(each: Code) -> Code:
    """Where numbers lie in one warp, of which each thread has so many."""
    return call("gl.BlockedLayout", shape(each), shape(32), shape(1), shape(0))


NUMBERS, OF_SEVERAL = (
    in_one_warp(Name("C") // 32),
    in_one_warp(SEVERAL // 32),
)  # of each step, in the warp that makes them
ONE = in_one_warp(Literal(1))


def dtype_of(x: Ring | Buffer) -> str:
    """What the entries of a tile are."""
    return f"{x.target}.dtype.element_ty" if isinstance(x, Buffer) and x.target else "DT"


def place_of(t: Tile) -> Code:
    """Where a chunk's tile is."""
    return shape(scalar(t.first).to("gl.int32"), scalar(t.offset))


def ring_name(r: Ring) -> str:
    return f"{r.name}_ring"


def stages_of(b: Barriers) -> Code:
    return code(STAGES if b.stages is None else b.stages)


def size(x: str) -> Code:
    """A size by its name, or the number that it is."""
    return Literal(int(x)) if x.isdigit() else Name(x)


def tiles_name(x: Ring | Buffer) -> str:
    return f"{x.name}_tiles"


def scalar(x: Code) -> Code:
    """A number of a program or of a chunk, as Gluon writes it."""
    match x:
        case Call(function="tl.zeros_like", arguments=(value,)):
            return scalar(value) * 0
        case Load(pointer=pointer):
            return call("gl.load", scalar(pointer))
    return in_gluon(x, scalar)


def in_gluon(x: Code, part: Callable[[Code], Code]) -> Code:
    """An expression of Triton as Gluon writes it, made of what its parts become."""
    match x:
        case Name(id=name):
            return Name(gl_name(name))
        case Call(function="float"):
            return x
        case Call(function=function, arguments=arguments, keywords=keywords):
            return Call(gl_name(function), tuple(map(part, arguments)), tuple((n, part(y)) for n, y in keywords))
        case Function(value=value) | Power(value=value):  # by functions that Gluon has as well
            return replace(x, value=part(value), language=GLUON)
        case Cast(value=value, dtype=dtype):
            return Cast(part(value), gl_name(dtype))
        case Load(pointer=pointer, mask=mask, other=other):
            given = {n: part(y) for n, y in (("mask", mask), ("other", other)) if y is not None}
            return call("gl.load", part(pointer), **given)
    return rebuilt(x, part)


def gl_name(name: str) -> str:
    return f"gl.{name.removeprefix('tl.')}" if name.startswith("tl.") else name
