"""A backward pass as a fused backward: the gradient of the state stays in registers, whole, while all sweeps of the plan make
what they yield of a block of steps, one after the other.

The forward pass has left the state that enters each block. So a block has <S before it, dS after it> for the decays' gradients,
which then need no sums beyond the block; every tensor is loaded once, by the copy engine; and nothing goes through memory
between sweeps. The state's rows are the axis that the first sweep over dS keeps, so that what products leave in registers is the
left operand of the next ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ....ir.code import (
    Attribute,
    Code,
    Either,
    Expanded,
    Group,
    Literal,
    Method,
    Name,
    Negative,
    Not,
    call,
    plus,
    shape,
    times,
    where,
)
from ....ir.expr import (
    COL,
    ROW,
    Node,
    const,
    dim_of,
    factors_of,
    leaf,
    make,
    mul,
    plain_name,
    rename,
    split_constant,
    terms_of,
    walk,
)
from ....ir.kernel_ir import Do, If, Let, Note, Statement, added, let, reads
from ....ir.kernel_ir import Store as StoreTo
from ....ir.step_program import PER_HEAD
from ...chunkwise.chunk_program import DECAYS
from ...chunkwise.plan import ENTERING, Accumulate, Plan, Sweep
from ...normal_form.form import StateForm
from ..plan_passes.decay_sums import OWN, SPANS, decay_sum, part_of
from ..plan_passes.hoist import SIDES, Opened, Sums, made_here, opened
from ..plan_passes.roles import PER_STEP, at_row, is_state
from ..plan_passes.split_reads import products_of
from ..plan_passes.value_placement import Fused, Store
from ..print.axis_names import block_name, size_name
from .arguments import Role
from .chunk_kernel import Kernel, NameOf, Piece
from .places import bases, chunk_header, header, load_state, over_chunks, same_size, store_state
from .stores import cited, cited_root, made_name
from .tile_lowering import Tiles
from .tile_names import Scope
from .tile_values import Cumulative, Once, Value

Inside = dict[
    tuple[Node, str], Code
]  # what pairs inside a block add to a decay's gradient so far: by the leaf, and the side
APART, NOTHING = Name("APART"), Literal(None)
READS = 3  # of states and their gradients, of which a program holds what is made of one at a time


@dataclass(frozen=True)
class FusedBackward:
    """The sweeps of a backward plan by stage, as a fused backward takes them; `first` is that over the gradient whose tile gives
    the states' rows."""

    state: StateForm
    gradient: StateForm
    sweeps: dict[int, Sweep]
    opened: dict[int, Opened]
    first: int

    @property
    def rows(self) -> str:
        return self.opened[self.first].tile[0]

    @property
    def columns(self) -> str:
        return self.opened[self.first].full[0]


def fused_backward(plan: Plan, fused: Fused, given: Iterable[str]) -> FusedBackward | None:
    """How one sweep makes all of a backward plan; None where it can't: for states of other shapes than one matrix, and for decays
    of each channel, as matrices over a block's steps then take registers of their own."""
    sweeps = {k: s for k, s in enumerate(plan.stages) if isinstance(s, Sweep)}
    names = dict.fromkeys(n for s in sweeps.values() for n in s.states)
    own = [n for n in names if n in set(given)]
    if len(own) != 1 or set(names) != {own[0], f"d{own[0]}"}:
        return None
    state, gradient = plan.form.state(own[0]), plan.form.state(f"d{own[0]}")
    if None in (state.row, state.col, gradient.row, gradient.col) or state.decay_axes or state.axes != gradient.axes:
        return None
    if dim_of(state.axes[0]) == dim_of(state.axes[1]) or gradient.direction > 0:
        return None
    if any(s.solve and s.states == (state.name,) for s in sweeps.values()):
        return None
    if any(isinstance(x, Accumulate) and not x.at_boundaries for x in plan.stages):
        return None
    parts = {k: opened(s, True) for k, s in sweeps.items()}
    if any(
        o.rename or o.prologue.products or o.prologue.scaled or o.prologue.intra or len(o.tile) != 1 or len(o.full) != 1
        for o in parts.values()
    ):
        return None
    first = next(k for k, s in sweeps.items() if s.states == (gradient.name,))
    found = FusedBackward(state, gradient, sweeps, parts, first)
    return found if pays(found, fused) else None


