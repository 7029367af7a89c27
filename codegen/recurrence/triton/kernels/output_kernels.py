"""What reads the states that sweeps have left at checkpoints, for all chunks at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from ....ir.code import Binary, Code, Group, Load, Name, Negative, call, code, plus, times, where
from ....ir.code_parts import starts_with_minus, without_minus
from ....ir.expr import COL, INNER, ROW, ZERO, Kept, Node, add, dim_of, factors_of, leaf, rename, walk
from ....ir.expr import replace as node_replace
from ....ir.kernel_ir import Barrier, Let, Statement, let, reads
from ....ir.kernel_ir import Store as StoreTo
from ....ir.step_program import PER_HEAD
from ....printing.cannot_print import CannotPrint
from ...chunkwise.plan import Unroll
from ...normal_form.form import StateForm
from ..plan_passes.decay_sums import ENDS, STATE_ADJOINT, decay_sum
from ..plan_passes.hoist import Opened, Sums, made_here
from ..plan_passes.roles import PER_STEP, is_state
from ..plan_passes.value_placement import Store
from ..print.axis_names import axis_name, block_name
from .arguments import Role
from .at_once import at_once
from .chunk_kernel import Kernel, NameOf, Piece, by_channel, sums_loaded
from .places import OF_CHUNK, chunk_place, loaded_state, step_place, tile_place
from .read_order import (
    SUM,
    WHOLE,
    Asked,
    CheckpointReads,
    asked_for,
    in_order,
    in_registers,
    is_read,
    late_node,
    one_by_one,
    step_node,
)
from .stores import cited, cited_root, made_name, store_of
from .tile_lowering import Tiles
from .tile_names import Scope
from .tile_values import Fine, Value

# Reads, of axes that are at most so wide, that a kernel has registers for beside a product for sums over later steps.
READS, WIDE = 2, 128


# And as many as four warps have the registers for: with four of RWKV-7, eight take 0.74 of the time.
MANY = 3


# The same where they are summed at once, for products at each step: with four, eight take 1.5 of the time, with six 0.9.
SUMMED_AT_ONCE = 5


def output_kernel(
    name: str,
    sweeps_read: list[CheckpointReads],
    inside: set[Node],
    spans: dict[str, tuple[StateForm, StateForm]],
    whole: frozenset[str],
    name_of: NameOf,
    fine: Fine | None = None,
) -> Kernel:
    """What reads the checkpointed states, for all blocks at once: pieces of the same tile axis, each of which finds
    in registers what those before it have made.

    Of the leaves that are stored only those stay `inside` that nothing else loads. `spans` and `whole` are as in
    `CheckpointSchedule`.
    """
    first = sweeps_read[0].opened
    tiled = first.tile[0] if len(first.tile) == 1 else None
    axes = tuple(dict.fromkeys(a for x in sweeps_read for a in (*x.opened.full, *x.opened.tile)))
    tiles = Tiles(Scope.of(first, {}, name_of))
    tiles.names.add("tile")
    tiles.by_range, tiles.products_made = [], {}
    tiles.split = by_channel(*(n for x in sweeps_read for n in x.opened.prologue.intra.values()))
    tiles.apart = {} if any(spans[n][0].decay_axes for n in whole) else None
    late = {f"{n}.late": spans[n][0] for n in whole}
    sums: dict[str, list[Code]] = {}  # by state: what its state-adjoint product is the sum of
    of: dict[str, Opened] = {}  # by state: the piece that calls its axes as they are called there
    for sweep in sweeps_read:  # first, so that states are in registers no longer than it takes to hand them to products
        for boundary in sweep.opened.sums:
            if boundary.kind == "in":
                tiles = _next_tiles(tiles, sweep.opened, name_of, fine)
                sums[boundary.state] = [_spanned(*spans[boundary.state], sweep.opened, tiles, name_of)]
                of[boundary.state] = sweep.opened
    asked = asked_for(sweeps_read, inside, late)
    own = {x.attrs[1] for sweep in sweeps_read for x in sweep.opened.outputs}
    order = in_order(sweeps_read, asked, late)
    last = {id(sweep): n for n, (sweep, _) in enumerate(order)}
    for n, (sweep, outputs) in enumerate(order):
        o = sweep.opened
        tiles = _next_tiles(tiles, o, name_of, fine)
        for s in sweep.group:
            _checkpoint(s, o, tiles, name_of)
        for x in outputs:
            _output(x, sweep, tiles, name_of)
        if n == last[id(sweep)]:
            for boundary in o.sums:
                sums.setdefault(boundary.state, []).extend(_paired(boundary, tiles, tiled))
                of.setdefault(boundary.state, o)
        if not one_by_one(sweeps_read):
            _store_all(sweep, tiles, tiled, inside, late, name_of)
        else:
            for one in asked:
                if (total := _added(one, own, tiles, late, name_of)) is not None:
                    _store(one.store, one.opened, total, tiles, tiled, inside, name_of)
    for state, terms in sums.items():
        s = spans[state][0]
        if s.decay_axes and state not in whole:
            tiles.body.append(_store_ends(state, terms, s, of[state], tiles, name_of))
        else:
            reads = sum(len(x.opened.outputs) for x in sweeps_read)
            tiles.body += _store_state_adjoint(state, terms, s, of[state], reads, tiles, tiled, name_of)
    doc = "Intra-chunk outputs from checkpointed states, of all intervals at once."
    loads_first = tiles.body if one_by_one(sweeps_read) else _whole_tiles_first(tiles.body, first)
    body, slow_path = at_once(axes, tiled, tiles, loads_first)
    arguments = tuple(tiles.arguments.values())
    summed: dict[str, set[tuple[str, ...]]] = {}
    for key in sums_loaded(tiles):
        summed.setdefault(key.decay, set()).add(key.axes)
    replaces = tuple(x for x, own in summed.items() if own == {(tiled,)})
    many = sum(len(x.opened.outputs) for x in sweeps_read) > MANY
    return Kernel(
        name, body, doc, arguments, axes, tiled, False, reads=True, many=many, slow_path=slow_path, replaces=replaces,
        pieces=tuple(Piece(x.opened, x.group, tuple(x.stores)) for x in sweeps_read),
        spans=tuple(spans[n] for n in sums),
    )  # fmt: skip


def _whole_tiles_first(body: list[Statement], o: Opened) -> list[Statement]:
    """A kernel's statements, with loads of tiles of steps along axes that it has whole before those of states: the first products
    take them, and wait for both together. A kernel with many reads has no registers for them so early."""
    whole, tiled = ({axis_name(a) for a in axes} for axes in (o.full, o.tile))
    early = [
        x
        for x in body
        if isinstance(x, Let) and isinstance(x.value, Load) and {"i", *whole} <= reads(x) and not tiled & reads(x)
    ]
    return [*early, *(x for x in body if x not in early)]


def _output(x: Node, sweep: CheckpointReads, tiles: Tiles, name_of: NameOf) -> None:
    """Make a read, and what there is of it without each step's own write."""
    node, made = sweep.opened.outputs[x], made_name(x, sweep.stores, name_of)
    v = tiles.value(tiles.called(node, made))
    apart = tiles.without_own(node)
    if any(y.op == "leaf" and y.attrs[0] == "apart" for y in walk(apart)):
        rest = tiles.value(apart)
        tiles.memo[leaf("apart", x.attrs[1], (ROW, *x.axes))] = tiles.assign("apart", rest.over(rest.axes), rest.axes)
    if not v.named:
        v = tiles.assign(made, v.over(v.axes), v.axes, note=cited(x.attrs[:2], tiles.note(node), name_of))
    tiles.memo[leaf(x.attrs[0], x.attrs[1], (ROW, *x.axes))] = v


