"""Kernels of sweeps: the sweep over chunks, the prologue kernel of it that takes all chunks at once, and the one after it, for
what reads the states that sweeps have left at checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from ....ir.code import (
    Binary,
    Code,
    Either,
    Group,
    Items,
    Literal,
    Load,
    Name,
    Negative,
    Not,
    both,
    call,
    code,
    names_in,
    plus,
    shape,
    starts_with_minus,
    times,
    where,
    without_minus,
)
from ....ir.expr import COL, INNER, ROW, Node, add, dim_of, factors_of, leaf, plain_name, rename, walk
from ....ir.expr import replace as node_replace
from ....ir.kernel_ir import (
    Barrier,
    Body,
    For,
    If,
    KernelFunction,
    Let,
    Note,
    Parameter,
    Return,
    Slices,
    Statement,
    added,
    assigned,
    let,
    reads,
)
from ....ir.kernel_ir import Store as StoreTo
from ...chunkwise.plan import Sweep, Unroll
from ...chunkwise.segment_maps import feeds_back
from ...normal_form.form import StateForm
from ..plan_passes.hoist import HALVES, SIDES, Opened, Own, Sums, made_here, uses
from ..plan_passes.roles import PER_HEAD, PER_STEP, WEIGHT, CannotPrint, at_row, is_state
from ..plan_passes.split_reads import products_of
from ..plan_passes.value_placement import Store
from ..print.axis_names import KEPT, axis_name, block_name, count_of, counter, part_name, size_name
from .arguments import Argument, Role
from .tile_lowering import Cumulative, Fine, Tiles, Value, matrix_place, zeros_of

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
    """A kernel, and what its launches need to know. `tiled` is the axis whose tiles have programs of their own, None for none."""

    name: str
    body: Body
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
    slow_path: Body = ()  # a second kernel, where it takes only chunks that are of a small decay range: for all others
    slices: tuple[Slices, ...] = ()  # axes that a sweep takes slice by slice
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

    @cached_property
    def function(self) -> KernelFunction:
        """The kernel as it is before all passes."""
        sizes = dict.fromkeys(size_name(dim_of(x)) for x in (*self.axes, *self.parts))
        words = [*sizes, *(block_name(x) for x in self.axes), *map(part_name, self.parts)]
        words += ["FLAT", "GROUP"] if self.slow_path else []
        words += ["YIELD", "WARPS", "STAGES"] if self.sweeps else ["CHUNK"]
        words += [*(["PRODUCTS"] if self.products else []), *(["READ"] if self.apart else [])]
        words += ["PIECE"] if self.late else []
        words += ["STAGES"] if self.queues else []
        words += ["BLOCK"] if self.checkpoints else []
        words += ["ROWS"] if self.rows else []
        words += ["C", "LEVELS", "EVEN", "EXACT", "DT"]
        places = ("starts", "parts", "length") if self.sweeps else ("begins", "stops", "programs")
        return KernelFunction(
            self.name,
            tuple(tuple(map(Parameter, a.parameters)) for a in self.arguments),
            ("T", "H", "chunks", *places),
            tuple(words),
            self.doc,
            self.body,
            ("T", "chunks", *(("parts", "length") if self.sweeps else ("programs",))),
            ("blocks",) if self.checkpoints else (),
            self.slices,
        )

    @property
    def functions(self) -> tuple[KernelFunction, ...]:
        """The kernel, and that for what it leaves, if there is one."""
        return (self.function, self.for_slow_path().function) if self.slow_path else (self.function,)

    def for_slow_path(self) -> Kernel:
        """The kernel for what this one leaves."""
        return replace(
            self,
            name=slow_path_name(self.name),
            body=self.slow_path,
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
    sums = [x.decay for x in _sums_loaded(tiles) if x.edge != "end" and not x.rows]
    for a in tiles.arguments.values():
        if a.layout == "matrix":
            found.append((a.name, None))
        elif a.role is Role.SUMS:
            found += [(a.name, a.axes[0] if a.axes else ROW)] * sums.count(a.base)
        elif a.role is Role.BY_HEAD or _is_weight(a):
            found.append((a.name, ROW))
    return tuple(found)


def _sums_loaded(tiles: Tiles) -> list[Cumulative]:
    """The cumulative sums of decays that a kernel loads."""
    return [x for x in tiles.loads if isinstance(x, Cumulative) and not x.rests]


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
    after: list[Statement] = []
    tiles.names |= set(map(plain_name, carried.values()))
    group = [replace(s, axes=tuple(o.rename.get(a, a) for a in s.axes)) for s in sweep.group]
    for s in group:
        own, state = tiles.ordered(s.axes), carried[s.name]
        tiles.memo[leaf("state in", s.name, s.axes)] = Value(Name(state), own)
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
            columns, store_columns = _matrix_columns(inner, tiled, state, target, tiles)
            setup.append(columns)
            after.append(store_columns)
            if late:
                begin, end = _tail_stores(inner, tiled, s, state, own, tiles)
                setup, after = setup + begin, after + end
    if checkpoints:
        tiles.body += _store_checkpoints(group, carried, tiles, o.direction, rows)
        sequence = Either(Literal(0), _missing("starts"), Name("sh") // "H")
        setup.append(let("first_block", (Name("begin") // "BLOCK" + sequence).to("tl.int32")))
    by_read = _ByRead(o)
    for boundary in o.sums:
        for stored, node, at in _store_sums(boundary, tiles, tiled, name_of):
            by_read.sums(boundary.state, node, stored, at)
    for x, node in o.outputs.items():
        v = tiles.value(node)
        if not v.named:
            v = tiles.assign("y" if x.attrs[0] == "read" else "w", v.over(v.axes), v.axes, note=tiles.note(node))
        tiles.memo[leaf(x.attrs[0], x.attrs[1], (ROW, *x.axes))] = v
    _early_loads(stores, tiles, o)
    for store in stores:
        there: Statement = _store(store, tiles, tiled, o, name_of)
        if store.leaf in spare:
            there = If(Name(f"{name_of(store.leaf)}_out").given, (there,))
        by_read.store(store, there)
    blocks = by_read.add_to(tiles, apart=not sweep.solve)
    new = []
    for s in group:
        node, own = o.states[s.name], tiles.ordered(s.axes)
        value = tiles.until_ends(tiles.value(node).over(own), node, own, own)
        new.append((carried[s.name], value, tiles.note(node)))
    if len(new) == 1:
        tiles.body.append(let(new[0][0], new[0][1], note=new[0][2]))
    else:
        after_all = [tiles.fresh(f"{n}_next") for n, _, _ in new]
        tiles.body += [let(x, value, note=note) for x, (_, value, note) in zip(after_all, new, strict=True)]
        tiles.body += [let(n, x) for x, (n, _, _) in zip(after_all, new, strict=True)]
    setup += bases(tiles)
    if ends and not feeds_back(sweep.group, sweep.solve):
        setup += _lasting(sweep.group, o, name_of)
    way = "forwards" if o.direction > 0 else "backwards"
    states = ", ".join(sweep.states)
    doc = f"A walk {way} over chunks, carrying a tile of {states}."
    loop = tiles.used([*chunk_header(o.direction), *tiles.head, *tiles.body])
    for_states, *for_reads = (
        frozenset(needed_for(loop, set(carried.values()), block) & set(tiles.arguments)) for block in (None, *blocks)
    )
    apart = tuple(replace(x, loads=loads) for x, loads in zip(blocks.values(), for_reads, strict=True))
    if tiles.by_products:
        diagonal = Name("i").along(0, 2).equals(Name("i").along(1, 2))
        setup.append(let("identity", where(diagonal, 1.0, 0.0).to("DT")))
    slices = tuple(
        Slices(counter(x), count_of(x), tuple(carried[s.name] for s in group for a in s.axes if a == x)) for x in o.full
    )
    arguments = tuple(tiles.arguments.values())
    kept = sweep.states if checkpoints else ()
    return Kernel(
        name,
        (*setup, over_chunks(loop), *after),
        doc,
        arguments,
        axes,
        tiled,
        True,
        slices=slices,
        finals=sweep.finals,
        checkpoints=kept,
        rows=checkpoints and rows is not None,
        loads=_loads(tiles),
        inside=frozenset(x.decay for x in _sums_loaded(tiles) if x.edge != "end"),
        heavy=len(o.outputs) > 1 and not sweep.solve and not apart and _heavy(tiles, tiled),
        inner=inner,
        late=late,
        slim=not any(s.decay_axes for s in group)
        and sum(tiles.arguments[x].layout == "matrix" for x in for_states) <= 1,
        carried=for_states,
        products=tiles.by_products,
        apart=apart,
    )


def over_chunks(loop: Iterable[Statement]) -> For:
    """The loop of a sweep, with the next chunks under way."""
    return For("n", call("tl.range", 0, "count", num_stages="STAGES"), tuple(loop))


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
    sums: dict[str, list[Code]] = {}  # by state: what its state-adjoint product is the sum of
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
            if not v.named:
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
                tiles.body.append(_store(store, tiles, tiled, o, name_of))
    for state, terms in sums.items():
        s = spans[state][0]
        if s.decay_axes and state not in whole:
            tiles.body.append(_store_ends(state, terms, s, of[state], tiles, name_of))
        else:
            reads = sum(len(x.opened.outputs) for x in sweeps_read)
            tiles.body += _store_state_adjoint(state, terms, s, of[state], reads, tiles, tiled, name_of)
    doc = "What reads the states at the borders of blocks, for all blocks at once."
    body, slow_path = _at_once(axes, tiled, tiles, tiles.body)
    arguments = tuple(tiles.arguments.values())
    summed: dict[str, set[tuple[str, ...]]] = {}
    for sums_loaded in _sums_loaded(tiles):
        summed.setdefault(sums_loaded.decay, set()).add(sums_loaded.axes)
    replaces = tuple(x for x, own in summed.items() if own == {(tiled,)})
    many = sum(len(x.opened.outputs) for x in sweeps_read) > MANY
    return Kernel(
        name, body, doc, arguments, axes, tiled, False, reads=True, many=many, slow_path=slow_path, replaces=replaces
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
        tiles.checkpoints[s.name] = _loaded_state(s, tiles.ordered(axes), target, OF_CHUNK)
    for x, node in stage.outputs.items():
        if channels is not None:
            v, axes_of = tiles.value(node), tiles.ordered((ROW, channels))
            target = tiles.argument(name_of(x), Role.OUT, "out", x, (channels,), stores=True)
            place, mask = plus(target, _step_place(channels, tiles)), tiles.stored(axes_of)
            tiles.body.append(StoreTo(place, v.over(axes_of), mask, x.attrs[1]))
            continue
        v = tiles.value(node)
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        place = plus(target, _tile_place(tiled))
        tiles.body.append(StoreTo(place, v.over((ROW,)), Name("i_ok"), x.attrs[1]))
    body, slow_path = _at_once(axes, tiled, tiles, tiles.body)
    doc = "Products of the states and their gradients at each step, for all blocks at once."
    read = [x for x in walk(*stage.outputs.values()) if x.op == "sum" and any(map(is_state, factors_of(x.args[0])))]
    many = sum(not {ROW, COL, INNER}.isdisjoint(x.axes) for x in read) > SUMMED_AT_ONCE
    arguments = tuple(tiles.arguments.values())
    return Kernel(name, body, doc, arguments, axes, tiled, False, reads=True, many=many, slow_path=slow_path)


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
    tiles.arguments, tiles.head, tiles.body, tiles.loads = before.arguments, before.head, before.body, before.loads
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
        raw = tiles.fine is None
        tiles.memo[x] = tiles.assign("s", _loaded_state(s, own, target, OF_CHUNK), own, raw, note=s.name)
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
    note = f"the decays of the block times <{s.name}, {gradient.name}>"
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
    x = leaf("sums", f"{state}.ends", (own,))
    target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
    return StoreTo(plus(target, _chunk_place(own)), _sum(terms), Name(tiles.ok(own)), f"{state}: ends")


def _store_state_adjoint(
    state: str, terms: list[Code], s: StateForm, o: Opened, reads: int, tiles: Tiles, tiled: str | None, name_of: NameOf
) -> list[Statement]:
    """The decay's gradient at each step: for each tile, what it has of it; or, of a decay for each channel, all."""
    total, note = _sum(terms), f"{state}: pairing"
    if not s.decay_axes:
        x = leaf("sums", f"{state}.pairing")
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        return [StoreTo(plus(target, _tile_place(tiled)), total, Name(tiles.stored_rows), note)]
    (own,) = (o.rename.get(a, a) for a in s.decay_axes)
    x = leaf("stored", f"{state}.pairing", (own,))
    target = tiles.argument(name_of(x), Role.OUT, "out", x, (own,), stores=True)
    axes = tiles.ordered((ROW, own))
    late = tiles.value(leaf("stored", f"{state}.late", (ROW, own)))
    inside = where(tiles.along("i_ok", ROW, axes), late.over(axes), 0.0)
    end = tiles.assign("end", total, (own,)).name
    narrow = [Name(block_name(a)) <= WIDE for a in o.full]
    by_product = reduce(lambda a, b: Binary("and", a, b), narrow, code(reads <= READS))
    later = call("later_sums", inside, "C", by_product, "DT")
    whole = tiles.assign("total", tiles.along(end, own, axes) + later, axes).code
    store = StoreTo(plus(target, _step_place(own, tiles)), whole, tiles.stored(axes), note)
    return [store] if tiles.split else [Barrier("this may replace sums that other warps load"), store]