def pays(t: FusedBackward, fused: Fused) -> bool:
    """Is one sweep faster than one for each sweep? On an H200 that is so where nothing is solved for, and there is no more than a
    write and a read, whose factors have one gradient each: with more, or with sums over channels for gradients of numbers, a
    program's registers don't hold what it makes."""
    reads = sum(len(s.reads) for s in t.sweeps.values())
    sums = any(s.kind == "sums" for k in t.sweeps for s in fused.stores[k])
    return reads <= READS and not sums and not any(s.solve for s in t.sweeps.values())


def ends_of(sweep: Sweep) -> Sweep:
    """A sweep that makes nothing but the states that leave it."""
    outputs = {x: n for x, n in sweep.chunk.outputs.items() if x.attrs[0] == "write"}
    return replace(sweep, reads=(), finals=(), boundary_sums=(), chunk=replace(sweep.chunk, outputs=outputs))


class WholeTiles(Tiles):
    """Tiles of axes that a program has whole, with steps in rows, as the copy engine brings them."""

    # which the compiler doesn't know: it moves nothing across a branch, and so what is loaded is in registers for a shorter time
    surely: Code = Name("T") > 0

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.sides: dict[Node, list[Value]] = {}  # operands of products that are made in the prologue

    def _in_slices(self, axis: str) -> bool:
        return False

    def _to_right(self, bound: str, left: list[Node], right: list[Node], in_registers: bool) -> bool:
        """Scalars go to a side that is computed anyway, or else to that which goes through registers for the tensor cores."""
        return self._plain(left)

    def _apart(self, v: Value, argument: str) -> Value:
        return v

    def ahead(self, x: Node) -> None:
        """Make the operands of a product, so that what they are made of needs no registers later."""
        sides = [
            v if v.raw else self.assign("operand", v.over(v.axes).to("DT"), v.axes, raw=True) for v in self._sides(x)
        ]
        self.sides[x] = sides

    def _sides(self, x: Node) -> list[Value]:
        return self.sides[x] if x in self.sides else super()._sides(x)

    def _product(self, factors: tuple[Node, ...]) -> Value:
        """Entries that a mask leaves out are none of the sum, whatever they are; a matrix over steps is negated as it is."""
        if (
            len(factors) == 2
            and factors[0] == const(-1)
            and factors[1].op == "leaf"
            and factors[1].attrs[0] == "matrix"
        ):
            v = self.value(factors[1])
            return Value(Group(Negative(v.code)), v.axes, raw=True)
        masks = [f for f in factors if f.op == "order_mask"]
        if len(masks) != 1 or len(factors) < 2:
            return super()._product(factors)
        v = super()._product(tuple(f for f in factors if f is not masks[0]))
        return Value(where(self._seen(*masks[0].attrs), v.over((ROW, COL)), 0.0), (ROW, COL))

    def _subtracted(self, x: Node) -> Node:
        """As of all tiles; also of a matrix over steps, which is small."""
        sign, rest = split_constant(x)
        if sign == -1 and rest not in self.memo and self._is_dot(rest):
            factors = factors_of(rest.args[0])
            if any(f.op == "leaf" and f.attrs[0] == "matrix" for f in factors):
                return make("sum", (mul(const(-1), *factors),), rest.attrs, rest.axes)
        return super()._subtracted(x)

    def paired_with(self, x: Node) -> tuple[Value, Code]:
        """A read of a state, and the tile of what the other side writes that it is times: decays go to the read, which goes on
        with them."""
        axes = self.ordered(x.axes)
        factors = factors_of(x)
        written = [f for f in factors if f.axes and f.axes != (ROW,) and not _is_read(f)]
        if len(written) == 1 and self._plain(written) and not any(t.op == "add" for t in factors):
            v = self.value(written[0])
            rest = self._product(tuple(f for f in factors if f is not written[0]))
            return rest, v.code if v.axes == axes else call("tl.trans", v.code)
        return self.paired(x), NOTHING

    def made(self, x: Node) -> Value:
        """Rounded at once, as products take it."""
        return self.assign("pairs", self.value(x).over((ROW, COL)).to("DT"), (ROW, COL), raw=True, note=self.note(x))

    def load(self, base: str, x: Node, own: tuple[str, ...]) -> tuple[Code, tuple[str, ...]]:
        if not own:
            return super().load(base, x, own)
        self.argument(base, Role.GIVEN, "step", x, own)
        return Method(Name(rows_name(base)), "load", (shape("first_row", 0),)), (ROW, *own)


