"""Kernels of sweeps: over sequences in chunks, with the states in registers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import reduce

from ....ir.code import (
    Binary,
    Code,
    Either,
    Group,
    Items,
    Literal,
    Name,
    Not,
    both,
    call,
    code,
    names_in,
    plus,
    shape,
    times,
    where,
)
from ....ir.expr import COL, ROW, Node, add, dim_of, leaf, plain_name, rename, walk
from ....ir.kernel_ir import (
    Body,
    If,
    Let,
    Return,
    Slices,
    Statement,
    added,
    assigned,
    let,
    reads,
)
from ....ir.kernel_ir import Store as StoreTo
from ...chunkwise.plan import Sweep
from ...chunkwise.segment_maps import feeds_back
from ...normal_form.form import StateForm
from ..plan_passes.decay_sums import decay_sum
from ..plan_passes.hoist import Opened, Sums, uses
from ..plan_passes.roles import at_row
from ..plan_passes.split_reads import products_of
from ..plan_passes.value_placement import Store
from ..print.axis_names import axis_name, block_name, count_of, counter, size_name
from .arguments import Role
from .chunk_kernel import Alone, Kernel, NameOf, Piece, loaded_tiles, sums_loaded
from .places import (
    bases,
    chunk_header,
    chunk_place,
    header,
    is_missing,
    load_state,
    over_chunks,
    row_place,
    state_place,
    store_state,
    tiles_of,
)
from .stores import cited, made_name, over_tile, store_of, stored_sums
from .tile_lowering import Tiles
from .tile_names import Scope
from .tile_values import Fine, Value

# KiB of a chunk's tiles that a sweep which makes several reads loads at most, for dims of 128 in 16 bits, where no launch can
# make one of them alone: with more, buffers for three chunks of two programs don't fit on a multiprocessor, and one sweep for
# each read is faster.
MOST = 40


def _heavy(tiles: Tiles, tiled: str | None) -> bool:
    """Does a sweep load more than `MOST`? A value's terms that an earlier sweep has stored count as 16 bits, though they are
    float32: the limit was measured so."""
    steps, tile, dim = 32, 64, 128
    bits = 0
    for name, axis in (x for x in loaded_tiles(tiles) if x[1] != ROW):
        a = tiles.arguments[name]
        x = a.source
        wide = a.role is Role.SUMS or (x is not None and x.attrs[0] == "intra")
        bits += steps * (steps if axis is None else tile if axis == tiled else dim) * (32 if wide else 16)
    return bits / 8 / 1024 > MOST


def sweep_kernel(
    name: str,
    sweep: Sweep,
    o: Opened,
    stores: list[Store],
    name_of: NameOf,
    ends: bool,
    linear: bool = False,
    each: bool = False,
    fine: Fine | None = None,
    checkpoints: bool = False,
    rows: str | None = None,
    spare: Collection[Node] = (),
) -> Kernel:
    """The sweep over sequences or segments of them in chunks, with the states in registers.

    Where not YIELD, it makes nothing but the states after each segment, from zero states. `ends` says that it is launched so;
    with `linear` it makes the matrix of each segment's map as well, in tiles beyond those of the state, whose columns are
    those of the identity at first (see `segments.same_sweep`), or, given no place for states, that alone. Otherwise it yields
    last states of whole sequences, or, with `each`, of each segment; and, with `checkpoints`, the states as each block of
    BLOCK steps finds them; with `rows`, laid out for a sweep that has them whole, with this axis in rows. It does without the
    `spare` leaves of what it stores where it is given no place for them. Where no store needs two reads, a launch makes all
    of them, or one: READ, from 1.
    """
    tiled = o.tile[0] if len(o.tile) == 1 else None
    inner = o.full[0] if linear else None
    tails = linear and o.direction > 0 and all(s.decay is not None for s in sweep.group)
    tiles = Tiles(Scope.of(o, o.definitions, name_of, sweeps=True))
    tiles.precise, tiles.fine = bool(o.sums) or (fine is not None and fine.states and o.direction < 0), fine
    tiles.parted, tiles.wide = fine is not None or any(x.totals for x in o.sums), o.wide
    tiles.products = fine is None and not _makes_matrices(o)  # what is float32 in memory has operands of its own
    tiles.maps = linear
    axes = (*o.full, *o.tile)
    carried = {s.name: name_of(leaf("state", s.name)) for s in sweep.group}
    setup = header(axes, tiled, sweeps=True, matrix=(inner, carried[sweep.group[0].name]))
    after: list[Statement] = []
    tiles.names |= set(map(plain_name, carried.values()))
    group = [replace(s, axes=tuple(o.rename.get(a, a) for a in s.axes)) for s in sweep.group]
    for s in group:
        begin, end = _carried_state(
            s, carried[s.name], tiles, inner, tiled, ends or s.name in sweep.finals, each, tails
        )
        setup, after = setup + begin, after + end
    if checkpoints:
        tiles.body += _store_checkpoints(group, carried, tiles, o.direction, rows)
        sequence = Either(Literal(0), is_missing("starts"), Name("sh") // "H")
        setup.append(let("first_block", (Name("begin") // "BLOCK" + sequence).to("tl.int32")))
    blocks = _yielded(o, stores, tiles, tiled, name_of, spare, apart=not sweep.solve)
    _next_states(group, carried, o, tiles, name_of)
    setup += bases(tiles)
    if ends and not feeds_back(sweep.group, sweep.solve):
        setup += _lasting(sweep.group, o, name_of)
    way = "forwards" if o.direction > 0 else "backwards"
    states = ", ".join(sweep.states)
    doc = f"An inter-chunk sweep {way} in time, which carries a tile of {states}."
    loop = tiles.used([*chunk_header(o.direction), *tiles.head, *tiles.body])
    for_states, *for_reads = (
        frozenset(needed_for(loop, set(carried.values()), block) & set(tiles.arguments)) for block in (None, *blocks)
    )
    apart = tuple(replace(x, loads=loads) for x, loads in zip(blocks.values(), for_reads, strict=True))
    if tiles.by_products:
        diagonal = Name("i").along(0, 2).equals(Name("i").along(1, 2))
        setup.append(let("identity", where(diagonal, 1.0, 0.0).to("DT")))
    arguments = tuple(tiles.arguments.values())
    return Kernel(
        name,
        (*setup, over_chunks(loop), *after),
        doc,
        arguments,
        axes,
        tiled,
        True,
        slices=_slices(o, group, carried),
        pieces=(Piece(o, sweep.group, tuple(stores)),),
        each=each,
        finals=sweep.finals,
        checkpoints=sweep.states if checkpoints else (),
        rows=rows if checkpoints else None,
        loads=loaded_tiles(tiles),
        inside=frozenset(x.decay for x in sums_loaded(tiles) if x.edge != "end"),
        heavy=len(o.outputs) > 1 and not sweep.solve and not apart and _heavy(tiles, tiled),
        inner=inner,
        tails=tails,
        slim=not any(s.decay_axes for s in group)
        and sum(tiles.arguments[x].layout == "matrix" for x in for_states) <= 1,
        carried=for_states,
        products=tiles.by_products,
        apart=apart,
    )


def _carried_state(
    s: StateForm, state: str, tiles: Tiles, inner: str | None, tiled: str | None, left: bool, each: bool, tails: bool
) -> tuple[list[Statement], list[Statement]]:
    """The statements before and after the loop over chunks for a state, which is `left` in memory if anyone asks for it; for the
    matrix of each segment's map as well, where there is one over `inner`."""
    own, direction = tiles.ordered(s.axes), 1 if tiles.forward else -1
    setup: list[Statement] = []
    after: list[Statement] = []
    tiles.memo[leaf("state in", s.name, s.axes)] = Value(Name(state), own)
    if inner is not None:
        assert tiled is not None
        setup += _columns(inner, tiled, state, tiles)
    setup += load_state(s, state, own, tiles)
    if left:
        tiles.argument(state, Role.LAST, "state", leaf("last", s.name, s.axes), s.axes, stores=True)
        after += store_state(s, state, own, direction, each, inner is not None)
    if inner is not None:
        assert tiled is not None and s.row is not None
        target = tiles.argument(state, Role.LINEAR, "state", leaf("linear", s.name, s.axes), s.axes, stores=True)
        columns, store_columns = _matrix_columns(inner, tiled, state, target, tiles)
        setup.append(columns)
        after.append(store_columns)
        if tails:
            begin, end = _tail_stores(inner, tiled, s, state, own, tiles)
            setup, after = setup + begin, after + end
    return setup, after