def intra_chunk_kernel(
    name: str, o: Opened, name_of: NameOf, fine: Fine | None = None, making: frozenset[str] = frozenset()
) -> Kernel:
    """What needs no state, for each chunk on its own. It makes the sums of the decays `making` itself, of which nothing else
    needs more than those of whole chunks: as it takes each chunk as of a small decay range, and finds out on the way, all sums of
    those that aren't are stored for the kernel that takes these once more."""
    tiles = Tiles(o.full, o.tile, o.direction, o.decays, o.streams, o.prologue, name_of)
    tiles.by_range, tiles.fine = [], fine
    tiles.split = _by_channel(*o.matrices.values(), *o.products.values(), *o.intra.values())
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
            steep = both((Name("i") >= "steep_from").along(later, 2), (Name("i") >= 0).along(other, 2))
            mask = Either(Literal(None), Name("FLAT"), steep)
        tiles.body.append(StoreTo(matrix_place(target), v.over((ROW, COL)), mask, tiles.note(node)))
    before, tiles.body = tiles.body, []
    for own in o.own:
        _store_own(own, tiles, name_of)
    own_stores = [If(Name("FLAT"), tuple(tiles.body))] if tiles.split and o.own else tiles.body
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
        body, slow_path = _at_once(axes, None, tiles, inside, bool(making))
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
        loads=tuple(x for x in _loads(tiles) if x[1] not in (None, ROW)) if queues else (),
        few=len(o.products) <= SUMMED if parts else not queues and wide <= FEW,
        queues=queues,
    )