def _is_read(x: Node) -> bool:
    return any(map(is_state, walk(x)))


def rows_name(base: str) -> str:
    return f"{base}_rows"


@dataclass
class Steps:
    """What a block adds to the gradient of a state's decay at each step. A sweep of more than four warps leaves it APART, in
    parts that no warp waits for; another adds it up, in one number for each step, so that it takes no memory but what the sums of
    decays lay in."""

    state: str
    at_once: bool  # early terms count as late ones
    name_of: NameOf
    begun: dict[str, str] = field(default_factory=dict)  # names of what there is of it so far, by `late` and `early`

    def argument(self, part: tuple[str, ...], tiles: Tiles) -> str:
        x = decay_sum(self.state, *part)
        return tiles.argument(self.name_of(x), Role.OUT, "sums", x, stores=True)

    def add(self, slot: str, x: Code) -> Statement:
        """The statement that adds sums [1 or 16, C]."""
        slot = "late" if self.at_once else slot
        if slot in self.begun:
            return added(self.begun[slot], x)
        self.begun[slot] = self.name_of(decay_sum(self.state, slot))
        return let(self.begun[slot], x)

    def store(self, tiles: Tiles) -> None:
        if not self.begun:
            return
        spans = self.name_of(spans_of(self.state))
        found: list[Statement] = []
        for slot, sums in self.begun.items():
            found.append(Do(call("store_sums", plus(self.argument((slot,), tiles), "at", "i"), sums, "i_ok")))
        chunk = plus(times("bh", "chunks"), "c", call("tl.arange", 0, 1))
        found.append(StoreTo(plus(f"{spans}_out", chunk), Name(spans)))
        tiles.body.append(If(Not(APART), tuple(found)))


