"""What sweeps and output kernels store of what they have made for each step."""

from __future__ import annotations

from ....ir.code import (
    Code,
    Name,
    call,
    plus,
    shape,
    times,
    where,
)
from ....ir.expr import ROW, Node, rename
from ....ir.kernel_ir import Store as StoreTo
from ..plan_passes.hoist import Opened
from ..plan_passes.roles import at_row
from ..plan_passes.value_placement import Store
from ..print.axis_names import block_name
from .arguments import Role
from .chunk_kernel import NameOf
from .places import same_size, step_place, tile_place, tile_row
from .tile_lowering import Tiles
from .tile_values import Value


def over_tile(x: Code, axes: tuple[str, ...], tiled: str | None) -> Code:
    """The sum of a sweep's tile over its axis: of a part for each warp, so that none waits for another."""
    assert tiled is not None and axes[1] == ROW
    parts = shape("WARPS", Name(block_name(tiled)) // "WARPS", "C")
    return call("tl.sum", call("tl.reshape", x, parts), axis=1)


def stored_sums(target: str, value: Code, tiled: str | None, note: str) -> StoreTo:
    """Store what a sweep has summed for each step, and for each warp where there is a tile: [B, H, tiles * warps, T]."""
    if tiled is None:
        return StoreTo(plus(target, "at", "i"), value, Name("i_ok"), note)
    rows = plus(times(tile_row(tiled), "WARPS"), call("tl.arange", 0, "WARPS")).along(0, 2)
    place = plus(target, times(rows, "T"), "t0", Name("i").along(1, 2))
    return StoreTo(place, value, Name("i_ok").along(1, 2), note)


def cited(key: tuple[str, str], note: str, name_of: NameOf) -> str:
    """A comment with the number of the formula, among those at the file's head, of what is made there."""
    number = name_of.number(key)
    return note if number is None else f"({number}) {note}"


def cited_root(store: Store, name_of: NameOf) -> str:
    """Of which result a store is, with the number of its formula."""
    return cited(("result", store.root), store.root, name_of) if store.root else ""


def made_name(x: Node, stores: list[Store], name_of: NameOf) -> str:
    """What a read or a write is called in a kernel: as the result that it is, if it is stored as one."""
    results = [s.leaf for s in stores if s.kind != "sums" and s.node.op == "leaf" and s.node.attrs[:2] == x.attrs[:2]]
    return name_of(results[-1]) if results else x.attrs[0]


def store_of(
    store: Store, tiles: Tiles, tiled: str | None, o: Opened, name_of: NameOf, v: Value | None = None
) -> StoreTo:
    """What stores a value, or that of the store's node."""
    x = store.leaf
    own = tuple(next(t for t in o.tile if same_size(a, t)) for a in x.axes)
    name = name_of(x)
    v = v or tiles.value(tiles.called(at_row(rename(store.node, o.rename)), name))
    note = cited_root(store, name_of)
    if store.kind == "sums":
        target = tiles.argument(name, Role.OUT, "sums", x, stores=True)
        axis = next(a for a in v.axes if a != ROW)
        axes = tiles.ordered((ROW, axis))
        there = tiles.along(tiles.ok(axis), axis, axes)
        value = where(there, v.over(axes), 0.0)
        if tiles.sweeps:
            return stored_sums(target, over_tile(value, axes, tiled), tiled, note)
        value = call("tl.sum", value, axis=axes.index(axis))
        return StoreTo(plus(target, tile_place(tiled)), value, Name(tiles.stored_rows), note)
    target = tiles.argument(name, Role.OUT, "out", x, own, stores=True)
    if not own:
        place = plus(target, "step", times("i", "H"))
        return StoreTo(place, v.over((ROW,)), Name(tiles.stored_rows), note)
    axes = tiles.ordered((ROW, *own))
    return StoreTo(plus(target, step_place(own[0], tiles)), v.over(axes), tiles.stored(axes), note)