def _store_all(
    x: CheckpointReads,
    tiles: Tiles,
    tiled: str | None,
    inside: set[Node],
    late: Mapping[str, StateForm],
    name_of: NameOf,
) -> None:
    """The stores of a sweep, `late` ones without each step's own write."""
    for store in x.stores:
        state, o = late.get(store.root), x.opened
        node = step_node(store.node, o) if state is None else _apart(late_node(store.node, state, o), tiles)
        _store(store, o, node, tiles, tiled, inside, name_of)


def _store(
    store: Store, o: Opened, node: Node, tiles: Tiles, tiled: str | None, inside: set[Node], name_of: NameOf
) -> None:
    """Store a node, or leave it in registers if it is of those `inside`."""
    v = tiles.value(tiles.called(node, name_of(store.leaf)))
    if store.kind != "sums":
        if store.leaf not in inside:  # else it is made where it is used: it takes registers till then
            v = tiles.assign(name_of(store.leaf), v.over(v.axes), v.axes, note=cited_root(store, name_of))
        tiles.memo[in_registers(store.leaf, o)] = v
    if store.leaf not in inside:
        tiles.body.append(store_of(store, tiles, tiled, o, name_of, None if node is step_node(store.node, o) else v))


def _added(a: Asked, own: set[str], tiles: Tiles, late: Mapping[str, StateForm], name_of: NameOf) -> Node | None:
    """Add to a sum the terms that are made by now. The sum, if it is complete with these. A read that isn't of the kernel's `own`
    is loaded, and waited for by none."""

    def made(x: Node) -> Node | None:
        x = _apart(x, tiles) if a.store.root in late else x
        reads = (y for y in walk(x) if is_read(y) and (y.attrs[0] != "read" or y.attrs[1] in own))
        return x if all(y in tiles.memo for y in reads) else None

    def keep(x: Node) -> Node:
        v = tiles.value(tiles.called(x, name_of(a.store.leaf)))
        if not v.named:
            v = tiles.memo[x] = tiles.assign(name_of(a.store.leaf), v.over(v.axes), v.axes, note="so far")
        kept = leaf(SUM, x.key, v.axes)
        tiles.memo[kept] = v
        return kept

    if a.stored:
        return None
    a.sum.add(made, keep)
    a.stored = a.sum.complete
    return None if not a.stored else ZERO if a.sum.total is None else a.sum.total