def fused_backward_kernel(
    name: str, t: FusedBackward, stores: dict[int, list[Store]], inside: set[Node], at_once: bool, name_of: NameOf
) -> tuple[Kernel, bool]:
    """The sweep; and may what it adds up for each step lie where the sums of decays lay? Of the leaves that are stored, those
    `inside` stay in registers: nothing else loads them. `at_once`: early terms of the decay's gradient count as late ones."""
    state, gradient = (name_of(leaf("state", s.name)) for s in (t.state, t.gradient))
    rows, columns = t.rows, t.columns
    first = t.opened[t.first]
    tiles = _tiles(first, name_of)
    tiles.names |= {plain_name(state), plain_name(gradient), "tile", "count", "first_row"}
    known = {
        leaf("state in", t.state.name, t.state.axes): Value(Name(state), (rows, columns), raw=True),
        leaf("state in", t.gradient.name, t.gradient.axes): Value(Name(gradient), (rows, columns)),
    }
    tiles.memo |= known
    tiles.argument(state, Role.CHECKPOINTS, "checkpoint", leaf("checkpoint", t.state.name, t.state.axes), t.state.axes)
    place = shape(Name("c") * block_name(rows), 0)
    tiles.body.append(let(state, Method(Name(rows_name(state)), "load", (place,))))
    if t.state.decay is not None and any(o.sums for o in t.opened.values()):
        _store_spans(t, first, tiles, state, gradient, name_of)
        # a number, which isn't loaded anew where what the block adds lies in the place of these sums already
        known |= {x: v for x, v in tiles.memo.items() if x.op == "decay_all"}
    own: Inside = {}
    steps = Steps(t.state.name, at_once, name_of)
    tiles = _made_first(t, tiles, known, own, steps)
    outputs: set[str] = set()  # arguments that the copy engine stores to
    state_tiles: WholeTiles | None = None  # that of the sweep which makes the state
    for k, o in t.opened.items():
        tiles = _next(tiles, o, known, name_of)
        _sweep(t, o, stores[k], tiles, own, inside, outputs, steps)
        if k == t.first:
            state_tiles = tiles
            for term in map(tiles._subtracted, terms_of(first.states[t.gradient.name])):
                if term.op == "sum":
                    tiles.ahead(term)
    _store_own(own, tiles, steps)
    assert state_tiles is not None
    state_tiles.names, state_tiles.loads = tiles.names, _kept_loads(tiles)
    in_place = _gradient_before(t, first, state_tiles, known, gradient, steps)
    s = t.gradient
    start = load_state(s, gradient, (rows, columns), tiles)
    tiles.argument(gradient, Role.LAST, "state", leaf("last", s.name, s.axes), s.axes, stores=True)
    end = store_state(s, gradient, (rows, columns), -1, False)
    arguments = tuple(tiles.arguments.values())
    setup = [*header((columns, rows), None, sweeps=True, sliced=False), *start, *bases(tiles)]
    setup += [Let((APART.id,), Name("WARPS") > 4, constant=True)] if steps.begun else []
    for a in arguments:
        if a.layout == "step" and a.axes:
            base, axis = a.base, a.axes[0]
            tile = a.name, size_name(dim_of(axis)), f"{base}_t", "stop", "C", block_name(axis)
            setup.append(let(rows_name(base), call("rows_of", *tile)))
    width, block = size_name(dim_of(columns)), block_name(rows)
    begun = Group(plus(times("b", "chunks", block, "H"), "h"))
    first_state = plus(f"{state}_checkpoints", times(begun, width))
    strides = width, Name("H") * width, Name("chunks") * block, block, block_name(columns)
    setup.append(let(rows_name(state), call("rows_of", first_state, *strides)))
    loop = [*chunk_header(-1), let("first_row", Name("t0").to("tl.int32")), *tiles.body]
    kernel = Kernel(
        name,
        (*setup, over_chunks(loop), *end),
        f"The fused backward pass: one sweep backwards in time over intervals, which carries {t.gradient.name}.",
        arguments,
        (columns, rows),
        None,
        True,
        finals=(t.gradient.name,),
        whole=True,
        pieces=tuple(Piece(o, t.sweeps[k].group, tuple(stores[k])) for k, o in t.opened.items()),
        spans=((t.state, t.gradient),),
        loads=tuple((a.name, a.axes[0]) for a in arguments if a.layout == "step" and a.axes and a.name not in outputs),
    )
    return kernel, in_place


def _gradient_before(
    t: FusedBackward, first: Opened, tiles: WholeTiles, known: dict[Node, Value], gradient: str, steps: Steps
) -> bool:
    """The gradient of the state before an interval; and is it made without the sums of decays that lie in memory?"""
    axes, name_of = (t.rows, t.columns), steps.name_of
    tiles.memo = {x: v for x, v in tiles.memo.items() if x in known or not _is_decay(x)}
    tiles.body.append(Note("the gradient before the interval"))
    begin = len(tiles.body)
    node = first.states[t.gradient.name]
    after = tiles.until_ends(tiles.value(node).over(axes), node, axes, axes)
    loaded = frozenset[str]().union(*map(reads, tiles.body[begin:]))
    tiles.body.append(let(gradient, after, note=cited(("state", t.gradient.name), tiles.note(node), name_of)))
    steps.store(tiles)
    return not any(f"{name_of(d)}_sums" in loaded for d in first.decays)


def _tiles(o: Opened, name_of: NameOf) -> WholeTiles:
    tiles = WholeTiles(Scope.of(o, {**o.prologue.definitions, **o.definitions}, name_of, sweeps=True))
    tiles.matrices = {x.attrs[1]: n for x, n in o.matrices.items() if made_here(n, replace(o, tile=()))}
    tiles.head = tiles.body  # what is loaded takes registers from there on: that is where it is used
    tiles.parted = True  # nothing that sums read is rounded: they cancel nothing
    return tiles


