"""Prologue kernels of sweeps: what needs no state, for all chunks at once."""

from __future__ import annotations

from collections.abc import Iterable

from ....ir.code import (
    Code,
    Either,
    Group,
    Items,
    Literal,
    Name,
    Negative,
    Not,
    both,
    call,
    plus,
    shape,
    times,
    where,
)
from ....ir.divisors import cancelling_divisors
from ....ir.expr import COL, ROW, Node, dim_of, walk
from ....ir.kernel_ir import (
    Body,
    For,
    If,
    Let,
    Statement,
    let,
    reads,
)
from ....ir.kernel_ir import Store as StoreTo
from ..plan_passes.hoist import HALVES, SIDES, Opened, Own
from ..print.axis_names import axis_name, size_name, tile_name
from .arguments import Argument, Role
from .at_once import at_once, chunk_of, moved_on, whole_name
from .chunk_kernel import Kernel, NameOf, Piece, by_channel, loaded_tiles, sums_loaded
from .places import bases, chunk_header, chunked_place, header
from .tile_lowering import Tiles
from .tile_names import Scope
from .tile_values import Fine, Value, matrix_place

# Tensors of whose tiles a prologue kernel of a sweep loads at most so many for its programs to take one chunk after the other,
# with the tiles of the next ones under way, which takes 0.75 to 1.01 of the time; or, where it has loops or decays of its own, to
# do with few registers: then more programs fit on a multiprocessor, which takes 0.7 to 1.02 of the time. With more it spills.
FEW = 4


# Products with a decay for each channel that such a kernel sums at once, at most, to do with few registers.
SUMMED = 2


def _wide(a: Argument) -> bool:
    """Has it a row of channels for each step?"""
    return a.layout in ("step", "chunked") and bool(a.axes) and a.role is not Role.RESTS


def intra_chunk_kernel(
    name: str, o: Opened, name_of: NameOf, fine: Fine | None = None, making: frozenset[str] = frozenset()
) -> Kernel:
    """What needs no state, for each chunk on its own. It makes the sums of the decays `making` itself, of which nothing else
    needs more than those of whole chunks: as it takes each chunk as of a small decay range, and finds out on the way, all sums of
    those that aren't are stored for the kernel that takes these once more."""
    tiles = Tiles(Scope.of(o, o.prologue.definitions, name_of))
    tiles.by_range, tiles.fine, tiles.divided = [], fine, _divided(o)
    tiles.split = by_channel(*o.matrices.values(), *o.prologue.products.values(), *o.prologue.intra.values())
    blocks: list[Statement] = []
    parts: list[str] = []
    for axis in (*o.full, *o.tile):
        blocks += _by_blocks(axis, o, tiles, name_of, parts, making)
    tiles.body = []
    for x, node in o.matrices.items():
        target = tiles.argument(name_of(x), Role.WHOLE, "matrix", x, stores=True)
        v = tiles.value(node)
        mask: Code | None = None
        if tiles.split:  # the later one of two steps says how they are taken
            later, other = (0, 1) if o.direction > 0 else (1, 0)
            large_range = both((Name("i") >= "large_range_from").along(later, 2), (Name("i") >= 0).along(other, 2))
            mask = Either(Literal(None), Name("SMALL_RANGE"), large_range)
        tiles.body.append(StoreTo(matrix_place(target), v.over((ROW, COL)), mask, tiles.note(node)))
    before, tiles.body = tiles.body, []
    for own in o.prologue.own:
        _store_own(own, tiles, name_of)
    own_stores = [If(Name("SMALL_RANGE"), tuple(tiles.body))] if tiles.split and o.prologue.own else tiles.body
    tiles.body = [*before, *own_stores]
    sums: list[Statement] = []
    for axis in o.tile:
        sums += _intra_blocks(axis, o, tiles, name_of, parts)
    read = frozenset[str]().union(*map(reads, tiles.body))
    axes = tuple(a for a in (*o.full, *o.tile) if f"{axis_name(a)}_ok" in read)
    arguments = tuple(tiles.arguments.values())
    wide = sum(map(_wide, arguments))
    inside = [*blocks, *tiles.body, *sums]
    queues = not parts and not tiles.by_range and 0 < wide <= FEW
    slow_path: Body = ()
    if queues:
        body = _queued(axes, tiles, inside)
    else:
        body, slow_path = at_once(axes, None, tiles, inside, bool(making))
    return Kernel(
        name,
        body,
        "What needs no state, for all chunks at once.",
        arguments,
        axes,
        None,
        False,
        tuple(parts),
        slow_path=slow_path,
        pieces=(Piece(o),),
        making=making,
        loads=tuple(x for x in loaded_tiles(tiles) if x[1] not in (None, ROW)) if queues else (),
        few=len(o.prologue.products) <= SUMMED if parts else not queues and wide <= FEW,
        queues=queues,
    )


