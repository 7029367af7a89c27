"""Kernels of sweeps: the sweep over chunks, the prologue kernel of it that takes all chunks at once, and the one after it, for
what
reads the states that sweeps have left at checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from ....ir.expr import COL, INNER, ROW, Node, add, dim_of, factors_of, leaf, plain_name, rename, walk
from ....ir.expr import replace as node_replace
from ...chunkwise.plan import Sweep, Unroll
from ...chunkwise.segment_maps import feeds_back
from ...normal_form.form import StateForm
from ..plan_passes.hoist import HALVES, SIDES, Opened, Own, Sums, made_here, uses
from ..plan_passes.roles import PER_HEAD, PER_STEP, WEIGHT, CannotPrint, at_row, is_state
from ..plan_passes.split_reads import products_of
from ..plan_passes.value_placement import Store
from ..print.axis_names import KEPT, axis_name, block_name, count_of, counter, part_name, size_name
from .arguments import Argument, Role
from .strip_mine import needed_for, sliced
from .tile_lowering import Fine, Tiles, Value

NameOf = Callable[[Node], str]
# KiB of a chunk's tiles that a sweep which makes several reads loads at most, for dims of 128 in 16 bits, where no launch can
# make one of them alone: with more, buffers for three chunks of two programs don't fit on a multiprocessor, and one sweep for
# each read is faster.
MOST = 40
# Tensors of whose tiles a prologue kernel of a sweep loads at most so many for its programs to take one chunk after the other,
# with the tiles of the next ones under way, which takes 0.75 to 1.01 of the time; or, where it has loops or decays of its own, to
# do with few registers: then more programs fit on a multiprocessor, which takes 0.7 to 1.02 of the time. With more it spills.
FEW = 4
# Products with a decay for each channel that such a kernel sums at once, at most, to do with few registers.
SUMMED = 2
# Reads, of axes that are at most so wide, that a kernel has registers for beside a product for sums over later steps.
READS, WIDE = 2, 128
# And as many as four warps have the registers for: with four of RWKV-7, eight take 0.74 of the time.
MANY = 3
# The same where they are summed at once, for products at each step: with four, eight take 1.5 of the time, with six 0.9.
SUMMED_AT_ONCE = 5


@dataclass(frozen=True)
class Alone:
    """What a sweep loads and stores for one of its reads, and the states whose decays' gradients it sums there."""

    loads: frozenset[str]
    stores: frozenset[Node]
    states: frozenset[str]


@dataclass(frozen=True)
class Kernel:
    """A printed kernel. `tiled` is the axis whose tiles have programs of their own, None for none."""

    name: str
    lines: dict[str, list[str]]
    doc: str
    arguments: tuple[Argument, ...]
    axes: tuple[str, ...]  # axes with an index, a size and a block
    tiled: str | None
    sweeps: bool
    parts: tuple[str, ...] = ()  # axes that are swept in blocks
    finals: tuple[str, ...] = ()  # states whose last value it yields
    checkpoints: tuple[str, ...] = ()  # states that it stores at checkpoints
    reads: bool = False  # does it read states there?
    many: bool = False  # are there many?
    slow_path: tuple[
        str, ...
    ] = ()  # the lines of a second kernel, where it takes only chunks that are of a small decay range: for all others
    loads: tuple[tuple[str, str | None], ...] = ()  # what a sweep loads, as `_loads` has it
    heavy: bool = False  # does a sweep load more than one that makes several reads should?
    inside: frozenset[str] = frozenset()  # decays of which a sweep loads sums inside chunks
    replaces: tuple[str, ...] = ()  # decays whose sums it may replace: each program loads what it has of them alone
    few: bool = False  # can a prologue kernel of a sweep do with few registers?
    queues: bool = False  # does a program of a prologue kernel of a sweep take one chunk after the other?
    whole: bool = False  # does a sweep take blocks of steps, with states whole?
    rows: bool = False  # are the states that it stores at checkpoints for a sweep that has them whole?
    inner: str | None = None  # where a sweep makes the matrix of a segment's map as well: the axis of its columns
    late: bool = False  # and it may be zero over the last steps of a segment, which launches of their own sweep over
    slim: bool = False  # has that sweep the registers for four programs on a multiprocessor?
    carried: frozenset[str] = frozenset()  # what a sweep loads for states alone, not for what it yields
    products: frozenset[str] = frozenset()  # what a sweep loads whose elements may be products with the identity
    apart: tuple[Alone, ...] = ()  # a sweep's reads, where launches may make one each

    def signature(self) -> list[str]:
        """The parameters, a few to a line."""
        lines = []
        for a in self.arguments:
            lines.append(", ".join(a.parameters) + ",")
        sizes = dict.fromkeys(size_name(dim_of(x)) for x in (*self.axes, *self.parts))
        lines.append(
            "T, H, chunks, starts, parts, length," if self.sweeps else "T, H, chunks, begins, stops, programs,"
        )
        if self.checkpoints:
            lines.append("blocks,")
        words = [*sizes, *(block_name(x) for x in self.axes), *map(part_name, self.parts)]
        words += ["FLAT", "GROUP"] if self.slow_path else []
        words += ["YIELD", "WARPS", "STAGES"] if self.sweeps else ["CHUNK"]
        words += [*(["PRODUCTS"] if self.products else []), *(["READ"] if self.apart else [])]
        words += ["PIECE"] if self.late else []
        words += ["STAGES"] if self.queues else []
        words += ["BLOCK"] if self.checkpoints else []
        words += ["ROWS"] if self.rows else []
        words += ["C", "LEVELS", "EVEN", "EXACT", "DT"]
        lines.append(", ".join(f"{w}: tl.constexpr" for w in words) + ",")
        return lines

    @property
    def unspecialised(self) -> tuple[str, ...]:
        """The integers that a kernel isn't compiled for."""
        return ("T", "chunks", *(("parts", "length") if self.sweeps else ("programs",)))

    def for_slow_path(self) -> Kernel:
        """The kernel for what this one leaves."""
        return replace(
            self,
            name=slow_path_name(self.name),
            lines={"setup": list(self.slow_path), "loop": [], "after": []},
            doc="The same, of chunks that aren't flat: a program looks at some together, and takes one after the other.",
        )


def slow_path_name(kernel: str) -> str:
    return f"{kernel}_others"


def _wide(a: Argument) -> bool:
    """Has it a row of channels for each step?"""
    return a.layout in ("step", "chunked") and bool(a.axes) and a.role is not Role.RESTS


def _loads(tiles: Tiles) -> tuple[tuple[str, str | None], ...]:
    """What a sweep loads for a chunk: the argument, and the axis beside steps, None for a matrix over these, ROW for numbers."""
    found: list[tuple[str, str | None]] = [*tiles.loaded]
    sums = [key[0] for key in tiles.loads if key[1:2] == ("a",) and key[2] in ("", "_before")]
    for a in tiles.arguments.values():
        if a.layout == "matrix":
            found.append((a.name, None))
        elif a.role is Role.SUMS:
            found += [(a.name, a.axes[0] if a.axes else ROW)] * sums.count(a.base)
        elif a.role is Role.BY_HEAD or _is_weight(a):
            found.append((a.name, ROW))
    return tuple(found)


def _is_weight(a: Argument) -> bool:
    """Is it how much of one state is in another, at each step?"""
    return a.source is not None and a.source.op == "leaf" and a.source.attrs[0] == WEIGHT