def _next(before: WholeTiles, o: Opened, known: dict[Node, Value], name_of: NameOf, decays: bool = False) -> WholeTiles:
    """Tiles for the next sweep, which know what is loaded, made, and named; `decays` too, which are loaded anew otherwise: they
    take registers for as long as they are used."""
    tiles = _tiles(o, name_of)
    tiles.names |= before.names
    tiles.arguments, tiles.body = before.arguments, before.body
    tiles.loads = before.loads if decays else _kept_loads(before)
    tiles.head = tiles.body
    tiles.sides = before.sides
    tiles.memo = {x: v for x, v in before.memo.items() if _is_shared(x) or (decays and _over_steps(x))} | known
    return tiles


def _over_steps(x: Node) -> bool:
    return x.op in ("decay_in", "decay_out", "decay_mask") and set(x.axes) <= {ROW, COL}


def _kept_loads(tiles: Tiles) -> dict[Cumulative | Once, str]:
    """Matrices over the steps of a chunk, which are loaded once."""
    return {key: x for key, x in tiles.loads.items() if isinstance(key, Once) and not key.what}


def _is_shared(x: Node) -> bool:
    """Does a node mean the same in every sweep, and is it no decay?"""
    if x.op == "leaf":
        return x.attrs[0] in (*PER_STEP, *PER_HEAD, "matrix")
    if x.op != "sum" or set(x.axes) != {ROW, COL} or _is_decay(x):
        return False
    return not any(y.op == "leaf" and y.attrs[0] in ("state in", "inner", "product") for y in walk(x))


def _is_decay(x: Node) -> bool:
    return any(y.op in DECAYS for y in walk(x))


def _is_free(nodes: Iterable[Node], t: FusedBackward, o: Opened) -> bool:
    """Are nodes made of nothing that the sweeps make?"""
    made = {x.attrs[:2] for other in t.opened.values() for x in other.outputs}
    streams = {y.attrs[1]: n for y, n in o.streams.items()}
    named = {d.attrs[1]: n for d, n in (*o.prologue.definitions.items(), *o.definitions.items())}
    for x in walk(*nodes):
        if x.op != "leaf":
            continue
        if x.attrs[:2] in made or x.attrs[0] in ("state in", "stored"):
            return False
        inner = {"inner": named, "stream": streams}.get(x.attrs[0], {}).get(x.attrs[1])
        if inner is not None and not _is_free([inner], t, o):
            return False
    return True


def _made_first(t: FusedBackward, tiles: WholeTiles, known: dict[Node, Value], own: Inside, steps: Steps) -> WholeTiles:
    """What needs no state, before there are products with states in registers: what is written to the state, the sums of pairs
    inside the block, which go into `own` or are stored at once, and matrices over the block's steps."""
    first = t.opened[t.first]
    tiles = _next(tiles, first, known, steps.name_of, decays=True)
    for term in map(tiles._subtracted, terms_of(first.states[t.gradient.name])):
        if term.op == "sum" and term.attrs == (ROW,) and _is_free([term], t, first):
            tiles.ahead(term)
    for o in t.opened.values():
        tiles = _next(tiles, o, known, steps.name_of, decays=True)
        for sums in o.sums:
            _add_own(sums, [x for x in sums.own if _is_free([x[0]], t, o)], own, o, tiles)
    later = _later(t)
    _store_own({key: own.pop(key) for key in [*own] if key[0] not in later}, tiles, steps)
    for o in t.opened.values():
        tiles = _next(tiles, o, known, steps.name_of, decays=True)
        for x, node in o.matrices.items():
            if x.attrs[1] in tiles.matrices and _is_free([node], t, o):
                tiles.value(x)
    return tiles


