"""Where what a kernel over chunks loads and stores lies in memory, and how a program finds its own part of it."""

from __future__ import annotations

from collections.abc import Iterable

from ....ir.code import (
    Binary,
    Code,
    Either,
    Group,
    Literal,
    Load,
    Name,
    both,
    call,
    plus,
    times,
)
from ....ir.expr import ROW, dim_of, leaf
from ....ir.kernel_ir import (
    For,
    If,
    Let,
    Statement,
    added,
    let,
)
from ....ir.kernel_ir import Store as StoreTo
from ...normal_form.form import StateForm
from ..print.axis_names import axis_name, block_name, counter, size_name
from .arguments import Role
from .tile_lowering import Tiles
from .tile_values import zeros_of

SEQUENCE, OF_CHUNK = Name("sh"), Group(Name("bh") * "chunks" + "c")  # of which states are in memory


def header(
    axes: tuple[str, ...],
    tiled: str | None,
    sweeps: bool,
    sliced: bool = True,
    matrix: tuple[str | None, str] = (None, ""),
) -> list[Statement]:
    """What a program finds out first. `matrix`: the axis of columns of a matrix that further tiles make, and the state's name."""
    found: list[Statement] = []
    place: Code = call("tl.program_id", 0)
    if tiled is not None:
        tiles, (inner, target) = tiles_of(tiled), matrix
        if inner is not None:
            columns = call("tl.cdiv", size_name(dim_of(inner)), block_name(tiled))
            states = Either(Literal(0), is_missing(f"{target}_last"), Name("tiles"))
            found += [let("tiles", tiles), If(Name(f"{target}_linear").given, (let("tiles", columns + states),))]
            tiles = Name("tiles")
        found.append(let("tile", place % tiles))
        place = place // tiles
    if sweeps:
        segment = call("segment_of", Name("sh") // "H", "T", "starts", "segments", "length", "C")
        steps = call("tl.maximum", Name("stop") - "begin", 0)
        found += [
            let("sh", place.to("tl.int64")),
            let("h", Name("sh") % "H"),
            Let(("b", "segment", "begin", "stop", "first"), segment),
            let("bh", plus(times("b", "H"), "h")),
            let("count", call("tl.cdiv", steps, "C").to("tl.int32")),
        ]
    found.append(let("i", call("tl.arange", 0, "C")))
    for a in axes:
        number = "tile" if a == tiled else counter(a) if sweeps and sliced else ""
        own: Code = call("tl.arange", 0, block_name(a))
        own = plus(times(number, block_name(a)), own) if number else own
        found += [let(axis_name(a), own), let(f"{axis_name(a)}_ok", Name(axis_name(a)) < size_name(dim_of(a)))]
    return found


def bases(tiles: Tiles) -> list[Let]:
    """The tensors' places for this batch entry and head."""
    found = []
    for a in tiles.arguments.values():
        if a.layout == "step":
            head = Name("h") // f"{a.base}_g" * f"{a.base}_h"
            found.append(added(a.name, plus(times("b", f"{a.base}_b"), head)))
    return found


def chunk_header(direction: int, sweeps: bool = True) -> list[Statement]:
    """The steps of a chunk: where they are, then which there are, and where their numbers lie."""
    found: list[Statement] = [Let(("t0", "last"), call("place_of", "c", "T", "begins", "stops", "C"))]
    even = Name("EVEN")
    if sweeps:
        own = call("tl.minimum", Name("stop") - "t0", "C").to("tl.int32") - 1
        found = [
            let("c", Name("n") if direction > 0 else Name("count") - 1 - "n"),
            let("t0", plus("begin", times(call("tl.cast", "c", "tl.int64"), "C"))),
            let("last", Either(Name("C") - 1, even, own)),
            added("c", "first"),
        ]
    at = plus(times("bh", "T"), "t0")
    return [
        *found,
        let("i_ok", Name("i") < Name("last") + 1),
        let("row", Either(Name("i"), even, call("tl.minimum", "i", "last"))),
        let("at", Either(call("tl.multiple_of", at, "C"), even, at)),
        let("step", plus(times(plus(times("b", "T"), "t0"), "H"), "h")),
    ]


def over_chunks(loop: Iterable[Statement]) -> For:
    """The loop of a sweep, with the next chunks under way."""
    return For("n", call("tl.range", 0, "count", num_stages="STAGES"), tuple(loop))


def is_missing(name: str) -> Code:
    return Binary("is", Name(name), Literal(None))


def state_place(s: StateForm, own: tuple[str, ...], which: Code = SEQUENCE) -> tuple[Code, Code | None]:
    """(offset, mask) of a state tile over the axes `own` in a [N, H, *s.axes] tensor."""
    terms, masks = [times(which, *(size_name(dim_of(a)) for a in s.axes))], []
    for n, a in enumerate(s.axes):
        strides = [size_name(dim_of(x)) for x in s.axes[n + 1 :]]
        place = own.index(a)
        terms.append(times(Name(axis_name(a)).along(place, len(own)), *strides))
        masks.append(Name(f"{axis_name(a)}_ok").along(place, len(own)))
    return plus(*terms), both(*masks) if masks else None


def loaded_state(s: StateForm, own: tuple[str, ...], tensor: str, which: Code = SEQUENCE) -> Load:
    place, mask = state_place(s, own, which)
    return Load(plus(tensor, place), mask, None if mask is None else Literal(0.0))


def store_state(
    s: StateForm, state: str, own: tuple[str, ...], direction: int, each: bool, linear: bool = False
) -> list[Statement]:
    """The state after the last step: of the whole sequence, or, with `each` or where not YIELD, of every segment. `linear`: there
    is a place for it, unless a sweep makes matrices of segments' maps alone."""
    place, mask = state_place(s, own)
    last = Name(f"{state}_last")
    of_segment = StoreTo(plus(last, place), Name(state), mask)
    if each:
        return [If(last.given, (of_segment,))]
    sequence = Group(Name("sh") // "H" // "segments" * "H" + "h")
    of_whole = StoreTo(plus(last, state_place(s, own, sequence)[0]), Name(state), mask)
    at_end = Name("segment").equals(Name("segments") - 1 if direction > 0 else 0)
    whole = If(last.given, (If(at_end, (of_whole,)),))
    if linear:
        return [If(Name("YIELD"), (whole,), (If(last.given, (of_segment,)),))]
    return [If(Name("YIELD"), (whole,), (of_segment,))]


def row_place(rows: str, own: tuple[str, ...], which: Code) -> tuple[Code, Code]:
    """(offset, mask) of a state tile in [.., ROWS, H, X]: rows beyond the axis are zero, and are stored as well."""
    (columns,) = (a for a in own if a != rows)
    r, c = (Name(axis_name(a)).along(own.index(a), 2) for a in (rows, columns))
    line = plus(times(plus(times(which, "ROWS"), r), "H"), "h")
    ok = Name(f"{axis_name(columns)}_ok").along(own.index(columns), 2)
    return plus(times(line, size_name(dim_of(columns))), c), ok


def same_size(a: str, b: str) -> bool:
    return size_name(dim_of(a)) == size_name(dim_of(b))


def load_state(s: StateForm, state: str, own: tuple[str, ...], tiles: Tiles) -> list[Statement]:
    tiles.argument(state, Role.FIRST, "state", leaf("first", s.name, s.axes), s.axes)
    first = f"{state}_first"
    return [
        let(state, zeros_of(block_name(a) for a in own)),
        If(Name(first).given, (added(state, loaded_state(s, own, first)),)),
    ]


def tile_row(tiled: str) -> Code:
    """Where numbers of each step, which each tile has its own of, lie in [B, H, tiles, T]."""
    return plus(times("bh", tiles_of(tiled)), "tile")


def tile_place(tiled: str | None) -> Code:
    """Where such a number of a step lies."""
    return plus("at", "i") if tiled is None else plus(times(tile_row(tiled), "T"), "t0", "i")


def tiles_of(tiled: str) -> Code:
    return call("tl.cdiv", size_name(dim_of(tiled)), block_name(tiled))


def chunk_place(axis: str) -> Code:
    """Where a vector of each chunk lies in [B, H, chunks, X]."""
    return plus(times(OF_CHUNK, size_name(dim_of(axis))), axis_name(axis))


def chunked_place(target: str, axis: str, tiles: Tiles) -> tuple[Code, Code]:
    """Where a tile over steps lies in [B, H, T, X], and which of it is stored."""
    index, width = axis_name(axis), size_name(dim_of(axis))
    place = plus(target, times("at", width), times(Name("i").along(0, 2), width), Name(index).along(1, 2))
    return place, both(Name(tiles.stored_rows).along(0, 2), Name(f"{index}_ok").along(1, 2))


def step_place(axis: str, tiles: Tiles) -> Code:
    """Where a tile over steps lies in [B, T, H, X]."""
    width, axes = size_name(dim_of(axis)), tiles.ordered((ROW, axis))
    rows, columns = (tiles.along(tiles.index(a), a, axes) for a in (ROW, axis))
    return plus(times("step", width), times(rows, Group(times("H", width))), columns)