def _divided(o: Opened) -> frozenset[Node]:
    """Products over steps of a chunk whose columns or rows are divided by sums that may cancel: these grow without bound, and
    with them what a product rounds."""
    quotients = {x.attrs[:2] for x, node in o.origins.items() if cancelling_divisors([node])}
    nodes = (
        *o.prologue.definitions.values(),
        *o.matrices.values(),
        *(term[0] for own in o.prologue.own for term in own.terms),
    )
    scaled = [
        x for x in walk(*nodes) if x.op == "mul" and any(f.op == "leaf" and f.attrs[:2] in quotients for f in x.args)
    ]
    return frozenset(y for y in walk(*scaled) if y.op == "sum" and set(y.axes) == {ROW, COL})


def _queued(axes: tuple[str, ...], tiles: Tiles, inside: list[Statement]) -> Body:
    """A kernel whose programs take one chunk after the other. A place that no chunk has begins at
    the first step, and has no row that counts: only what a loop has outside branches is prefetched."""
    (place, there, *steps), pointers = chunk_header(1, sweeps=False), bases(tiles)
    nowhere = where(Name("last") < 0, 0, Name("t0")), call("tl.maximum", "last", 0)
    loop = [
        *chunk_of(Name("program")),
        place,
        there,
        If(Name("begins").given, (Let(("t0", "last"), Items(nowhere, bare=True)),)),
        *steps,
        *moved_on(pointers),
        *tiles.head,
        *inside,
    ]
    programs = call("tl.program_id", 0), "programs", call("tl.num_programs", 0)
    return (
        *header(axes, None, False),
        *(let(whole_name(x), x.names[0]) for x in pointers),
        For("program", call("tl.range", *programs, num_stages="STAGES"), tuple(loop)),
    )


def _by_blocks(
    axis: str, o: Opened, tiles: Tiles, name_of: NameOf, parts: list[str], making: frozenset[str]
) -> list[Statement]:
    """Contractions over an axis with a decay of its own, and quantities times decays, in blocks of the axis."""
    products = {x: n for x, n in o.prologue.products.items() if n.attrs[0] == axis}
    scaled = {x: n for x, n in o.prologue.scaled.items() if axis in x.axes}
    if not products and not scaled:
        return []
    parts.append(axis)
    inside = Tiles(Scope.of(o, {}, name_of))
    inside.arguments, inside.names, inside.head = tiles.arguments, tiles.names, tiles.head
    inside.by_range, inside.split, inside.making = tiles.by_range, tiles.split, making
    before: list[Statement] = []
    for x, node in products.items():
        total = tiles.fresh("products")
        before.append(let(total, call("tl.zeros", shape("C", "C"), "tl.float32")))
        tiles.memo[x] = Value(Name(total), (ROW, COL))
        inside.add_product(total, node, axis)
    for x, node in scaled.items():
        target = tiles.argument(name_of(x), Role.GIVEN, "chunked", x, (axis,), stores=True)
        v = inside.value(node)
        place, there = chunked_place(target, axis, inside)
        inside.body.append(StoreTo(place, v.over((ROW, axis)), there, inside.note(node)))
    loop: list[Statement] = [_block_loop(axis, inside.body)]
    made_sums = {x.decay for x in sums_loaded(inside)}
    for d in inside.decays:
        if (made := name_of(inside.decays[d])) in making and made in made_sums:
            zero = call("tl.full", shape(), 0.0, "tl.float32")
            before += [let(f"{made}_{end}", zero) for end in ("most", "least")]
            loop.append(_reach(axis, made, d, inside))
    return [*before, *loop]