def _sweep(
    t: FusedBackward,
    o: Opened,
    stores: list[Store],
    tiles: WholeTiles,
    own: Inside,
    inside: set[Node],
    outputs: set[str],
    steps: Steps,
) -> None:
    """What one sweep makes: its reads one after the other, each with the sums that are over the same products, and with what can
    be stored then; first those that finish what earlier sweeps have begun."""
    reads = [(sums, slot, node) for sums in o.sums for slot, node in sums.reads.items()]
    waiting = list(stores)

    def finishes(x: Node) -> bool:
        users = [s for s in stores if any(y.op == "leaf" and y.attrs[:2] == x.attrs[:2] for y in walk(s.node))]
        begun = {y.attrs[:2] for y in inside} - {s.leaf.attrs[:2] for s in stores}
        return any(y.op == "leaf" and y.attrs[:2] in begun for s in users for y in walk(s.node))

    made = {x.attrs[:2] for x in o.outputs}
    for sums in o.sums:
        _add_own(sums, [x for x in sums.own if not _is_free([x[0]], t, o)], own, o, tiles)
    for x, node in sorted(o.outputs.items(), key=lambda item: not finishes(item[0])):
        for read in [r for r in reads if products_of(r[2]) <= products_of(node)]:
            reads.remove(read)
            _store_read(*read, tiles, steps)
        name = made_name(x, stores, steps.name_of)
        v = tiles.value(tiles.called(node, name))
        if not v.named:
            v = tiles.assign(
                name,
                v.over(v.axes),
                v.axes,
                note=cited(x.attrs[:2], tiles.note(node), steps.name_of),
            )
        tiles.memo[leaf(x.attrs[0], x.attrs[1], (ROW, *x.axes))] = v
        made.discard(x.attrs[:2])
        for store in [s for s in waiting if not _uses(s.node, made)]:
            waiting.remove(store)
            _store(store, o, tiles, inside, outputs, steps)
    for read in reads:
        _store_read(*read, tiles, steps)
    for store in waiting:
        _store(store, o, tiles, inside, outputs, steps)


def _later(t: FusedBackward) -> set[Node]:
    """The sums of pairs inside the block that need what the sweeps make."""
    terms = [(s, x) for o in t.opened.values() for s in o.sums for x in s.own if not _is_free([x[0]], t, o)]
    return {decay_sum(s.state, OWN, slot) for s, (_, *slots) in terms for slot in slots}


def _uses(node: Node, made: set[tuple[str, str]]) -> bool:
    return any(y.op == "leaf" and y.attrs[:2] in made for y in walk(node))


def _store_spans(t: FusedBackward, o: Opened, tiles: Tiles, state: str, gradient: str, name_of: NameOf) -> None:
    assert t.state.decay is not None
    kept = tiles.kept(rename(t.state.decay, o.rename))
    target = tiles.argument(name_of(spans_of(t.state.name)), Role.OUT, "sums", spans_of(t.state.name), stores=True)
    note = f"the decays of the interval times <{t.state.name}, {t.gradient.name}>"
    spans = name_of(spans_of(t.state.name))
    paired = call("paired_states", state, gradient, Either(Name("WARPS"), APART, Literal(1)))
    tiles.body.append(let(spans, times(kept.code, paired), note=note))
    chunk = times(plus(times("bh", "chunks"), "c"), "WARPS")
    store = StoreTo(plus(target, chunk, call("tl.arange", 0, "WARPS")), Name(spans))
    tiles.body.append(If(APART, (store,)))


def spans_of(state: str) -> Node:
    return decay_sum(state, SPANS)


def _store_read(sums: Sums, slot: str, node: Node, tiles: WholeTiles, steps: Steps) -> None:
    """What a block's reads add to the gradient of a decay at each step."""
    v, factor = tiles.paired_with(node)
    target = steps.argument((sums.kind, slot), tiles)
    total, stored = _sum_over(target, v, tiles, factor, f"{sums.state}: {sums.kind}.{slot}")
    summed = [steps.add(slot, total)]
    if sums.kind == ENTERING:
        spans = steps.name_of(spans_of(sums.state))
        summed.append(added(spans, call("total_of", total, "i_ok")))
    tiles.body.append(If(APART, (stored,), tuple(summed)))


def _add_own(sums: Sums, terms: list[tuple[Node, str, str]], own: Inside, o: Opened, tiles: Tiles) -> None:
    """What pairs inside a block add to it, so far: in parts, so that no warp waits for another."""
    for node, *slots in terms:
        node = _by_matrix(node, o, tiles)
        pairs = tiles.assign("pairs", tiles.value(node).over((ROW, COL)), (ROW, COL), note=tiles.note(node)).code
        for slot, side in zip(slots, SIDES, strict=True):
            key, more = (decay_sum(sums.state, OWN, slot), side), call(f"{side}_sums", pairs, "WARPS")
            own[key] = tiles.assign("sums", own[key] + more if key in own else more, (ROW,)).code