def _heavy(tiles: Tiles, tiled: str | None) -> bool:
    """Does a sweep load more than `MOST`? A value's terms that an earlier sweep has stored count as 16 bits, though they are
    float32: the limit was measured so."""
    steps, tile, dim = 32, 64, 128
    bits = 0
    for name, axis in (x for x in _loads(tiles) if x[1] != ROW):
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
    late = linear and o.direction > 0 and all(s.decay is not None for s in sweep.group)
    tiles = Tiles(o.full, o.tile, o.direction, o.decays, o.streams, o.definitions, name_of, sweeps=True)
    tiles.precise, tiles.fine = bool(o.sums) or (fine is not None and fine.states and o.direction < 0), fine
    tiles.parted, tiles.wide = fine is not None or any(x.totals for x in o.sums), o.wide
    tiles.products = fine is None and not _makes_matrices(o)  # what is float32 in memory has operands of its own
    axes = (*o.full, *o.tile)
    carried = {s.name: name_of(leaf("state", s.name)) for s in sweep.group}
    setup = header(axes, tiled, sweeps=True, matrix=(inner, carried[sweep.group[0].name]))
    after: list[str] = []
    tiles.names |= set(map(plain_name, carried.values()))
    group = [replace(s, axes=tuple(o.rename.get(a, a) for a in s.axes)) for s in sweep.group]
    for s in group:
        own, state = tiles.ordered(s.axes), carried[s.name]
        tiles.memo[leaf("state in", s.name, s.axes)] = Value(state, own)
        if inner is not None:
            assert tiled is not None
            setup += _columns(inner, tiled, state, tiles)
        setup += load_state(s, state, own, tiles)
        if ends or s.name in sweep.finals:
            tiles.argument(state, Role.LAST, "state", leaf("last", s.name, s.axes), s.axes, stores=True)
            after += store_state(s, state, own, o.direction, each, inner is not None)
        if inner is not None:
            assert tiled is not None and s.row is not None
            target = tiles.argument(state, Role.LINEAR, "state", leaf("linear", s.name, s.axes), s.axes, stores=True)
            begin, end = _matrix_columns(inner, tiled, state, target, tiles)
            setup, after = setup + begin, after + end
            if late:
                begin, end = _tail_stores(inner, tiled, s, state, own, tiles)
                setup, after = setup + begin, after + end
    if checkpoints:
        tiles.lines += _store_checkpoints(group, carried, tiles, o.direction, rows)
        setup.append("first_block = (begin // BLOCK + (0 if starts is None else sh // H)).to(tl.int32)")
    by_read = _ByRead(o)
    for boundary in o.sums:
        for line, node, at in _store_sums(boundary, tiles, tiled, name_of):
            by_read.sums(boundary.state, node, line, at)
    for x, node in o.outputs.items():
        v = tiles.value(node)
        if not v.text.isidentifier():
            v = tiles.assign("y" if x.attrs[0] == "read" else "w", v.over(v.axes), v.axes, note=tiles.note(node))
        tiles.memo[leaf(x.attrs[0], x.attrs[1], (ROW, *x.axes))] = v
    _early_loads(stores, tiles, o)
    for store in stores:
        line = _store(store, tiles, tiled, o, name_of)
        kept_alone = store.leaf in spare
        by_read.store(store, [f"if {name_of(store.leaf)}_out is not None:", f"    {line}"] if kept_alone else [line])
    blocks = by_read.printed(tiles, apart=not sweep.solve)
    new = []
    for s in group:
        node, own = o.states[s.name], tiles.ordered(s.axes)
        text = tiles.until_ends(tiles.value(node).over(own), node, own, own)
        new.append((carried[s.name], text, tiles.note(node)))
    if len(new) == 1:
        tiles.lines.append(f"{new[0][0]} = {new[0][1]}  # {new[0][2]}")
    else:
        after_all = [tiles.fresh(f"{n}_next") for n, _, _ in new]
        tiles.lines += [f"{x} = {text}  # {note}" for x, (_, text, note) in zip(after_all, new, strict=True)]
        tiles.lines += [f"{n} = {x}" for x, (n, _, _) in zip(after_all, new, strict=True)]
    setup += bases(tiles)
    if ends and not feeds_back(sweep.group, sweep.solve):
        setup += _lasting(sweep.group, o, name_of)
    way = "forwards" if o.direction > 0 else "backwards"
    states = ", ".join(sweep.states)
    doc = f"A walk {way} over chunks, carrying a tile of {states}."
    loop = tiles.used([*chunk_header(o.direction), *tiles.head, *tiles.lines])
    for_states, *for_reads = (
        frozenset(needed_for(loop, set(carried.values()), block) & set(tiles.arguments)) for block in (None, *blocks)
    )
    apart = tuple(replace(x, loads=loads) for x, loads in zip(blocks.values(), for_reads, strict=True))
    if tiles.by_products:
        setup.append("identity = tl.where(i[:, None] == i[None, :], 1.0, 0.0).to(DT)")
    counters = {counter(a): count_of(a) for a in o.full}
    whole = {carried[s.name]: counter(a) for s in group for a in s.axes if a in o.full}
    lines = sliced({"setup": setup, "loop": loop, "after": after}, counters, whole, tiles.fresh)
    arguments = tuple(tiles.arguments.values())
    stored = sweep.states if checkpoints else ()
    return Kernel(
        name,
        lines,
        doc,
        arguments,
        axes,
        tiled,
        True,
        finals=sweep.finals,
        checkpoints=stored,
        rows=checkpoints and rows is not None,
        loads=_loads(tiles),
        inside=frozenset(key[0] for key in tiles.loads if key[1:2] == ("a",) and key[2] != "_end"),
        heavy=len(o.outputs) > 1 and not sweep.solve and not apart and _heavy(tiles, tiled),
        inner=inner,
        late=late,
        slim=not any(s.decay_axes for s in group)
        and sum(tiles.arguments[x].layout == "matrix" for x in for_states) <= 1,
        carried=for_states,
        products=tiles.by_products,
        apart=apart,
    )


class _ByRead:
    """What a sweep does where YIELD, by the number of the read that it needs; what needs none comes with the last."""

    def __init__(self, o: Opened) -> None:
        self.reads = o.outputs
        self.stored: dict[int, list[str]] = {}  # lines that store, and
        self.added: dict[int, list[str]] = {}  # those that store sums
        self.leaves: dict[int, list[Node]] = {}
        self.summed: dict[int, tuple[str, int]] = {}  # states, and reads, by the line that makes a sum
        self.shared = False  # does a store need several?

    def sums(self, state: str, node: Node, line: str, at: int) -> None:
        """A sum for a decay's gradient, which line `at` makes, of products with states that a read is made of."""
        products = products_of(node)
        n = next((n for n, x in enumerate(self.reads.values(), 1) if products <= products_of(x)), len(self.reads))
        self.summed[at] = state, n
        self.added.setdefault(n, []).append(line)

    def store(self, store: Store, lines: list[str]) -> None:
        used = [n for n, x in enumerate(self.reads, 1) if uses(store.node, x)]
        self.shared |= len(used) > 1
        n = used[0] if used else len(self.reads)
        self.leaves.setdefault(n, []).append(store.leaf)
        self.stored.setdefault(n, []).extend(lines)

    def printed(self, tiles: Tiles, apart: bool) -> dict[str, Alone]:
        """Adds all of it to the lines: `apart`, for launches that make one read each, if no store needs two; then by how the
        block of each read begins."""
        numbers = sorted({*self.stored, *self.added})
        if len(numbers) < 2 or self.shared or not apart:
            lines = [x for found in (self.stored, self.added) for n in sorted(found) for x in found[n]]
            tiles.lines += ["if YIELD:", *(f"    {x}" for x in lines)] if lines else []
            return {}
        chosen = {n: f"READ == 0 or READ == {m}" for m, n in enumerate(numbers, 1)}
        # the compiler makes sums where they stand, whether or not they are stored
        for at, (_, n) in self.summed.items():
            tiles.lines[at] = f"if {chosen[n]}:\n    {tiles.lines[at]}"
        tiles.lines = "\n".join(tiles.lines).split("\n")
        blocks = {}
        for n in numbers:
            begin = f"if YIELD and ({chosen[n]}):"
            tiles.lines += [begin, *(f"    {x}" for x in (*self.stored.get(n, ()), *self.added.get(n, ())))]
            states = frozenset(state for state, m in self.summed.values() if m == n)
            blocks[begin] = Alone(frozenset(), frozenset(self.leaves.get(n, ())), states)
        return blocks