def _reach(axis: str, made: str, d: Node, tiles: Tiles) -> Statement:
    """After a loop that has made sums of a decay: how far they reach, and all of them, where that is too far."""
    index, width = axis_name(axis), size_name(dim_of(axis))
    rows = times(Name("i").along(0, 2), Group(Name("H") * width))
    place = plus(f"{made}_sums", times("step", width), rows, Name(index).along(1, 2))
    tiles.argument(made, Role.SUMS, "chunked", tiles.decays[d], (axis,), stores=True)
    tiles.argument(made, Role.EXTENTS, "extent", tiles.decays[d], (axis,), stores=True)
    extent = Name(f"{made}_most") - f"{made}_least"
    there = both(Name("i_ok").along(0, 2), Name(f"{index}_ok").along(1, 2))
    again = let("sums", call("sums_of", tiles.log2(d, axis), "C")), StoreTo(place, Name("sums"), there)
    far = If(Not(call("has_small_range", extent, "DT")), (_block_loop(axis, again),))
    return If(Name("SUMS"), (StoreTo(Name(f"{made}_extents") + "at", extent), far))


def _intra_blocks(axis: str, o: Opened, tiles: Tiles, name_of: NameOf, parts: list[str]) -> list[Statement]:
    """What reads take of the writes of their own chunk, where the decay runs along the kept axis, in blocks of it."""
    intra = {x: n for x, n in o.prologue.intra.items() if axis in x.axes}
    if not intra:
        return []
    if axis not in parts:
        parts.append(axis)
    inside = Tiles(Scope.of(o, {}, name_of))
    inside.arguments, inside.names, inside.head = tiles.arguments, tiles.names, tiles.head
    inside.by_range, inside.split = tiles.by_range, tiles.split
    for x, node in intra.items():
        target = tiles.argument(name_of(x), Role.GIVEN, "chunked", x, (axis,), stores=True)
        v = inside.decayed_sums(node, tiles)
        place, mask = chunked_place(target, axis, inside)
        inside.body.append(StoreTo(place, v.over((ROW, axis)), mask))
    return [_block_loop(axis, inside.body)]


def _block_loop(axis: str, inside: Iterable[Statement]) -> For:
    """What is done for each block of an axis."""
    index, width, part = axis_name(axis), size_name(dim_of(axis)), tile_name(axis)
    start = f"{index}_start"
    return For(
        start,
        call("range", 0, width, part),
        (let(index, plus(start, call("tl.arange", 0, part))), let(f"{index}_ok", Name(index) < width), *inside),
    )


def _store_own(own: Own, tiles: Tiles, name_of: NameOf) -> None:
    """The sums of pairs inside a chunk."""
    found: dict[tuple[str, str], Code] = {}
    for node, *slots in own.terms:
        pairs = tiles.assign("pairs", tiles.value(node).over((ROW, COL)), (ROW, COL), note=tiles.note(node)).code
        for slot, side in zip(slots, SIDES, strict=True):
            sums: Code = call("tl.sum", pairs, axis=1)
            if side == "column":
                halves = shape(HALVES, Name("C") // HALVES, "C")
                sums = call("tl.sum", call("tl.reshape", pairs, halves), axis=1)
            sums = found[slot, side] + sums if (slot, side) in found else sums
            found[slot, side] = tiles.assign("sums", sums, (ROW,)).code
    for (slot, side), sums in found.items():
        x = own.prologue[slot]
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        row = plus(times("bh", own.counts[slot]), own.first[slot, side])
        note = f"{own.state}: own.{slot}, {side}s"
        if side == "row":
            store = StoreTo(plus(target, times(row, "T"), "t0", "i"), sums, Name("i_ok"), note)
        else:
            rows = plus(row, call("tl.arange", 0, HALVES)).along(0, 2)
            place = plus(target, times(rows, "T"), "t0", Name("i").along(1, 2))
            store = StoreTo(place, Negative(sums), Name("i_ok").along(1, 2), note)
        tiles.body.append(store)