def unroll_kernel(name: str, stage: Unroll, streams: dict[Node, Node], name_of: NameOf, ahead: Opened) -> Kernel:
    """The products of states and gradients at each step that a stage is for, from the checkpointed states, for all
    blocks at once: of each the sum over a tile, or whole where it is of pairs inside a block alone; or over the channels of a
    tile, where a decay is one for each of these. `stage` has its axes kept apart; `streams` are those of it, of which some may
    be made in the prologue."""
    channels = next((x.axes[0] for x in stage.outputs if x.axes), None)
    states = (*stage.forward, *stage.backward)
    axes = states[0].axes
    if any(s.axes != axes for s in states) or (channels is None and len({dim_of(a) for a in axes}) < len(axes)):
        raise CannotPrint("weights that have no logarithm are between states with two axes of one dim")
    used = {x.attrs[1] for x in walk(*stage.outputs.values(), *stage.definitions.values()) if is_state(x)}
    in_tiles = len(axes) > 1 and bool(used)
    tiled = channels or (axes[1] if in_tiles else None)
    full = tuple(a for a in axes if a != tiled) if in_tiles else axes
    decays = {
        x: stage.streams[x]
        for x in decays_of(stage, *ahead.prologue.products.values(), *ahead.prologue.scaled.values())
    }
    tiles = Tiles(Scope(full, (tiled,) if tiled is not None else (), 1, decays, streams, stage.definitions, name_of))
    tiles.names.add("tile")
    if channels is not None:
        tiles.by_range, tiles.split, tiles.parted = [], by_channel(*stage.definitions.values()), True
    for s in (s for s in states if s.name in used):
        source = leaf("checkpoint", s.name, axes)
        target = tiles.argument(name_of(leaf("state", s.name)), Role.CHECKPOINTS, "checkpoint", source, axes)
        tiles.checkpoints[s.name] = loaded_state(s, tiles.ordered(axes), target, OF_CHUNK)
    for x, node in stage.outputs.items():
        if channels is not None:
            v, axes_of = tiles.value(node), tiles.ordered((ROW, channels))
            target = tiles.argument(name_of(x), Role.OUT, "out", x, (channels,), stores=True)
            place, mask = plus(target, step_place(channels, tiles)), tiles.stored(axes_of)
            tiles.body.append(StoreTo(place, v.over(axes_of), mask, x.attrs[1]))
            continue
        v = tiles.value(node)
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        place = plus(target, tile_place(tiled))
        tiles.body.append(StoreTo(place, v.over((ROW,)), Name("i_ok"), x.attrs[1]))
    body, slow_path = at_once(axes, tiled, tiles, tiles.body)
    doc = "State-adjoint products at each step, of all intervals at once."
    read = [x for x in walk(*stage.outputs.values()) if x.op == "sum" and any(map(is_state, factors_of(x.args[0])))]
    many = sum(not {ROW, COL, INNER}.isdisjoint(x.axes) for x in read) > SUMMED_AT_ONCE
    many = many or any(
        x.op == "left_out" for x in walk(*stage.outputs.values())
    )  # which holds a read's tile for each step
    arguments = tuple(tiles.arguments.values())
    opened = replace(ahead, full=full, tile=tiles.tile, decays=decays, streams=streams)
    opened = replace(opened, definitions=stage.definitions, outputs=stage.outputs)
    return Kernel(
        name,
        body,
        doc,
        arguments,
        axes,
        tiled,
        False,
        reads=True,
        many=many,
        slow_path=slow_path,
        pieces=(Piece(opened),),
    )