def _yielded(
    o: Opened,
    stores: list[Store],
    tiles: Tiles,
    tiled: str | None,
    name_of: NameOf,
    spare: Collection[Node],
    apart: bool,
) -> dict[Code, Alone]:
    """What a sweep makes where YIELD: sums for decays, reads and writes, and what it stores. The blocks of one read each."""
    by_read = _ByRead(o)
    for boundary in o.sums:
        for stored, node, at in _store_sums(boundary, tiles, tiled, name_of):
            by_read.sums(boundary.state, node, stored, at)
    for x, node in o.outputs.items():
        made = made_name(x, stores, name_of)
        v = tiles.value(tiles.called(node, made))
        if not v.named:
            v = tiles.assign(
                made,
                v.over(v.axes),
                v.axes,
                note=cited(x.attrs[:2], tiles.note(node), name_of),
            )
        tiles.memo[leaf(x.attrs[0], x.attrs[1], (ROW, *x.axes))] = v
    _early_loads(stores, tiles, o)
    for store in stores:
        there: Statement = store_of(store, tiles, tiled, o, name_of)
        if store.leaf in spare:
            there = If(Name(f"{name_of(store.leaf)}_out").given, (there,))
        by_read.store(store, there)
    return by_read.add_to(tiles, apart=apart)