def _makes_matrices(o: Opened) -> bool:
    """Does a sweep make matrices over the steps of a chunk itself? While it does, it waits for tensor cores."""
    nodes = walk(*o.outputs.values(), *o.states.values(), *o.definitions.values())
    return any(x.op == "sum" and {ROW, COL} <= set(x.axes) for x in nodes)


@dataclass(frozen=True)
class CheckpointReads:
    """What is made of the checkpointed states, of one sweep: its outputs, stores and sums."""

    group: tuple[StateForm, ...]
    opened: Opened
    stores: list[Store]


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
    tiles = Tiles(first.full, first.tile, first.direction, first.decays, first.streams, {}, name_of)
    tiles.names.add("tile")
    tiles.by_range = []
    tiles.split = _by_channel(*(n for x in sweeps_read for n in x.opened.intra.values()))
    tiles.apart = {} if any(spans[n][0].decay_axes for n in whole) else None
    late = {f"{n}.late" for n in whole}
    sums: dict[str, list[str]] = {}  # by state: what its state-adjoint product is the sum of
    of: dict[str, Opened] = {}  # by state: the piece that calls its axes as they are called there
    for sweep in sweeps_read:  # first, so that states are in registers no longer than it takes to hand them to products
        for boundary in sweep.opened.sums:
            if boundary.kind == "in":
                tiles = _next_tiles(tiles, sweep.opened, name_of, fine)
                sums[boundary.state] = [_spanned(*spans[boundary.state], sweep.opened, tiles, name_of)]
                of[boundary.state] = sweep.opened
    for sweep in sweeps_read:
        o = sweep.opened
        tiles = _next_tiles(tiles, o, name_of, fine)
        for s in sweep.group:
            _checkpoint(s, o, tiles, name_of)
        for x, node in o.outputs.items():
            v = tiles.value(node)
            if (apart := tiles.without_own(node)) is not node:
                rest = tiles.value(apart)
                tiles.memo[leaf("apart", x.attrs[1], (ROW, *x.axes))] = tiles.assign(
                    "apart", rest.over(rest.axes), rest.axes
                )
            if not v.text.isidentifier():
                v = tiles.assign("y", v.over(v.axes), v.axes, note=tiles.note(node))
            tiles.memo[leaf(x.attrs[0], x.attrs[1], (ROW, *x.axes))] = v
        for boundary in o.sums:
            sums.setdefault(boundary.state, []).extend(_paired(boundary, tiles, tiled))
            of.setdefault(boundary.state, o)
        for store in sweep.stores:
            own = tuple(next(t for t in o.tile if same_size(a, t)) for a in store.leaf.axes)
            node = at_row(rename(store.node, o.rename))
            v = tiles.value(_apart(node, tiles) if store.root in late else node)
            if store.kind != "sums":
                if store.leaf not in inside:  # else it is made where it is used: it takes registers till then
                    v = tiles.assign("terms", v.over(v.axes), v.axes, note=store.root)
                kind, what, _ = store.leaf.attrs
                tiles.memo[leaf(kind, what, (ROW, *own))] = v
            if store.leaf not in inside:
                tiles.lines.append(_store(store, tiles, tiled, o, name_of))
    for state, terms in sums.items():
        s = spans[state][0]
        if s.decay_axes and state not in whole:
            tiles.lines.append(_store_ends(state, terms, s, of[state], tiles, name_of))
        else:
            reads = sum(len(x.opened.outputs) for x in sweeps_read)
            tiles.lines += _store_state_adjoint(state, terms, s, of[state], reads, tiles, tiled, name_of)
    doc = "What reads the states at the borders of blocks, for all blocks at once."
    lines, slow_path = _at_once(axes, tiled, tiles, tiles.lines)
    arguments = tuple(tiles.arguments.values())
    summed: dict[str, set[tuple[str, ...]]] = {}
    for key in tiles.loads:
        if key[1:2] == ("a",):
            summed.setdefault(key[0], set()).add(key[3:])
    replaces = tuple(x for x, own in summed.items() if own == {(tiled,)})
    many = sum(len(x.opened.outputs) for x in sweeps_read) > MANY
    return Kernel(
        name, lines, doc, arguments, axes, tiled, False, reads=True, many=many, slow_path=slow_path, replaces=replaces
    )


def unroll_kernel(name: str, stage: Unroll, streams: dict[Node, Node], name_of: NameOf) -> Kernel:
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
    decays = {x: stage.streams[x] for x in _decays_of(stage)}
    tiles = Tiles(full, (tiled,) if tiled is not None else (), 1, decays, streams, stage.definitions, name_of)
    tiles.names.add("tile")
    if channels is not None:
        tiles.by_range, tiles.split, tiles.parted = [], _by_channel(*stage.definitions.values()), True
    for s in (s for s in states if s.name in used):
        source = leaf("border", s.name, axes)
        target = tiles.argument(name_of(leaf("state", s.name)), Role.CHECKPOINTS, "border", source, axes)
        where, mask = _state_place(s, tiles.ordered(axes), "(bh * chunks + c)")
        tiles.checkpoints[s.name] = f"tl.load({target} + {where}{mask}{', other=0.0' if mask else ''})"
    for x, node in stage.outputs.items():
        if channels is not None:
            v, axes_of = tiles.value(node), tiles.ordered((ROW, channels))
            target = tiles.argument(name_of(x), Role.OUT, "out", x, (channels,), stores=True)
            place, mask = _step_place(channels, tiles), tiles.stored(axes_of)
            tiles.lines.append(f"tl.store({target} + {place}, {v.over(axes_of)}, mask={mask})  # {x.attrs[1]}")
            continue
        v = tiles.value(node)
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        tiles.lines.append(f"tl.store({target} + {_tile_place(tiled)}, {v.over((ROW,))}, mask=i_ok)  # {x.attrs[1]}")
    lines, slow_path = _at_once(axes, tiled, tiles, tiles.lines)
    doc = "Products of the states and their gradients at each step, for all blocks at once."
    read = [x for x in walk(*stage.outputs.values()) if x.op == "sum" and any(map(is_state, factors_of(x.args[0])))]
    many = sum(not {ROW, COL, INNER}.isdisjoint(x.axes) for x in read) > SUMMED_AT_ONCE
    arguments = tuple(tiles.arguments.values())
    return Kernel(name, lines, doc, arguments, axes, tiled, False, reads=True, many=many, slow_path=slow_path)


def kept_apart(stage: Unroll) -> Unroll:
    """The stage, with a name of its own for the axis of a decay's channels, where a square state has two."""
    axes = stage.forward[0].axes
    channels = next((x.axes[0] for x in stage.outputs if x.axes), None)
    if channels is None or len({dim_of(a) for a in axes}) == len(axes):
        return stage
    names = {a: f"{dim_of(a)}{KEPT}" if a == channels else dim_of(a) for a in axes}

    def of(nodes: dict[Node, Node]) -> dict[Node, Node]:
        return {rename(x, names): rename(node, names) for x, node in nodes.items()}

    def over(states: tuple[StateForm, ...]) -> tuple[StateForm, ...]:
        return tuple(replace(s, axes=tuple(names.get(a, a) for a in s.axes)) for s in states)

    return replace(
        stage, streams=of(stage.streams), outputs=of(stage.outputs), definitions=of(stage.definitions),
        forward=over(stage.forward), backward=over(stage.backward),
    )  # fmt: skip


def _decays_of(stage: Unroll) -> list[Node]:
    """The streams of a stage that are decays."""
    nodes = walk(*stage.outputs.values(), *stage.definitions.values())
    named = {y.args[0].attrs[1] for y in nodes if y.op in ("decay_mask", "decay_in", "decay_out", "decay_all")}
    return [x for x in stage.streams if x.attrs[1] in named]