def kept_apart(stage: Unroll) -> Unroll:
    """The stage, with a name of its own for the axis of a decay's channels, where a square state has two."""
    axes = stage.forward[0].axes
    channels = next((x.axes[0] for x in stage.outputs if x.axes), None)
    if channels is None or len({dim_of(a) for a in axes}) == len(axes):
        return stage
    names = {a: Kept(dim_of(a)) if a == channels else dim_of(a) for a in axes}

    def of(nodes: dict[Node, Node]) -> dict[Node, Node]:
        return {rename(x, names): rename(node, names) for x, node in nodes.items()}

    def over(states: tuple[StateForm, ...]) -> tuple[StateForm, ...]:
        return tuple(replace(s, axes=tuple(names.get(a, a) for a in s.axes)) for s in states)

    return replace(
        stage, streams=of(stage.streams), outputs=of(stage.outputs), definitions=of(stage.definitions),
        forward=over(stage.forward), backward=over(stage.backward),
    )  # fmt: skip


def decays_of(stage: Unroll, *more: Node) -> list[Node]:
    """The streams of a stage that are decays, of what it makes and more."""
    nodes = walk(*stage.outputs.values(), *stage.definitions.values(), *more)
    of_decays = ("decay_mask", "decay_in", "decay_out", "decay_all", "left_out")
    named = {y.args[0].attrs[1] for y in nodes if y.op in of_decays}
    return [x for x in stage.streams if x.attrs[1] in named]


def _apart(x: Node, tiles: Tiles) -> Node:
    """x with reads without each step's own write, where a kernel has these, but for reads that are `WHOLE`."""
    leaves = [y for y in walk(x) if y.op == "leaf"]
    found = {y: leaf("apart", *y.attrs[1:]) for y in leaves if y.attrs[0] == "read"}
    found = {y: z for y, z in found.items() if z in tiles.memo}
    return node_replace(x, found | {y: leaf("read", *y.attrs[1:]) for y in leaves if y.attrs[0] == WHOLE})