def _slices(o: Opened, group: list[StateForm], carried: dict[str, str]) -> tuple[Slices, ...]:
    """The axes that a sweep takes slice by slice, with the states that it carries for each slice."""
    names = {a: tuple(carried[s.name] for s in group for b in s.axes if b == a) for a in o.full}
    return tuple(Slices(counter(a), count_of(a), own) for a, own in names.items())


def _next_states(group: list[StateForm], carried: dict[str, str], o: Opened, tiles: Tiles, name_of: NameOf) -> None:
    """The states after a chunk, all of which are made of those before it."""
    new = []
    for s in group:
        node, own = o.states[s.name], tiles.ordered(s.axes)
        made = tiles.value(tiles.called(node, f"{carried[s.name]}_after"))
        value = tiles.until_ends(made.over(own), node, own, own)
        new.append((carried[s.name], value, cited(("state", s.name), tiles.note(node), name_of)))
    if len(new) == 1:
        tiles.body.append(let(new[0][0], new[0][1], note=new[0][2]))
    else:
        after_all = [tiles.fresh(f"{n}_next") for n, _, _ in new]
        tiles.body += [let(x, value, note=note) for x, (_, value, note) in zip(after_all, new, strict=True)]
        tiles.body += [let(n, x) for x, (n, _, _) in zip(after_all, new, strict=True)]


def needed_for(loop: Body, names: set[str], yields: Code | None = None) -> set[str]:
    """What a loop reads for what it hands on in these names to its next pass, and for the block of this condition, if there is
    one, of all that it does only where YIELD."""
    found = [(x, reads(x), assigned(x)) for x in loop]
    blocks = [x for x in loop if isinstance(x, If) and "YIELD" in names_in(x.condition)]
    needed = names.union(*(reads(x) for x in blocks if x.condition == yields))
    before = set[str]()
    while needed != before:
        before = set(needed)
        for x, read, made in found:
            if made & needed and x not in blocks:
                needed |= read
    return needed