def _apart(x: Node, tiles: Tiles) -> Node:
    """x with reads without each step's own write, where a kernel has these."""
    found = {y: leaf("apart", *y.attrs[1:]) for y in walk(x) if y.op == "leaf" and y.attrs[0] == "read"}
    return node_replace(x, {y: z for y, z in found.items() if z in tiles.memo})


def _by_channel(*nodes: Node) -> bool:
    """Are sums with a decay for each channel among these, over the steps of a chunk?"""
    return any(y.op == "decay_mask" and len(y.axes) > 2 for y in walk(*nodes))


def _next_tiles(before: Tiles, o: Opened, name_of: NameOf, fine: Fine | None) -> Tiles:
    """Tiles for the next piece of a kernel, which know what is loaded, and what is named."""
    tiles = Tiles(o.full, o.tile, o.direction, o.decays, o.streams, {**o.prologue, **o.definitions}, name_of)
    tiles.matrices = {x.attrs[1]: n for x, n in o.matrices.items() if made_here(n, o)}
    tiles.precise = tiles.parted = fine is not None
    tiles.fine = fine
    tiles.intra, tiles.by_range = {x.attrs[1]: n for x, n in o.intra.items()}, before.by_range
    tiles.split, tiles.apart = before.split, before.apart
    tiles.names |= before.names
    tiles.arguments, tiles.head, tiles.lines, tiles.loads = before.arguments, before.head, before.lines, before.loads
    shared = (*PER_STEP, *PER_HEAD, "matrix", "state in", "apart")
    tiles.memo = {x: v for x, v in before.memo.items() if x.op == "leaf" and x.attrs[0] in shared}
    return tiles


def _checkpoint(s: StateForm, o: Opened, tiles: Tiles, name_of: NameOf) -> Value:
    """A state as this block finds it."""
    s = replace(s, axes=tuple(o.rename.get(a, a) for a in s.axes))
    x, own = leaf("state in", s.name, s.axes), tiles.ordered(s.axes)
    if x not in tiles.memo:
        state = name_of(leaf("state", s.name))
        target = tiles.argument(state, Role.CHECKPOINTS, "border", leaf("border", s.name, s.axes), s.axes)
        where, mask = _state_place(s, own, "(bh * chunks + c)")
        other = ", other=0.0" if mask else ""
        raw = tiles.fine is None
        tiles.memo[x] = tiles.assign("s", f"tl.load({target} + {where}{mask}{other})", own, raw, note=s.name)
    return tiles.memo[x]


def _spanned(s: StateForm, gradient: StateForm, o: Opened, tiles: Tiles, name_of: NameOf) -> str:
    """The decays of a block times <S before it, dS after it>."""
    both = [_checkpoint(x, o, tiles, name_of) for x in (s, gradient)]
    axes = both[0].axes
    assert s.decay is not None
    kept = tiles.kept(rename(s.decay, o.rename))
    text = " * ".join(x.over(axes) for x in both)
    for n in reversed(range(len(axes))):
        if axes[n] not in kept.axes:
            text = f"tl.sum({text}, axis={n})"
    note = f"the decays of the block times <{s.name}, {gradient.name}>"
    return tiles.assign("spans", f"{kept.text} * {text}", kept.axes, note=note).text


def _paired(sums: Sums, tiles: Tiles, tiled: str | None) -> list[str]:
    """Terms of the state-adjoint product of a state: over the steps of the block, or, of a decay for each channel, at its end."""
    terms = []
    if sums.totals:
        if sums.kind == "out":
            node = tiles.without_own(add(*sums.reads.values()))
            v = tiles.value(node)
            (axis,) = (a for a in v.axes if a != ROW)
            text = f"tl.sum({tiles.until_ends(v.text, node, v.axes)}, axis={v.axes.index(ROW)})"
            terms.append(f"-{tiles.assign('sums', text, (axis,), note='out').text}")
        return terms
    found = {slot: [text] for slot, text in own_sums(sums.own, tiles, tiled).items()}
    for slot, node in sums.reads.items():
        v = tiles.value(node)
        text = v.text
        if len(v.axes) > 1:
            text = f"tl.sum({text}, axis={1 - v.axes.index(ROW)})"
        elif tiled is not None:
            text = f"tl.where(tile == 0, {text}, 0.0)"
        text = tiles.until_ends(text, node, (ROW,))
        found.setdefault(slot, []).append(tiles.assign("sums", text, (ROW,), note=f"{sums.kind}: {slot}").text)
    for slot, texts in found.items():
        text = texts[0] if len(texts) == 1 else f"({' + '.join(texts)})"
        alone = (slot == "early") == (
            sums.kind == "in"
        )  # without t's own, of which nothing may be left beside strong decays
        if sums.kind == "in":  # what comes at t or after it
            terms.append(f"sum_of_others({text}, C, False)" if alone else f"tl.cumsum({text}, axis=0, reverse=True)")
        else:  # what comes before t
            terms.append(f"-sum_of_others({text}, C, True)" if alone else f"-tl.cumsum({text}, axis=0)")
    return terms


def _sum(terms: list[str]) -> str:
    return " + ".join(terms).replace("+ -", "- ")


def _store_ends(state: str, terms: list[str], s: StateForm, o: Opened, tiles: Tiles, name_of: NameOf) -> str:
    """What is left of a state-adjoint product at the end of a block, for each channel: the terms inside it are added
    afterwards."""
    (own,) = (o.rename.get(a, a) for a in s.decay_axes)
    x = leaf("sums", f"{state}.ends", (own,))
    target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
    return f"tl.store({target} + {_chunk_place(own)}, {_sum(terms)}, mask={tiles.ok(own)})  # {state}: ends"


def _store_state_adjoint(
    state: str, terms: list[str], s: StateForm, o: Opened, reads: int, tiles: Tiles, tiled: str | None, name_of: NameOf
) -> list[str]:
    """The decay's gradient at each step: for each tile, what it has of it; or, of a decay for each channel, all."""
    text, note = _sum(terms), f"  # {state}: pairing"
    if not s.decay_axes:
        x = leaf("sums", f"{state}.pairing")
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        return [f"tl.store({target} + {_tile_place(tiled)}, {text}, mask={tiles.stored_rows}){note}"]
    (own,) = (o.rename.get(a, a) for a in s.decay_axes)
    x = leaf("stored", f"{state}.pairing", (own,))
    target = tiles.argument(name_of(x), Role.OUT, "out", x, (own,), stores=True)
    axes = tiles.ordered((ROW, own))
    late = tiles.value(leaf("stored", f"{state}.late", (ROW, own)))
    inside = f"tl.where({tiles.along('i_ok', ROW, axes)}, {late.over(axes)}, 0.0)"
    end = tiles.assign("end", text, (own,)).text
    by_product = " and ".join([str(reads <= READS), *(f"{block_name(a)} <= {WIDE}" for a in o.full)])
    text = f"{tiles.along(end, own, axes)} + later_sums({inside}, C, {by_product}, DT)"
    text = tiles.assign("total", text, axes).text
    store = f"tl.store({target} + {_step_place(own, tiles)}, {text}, mask={tiles.stored(axes)}){note}"
    return [store] if tiles.split else ["tl.debug_barrier()  # this may replace sums that other warps load", store]