def _next_tiles(before: Tiles, o: Opened, name_of: NameOf, fine: Fine | None) -> Tiles:
    """Tiles for the next piece of a kernel, which know what is loaded, and what is named."""
    tiles = Tiles(Scope.of(o, {**o.prologue.definitions, **o.definitions}, name_of))
    tiles.matrices = {x.attrs[1]: n for x, n in o.matrices.items() if made_here(n, o)}
    tiles.precise = tiles.parted = fine is not None
    tiles.fine = fine
    tiles.intra, tiles.by_range = {x.attrs[1]: n for x, n in o.prologue.intra.items()}, before.by_range
    tiles.split, tiles.apart, tiles.products_made = before.split, before.apart, before.products_made
    tiles.names |= before.names
    tiles.arguments, tiles.head, tiles.body, tiles.loads = before.arguments, before.head, before.body, before.loads
    shared = (*PER_STEP, *PER_HEAD, "matrix", "state in", "apart", SUM)
    tiles.memo = {x: v for x, v in before.memo.items() if x.op == "leaf" and x.attrs[0] in shared}
    return tiles


def _checkpoint(s: StateForm, o: Opened, tiles: Tiles, name_of: NameOf) -> Value:
    """A state as this block finds it."""
    s = replace(s, axes=tuple(o.rename.get(a, a) for a in s.axes))
    x, own = leaf("state in", s.name, s.axes), tiles.ordered(s.axes)
    if x not in tiles.memo:
        state = name_of(leaf("state", s.name))
        target = tiles.argument(state, Role.CHECKPOINTS, "checkpoint", leaf("checkpoint", s.name, s.axes), s.axes)
        raw = tiles.fine is None
        tiles.memo[x] = tiles.assign(state, loaded_state(s, own, target, OF_CHUNK), own, raw, note=s.name)
    return tiles.memo[x]


def _spanned(s: StateForm, gradient: StateForm, o: Opened, tiles: Tiles, name_of: NameOf) -> Code:
    """The decays of a block times <S before it, dS after it>."""
    states = [_checkpoint(x, o, tiles, name_of) for x in (s, gradient)]
    axes = states[0].axes
    assert s.decay is not None
    kept = tiles.kept(rename(s.decay, o.rename))
    product = times(*(x.over(axes) for x in states))
    for n in reversed(range(len(axes))):
        if axes[n] not in kept.axes:
            product = call("tl.sum", product, axis=n)
    note = f"the decays of the interval times <{s.name}, {gradient.name}>"
    return tiles.assign("spans", times(kept.code, product), kept.axes, note=note).code


def _paired(sums: Sums, tiles: Tiles, tiled: str | None) -> list[Code]:
    """Terms of the state-adjoint product of a state: over the steps of the block, or, of a decay for each channel, at its end."""
    terms: list[Code] = []
    if sums.totals:
        if sums.kind == "out":
            node = tiles.without_own(add(*sums.reads.values()))
            v = tiles.value(node)
            (axis,) = (a for a in v.axes if a != ROW)
            total = call("tl.sum", tiles.until_ends(v.code, node, v.axes), axis=v.axes.index(ROW))
            terms.append(Negative(tiles.assign("sums", total, (axis,), note="out").code))
        return terms
    found: dict[str, list[Code]] = {slot: [Name(x)] for slot, x in own_sums(sums.own, tiles, tiled).items()}
    for slot, node in sums.reads.items():
        v = tiles.value(node)
        value = v.code
        if len(v.axes) > 1:
            value = call("tl.sum", value, axis=1 - v.axes.index(ROW))
        elif tiled is not None:
            value = where(Name("tile").equals(0), value, 0.0)
        value = tiles.until_ends(value, node, (ROW,))
        found.setdefault(slot, []).append(tiles.assign("sums", value, (ROW,), note=f"{sums.kind}: {slot}").code)
    for slot, values in found.items():
        value = values[0] if len(values) == 1 else Group(plus(*values))
        alone = (slot == "early") == (
            sums.kind == "in"
        )  # without t's own, of which nothing may be left beside strong decays
        if sums.kind == "in":  # what comes at t or after it
            at_or_after = call("tl.cumsum", value, axis=0, reverse=True)
            terms.append(call("sum_of_others", value, "C", False) if alone else at_or_after)
        else:  # what comes before t
            before = call("sum_of_others", value, "C", True) if alone else call("tl.cumsum", value, axis=0)
            terms.append(Negative(before))
    return terms


