"""Kernels that take all chunks at once; and, where decays split them in two, the kernel for what is of a large decay range."""

from __future__ import annotations

from ....ir.code import (
    Code,
    Group,
    Items,
    Literal,
    Name,
    Not,
    call,
    plus,
    shape,
    times,
)
from ....ir.kernel_ir import (
    Body,
    For,
    If,
    Let,
    Return,
    Statement,
    let,
)
from .places import bases, chunk_header, header, tiles_of
from .tile_lowering import Tiles


def chunk_of(program: Code) -> list[Statement]:
    return [Let(("b", "c", "h"), call("chunk_of", program, "H", "chunks")), let("bh", plus(times("b", "H"), "h"))]


def at_once(
    axes: tuple[str, ...], tiled: str | None, tiles: Tiles, inside: list[Statement], makes: bool = False
) -> tuple[Body, Body]:
    """A kernel that takes all chunks at once, and, where decays split it in two, the kernel for chunks that are of a large decay
    range: few are not, so that a program looks at GROUP of them, and mostly finds none."""
    (place, *steps), pointers = chunk_header(1, sweeps=False), bases(tiles)
    inside = [*tiles.head, *inside]
    own: Code = call("tl.program_id", 0)
    own = own if tiled is None else Group(own // tiles_of(tiled))
    extent: list[Statement] = []
    for decay in tiles.by_range or ():
        reached = call("reach", Name(f"{decay}_extents") + "at", "last", "C", "CHUNK")
        extent.append(let("extent", call("tl.maximum", "extent", reached) if extent else reached))
    assert bool(extent) == tiles.split
    counted = call("tl.full", shape(), "C", "tl.int32"), call("tl.full", shape(), 0, "tl.int32")
    range_checks: list[Statement] = []
    if extent:
        begin = Let(("large_range_from", "again"), Items(counted, bare=True))
        range_checks = [let("i_new", "i_ok"), If(Not(Name("SMALL_RANGE")), (begin,))]
    if makes:
        range_checks = [Let(("SUMS",), Not(Name("EXACT")), constant=True), *range_checks]
    beyond = If(Name("last") < 0, (Return(),))
    head = header(axes, tiled, False)
    body = (*head, *chunk_of(own), place, beyond, *steps, *pointers, *range_checks, *inside)
    if not extent:
        return body, ()
    places = "group", "T", "H", "chunks", "begins", "stops", "programs", "GROUP", "C", "CHUNK", "DT"
    large_ranges = plus(*(call("large_ranges", f"{decay}_extents", *places) for decay in tiles.by_range or ()))
    taken: list[Statement] = [
        Let(("large_range_from", "again", "i_new"), Items((*counted, Name("i") < 0), bare=True)),
        *inside,
    ]
    each: list[Statement] = [
        *chunk_of(Name("group") + "n"),
        place,
        If(
            Name("last") >= 0,
            (*steps, *moved_on(pointers), *extent, If(Not(call("has_small_range", "extent", "DT")), tuple(taken))),
        ),
    ]
    slow_path = (
        *head,
        *([Let(("SUMS",), Literal(False), constant=True)] if makes else []),
        let("group", times(own, "GROUP")),
        If(large_ranges.equals(0), (Return(),)),
        *(let(whole_name(x), x.names[0]) for x in pointers),
        For("n", call("range", 0, call("tl.minimum", "GROUP", Name("programs") - "group")), tuple(each)),
    )
    return body, slow_path


def whole_name(pointer: Let) -> str:
    """The name of a tensor of which a program takes several places."""
    return f"{pointer.names[0]}_all"


def moved_on(pointers: list[Let]) -> list[Statement]:
    """The places in these tensors for a batch entry and a head, of which a program takes several."""
    return [let(x.names[0], plus(whole_name(x), x.value)) for x in pointers]