def _chunk_of(program: Code) -> list[Statement]:
    return [Let(("b", "c", "h"), call("chunk_of", program, "H", "chunks")), let("bh", plus(times("b", "H"), "h"))]


def _at_once(
    axes: tuple[str, ...], tiled: str | None, tiles: Tiles, inside: list[Statement], makes: bool = False
) -> tuple[Body, Body]:
    """A kernel that takes all chunks at once, and, where decays split it in two, the kernel for chunks that are of a large decay
    range: few are not, so that a program looks at GROUP of them, and mostly finds none."""
    (place, *steps), pointers = chunk_header(1, sweeps=False), bases(tiles)
    inside = [*tiles.head, *inside]
    own: Code = call("tl.program_id", 0)
    own = own if tiled is None else Group(own // _tiles_of(tiled))
    extent: list[Statement] = []
    for decay in tiles.by_range or ():
        reached = call("reach", Name(f"{decay}_extents") + "at", "last", "C", "CHUNK")
        extent.append(let("extent", call("tl.maximum", "extent", reached) if extent else reached))
    assert bool(extent) == tiles.split
    counted = call("tl.full", shape(), "C", "tl.int32"), call("tl.full", shape(), 0, "tl.int32")
    range_checks: list[Statement] = []
    if extent:
        begin = Let(("steep_from", "again"), Items(counted, bare=True))
        range_checks = [let("i_new", "i_ok"), If(Not(Name("FLAT")), (begin,))]
    if makes:
        range_checks = [Let(("SUMS",), Not(Name("EXACT")), constant=True), *range_checks]
    beyond = If(Name("last") < 0, (Return(),))
    head = header(axes, tiled, False)
    body = (*head, *_chunk_of(own), place, beyond, *steps, *pointers, *range_checks, *inside)
    if not extent:
        return body, ()
    places = "group", "T", "H", "chunks", "begins", "stops", "programs", "GROUP", "C", "CHUNK", "DT"
    large_ranges = plus(*(call("steep", f"{decay}_extents", *places) for decay in tiles.by_range or ()))
    taken: list[Statement] = [
        Let(("steep_from", "again", "i_new"), Items((*counted, Name("i") < 0), bare=True)),
        *inside,
    ]
    each: list[Statement] = [
        *_chunk_of(Name("group") + "n"),
        place,
        If(
            Name("last") >= 0,
            (*steps, *_at(pointers), *extent, If(Not(call("is_flat", "extent", "DT")), tuple(taken))),
        ),
    ]
    slow_path = (
        *head,
        *([Let(("SUMS",), Literal(False), constant=True)] if makes else []),
        let("group", times(own, "GROUP")),
        If(large_ranges.equals(0), (Return(),)),
        *(let(_whole(x), x.names[0]) for x in pointers),
        For("n", call("range", 0, call("tl.minimum", "GROUP", Name("programs") - "group")), tuple(each)),
    )
    return body, slow_path


def _whole(pointer: Let) -> str:
    """The name of a tensor of which a program takes several places."""
    return f"{pointer.names[0]}_all"


def _at(pointers: list[Let]) -> list[Statement]:
    """The places in these tensors for a batch entry and a head, of which a program takes several."""
    return [let(x.names[0], plus(_whole(x), x.value)) for x in pointers]


def _queued(axes: tuple[str, ...], tiles: Tiles, inside: list[Statement]) -> Body:
    """A kernel whose programs take one chunk after the other. A place that no chunk has begins at
    the first step, and has no row that counts: only what a loop has outside branches is prefetched."""
    (place, there, *steps), pointers = chunk_header(1, sweeps=False), bases(tiles)
    nowhere = where(Name("last") < 0, 0, Name("t0")), call("tl.maximum", "last", 0)
    loop = [
        *_chunk_of(Name("program")),
        place,
        there,
        If(Name("begins").given, (Let(("t0", "last"), Items(nowhere, bare=True)),)),
        *steps,
        *_at(pointers),
        *tiles.head,
        *inside,
    ]
    programs = call("tl.program_id", 0), "programs", call("tl.num_programs", 0)
    return (
        *header(axes, None, False),
        *(let(_whole(x), x.names[0]) for x in pointers),
        For("program", call("tl.range", *programs, num_stages="STAGES"), tuple(loop)),
    )


def _by_blocks(
    axis: str, o: Opened, tiles: Tiles, name_of: NameOf, parts: list[str], making: frozenset[str]
) -> list[Statement]:
    """Contractions over an axis with a decay of its own, and quantities times decays, in blocks of the axis."""
    products = {x: n for x, n in o.products.items() if n.attrs[0] == axis}
    scaled = {x: n for x, n in o.scaled.items() if axis in x.axes}
    if not products and not scaled:
        return []
    parts.append(axis)
    inside = Tiles(o.full, o.tile, o.direction, o.decays, o.streams, {}, name_of)
    inside.arguments, inside.names, inside.head = tiles.arguments, tiles.names, tiles.head
    inside.by_range, inside.split, inside.making = tiles.by_range, tiles.split, making
    before: list[Statement] = []
    for x, node in products.items():
        total = tiles.fresh("t")
        before.append(let(total, call("tl.zeros", shape("C", "C"), "tl.float32")))
        tiles.memo[x] = Value(Name(total), (ROW, COL))
        factors = factors_of(node.args[0])
        mask = next(f for f in factors if f.op == "decay_mask")
        writes = [f for f in factors if COL in f.axes and f is not mask]
        reads = [f for f in factors if f not in writes and f is not mask]
        r, w = (inside.tile_of(tuple(part), axis).over(inside.ordered((ROW, axis))) for part in (reads, writes))
        inside.body.append(Note(inside.note(node)))
        inside.ends(mask, axis)
        how = "C", "CHUNK", "LEVELS", inside.forward, mask.attrs[2], "FLAT", "EXACT", "DT"
        inside.body.append(let(total, call("decayed_product", total, r, w, *inside.halves(mask, axis), *how)))
        inside.from_slow_path(mask, axis)
    for x, node in scaled.items():
        target = tiles.argument(name_of(x), Role.GIVEN, "chunked", x, (axis,), stores=True)
        v = inside.value(node)
        place, there = _chunked_place(target, axis, inside)
        inside.body.append(StoreTo(place, v.over((ROW, axis)), there, inside.note(node)))
    loop: list[Statement] = [_block_loop(axis, inside.body)]
    made_sums = {x.decay for x in _sums_loaded(inside)}
    for d in inside.decays:
        if (made := name_of(inside.decays[d])) in making and made in made_sums:
            zero = call("tl.full", shape(), 0.0, "tl.float32")
            before += [let(f"{made}_{end}", zero) for end in ("most", "least")]
            loop.append(_reach(axis, made, d, inside))
    return [*before, *loop]


def _chunked_place(target: str, axis: str, tiles: Tiles) -> tuple[Code, Code]:
    """Where a tile over steps lies in [B, H, T, X], and which of it is stored."""
    index, width = axis_name(axis), size_name(dim_of(axis))
    place = plus(target, times("at", width), times(Name("i").along(0, 2), width), Name(index).along(1, 2))
    return place, both(Name(tiles.stored_rows).along(0, 2), Name(f"{index}_ok").along(1, 2))


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
    far = If(Not(call("is_flat", extent, "DT")), (_block_loop(axis, again),))
    return If(Name("SUMS"), (StoreTo(Name(f"{made}_extents") + "at", extent), far))


def _intra_blocks(axis: str, o: Opened, tiles: Tiles, name_of: NameOf, parts: list[str]) -> list[Statement]:
    """What reads take of the writes of their own chunk, where the decay runs along the kept axis, in blocks of it."""
    intra = {x: n for x, n in o.intra.items() if axis in x.axes}
    if not intra:
        return []
    if axis not in parts:
        parts.append(axis)
    inside = Tiles(o.full, o.tile, o.direction, o.decays, o.streams, {}, name_of)
    inside.arguments, inside.names, inside.head = tiles.arguments, tiles.names, tiles.head
    inside.by_range, inside.split = tiles.by_range, tiles.split
    for x, node in intra.items():
        target = tiles.argument(name_of(x), Role.GIVEN, "chunked", x, (axis,), stores=True)
        v = inside.decayed_sums(node, tiles)
        place, mask = _chunked_place(target, axis, inside)
        inside.body.append(StoreTo(place, v.over((ROW, axis)), mask))
    return [_block_loop(axis, inside.body)]


def _block_loop(axis: str, inside: Iterable[Statement]) -> For:
    """What is done for each block of an axis."""
    index, width, part = axis_name(axis), size_name(dim_of(axis)), part_name(axis)
    start = f"{index}_start"
    return For(
        start,
        call("range", 0, width, part),
        (let(index, plus(start, call("tl.arange", 0, part))), let(f"{index}_ok", Name(index) < width), *inside),
    )


# --- parts of a kernel ------------------------------------------------------------------------------------------------

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
        tiles, (inner, target) = _tiles_of(tiled), matrix
        if inner is not None:
            columns = call("tl.cdiv", size_name(dim_of(inner)), block_name(tiled))
            states = Either(Literal(0), _missing(f"{target}_last"), Name("tiles"))
            found += [let("tiles", tiles), If(Name(f"{target}_linear").given, (let("tiles", columns + states),))]
            tiles = Name("tiles")
        found.append(let("tile", place % tiles))
        place = place // tiles
    if sweeps:
        part = call("part_of", Name("sh") // "H", "T", "starts", "parts", "length", "C")
        steps = call("tl.maximum", Name("stop") - "begin", 0)
        found += [
            let("sh", place.to("tl.int64")),
            let("h", Name("sh") % "H"),
            Let(("b", "part", "begin", "stop", "first"), part),
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


def _missing(name: str) -> Code:
    return Binary("is", Name(name), Literal(None))


def _state_place(s: StateForm, own: tuple[str, ...], which: Code = SEQUENCE) -> tuple[Code, Code | None]:
    """(offset, mask) of a state tile over the axes `own` in a [N, H, *s.axes] tensor."""
    terms, masks = [times(which, *(size_name(dim_of(a)) for a in s.axes))], []
    for n, a in enumerate(s.axes):
        strides = [size_name(dim_of(x)) for x in s.axes[n + 1 :]]
        place = own.index(a)
        terms.append(times(Name(axis_name(a)).along(place, len(own)), *strides))
        masks.append(Name(f"{axis_name(a)}_ok").along(place, len(own)))
    return plus(*terms), both(*masks) if masks else None


def _loaded_state(s: StateForm, own: tuple[str, ...], tensor: str, which: Code = SEQUENCE) -> Load:
    place, mask = _state_place(s, own, which)
    return Load(plus(tensor, place), mask, None if mask is None else Literal(0.0))


def store_state(
    s: StateForm, state: str, own: tuple[str, ...], direction: int, each: bool, linear: bool = False
) -> list[Statement]:
    """The state after the last step: of the whole sequence, or, with `each` or where not YIELD, of every segment. `linear`: there
    is a place for it, unless a sweep makes matrices of segments' maps alone."""
    place, mask = _state_place(s, own)
    last = Name(f"{state}_last")
    of_segment = StoreTo(plus(last, place), Name(state), mask)
    if each:
        return [If(last.given, (of_segment,))]
    sequence = Group(Name("sh") // "H" // "parts" * "H" + "h")
    of_whole = StoreTo(plus(last, _state_place(s, own, sequence)[0]), Name(state), mask)
    at_end = Name("part").equals(Name("parts") - 1 if direction > 0 else 0)
    whole = If(last.given, (If(at_end, (of_whole,)),))
    if linear:
        return [If(Name("YIELD"), (whole,), (If(last.given, (of_segment,)),))]
    return [If(Name("YIELD"), (whole,), (of_segment,))]


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
        target = tiles.argument(state, Role.CHECKPOINTS, "border", leaf("border", s.name, s.axes), s.axes, stores=True)
        block = plus("first_block", number // chunks)
        if rows is None:
            place, mask = _state_place(s, own, Group(plus(times("bh", "blocks"), block)))
        else:
            place, mask = _row_place(rows, own, Group(plus(times("b", "blocks"), block)))
        found.append(If(Name(target).given, (If(at, (StoreTo(plus(target, place), Name(state), mask),)),)))
    return found


def same_size(a: str, b: str) -> bool:
    return size_name(dim_of(a)) == size_name(dim_of(b))


def _row_place(rows: str, own: tuple[str, ...], which: Code) -> tuple[Code, Code]:
    """(offset, mask) of a state tile in [.., ROWS, H, X]: rows beyond the axis are zero, and are stored as well."""
    (columns,) = (a for a in own if a != rows)
    r, c = (Name(axis_name(a)).along(own.index(a), 2) for a in (rows, columns))
    line = plus(times(plus(times(which, "ROWS"), r), "H"), "h")
    ok = Name(f"{axis_name(columns)}_ok").along(own.index(columns), 2)
    return plus(times(line, size_name(dim_of(columns))), c), ok


def _columns(inner: str, tiled: str, state: str, tiles: Tiles) -> list[Statement]:
    """Which columns of a matrix a tile has, beyond those of a state, or in the place of these where nothing else is made."""
    size, none, column = size_name(dim_of(inner)), _missing(f"{state}_last"), Name("column")
    before = Either(Literal(0), none, times(_tiles_of(tiled), block_name(tiled)))
    no_states = let(tiles.ok(tiled), call("tl.zeros", shape(block_name(tiled)), "tl.int1"))
    found = (
        let("column", Name(axis_name(tiled)) - before),
        let("column_ok", (column >= 0) & (column < size), note="of the matrix of the part's map"),
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
    if any(s.decay is None or s.by_products or len(s.decay_axes) > 1 for s in group):
        return []
    decays = dict.fromkeys(rename(s.decay, o.rename) for s in group if s.decay is not None)
    found: list[Statement] = []
    for d in decays:
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
        reached = call("lasting", plus(f"{name}_sums", base), rests, *places)
        found.append(let("reached", call("tl.maximum", "reached", reached) if found else reached))
    count, reached_ = Name("count"), Name("reached")
    if o.direction > 0:
        moved = Name("begin") + (count - "reached") * "C", Name("first") + (count - "reached"), reached_
        found.append(Let(("begin", "first", "count"), Items(moved, bare=True)))
    else:
        stop = call("tl.minimum", "stop", Name("begin") + reached_ * "C")
        found.append(Let(("stop", "count"), Items((stop, reached_), bare=True)))
    return [If(Not(Name("YIELD")), tuple(found))]


def _tail_stores(
    inner: str, tiled: str, s: StateForm, state: str, own: tuple[str, ...], tiles: Tiles
) -> tuple[list[Statement], list[Statement]]:
    """Where a launch sweeps forwards over the last LATE steps of each segment alone (PIECE 1), or over those before them (2),
    unless the map of the last ones is zero (see `runtime/chunk_kernels/segment_tails.py`): where it begins and stops; and
    what it stores besides."""
    late, linear, live = (
        tiles.argument(state, role, "state", leaf("tail", s.name, s.axes), s.axes, stores=True)
        for role in (Role.LATE, Role.LATE_MAP, Role.LIVE)
    )
    size, block = Name(size_name(dim_of(inner))), Name(block_name(tiled))
    columns = Group((size + block - 1) // block)
    states = Group(Either(Literal(0), _missing(f"{state}_last"), _tiles_of(tiled)))
    edge, piece = Name("edge"), Name("PIECE")
    to_edge = Name("begin") + edge * "C"
    tail = Items((to_edge, Name("first") + edge, Name("count") - edge), bare=True)
    head = Items((call("tl.minimum", "stop", to_edge), edge), bare=True)
    is_zero = call("is_zero", plus(live, times("sh", columns)), columns)
    only_tail = Let(("begin", "first", "count"), tail), let("live", 0)
    only_head = Let(("stop", "count"), head), If(is_zero, (Return(),))
    split = let("edge", call("tl.maximum", Name("count") - Name("LATE") // "C", 0))
    begin = [If(piece > 0, (split, If(piece.equals(1), only_tail, only_head)))]
    place, mask = _state_place(s, own)
    _, store = _matrix_columns(inner, tiled, state, linear, tiles)

    def of_tail(given: str) -> Code:
        return Binary("and", piece.equals(1), Name(f"{state}_{given}").given)

    some = where(Binary("!=", Name(state), Literal(0.0)), 1, 0)
    alive = let("live", call("tl.maximum", "live", call("tl.max", some)))
    live_place = plus(live, times("sh", columns), "tile") - states
    end = [
        If(of_tail("last"), (StoreTo(plus(late, place), Name(state), mask),)),
        If(of_tail("linear"), (*store.body, alive)),
        If(of_tail("linear"), (If(Name("tile") >= states, (StoreTo(live_place, Name("live")),)),)),
    ]
    return list(begin), list(end)


def load_state(s: StateForm, state: str, own: tuple[str, ...], tiles: Tiles) -> list[Statement]:
    tiles.argument(state, Role.FIRST, "state", leaf("first", s.name, s.axes), s.axes)
    first = f"{state}_first"
    return [
        let(state, zeros_of(block_name(a) for a in own)),
        If(Name(first).given, (added(state, _loaded_state(s, own, first)),)),
    ]


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


def _store_sums(sums: Sums, tiles: Tiles, tiled: str | None, name_of: NameOf) -> list[tuple[Statement, Node, int]]:
    """What the sweep sums for the gradient of a decay, for each of its tiles: made before all else, which frees registers. With
    what each is the sum of, and the place of the statement that makes it."""
    if sums.totals:
        return [(_store_totals(sums, tiles, name_of), add(*sums.reads.values()), len(tiles.body) - 1)]
    assert sums.prologue or not sums.own  # the prologue kernel sums what is inside a chunk
    found: dict[str, tuple[Code, Node]] = {}
    for slot, node in sums.reads.items():
        v = tiles.paired(node)
        found[f"{sums.kind}.{slot}"] = _over_tile(v.code, v.axes, tiled) if len(v.axes) > 1 else v.code, node
    made: list[tuple[Statement, Node, int]] = []
    for slot, (total, node) in found.items():
        x = leaf("sums", f"{sums.state}.{slot}")
        target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
        value = tiles.assign("sums", total, (ROW,)).code
        made.append((_stored_sums(target, value, tiled, f"{sums.state}: {slot}"), node, len(tiles.body) - 1))
    return made


def _over_tile(x: Code, axes: tuple[str, ...], tiled: str | None) -> Code:
    """The sum of a sweep's tile over its axis: of a part for each warp, so that none waits for another."""
    assert tiled is not None and axes[1] == ROW
    parts = shape("WARPS", Name(block_name(tiled)) // "WARPS", "C")
    return call("tl.sum", call("tl.reshape", x, parts), axis=1)


def _stored_sums(target: str, value: Code, tiled: str | None, note: str) -> StoreTo:
    """Store what a sweep has summed for each step, and for each warp where there is a tile: [B, H, tiles * warps, T]."""
    if tiled is None:
        return StoreTo(plus(target, "at", "i"), value, Name("i_ok"), note)
    rows = plus(times(_tile_row(tiled), "WARPS"), call("tl.arange", 0, "WARPS")).along(0, 2)
    place = plus(target, times(rows, "T"), "t0", Name("i").along(1, 2))
    return StoreTo(place, value, Name("i_ok").along(1, 2), note)


def _tile_row(tiled: str) -> Code:
    """Where numbers of each step, which each tile has its own of, lie in [B, H, tiles, T]."""
    return plus(times("bh", _tiles_of(tiled)), "tile")


def _tile_place(tiled: str | None) -> Code:
    """Where such a number of a step lies."""
    return plus("at", "i") if tiled is None else plus(times(_tile_row(tiled), "T"), "t0", "i")


def _tiles_of(tiled: str) -> Code:
    return call("tl.cdiv", size_name(dim_of(tiled)), block_name(tiled))


def _chunk_place(axis: str) -> Code:
    """Where a vector of each chunk lies in [B, H, chunks, X]."""
    return plus(times(OF_CHUNK, size_name(dim_of(axis))), axis_name(axis))


def _step_place(axis: str, tiles: Tiles) -> Code:
    """Where a tile over steps lies in [B, T, H, X]."""
    width, axes = size_name(dim_of(axis)), tiles.ordered((ROW, axis))
    rows, columns = (tiles.along(tiles.index(a), a, axes) for a in (ROW, axis))
    return plus(times("step", width), times(rows, Group(times("H", width))), columns)


def _store_totals(sums: Sums, tiles: Tiles, name_of: NameOf) -> Statement:
    """What crosses the chunk boundary, for each channel."""
    node = add(*sums.reads.values())
    v = tiles.paired(node)
    (axis,) = (a for a in v.axes if a != ROW)
    total = call("tl.sum", tiles.until_ends(v.code, node, v.axes), axis=v.axes.index(ROW))
    value = tiles.assign("sums", total, (axis,)).code
    x = leaf("sums", f"{sums.state}.{sums.kind}", (axis,))
    target = tiles.argument(name_of(x), Role.OUT, "sums", x, stores=True)
    return StoreTo(plus(target, _chunk_place(axis)), value, Name(tiles.ok(axis)), f"{sums.state}: {sums.kind}")


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


def _store(store: Store, tiles: Tiles, tiled: str | None, o: Opened, name_of: NameOf) -> StoreTo:
    x = store.leaf
    own = tuple(next(t for t in o.tile if same_size(a, t)) for a in x.axes)
    name = name_of(x)
    v = tiles.value(at_row(rename(store.node, o.rename)))
    note = store.root or ""
    if store.kind == "sums":
        target = tiles.argument(name, Role.OUT, "sums", x, stores=True)
        axis = next(a for a in v.axes if a != ROW)
        axes = tiles.ordered((ROW, axis))
        there = tiles.along(tiles.ok(axis), axis, axes)
        value = where(there, v.over(axes), 0.0)
        if tiles.sweeps:
            return _stored_sums(target, _over_tile(value, axes, tiled), tiled, note)
        value = call("tl.sum", value, axis=axes.index(axis))
        return StoreTo(plus(target, _tile_place(tiled)), value, Name(tiles.stored_rows), note)
    target = tiles.argument(name, Role.OUT, "out", x, own, stores=True)
    if not own:
        place = plus(target, "step", times("i", "H"))
        return StoreTo(place, v.over((ROW,)), Name(tiles.stored_rows), note)
    axes = tiles.ordered((ROW, *own))
    return StoreTo(plus(target, _step_place(own[0], tiles)), v.over(axes), tiles.stored(axes), note)