def _sum(terms: list[Code]) -> Code:
    """The sum of terms, of which those with a minus are subtracted."""
    first, *others = terms
    return reduce(lambda total, x: total - without_minus(x) if starts_with_minus(x) else plus(total, x), others, first)


def _store_ends(state: str, terms: list[Code], s: StateForm, o: Opened, tiles: Tiles, name_of: NameOf) -> Statement:
    """What is left of a state-adjoint product at the end of a block, for each channel: the terms inside it are added
    afterwards."""
    (own,) = (o.rename.get(a, a) for a in s.decay_axes)
    x = decay_sum(state, ENDS, axes=(own,))
    target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
    return StoreTo(plus(target, chunk_place(own)), _sum(terms), Name(tiles.ok(own)), f"{state}: ends")


def _store_state_adjoint(
    state: str, terms: list[Code], s: StateForm, o: Opened, reads: int, tiles: Tiles, tiled: str | None, name_of: NameOf
) -> list[Statement]:
    """The decay's gradient at each step: for each tile, what it has of it; or, of a decay for each channel, all."""
    total, note = _sum(terms), f"state-adjoint product of {state}"
    if not s.decay_axes:
        x = decay_sum(state, STATE_ADJOINT)
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        return [StoreTo(plus(target, tile_place(tiled)), total, Name(tiles.stored_rows), note)]
    (own,) = (o.rename.get(a, a) for a in s.decay_axes)
    x = decay_sum(state, STATE_ADJOINT, axes=(own,), kind="stored")
    target = tiles.argument(name_of(x), Role.OUT, "out", x, (own,), stores=True)
    axes = tiles.ordered((ROW, own))
    late = tiles.value(leaf("stored", f"{state}.late", (ROW, own)))
    inside = where(tiles.along("i_ok", ROW, axes), late.over(axes), 0.0)
    end = tiles.assign("end", total, (own,)).name
    narrow = [Name(block_name(a)) <= WIDE for a in o.full]
    by_product = reduce(lambda a, b: Binary("and", a, b), narrow, code(reads <= READS))
    later = call("later_sums", inside, "C", by_product, "DT")
    whole = tiles.assign("total", tiles.along(end, own, axes) + later, axes).code
    store = StoreTo(plus(target, step_place(own, tiles)), whole, tiles.stored(axes), note)
    return [store] if tiles.split else [Barrier("this may replace sums that other warps load"), store]


def own_sums(terms: list[tuple[Node, str, str]], tiles: Tiles, tiled: str | None) -> dict[str, str]:
    """By slot, the row sums of the matrices of pairs inside the chunk less their column sums."""
    out: dict[str, str] = {}
    for node, rows, columns in terms:
        v = tiles.value(node)
        pairs = tiles.assign("pairs", v.over((ROW, COL)), (ROW, COL), note=tiles.note(node)).name
        if tiled is not None and not any(x.op == "sum" and x.attrs[0] == tiled for x in walk(node)):
            # each tile has the whole of it
            tiles.body.append(let(pairs, where(Name("tile").equals(0), Name(pairs), 0.0)))
        for slot, axis in ((rows, 1), (columns, 0)):
            sums: Code = call("tl.sum", pairs, axis=axis)
            if axis == 0:
                sums = Name(out[slot]) - sums if slot in out else Negative(sums)
            elif slot in out:
                sums = Name(out[slot]) + sums
            out[slot] = tiles.assign("sums", sums, (ROW,)).name
    return out