def _by_matrix(x: Node, o: Opened, tiles: Tiles) -> Node:
    """A matrix of pairs by one that products need anyway, rounded as it is: then of the two products that it is made of one is in
    registers at a time. A mask leaves out the diagonal: row and column sums have it in common, but beside strong decays it is
    larger than all else, and what rounding leaves of it as well."""
    factors = factors_of(x)
    for y, node in o.matrices.items():
        own = factors_of(node)
        if y.attrs[1] in tiles.matrices and all(f in factors for f in own):
            factors = (y, *(f for f in factors if f not in own))
            tiles.value(y)
            break
    return mul(*factors)


def _store_own(own: Inside, tiles: Tiles, steps: Steps) -> None:
    for x in dict.fromkeys(x for x, _ in own):
        part = part_of(x)
        target = steps.argument(part, tiles)
        rows, columns = (own.get((x, side)) for side in SIDES)
        parts = call("store_partial_sums", target, rows or NOTHING, columns or NOTHING, "bh", "t0", "T", "i_ok")
        total = rows - columns if rows and columns else rows or Negative(columns or NOTHING)
        more = steps.add(part[-1], total)
        tiles.body.append(If(APART, (Do(parts, x.attrs[1]),), (more,)))


def _sum_over(target: str, v: Value, tiles: Tiles, factor: Code = NOTHING, note: str = "") -> tuple[Code, Statement]:
    """A value over steps, times a tile, summed over what else it is over [1 or 16, C]; and the statement that stores it."""
    place = plus(target, "at", "i")
    if len(v.axes) < 2:
        number = v.over((ROW,))
        return Expanded(number, (False, True)), StoreTo(place, number, Name("i_ok"), note)
    (axis,) = (a for a in v.axes if a != ROW)
    over_rows = call("over_rows", v.over((axis, ROW)), factor, "T", "DT")
    total = tiles.assign("sums", over_rows, (axis, ROW)).code
    return total, Do(call("store_sums", place, total, "i_ok"), note)


def _store(store: Store, o: Opened, tiles: Tiles, inside: set[Node], outputs: set[str], steps: Steps) -> None:
    x = store.leaf
    own = tuple(next(t for t in o.tile if same_size(a, t)) for a in x.axes)
    name, note = steps.name_of(x), cited_root(store, steps.name_of) or steps.name_of(x)
    v = tiles.value(tiles.called(at_row(rename(store.node, o.rename)), name))
    if store.kind == "sums":
        target = tiles.argument(name, Role.OUT, "sums", x, stores=True)
        tiles.body.append(_sum_over(target, v, tiles, note=note)[1])
        return
    if not v.named:
        v = tiles.assign(name, v.over(v.axes), v.axes, note=note)
    tiles.memo[leaf(x.attrs[0], x.attrs[1], (ROW, *own))] = v
    if x in inside:
        return
    if not own:
        target = tiles.argument(name, Role.OUT, "out", x, own, stores=True)
        place = plus(target, "step", times("i", "H"))
        tiles.body.append(StoreTo(place, v.over((ROW,)), Name("i_ok"), note))
        return
    tiles.argument(name, Role.GIVEN, "step", x, own, stores=True)
    outputs.add(f"{name}_p")
    # what is loaded elsewhere is rounded as well, and takes half of the registers so
    rounded = Method(v.over(v.axes), "to", (Attribute(Name(rows_name(name)), "dtype"),))
    v = tiles.assign(f"{v.name}_rounded", rounded, v.axes, raw=True)
    tiles.memo[leaf(x.attrs[0], x.attrs[1], (ROW, *own))] = v
    shown = v.code if v.axes == (ROW, *own) else call("tl.trans", v.code)
    tiles.body.append(Do(Method(Name(rows_name(name)), "store", (shape("first_row", 0), shown)), note))