class _ByRead:
    """What a sweep does where YIELD, by the number of the read that it needs; what needs none comes with the last."""

    def __init__(self, o: Opened) -> None:
        self.reads = o.outputs
        self.stored: dict[int, list[Statement]] = {}  # statements that store, and
        self.added: dict[int, list[Statement]] = {}  # those that store sums
        self.leaves: dict[int, list[Node]] = {}
        self.summed: dict[
            int, tuple[str, int]
        ] = {}  # states, and reads, by the place of the statement that makes a sum
        self.shared = False  # does a store need several?

    def sums(self, state: str, node: Node, stored: Statement, at: int) -> None:
        """A sum for a decay's gradient, which statement `at` makes, of products with states that a read is made of."""
        products = products_of(node)
        n = next((n for n, x in enumerate(self.reads.values(), 1) if products <= products_of(x)), len(self.reads))
        self.summed[at] = state, n
        self.added.setdefault(n, []).append(stored)

    def store(self, store: Store, there: Statement) -> None:
        used = [n for n, x in enumerate(self.reads, 1) if uses(store.node, x)]
        self.shared |= len(used) > 1
        n = used[0] if used else len(self.reads)
        self.leaves.setdefault(n, []).append(store.leaf)
        self.stored.setdefault(n, []).append(there)

    def add_to(self, tiles: Tiles, apart: bool) -> dict[Code, Alone]:
        """Adds all of it to the body: `apart`, for launches that make one read each, if no store needs two; then by the condition
        of the block of each read."""
        numbers = sorted({*self.stored, *self.added})
        if len(numbers) < 2 or self.shared or not apart:
            found = [x for each in (self.stored, self.added) for n in sorted(each) for x in each[n]]
            tiles.body += [If(Name("YIELD"), tuple(found))] if found else []
            return {}
        all_of = Name("READ").equals(0)
        chosen = {n: Binary("or", all_of, Name("READ").equals(m)) for m, n in enumerate(numbers, 1)}
        # the compiler makes sums where they stand, whether or not they are stored
        for at, (_, n) in self.summed.items():
            tiles.body[at] = If(chosen[n], (tiles.body[at],))
        blocks: dict[Code, Alone] = {}
        for n in numbers:
            begin = Binary("and", Name("YIELD"), chosen[n])
            tiles.body.append(If(begin, (*self.stored.get(n, ()), *self.added.get(n, ()))))
            states = frozenset(state for state, m in self.summed.values() if m == n)
            blocks[begin] = Alone(frozenset(), frozenset(self.leaves.get(n, ())), states)
        return blocks


def _makes_matrices(o: Opened) -> bool:
    """Does a sweep make matrices over the steps of a chunk itself? While it does, it waits for tensor cores."""
    nodes = walk(*o.outputs.values(), *o.states.values(), *o.definitions.values())
    return any(x.op == "sum" and {ROW, COL} <= set(x.axes) for x in nodes)