def intra_chunk_kernel(
    name: str, o: Opened, name_of: NameOf, fine: Fine | None = None, making: frozenset[str] = frozenset()
) -> Kernel:
    """What needs no state, for each chunk on its own. It makes the sums of the decays `making` itself, of which nothing else
    needs more than those of whole chunks: as it takes each chunk as of a small decay range, and finds out on the way, all sums of
    those that aren't are stored for the kernel that takes these once more."""
    tiles = Tiles(o.full, o.tile, o.direction, o.decays, o.streams, o.prologue, name_of)
    tiles.by_range, tiles.fine = [], fine
    tiles.split = _by_channel(*o.matrices.values(), *o.products.values(), *o.intra.values())
    lines: list[str] = []
    parts: list[str] = []
    for axis in (*o.full, *o.tile):
        lines += _by_blocks(axis, o, tiles, name_of, parts, making)
    tiles.lines = []
    for x, node in o.matrices.items():
        target = tiles.argument(name_of(x), Role.WHOLE, "matrix", x, stores=True)
        v = tiles.value(node)
        at = f"{target} + (bh * chunks + c) * C * C + i[:, None] * C + i[None, :]"
        mask = ""
        if tiles.split:  # the later one of two steps says how they are taken
            later, other = ("[:, None]", "[None, :]") if o.direction > 0 else ("[None, :]", "[:, None]")
            mask = f", mask=None if FLAT else (i >= steep_from){later} & (i >= 0){other}"
        tiles.lines.append(f"tl.store({at}, {v.over((ROW, COL))}{mask})  # {tiles.note(node)}")
    before, tiles.lines = tiles.lines, []
    for own in o.own:
        _store_own(own, tiles, name_of)
    tiles.lines = [
        *before,
        *(["if FLAT:", *(f"    {x}" for x in tiles.lines)] if tiles.split and o.own else tiles.lines),
    ]
    sums: list[str] = []
    for axis in o.tile:
        sums += _intra_blocks(axis, o, tiles, name_of, parts)
    text = "\n".join(tiles.lines)
    axes = tuple(a for a in (*o.full, *o.tile) if f"{axis_name(a)}_ok" in text)
    arguments = tuple(tiles.arguments.values())
    wide = sum(map(_wide, arguments))
    body = [*lines, *tiles.lines, *sums]
    queues = not parts and not tiles.by_range and 0 < wide <= FEW
    slow_path: tuple[str, ...] = ()
    if queues:
        printed = _queued(axes, tiles, body)
    else:
        printed, slow_path = _at_once(axes, None, tiles, body, bool(making))
    return Kernel(
        name,
        printed,
        "What needs no state, for all chunks at once.",
        arguments,
        axes,
        None,
        False,
        tuple(parts),
        slow_path=slow_path,
        loads=tuple(x for x in _loads(tiles) if x[1] not in (None, ROW)) if queues else (),
        few=len(o.products) <= SUMMED if parts else not queues and wide <= FEW,
        queues=queues,
    )


def _at_once(
    axes: tuple[str, ...], tiled: str | None, tiles: Tiles, body: list[str], makes: bool = False
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """The lines of a kernel that takes all chunks at once, and, where decays split it in two, of the kernel for chunks that
    are of a large decay range: few are not, so that a program looks at GROUP of them, and mostly finds none."""
    start, places = chunk_header(1, sweeps=False), bases(tiles)
    body = [*tiles.head, *body]
    own = "tl.program_id(0)" if tiled is None else f"(tl.program_id(0) // {_tiles_of(tiled)})"
    chunk = [f"b, c, h = chunk_of({own}, H, chunks)", "bh = b * H + h"]
    steps = [start[0], "if last < 0:", "    return", *start[1:]]
    extent: list[str] = []
    for decay in tiles.by_range or ():
        reached = f"reach({decay}_extents + at, last, C, CHUNK)"
        extent.append(f"extent = {f'tl.maximum(extent, {reached})' if extent else reached}")
    assert bool(extent) == tiles.split
    counted = "tl.full([], C, tl.int32), tl.full([], 0, tl.int32)"
    range_checks = ["i_new = i_ok", "if not FLAT:", f"    steep_from, again = {counted}"] if extent else []
    if makes:
        range_checks = ["SUMS: tl.constexpr = not EXACT", *range_checks]
    lines = {
        "setup": [*header(axes, tiled, False), *chunk, *steps, *places, *range_checks, *body],
        "loop": [],
        "after": [],
    }
    if not extent:
        return lines, ()
    large_ranges = [
        f"steep({decay}_extents, group, T, H, chunks, begins, stops, programs, GROUP, C, CHUNK, DT)"
        for decay in tiles.by_range or ()
    ]
    pointers = [x.split(" += ") for x in places]
    slow_path = [
        *header(axes, tiled, False),
        *(["SUMS: tl.constexpr = False"] if makes else []),
        f"group = {own} * GROUP",
        f"if {' + '.join(large_ranges)} == 0:",
        "    return",
        *(f"{x}_all = {x}" for x, _ in pointers),
        "for n in range(0, tl.minimum(GROUP, programs - group)):",
        f"    {chunk[0].replace(own, 'group + n')}",
        f"    {chunk[1]}",
        f"    {start[0]}",
        "    if last >= 0:",
        *(f"        {x}" for x in start[1:]),
        *(f"        {x} = {x}_all + {place}" for x, place in pointers),
        *(f"        {x}" for x in extent),
        "        if not is_flat(extent, DT):",
        f"            steep_from, again, i_new = {counted}, i < 0",
        *(f"            {x}" for x in body),
    ]
    return lines, tuple(slow_path)


def _queued(axes: tuple[str, ...], tiles: Tiles, body: list[str]) -> dict[str, list[str]]:
    """The lines of a kernel whose programs take one chunk after the other. A place that no chunk has begins at
    the first step, and has no row that counts: only what a loop has outside branches is prefetched."""
    start, *steps = chunk_header(1, sweeps=False)
    pointers = [x.split(" += ") for x in bases(tiles)]
    loop = [
        "b, c, h = chunk_of(program, H, chunks)",
        "bh = b * H + h",
        start,
        "i_ok = i < last + 1",
        "if begins is not None:",
        "    t0, last = tl.where(last < 0, 0, t0), tl.maximum(last, 0)",
        *(x for x in steps if not x.startswith("i_ok")),
        *(f"{x} = {x}_all + {place}" for x, place in pointers),
        *tiles.head,
        *body,
    ]
    setup = [
        *header(axes, None, False),
        *(f"{x}_all = {x}" for x, _ in pointers),
        "for program in tl.range(tl.program_id(0), programs, tl.num_programs(0), num_stages=STAGES):",
        *(f"    {x}" for x in loop),
    ]
    return {"setup": setup, "loop": [], "after": []}


def _by_blocks(
    axis: str, o: Opened, tiles: Tiles, name_of: NameOf, parts: list[str], making: frozenset[str]
) -> list[str]:
    """Contractions over an axis with a decay of its own, and quantities times decays, in blocks of the axis."""
    products = {x: n for x, n in o.products.items() if n.attrs[0] == axis}
    scaled = {x: n for x, n in o.scaled.items() if axis in x.axes}
    if not products and not scaled:
        return []
    parts.append(axis)
    index, width = axis_name(axis), size_name(dim_of(axis))
    inside = Tiles(o.full, o.tile, o.direction, o.decays, o.streams, {}, name_of)
    inside.arguments, inside.names, inside.head = tiles.arguments, tiles.names, tiles.head
    inside.by_range, inside.split, inside.making = tiles.by_range, tiles.split, making
    before: list[str] = []
    for x, node in products.items():
        total = tiles.fresh("t")
        before.append(f"{total} = tl.zeros([C, C], tl.float32)")
        tiles.memo[x] = Value(total, (ROW, COL))
        factors = factors_of(node.args[0])
        mask = next(f for f in factors if f.op == "decay_mask")
        writes = [f for f in factors if COL in f.axes and f is not mask]
        reads = [f for f in factors if f not in writes and f is not mask]
        r, w = (inside.tile_of(tuple(part), axis).over(inside.ordered((ROW, axis))) for part in (reads, writes))
        inside.lines.append(f"# {inside.note(node)}")
        inside.ends(mask, axis)
        inside.lines.append(
            f"{total} = decayed_product({total}, {r}, {w}, {inside.halves(mask, axis)}, "
            f"C, CHUNK, LEVELS, {inside.forward}, {mask.attrs[2]}, FLAT, EXACT, DT)"
        )
        inside.from_slow_path(mask, axis)
    for x, node in scaled.items():
        target = tiles.argument(name_of(x), Role.GIVEN, "chunked", x, (axis,), stores=True)
        v = inside.value(node)
        place = f"{target} + at * {width} + i[:, None] * {width} + {index}[None, :]"
        mask_text = f"{inside.stored_rows}[:, None] & {index}_ok[None, :]"
        inside.lines.append(f"tl.store({place}, {v.over((ROW, axis))}, mask={mask_text})  # {inside.note(node)}")
    loop = [*_block_loop(axis), *("    " + x for x in inside.lines)]
    for d in inside.decays:
        if (made := name_of(inside.decays[d])) in making and any(key[:2] == (made, "a") for key in inside.loads):
            before += [f"{made}_{end} = tl.full([], 0.0, tl.float32)" for end in ("most", "least")]
            loop += _reach(axis, made, d, inside)
    return [*before, *loop]


def _reach(axis: str, made: str, d: Node, tiles: Tiles) -> list[str]:
    """After a loop that has made sums of a decay: how far they reach, and all of them, where that is too far."""
    index, width = axis_name(axis), size_name(dim_of(axis))
    place = f"{made}_sums + step * {width} + i[:, None] * (H * {width}) + {index}[None, :]"
    tiles.argument(made, Role.SUMS, "chunked", tiles.decays[d], (axis,), stores=True)
    tiles.argument(made, Role.EXTENTS, "extent", tiles.decays[d], (axis,), stores=True)
    return [
        "if SUMS:",
        f"    tl.store({made}_extents + at, {made}_most - {made}_least)",
        f"    if not is_flat({made}_most - {made}_least, DT):",
        *(f"        {x}" for x in _block_loop(axis)),
        f"            sums = sums_of({tiles.log2(d, axis)}, C)",
        f"            tl.store({place}, sums, mask=i_ok[:, None] & {index}_ok[None, :])",
    ]


def _intra_blocks(axis: str, o: Opened, tiles: Tiles, name_of: NameOf, parts: list[str]) -> list[str]:
    """What reads take of the writes of their own chunk, where the decay runs along the kept axis, in blocks of it."""
    intra = {x: n for x, n in o.intra.items() if axis in x.axes}
    if not intra:
        return []
    if axis not in parts:
        parts.append(axis)
    index, width = axis_name(axis), size_name(dim_of(axis))
    inside = Tiles(o.full, o.tile, o.direction, o.decays, o.streams, {}, name_of)
    inside.arguments, inside.names, inside.head = tiles.arguments, tiles.names, tiles.head
    inside.by_range, inside.split = tiles.by_range, tiles.split
    for x, node in intra.items():
        target = tiles.argument(name_of(x), Role.GIVEN, "chunked", x, (axis,), stores=True)
        v = inside.decayed_sums(node, tiles)
        place = f"{target} + at * {width} + i[:, None] * {width} + {index}[None, :]"
        mask = f"{inside.stored_rows}[:, None] & {index}_ok[None, :]"
        inside.lines.append(f"tl.store({place}, {v.over((ROW, axis))}, mask={mask})")
    return [*_block_loop(axis), *("    " + x for x in inside.lines)]


def _block_loop(axis: str) -> list[str]:
    index, width, part = axis_name(axis), size_name(dim_of(axis)), part_name(axis)
    return [
        f"for {index}_start in range(0, {width}, {part}):",
        f"    {index} = {index}_start + tl.arange(0, {part})",
        f"    {index}_ok = {index} < {width}",
    ]


# --- parts of a kernel ------------------------------------------------------------------------------------------------


def header(
    axes: tuple[str, ...],
    tiled: str | None,
    sweeps: bool,
    sliced: bool = True,
    matrix: tuple[str | None, str] = (None, ""),
) -> list[str]:
    """What a program finds out first. `matrix`: the axis of columns of a matrix that further tiles make, and the state's name."""
    lines, place = [], "tl.program_id(0)"
    if tiled is not None:
        tiles, (inner, target) = _tiles_of(tiled), matrix
        if inner is not None:
            states, columns = f"{target}_last", f"tl.cdiv({size_name(dim_of(inner))}, {block_name(tiled)})"
            lines += [f"tiles = {tiles}", f"if {target}_linear is not None:"]
            lines.append(f"    tiles = {columns} + (0 if {states} is None else tiles)")
            tiles = "tiles"
        lines.append(f"tile = {place} % {tiles}")
        place = f"({place} // {tiles})"
    if sweeps:
        lines += [
            f"sh = {place}.to(tl.int64)",
            "h = sh % H",
            "b, part, begin, stop, first = part_of(sh // H, T, starts, parts, length, C)",
            "bh = b * H + h",
            "count = tl.cdiv(tl.maximum(stop - begin, 0), C).to(tl.int32)",
        ]
    lines.append("i = tl.arange(0, C)")
    for a in axes:
        part = "tile" if a == tiled else counter(a) if sweeps and sliced else ""
        start = f"{part} * {block_name(a)} + " if part else ""
        lines += [
            f"{axis_name(a)} = {start}tl.arange(0, {block_name(a)})",
            f"{axis_name(a)}_ok = {axis_name(a)} < {size_name(dim_of(a))}",
        ]
    return lines


def bases(tiles: Tiles) -> list[str]:
    """The tensors' places for this batch entry and head."""
    lines = []
    for a in tiles.arguments.values():
        if a.layout == "step":
            lines.append(f"{a.name} += b * {a.base}_b + h // {a.base}_g * {a.base}_h")
    return lines


def chunk_header(direction: int, sweeps: bool = True) -> list[str]:
    if sweeps:
        lines = [
            f"c = {'n' if direction > 0 else 'count - 1 - n'}",
            "t0 = begin + tl.cast(c, tl.int64) * C",
            "last = C - 1 if EVEN else tl.minimum(stop - t0, C).to(tl.int32) - 1",
            "c += first",
        ]
    else:
        lines = ["t0, last = place_of(c, T, begins, stops, C)"]
    return [
        *lines,
        "i_ok = i < last + 1",
        "row = i if EVEN else tl.minimum(i, last)",
        "at = tl.multiple_of(bh * T + t0, C) if EVEN else bh * T + t0",
        "step = (b * T + t0) * H + h",
    ]


def _state_place(s: StateForm, own: tuple[str, ...], which: str = "sh") -> tuple[str, str]:
    """(offset, mask) of a state tile over the axes `own` in a [N, H, *s.axes] tensor."""
    whole = " * ".join([which, *(size_name(dim_of(a)) for a in s.axes)])
    terms, masks = [whole], []
    for n, a in enumerate(s.axes):
        stride = " * ".join(size_name(dim_of(x)) for x in s.axes[n + 1 :])
        index = axis_name(a)
        place = "" if len(own) < 2 else "[:, None]" if own.index(a) == 0 else "[None, :]"
        terms.append(f"{index}{place}" + (f" * {stride}" if stride else ""))
        masks.append(f"{index}_ok{place}")
    mask = f", mask={' & '.join(masks)}" if masks else ""
    return " + ".join(terms), mask


def store_state(
    s: StateForm, state: str, own: tuple[str, ...], direction: int, each: bool, linear: bool = False
) -> list[str]:
    """The state after the last step: of the whole sequence, or, with `each` or where not YIELD, of every segment. `linear`: there
    is a place for it, unless a sweep makes matrices of segments' maps alone."""
    where, mask = _state_place(s, own)
    if each:
        return [f"if {state}_last is not None:", f"    tl.store({state}_last + {where}, {state}{mask})"]
    whole, _ = _state_place(s, own, "(sh // H // parts * H + h)")
    last = "parts - 1" if direction > 0 else "0"
    return [
        "if YIELD:",
        f"    if {state}_last is not None:",
        f"        if part == {last}:",
        f"            tl.store({state}_last + {whole}, {state}{mask})",
        f"elif {state}_last is not None:" if linear else "else:",
        f"    tl.store({state}_last + {where}, {state}{mask})",
    ]


def _store_checkpoints(
    group: list[StateForm], carried: dict[str, str], tiles: Tiles, direction: int, rows: str | None
) -> list[str]:
    """The states as a block finds them: [B, H, blocks, *axes]; or, with an axis in `rows`, [B, blocks * ROWS, H, X]."""
    number, at = ("n", "n % (BLOCK // C) == 0")
    if direction < 0:
        number, at = "(count - 1 - n)", "(n == 0) | ((count - n) % (BLOCK // C) == 0)"
    lines = []
    for s in group:
        state, own = carried[s.name], tiles.ordered(s.axes)
        target = tiles.argument(state, Role.CHECKPOINTS, "border", leaf("border", s.name, s.axes), s.axes, stores=True)
        block = f"first_block + {number} // (BLOCK // C)"
        if rows is None:
            where, mask = _state_place(s, own, f"(bh * blocks + {block})")
        else:
            where, mask = _row_place(rows, own, f"(b * blocks + {block})")
        lines += [f"if {target} is not None:", f"    if {at}:"]
        lines.append(f"        tl.store({target} + {where}, {state}{mask})")
    return lines


def same_size(a: str, b: str) -> bool:
    return size_name(dim_of(a)) == size_name(dim_of(b))


def _row_place(rows: str, own: tuple[str, ...], which: str) -> tuple[str, str]:
    """(offset, mask) of a state tile in [.., ROWS, H, X]: rows beyond the axis are zero, and are stored as well."""
    (columns,) = (a for a in own if a != rows)
    r, c = (f"{axis_name(a)}{'[:, None]' if own.index(a) == 0 else '[None, :]'}" for a in (rows, columns))
    width, ok = size_name(dim_of(columns)), c.replace(axis_name(columns), f"{axis_name(columns)}_ok", 1)
    return f"(({which} * ROWS + {r}) * H + h) * {width} + {c}", f", mask={ok}"


def _columns(inner: str, tiled: str, state: str, tiles: Tiles) -> list[str]:
    """Which columns of a matrix a tile has, beyond those of a state, or in the place of these where nothing else is made."""
    size, none = size_name(dim_of(inner)), f"{state}_last is None"
    return [
        f"if {state}_linear is not None:",
        f"    column = {axis_name(tiled)} - (0 if {none} else {_tiles_of(tiled)} * {block_name(tiled)})",
        f"    column_ok = (column >= 0) & (column < {size})  # of the matrix of the part's map",
        f"    if {none}:",
        f"        {tiles.ok(tiled)} = tl.zeros([{block_name(tiled)}], tl.int1)",
    ]


def _matrix_columns(inner: str, tiled: str, state: str, target: str, tiles: Tiles) -> tuple[list[str], list[str]]:
    """The columns of a matrix, which its tiles begin as the identity's, and store at the end."""
    size = size_name(dim_of(inner))
    own = tiles.ordered((tiled, inner))
    row, ok = (tiles.along(x, inner, own) for x in (axis_name(inner), tiles.ok(inner)))
    column = tiles.along("column", tiled, own)
    begin = [f"if {target} is not None:", f"    {state} += tl.where({column} == {row}, 1.0, 0.0)"]
    there = f"{tiles.along('column_ok', tiled, own)} & {ok}"
    end = [
        f"if {target} is not None:",
        f"    tl.store({target} + sh * {size} * {size} + {row} * {size} + {column}, {state}, mask={there})",
    ]
    return begin, end


def _lasting(group: tuple[StateForm, ...], o: Opened, name_of: NameOf) -> list[str]:
    """Where a sweep makes no more than what a segment leaves, and all its states decay: it begins with the first chunk of which
    anything is left then."""
    if any(s.decay is None or s.by_products or len(s.decay_axes) > 1 for s in group):
        return []
    decays = dict.fromkeys(rename(s.decay, o.rename) for s in group if s.decay is not None)
    lines: list[str] = []
    for d in decays:
        name = name_of(d)
        base, stride, x, ok = "bh * T", "1", "tl.arange(0, 1)", "tl.full([1], 1, tl.int1)"
        if d.axes:
            (axis,) = d.axes
            size, index = size_name(dim_of(axis)), axis_name(axis)
            base, stride = f"(b * T * H + h) * {size}", f"H * {size}"
            whole = axis not in o.tile
            x = f"tl.arange(0, triton.next_power_of_2({size}))" if whole else index
            ok = f"{x} < {size}"
        rests = f"{name}_rests + {base} if EXACT else None"
        places = f"{stride}, {x}, {ok}, begin, stop, count, C, {o.direction > 0}"
        reached = f"lasting({name}_sums + {base}, {rests}, {places})"
        lines.append(f"    reached = {f'tl.maximum(reached, {reached})' if lines else reached}")
    if o.direction > 0:
        lines += ["    begin, first, count = begin + (count - reached) * C, first + (count - reached), reached"]
    else:
        lines += ["    stop, count = tl.minimum(stop, begin + reached * C), reached"]
    return ["if not YIELD:", *lines]


def _tail_stores(
    inner: str, tiled: str, s: StateForm, state: str, own: tuple[str, ...], tiles: Tiles
) -> tuple[list[str], list[str]]:
    """Where a launch sweeps forwards over the last LATE steps of each segment alone (PIECE 1), or over those before them (2),
    unless the map of the last ones is zero (see `runtime/chunk_kernels/segment_tails.py`): where it begins and stops; and
    what it stores besides."""
    late, linear, live = (
        tiles.argument(state, role, "state", leaf("tail", s.name, s.axes), s.axes, stores=True)
        for role in (Role.LATE, Role.LATE_MAP, Role.LIVE)
    )
    size, block = size_name(dim_of(inner)), block_name(tiled)
    columns, states = f"(({size} + {block} - 1) // {block})", f"(0 if {state}_last is None else {_tiles_of(tiled)})"
    begin = [
        "if PIECE > 0:",
        "    edge = tl.maximum(count - LATE // C, 0)",
        "    if PIECE == 1:",
        "        begin, first, count = begin + edge * C, first + edge, count - edge",
        "        live = 0",
        "    else:",
        "        stop, count = tl.minimum(stop, begin + edge * C), edge",
        f"        if is_zero({live} + sh * {columns}, {columns}):",
        "            return",
    ]
    where, mask = _state_place(s, own)
    _, store = _matrix_columns(inner, tiled, state, linear, tiles)
    end = [
        f"if PIECE == 1 and {state}_last is not None:",
        f"    tl.store({late} + {where}, {state}{mask})",
        f"if PIECE == 1 and {state}_linear is not None:",
        *store[1:],
        f"    live = tl.maximum(live, tl.max(tl.where({state} != 0.0, 1, 0)))",
        f"if PIECE == 1 and {state}_linear is not None:",
        f"    if tile >= {states}:",
        f"        tl.store({live} + sh * {columns} + tile - {states}, live)",
    ]
    return begin, end


def load_state(s: StateForm, state: str, own: tuple[str, ...], tiles: Tiles) -> list[str]:
    tiles.argument(state, Role.FIRST, "state", leaf("first", s.name, s.axes), s.axes)
    where, mask = _state_place(s, own)
    other = ", other=0.0" if mask else ""
    shape = ", ".join(block_name(a) for a in own)
    zeros = f"tl.zeros([{shape}], tl.float32)" if own else "tl.full([], 0.0, tl.float32)"
    return [
        f"{state} = {zeros}",
        f"if {state}_first is not None:",
        f"    {state} += tl.load({state}_first + {where}{mask}{other})",
    ]


def own_sums(terms: list[tuple[Node, str, str]], tiles: Tiles, tiled: str | None) -> dict[str, str]:
    """By slot, the row sums of the matrices of pairs inside the chunk less their column sums."""
    out: dict[str, str] = {}
    for node, rows, columns in terms:
        v = tiles.value(node)
        pairs = tiles.assign("pairs", v.over((ROW, COL)), (ROW, COL), note=tiles.note(node)).text
        if tiled is not None and not any(x.op == "sum" and x.attrs[0] == tiled for x in walk(node)):
            tiles.lines.append(f"{pairs} = tl.where(tile == 0, {pairs}, 0.0)")  # each tile has the whole of it
        for slot, axis, sign in ((rows, 1, "+"), (columns, 0, "-")):
            before = f"{out[slot]} {sign} " if slot in out else sign.strip("+")
            out[slot] = tiles.assign("sums", f"{before}tl.sum({pairs}, axis={axis})", (ROW,)).text
    return out


def _store_own(own: Own, tiles: Tiles, name_of: NameOf) -> None:
    """The sums of pairs inside a chunk."""
    found: dict[tuple[str, str], str] = {}
    for node, *slots in own.terms:
        pairs = tiles.assign("pairs", tiles.value(node).over((ROW, COL)), (ROW, COL), note=tiles.note(node)).text
        for slot, side in zip(slots, SIDES, strict=True):
            text = f"tl.sum({pairs}, axis=1)"
            if side == "column":
                text = f"tl.sum(tl.reshape({pairs}, [{HALVES}, C // {HALVES}, C]), axis=1)"
            before = f"{found[slot, side]} + " if (slot, side) in found else ""
            found[slot, side] = tiles.assign("sums", before + text, (ROW,)).text
    for (slot, side), text in found.items():
        x = own.prologue[slot]
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        row, first = f"bh * {own.counts[slot]}", own.first[slot, side]
        place, what = f"({row} + {first}) * T + t0 + i", f"{text}, mask=i_ok"
        if side == "column":
            place = f"({row} + {first} + tl.arange(0, {HALVES}))[:, None] * T + t0 + i[None, :]"
            what = f"-{text}, mask=i_ok[None, :]"
        tiles.lines.append(f"tl.store({target} + {place}, {what})  # {own.state}: own.{slot}, {side}s")


def _store_sums(sums: Sums, tiles: Tiles, tiled: str | None, name_of: NameOf) -> list[tuple[str, Node, int]]:
    """What the sweep sums for the gradient of a decay, for each of its tiles: made before all else, which frees registers. With
    what each is the sum of, and the number of the line that makes it."""
    if sums.totals:
        return [(_store_totals(sums, tiles, name_of), add(*sums.reads.values()), len(tiles.lines) - 1)]
    assert sums.prologue or not sums.own  # the prologue kernel sums what is inside a chunk
    found: dict[str, tuple[str, Node]] = {}
    for slot, node in sums.reads.items():
        v = tiles.paired(node)
        found[f"{sums.kind}.{slot}"] = _over_tile(v.text, v.axes, tiled) if len(v.axes) > 1 else v.text, node
    lines = []
    for slot, (text, node) in found.items():
        x = leaf("sums", f"{sums.state}.{slot}")
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        value = tiles.assign("sums", text, (ROW,)).text
        lines.append((f"{_stored_sums(target, value, tiled)}  # {sums.state}: {slot}", node, len(tiles.lines) - 1))
    return lines


def _over_tile(text: str, axes: tuple[str, ...], tiled: str | None) -> str:
    """The sum of a sweep's tile over its axis: of a part for each warp, so that none waits for another."""
    assert tiled is not None and axes[1] == ROW
    return f"tl.sum(tl.reshape({text}, [WARPS, {block_name(tiled)} // WARPS, C]), axis=1)"


def _stored_sums(target: str, value: str, tiled: str | None) -> str:
    """Store what a sweep has summed for each step, and for each warp where there is a tile: [B, H, tiles * warps, T]."""
    if tiled is None:
        return f"tl.store({target} + at + i, {value}, mask=i_ok)"
    place = f"(({_tile_row(tiled)}) * WARPS + tl.arange(0, WARPS))[:, None] * T + t0 + i[None, :]"
    return f"tl.store({target} + {place}, {value}, mask=i_ok[None, :])"


def _tile_row(tiled: str) -> str:
    """Where numbers of each step, which each tile has its own of, lie in [B, H, tiles, T]."""
    return f"bh * {_tiles_of(tiled)} + tile"


def _tile_place(tiled: str | None) -> str:
    """Where such a number of a step lies."""
    return "at + i" if tiled is None else f"({_tile_row(tiled)}) * T + t0 + i"


def _tiles_of(tiled: str) -> str:
    return f"tl.cdiv({size_name(dim_of(tiled))}, {block_name(tiled)})"


def _chunk_place(axis: str) -> str:
    """Where a vector of each chunk lies in [B, H, chunks, X]."""
    return f"(bh * chunks + c) * {size_name(dim_of(axis))} + {axis_name(axis)}"


def _step_place(axis: str, tiles: Tiles) -> str:
    """Where a tile over steps lies in [B, T, H, X]."""
    width, axes = size_name(dim_of(axis)), tiles.ordered((ROW, axis))
    rows, columns = (tiles.along(tiles.index(a), a, axes) for a in (ROW, axis))
    return f"step * {width} + {rows} * (H * {width}) + {columns}"


def _store_totals(sums: Sums, tiles: Tiles, name_of: NameOf) -> str:
    """What crosses the chunk boundary, for each channel."""
    node = add(*sums.reads.values())
    v = tiles.paired(node)
    (axis,) = (a for a in v.axes if a != ROW)
    text = f"tl.sum({tiles.until_ends(v.text, node, v.axes)}, axis={v.axes.index(ROW)})"
    value = tiles.assign("sums", text, (axis,)).text
    x = leaf("sums", f"{sums.state}.{sums.kind}", (axis,))
    target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
    return f"tl.store({target} + {_chunk_place(axis)}, {value}, mask={tiles.ok(axis)})  # {sums.state}: {sums.kind}"


def _early_loads(stores: list[Store], tiles: Tiles, o: Opened) -> None:
    """Load what only the stores use at the start of the chunk: the compiler's pipeline takes operands of products only."""
    before, tiles.lines = tiles.lines, []
    for store in stores:
        for x in walk(at_row(rename(store.node, o.rename))):
            if (
                x.op == "leaf"
                and x not in tiles.memo
                and x.attrs[0] in ("input", "cotangent", "stored", "read", "write")
            ):
                tiles.value(x)
    tiles.head += tiles.lines
    tiles.lines = before


def _store(store: Store, tiles: Tiles, tiled: str | None, o: Opened, name_of: NameOf) -> str:
    x = store.leaf
    own = tuple(next(t for t in o.tile if same_size(a, t)) for a in x.axes)
    name = name_of(x)
    v = tiles.value(at_row(rename(store.node, o.rename)))
    note = f"  # {store.root}" if store.root else ""
    if store.kind == "sums":
        target = tiles.argument(name, Role.OUT, "sums", x, stores=True)
        axis = next(a for a in v.axes if a != ROW)
        axes = tiles.ordered((ROW, axis))
        there = tiles.along(tiles.ok(axis), axis, axes)
        text = f"tl.where({there}, {v.over(axes)}, 0.0)"
        if tiles.sweeps:
            return _stored_sums(target, _over_tile(text, axes, tiled), tiled) + note
        text = f"tl.sum({text}, axis={axes.index(axis)})"
        return f"tl.store({target} + {_tile_place(tiled)}, {text}, mask={tiles.stored_rows}){note}"
    target = tiles.argument(name, Role.OUT, "out", x, own, stores=True)
    if not own:
        return f"tl.store({target} + step + i * H, {v.over((ROW,))}, mask={tiles.stored_rows}){note}"
    axes = tiles.ordered((ROW, *own))
    return f"tl.store({target} + {_step_place(own[0], tiles)}, {v.over(axes)}, mask={tiles.stored(axes)}){note}"