def _store_checkpoints(
    group: list[StateForm], carried: dict[str, str], tiles: Tiles, direction: int, rows: str | None
) -> list[Statement]:
    """The states as a block finds them: [B, H, blocks, *axes]; or, with an axis in `rows`, [B, blocks * ROWS, H, X]."""
    chunks = Name("BLOCK") // "C"
    number: Code = Name("n")
    at: Code = (number % chunks).equals(0)
    if direction < 0:
        number = Name("count") - 1 - "n"
        at = Binary("|", Name("n").equals(0), ((Name("count") - "n") % chunks).equals(0))
    found: list[Statement] = []
    for s in group:
        state, own = carried[s.name], tiles.ordered(s.axes)
        target = tiles.argument(
            state, Role.CHECKPOINTS, "checkpoint", leaf("checkpoint", s.name, s.axes), s.axes, stores=True
        )
        block = plus("first_block", number // chunks)
        if rows is None:
            place, mask = state_place(s, own, Group(plus(times("bh", "blocks"), block)))
        else:
            place, mask = row_place(rows, own, Group(plus(times("b", "blocks"), block)))
        found.append(If(Name(target).given, (If(at, (StoreTo(plus(target, place), Name(state), mask),)),)))
    return found


def _columns(inner: str, tiled: str, state: str, tiles: Tiles) -> list[Statement]:
    """Which columns of a matrix a tile has, beyond those of a state, or in the place of these where nothing else is made."""
    size, none, column = size_name(dim_of(inner)), is_missing(f"{state}_last"), Name("column")
    before = Either(Literal(0), none, times(tiles_of(tiled), block_name(tiled)))
    no_states = let(tiles.ok(tiled), call("tl.zeros", shape(block_name(tiled)), "tl.int1"))
    found = (
        let("column", Name(axis_name(tiled)) - before),
        let("column_ok", (column >= 0) & (column < size), note="of the matrix of the segment's map"),
        If(none, (no_states,)),
    )
    return [If(Name(f"{state}_linear").given, found)]


def _matrix_columns(inner: str, tiled: str, state: str, target: str, tiles: Tiles) -> tuple[If, If]:
    """The columns of a matrix, which its tiles begin as the identity's, and store at the end."""
    size = size_name(dim_of(inner))
    own = tiles.ordered((tiled, inner))
    row, ok = (tiles.along(x, inner, own) for x in (axis_name(inner), tiles.ok(inner)))
    column = tiles.along("column", tiled, own)
    begin = If(Name(target).given, (added(state, where(column.equals(row), 1.0, 0.0)),))
    there = both(tiles.along("column_ok", tiled, own), ok)
    place = plus(target, times("sh", size, size), times(row, size), column)
    return begin, If(Name(target).given, (StoreTo(place, Name(state), there),))


def _lasting(group: tuple[StateForm, ...], o: Opened, name_of: NameOf) -> list[Statement]:
    """Where a sweep makes no more than what a segment leaves, and all its states decay: it begins with the first chunk of which
    anything is left then."""
    if any(s.decay is None or s.by_products for s in group):
        return []
    found: list[Statement] = []
    for decays in dict.fromkeys(tuple(rename(d, o.rename) for d in s.decays) for s in group):
        reached = reduce(lambda x, y: call("tl.minimum", x, y), (_reached(d, o, name_of) for d in decays))
        found.append(let("reached", call("tl.maximum", "reached", reached) if found else reached))
    count, reached_ = Name("count"), Name("reached")
    if o.direction > 0:
        moved = Name("begin") + (count - "reached") * "C", Name("first") + (count - "reached"), reached_
        found.append(Let(("begin", "first", "count"), Items(moved, bare=True)))
    else:
        stop = call("tl.minimum", "stop", Name("begin") + reached_ * "C")
        found.append(Let(("stop", "count"), Items((stop, reached_), bare=True)))
    return [If(Not(Name("YIELD")), tuple(found))]


def _reached(d: Node, o: Opened, name_of: NameOf) -> Code:
    """How many of the last chunks have written what this decay leaves anything of."""
    name = name_of(d)
    base, stride = times("bh", "T"), code(1)
    x: Code = call("tl.arange", 0, 1)
    ok: Code = call("tl.full", shape(1), 1, "tl.int1")
    if d.axes:
        (axis,) = d.axes
        size, index = size_name(dim_of(axis)), axis_name(axis)
        base, stride = times(plus(times("b", "T", "H"), "h"), size), times("H", size)
        whole = axis not in o.tile
        x = call("tl.arange", 0, call("triton.next_power_of_2", size)) if whole else Name(index)
        ok = x < size
    rests = Either(plus(f"{name}_rests", base), Name("EXACT"), Literal(None))
    places = (stride, x, ok, "begin", "stop", "count", "C", o.direction > 0)
    return call("lasting", plus(f"{name}_sums", base), rests, *places)


def _tail_stores(
    inner: str, tiled: str, s: StateForm, state: str, own: tuple[str, ...], tiles: Tiles
) -> tuple[list[Statement], list[Statement]]:
    """Where a launch sweeps forwards over the last TAIL_STEPS steps of each segment alone (TAIL 1), or over those before them
    (2), unless the map of the last ones is zero (see `runtime/chunk_kernels/segment_tails.py`): where it begins and stops; and
    what it stores besides."""
    tail_state, linear, live = (
        tiles.argument(state, role, "state", leaf("tail", s.name, s.axes), s.axes, stores=True)
        for role in (Role.TAIL, Role.TAIL_MAP, Role.LIVE)
    )
    size, block = Name(size_name(dim_of(inner))), Name(block_name(tiled))
    columns = Group((size + block - 1) // block)
    states = Group(Either(Literal(0), is_missing(f"{state}_last"), tiles_of(tiled)))
    edge, which = Name("edge"), Name("TAIL")
    to_edge = Name("begin") + edge * "C"
    tail = Items((to_edge, Name("first") + edge, Name("count") - edge), bare=True)
    head = Items((call("tl.minimum", "stop", to_edge), edge), bare=True)
    is_zero = call("is_zero", plus(live, times("sh", columns)), columns)
    only_tail = Let(("begin", "first", "count"), tail), let("live", 0)
    only_head = Let(("stop", "count"), head), If(is_zero, (Return(),))
    split = let("edge", call("tl.maximum", Name("count") - Name("TAIL_STEPS") // "C", 0))
    begin = [If(which > 0, (split, If(which.equals(1), only_tail, only_head)))]
    place, mask = state_place(s, own)
    _, store = _matrix_columns(inner, tiled, state, linear, tiles)

    def of_tail(given: str) -> Code:
        return Binary("and", which.equals(1), Name(f"{state}_{given}").given)

    some = where(Binary("!=", Name(state), Literal(0.0)), 1, 0)
    alive = let("live", call("tl.maximum", "live", call("tl.max", some)))
    live_place = plus(live, times("sh", columns), "tile") - states
    end = [
        If(of_tail("last"), (StoreTo(plus(tail_state, place), Name(state), mask),)),
        If(of_tail("linear"), (*store.body, alive)),
        If(of_tail("linear"), (If(Name("tile") >= states, (StoreTo(live_place, Name("live")),)),)),
    ]
    return list(begin), list(end)


def _store_sums(sums: Sums, tiles: Tiles, tiled: str | None, name_of: NameOf) -> list[tuple[Statement, Node, int]]:
    """What the sweep sums for the gradient of a decay, for each of its tiles: made before all else, which frees registers. With
    what each is the sum of, and the place of the statement that makes it."""
    if sums.totals:
        return [(_store_totals(sums, tiles, name_of), add(*sums.reads.values()), len(tiles.body) - 1)]
    assert sums.prologue or not sums.own  # the prologue kernel sums what is inside a chunk
    found: dict[str, tuple[Code, Node]] = {}
    for slot, node in sums.reads.items():
        v = tiles.paired(node)
        found[slot] = over_tile(v.code, v.axes, tiled) if len(v.axes) > 1 else v.code, node
    made: list[tuple[Statement, Node, int]] = []
    for slot, (total, node) in found.items():
        x = decay_sum(sums.state, sums.kind, slot)
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        value = tiles.assign("sums", total, (ROW,)).code
        made.append((stored_sums(target, value, tiled, f"{sums.state}: {sums.kind}.{slot}"), node, len(tiles.body) - 1))
    return made


def _store_totals(sums: Sums, tiles: Tiles, name_of: NameOf) -> Statement:
    """What crosses the chunk boundary, for each channel."""
    node = add(*sums.reads.values())
    v = tiles.paired(node)
    (axis,) = (a for a in v.axes if a != ROW)
    total = call("tl.sum", tiles.until_ends(v.code, node, v.axes), axis=v.axes.index(ROW))
    value = tiles.assign("sums", total, (axis,)).code
    x = decay_sum(sums.state, sums.kind, axes=(axis,))
    target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
    return StoreTo(plus(target, chunk_place(axis)), value, Name(tiles.ok(axis)), f"{sums.state}: {sums.kind}")


def _early_loads(stores: list[Store], tiles: Tiles, o: Opened) -> None:
    """Load what only the stores use at the start of the chunk: the compiler's pipeline takes operands of products only."""
    before, tiles.body = tiles.body, []
    for store in stores:
        for x in walk(at_row(rename(store.node, o.rename))):
            if (
                x.op == "leaf"
                and x not in tiles.memo
                and x.attrs[0] in ("input", "cotangent", "stored", "read", "write")
            ):
                tiles.value(x)
    tiles.head += tiles.body
    tiles.body = before
