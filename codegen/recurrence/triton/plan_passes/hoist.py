"""A sweep's chunk program as a kernel wants it: streams opened into factors, and what is done in the prologue, chunks in
parallel.

Scalar factors of a stream (beta_t of beta_t k_t) are taken out of it, so that k_t goes to the tensor cores as it was loaded
and nothing is rounded twice. The prologue is a kernel whose programs each take one chunk: triangular inverses, products over
an axis along which the decay runs, and quantities over that axis times their decays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ....ir.expr import (
    COL,
    ROW,
    Kept,
    Node,
    add,
    dim_of,
    factors_of,
    leaf,
    leaf_names,
    leaves,
    make,
    mul,
    rebuild,
    rename,
    replace,
    split_constant,
    terms_of,
    total,
    walk,
)
from ....ir.functions import MAGNITUDE, UNIT_OF
from ....printing.cannot_print import CannotPrint
from ...chunkwise.chunk_program import BETWEEN_STEPS
from ...chunkwise.plan import BoundarySums, Sweep
from .roles import PER_STEP, PROLOGUE_LEAVES, STEPS, at_row


@dataclass
class Sums:
    """What a sweep sums for the gradient of a decay (see `BoundarySums`): `reads` by slot, and `own` matrices with the slots of
    their row sums and of their column sums. Where `prologue` isn't empty the prologue kernel makes the latter, and stores these
    leaves. With `totals`, reads are summed over the chunk, for each channel.
    """

    state: str
    kind: str
    reads: dict[str, Node]
    own: list[tuple[Node, str, str]]
    totals: bool
    prologue: dict[str, Node] = field(default_factory=dict)

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots that `own` has sums for."""
        return tuple(n for n in ("late", "early") if any(n in (rows, columns) for _, rows, columns in self.own))


SIDES = ("row", "column")  # of a matrix that is summed
HALVES = (
    2  # sums of columns that a prologue kernel of a sweep makes, of so many parts of their steps, so that no warp waits
)


@dataclass
class Own:
    """Pairs inside a chunk that a prologue kernel of a sweep sums: matrices with the slots of their row sums and of their column
    sums, which are subtracted, for these leaves, by slot, [B, H, parts, T]. `place` is its place among all kernels that do so,
    `first` says where its parts of a slot's rows or columns begin, and `counts` how many a slot has of all kernels."""

    prologue: dict[str, Node]
    terms: list[tuple[Node, str, str]]
    place: int
    first: dict[tuple[str, str], int]
    counts: dict[str, int]
    source: Opened | None = None  # whose streams the matrices are made of, where they are another sweep's

    @property
    def state(self) -> str:
        return next(iter(self.prologue.values())).attrs[1].split(".")[0]


def owned(prologue: dict[str, Node], parts: list[list[tuple[Node, str, str]]]) -> list[Own]:
    """What each of several kernels sums."""
    counts = dict.fromkeys(prologue, 0)
    out = []
    for place, terms in enumerate(parts):
        first: dict[tuple[str, str], int] = {}
        for slot, side in ((slot, side) for _, *slots in terms for slot, side in zip(slots, SIDES, strict=True)):
            if (slot, side) not in first:
                first[slot, side] = counts[slot]
                counts[slot] += 1 if side == "row" else HALVES
        out.append(Own(prologue, terms, place, first, counts))
    return out


@dataclass
class Prologue:
    """What the prologue kernel of a sweep makes: `matrices` over the steps of a chunk, `scaled` quantities over an axis, which
    are multiplied with decays, `intra`, and sums that are its `own`. `definitions` are for these.

    `intra` are sums over the writes of a chunk with a decay along the kept axis, or sums of such. `products` are contractions
    over an axis with a decay of its own: leaves of kind `product`, computed block by block.
    """

    definitions: dict[Node, Node] = field(default_factory=dict)
    matrices: dict[Node, Node] = field(default_factory=dict)
    scaled: dict[Node, Node] = field(default_factory=dict)
    intra: dict[Node, Node] = field(default_factory=dict)
    products: dict[Node, Node] = field(default_factory=dict)
    own: list[Own] = field(default_factory=list)


@dataclass
class Opened:
    """`definitions`, `outputs` and `states` are for the sweep; `prologue` is what is made before it. `rename` gives the axes of
    square states names that tell the contracted one from the kept one."""

    full: tuple[str, ...]
    tile: tuple[str, ...]
    direction: int
    decays: dict[Node, Node]
    rename: dict[str, str] = field(default_factory=dict)
    streams: dict[Node, Node] = field(default_factory=dict)
    origins: dict[Node, Node] = field(default_factory=dict)  # what a stream is, also where it is made in the prologue
    definitions: dict[Node, Node] = field(default_factory=dict)
    outputs: dict[Node, Node] = field(default_factory=dict)
    states: dict[str, Node] = field(default_factory=dict)
    prologue: Prologue = field(default_factory=Prologue)
    sums: list[Sums] = field(default_factory=list)

    @property
    def matrices(self) -> dict[Node, Node]:
        """Those over the steps of a chunk that the prologue kernel makes."""
        return self.prologue.matrices

    @property
    def wide(self) -> frozenset[str]:
        """Matrices of products with a decay for each channel: they are float32, and two operands of the products that use them,
        as the many products that make them are not rounded to two bytes either."""
        return frozenset(
            x.attrs[1]
            for x, node in self.matrices.items()
            if any(y.op == "leaf" and y.attrs[0] == "product" for y in walk(node))
        )

    @property
    def of_prologue(self) -> tuple[Node, ...]:
        made = self.prologue
        return (*made.matrices, *made.scaled, *made.intra, *(x for s in made.own for x in s.prologue.values()))


CHEAP = ("abs", "relu", "sign", "step", MAGNITUDE, UNIT_OF)  # functions that take an instruction or two


def in_prologue(node: Node) -> bool:
    """Is a quantity of a step made once, before the kernels that use it, and not by each on its tiles? What is made of sums or
    peaks over an axis, or of matrices; and what takes several functions of vectors, which are slower than memory: the
    preconditioned gated delta rule 6996 to 4874 us on an H100."""
    nodes = list(walk(node))
    functions = [y for y in nodes if y.axes and ((y.op == "fn" and y.attrs[0] not in CHEAP) or _is_root(y))]
    return len(functions) > 1 or any(y.op in ("sum", "peak", "eye") or len(y.axes) > 1 for y in nodes)


def _is_root(x: Node) -> bool:
    return x.op == "pow" and (x.attrs[0] < 0 or x.attrs[0].denominator != 1)


def uses(node: Node, x: Node) -> bool:
    """Is a node made of this leaf, over whatever axes?"""
    return x.attrs[:2] in leaf_names(node)


def opened(sweep: Sweep, prologue: bool = False) -> Opened:
    """The sweep's program, opened; `prologue`: matrices over the steps of a chunk are made in the prologue even where there is
    only one."""
    return Opening(sweep, prologue).run()


def turned(x: Node) -> Node | None:
    """A matrix over the steps of a chunk that a sweep backwards sees, transposed: one that a sweep forwards sees.

    None where it has no decays or order, or holds what is computed elsewhere.
    """
    masks = [y for y in walk(x) if y.op in ("decay_mask", "order_mask", "apart_mask")]
    if not masks or any(y.attrs[-1] > 0 or len(y.axes) > 2 for y in masks):
        return None
    if any(y.op == "leaf" and y.attrs[0] in ("inner", "product") for y in walk(x)):
        return None
    return _turned(x)


def _turned(x: Node) -> Node:
    if x.op == "mul":
        return mul(*(_turned(f) for f in x.args))
    if x.op == "decay_mask":
        late, write_late, inclusive, direction = x.attrs
        return make(x.op, x.args, (not write_late, not late, inclusive, -direction), x.axes)
    if x.op in ("order_mask", "apart_mask"):
        return make(x.op, (), (x.attrs[0], -x.attrs[1]), x.axes)
    return rename(x, {ROW: COL, COL: ROW})


class Opening:
    def __init__(self, sweep: Sweep, dense: bool) -> None:
        self.sweep, self.dense, chunk = sweep, dense, sweep.chunk
        sides = [(s.row, s.col) if sweep.side == "row" else (s.col, s.row) for s in sweep.group]
        full = tuple(dict.fromkeys(f for f, _ in sides if f is not None))
        tile = tuple(dict.fromkeys(t for _, t in sides if t is not None))
        if set(full) & set(tile):
            raise CannotPrint(
                f"an axis is contracted in one state and kept in another: {sorted(set(full) & set(tile))}"
            )
        if any(d not in chunk.streams for d in chunk.decays):
            raise CannotPrint("a constant decay")
        names: dict[str, str] = {a: Kept(dim_of(a)) for a in tile if dim_of(a) in {dim_of(f) for f in full}}
        names |= {a: dim_of(a) for a in full if dim_of(a) != a}
        if len(set(names.values())) < len(names):
            raise CannotPrint("two axes of one dim are contracted, or kept")
        self.names = names
        self.streams = dict(chunk.streams)
        for boundary in sweep.boundary_sums:
            self.streams |= boundary.streams
        self.own = {}
        for r in sweep.reads:
            s = next(s for s in sweep.group if s.name == r.state)
            own = s.col if r.side == "row" else s.row
            if own is not None and own != r.leaf.axes[0]:
                self.own[r.leaf] = {r.leaf.axes[0]: own}
        decays = {self.named(d): rename(chunk.streams[d], names) for d in chunk.decays}
        self.own_decays = {
            d.attrs[1]: x.attrs[1] for d, x in decays.items() if x.op == "leaf" and x.attrs[0] == "decay"
        }
        self.out = Opened(
            tuple(names.get(a, a) for a in full), tuple(names.get(a, a) for a in tile), sweep.direction, decays, names
        )

    def named(self, x: Node) -> Node:
        return rename(x, self.names)

    def run(self) -> Opened:
        chunk, out = self.sweep.chunk, self.out
        raw = {self.named(x): self.open(self.named(node)) for x, node in chunk.definitions.items()}
        out.prologue.definitions = raw
        self.dense = self.dense or self.many(raw)
        out.definitions = {x: self.hoist(node) for x, node in raw.items()}
        for x, node in chunk.outputs.items():
            back = self.own.get(x, {})
            out.outputs[self.named(rename(x, back))] = self.hoist(self.open(self.named(rename(node, back))))
        out.states = {n: self.hoist(self.open(self.named(node))) for n, node in chunk.states.items()}
        out.sums = [self.sums(boundary) for boundary in self.sweep.boundary_sums]
        self.join()
        self.prune()
        out.prologue.own = [x for s in out.sums if s.prologue for x in owned(s.prologue, [s.own])]
        return out

    def many(self, definitions: dict[Node, Node]) -> bool:
        """Are there so many matrices over the steps of a chunk that a prologue kernel should compute them, for all tiles at
        once?"""
        if any(x.op == "inverse" for x in definitions.values()):
            return True
        chunk = self.sweep.chunk
        nodes = walk(*chunk.definitions.values(), *chunk.outputs.values(), *chunk.states.values())
        masks = {x for x in nodes if x.op == "sum" and x.attrs == (COL,) and ROW in x.axes}
        return len(masks) > 1

    def sums(self, boundary: BoundarySums) -> Sums:
        reads = {slot: self.hoist(self.open(self.named(node))) for slot, node in boundary.reads.items()}
        own = [(self.open(self.named(node)), rows, columns) for node, rows, columns in boundary.own]
        out = Sums(boundary.state, boundary.kind, reads, own, boundary.totals)
        if self.dense and own:
            out.prologue = {slot: leaf("own", f"{boundary.state}.{slot}", (ROW,)) for slot in out.slots}
        return out

    # --- streams ----------------------------------------------------------------------------------------------------

    def open(self, x: Node) -> Node:
        """x with its streams as products of what they are made of."""
        mapping = {}
        for y in walk(x):
            if y.op != "leaf" or y.attrs[0] != "stream":
                continue
            steps = next(a for a in y.attrs[2] if a in STEPS)
            base = next(s for s in self.streams if s.attrs[1] == y.attrs[1])
            if base in self.sweep.chunk.decays and self.streams[base].op != "leaf":
                continue
            own = dict(zip(base.attrs[2][1:], (a for a in y.attrs[2] if a not in STEPS), strict=True))
            node = rename(self.streams[base], own)
            mapping[y] = rename(self.parts(node), {ROW: steps})
        return self.absorbed(_replaced(x, mapping))

    def absorbed(self, x: Node) -> Node:
        """x with a step's decay made part of the decays from the chunk's start up to that step, which then need not be known up
        to the step before it, nor the decay itself."""
        x = rebuild(x, (self.absorbed(a) for a in x.args)) if x.args else x
        for g in x.args if x.op == "mul" else ():
            if not self.is_decay(g):
                continue
            (step,), own = [a for a in g.axes if a in STEPS], set(g.axes) - set(STEPS)
            for f in x.args:
                if (more := self.up_to(f, step, own, g)) is not None:
                    return self.absorbed(mul(more, *(y for y in x.args if y is not f and y is not g)))
        return x

    def up_to(self, f: Node, step: str, own: set[str], decay: Node) -> Node | None:
        """Decays, or a sum of products with some of one decay a step, which reach up to a step as well; None for other nodes."""
        if f.op == "sum" and not own:
            factors = factors_of(f.args[0])
            for y in factors:
                if y.op != "sum" and (more := self.up_to(y, step, own, decay)) is not None:
                    return make("sum", (mul(more, *(z for z in factors if z is not y)),), f.attrs, f.axes)
            return None
        more = longer(f, step) if set(f.axes) - set(STEPS) == own else None
        return more if more is not None and self.own_decays.get(f.args[0].attrs[1]) == decay.attrs[1] else None

    def is_decay(self, x: Node) -> bool:
        """Is x what a step scales a state by, as it was given?"""
        return x.op == "leaf" and x.attrs[0] == "decay" and x.attrs[1] in self.own_decays.values()

    def parts(self, node: Node) -> Node:
        if not any(x.attrs[0] in PER_STEP for x in leaves(node)):
            return self.opaque(node)  # the same at each step, but nothing beyond the last one
        if node.op == "leaf":
            return self.single(node)
        if node.op != "mul":
            return self.opaque(node)
        scalars = [f for f in node.args if not f.axes]
        decays = [f for f in node.args if f.axes and self.is_decay(f)]
        vectors = [f for f in node.args if f.axes and f not in decays]
        out = [f if f.op == "const" else self.single(f) for f in (*scalars, *decays)]
        if vectors:
            out.append(self.single(mul(*vectors)))
        return mul(*out)

    def single(self, node: Node) -> Node:
        if node.op == "leaf" and len(node.attrs[2]) <= 1:
            return at_row(node)
        return self.opaque(node)

    def opaque(self, node: Node) -> Node:
        """A stream computed on the tile, or in the prologue."""
        stream = leaf("stream", node.key[:12], (ROW, *node.axes))
        if in_prologue(node):
            self.out.origins[stream] = node
            node = leaf("prologue", node.key[:12], node.axes)
        self.out.streams[stream] = node
        return stream

    # --- what is done in the prologue -----------------------------------------------------------------------------------------

    def hoist(self, x: Node) -> Node:
        """x with leaves in place of what the prologue kernel computes."""
        if x.op == "leaf" and x.attrs[0] == "inner":
            base = self.base(x)
            if self.out.prologue.definitions[base].op == "inverse":
                if len(x.axes) > 2:
                    raise CannotPrint("each channel has a triangular matrix of its own")
                self.out.prologue.matrices[leaf("matrix", base.attrs[1], base.attrs[2])] = base
                return leaf("matrix", x.attrs[1], x.attrs[2])
            return x
        if x.op == "sum":
            (b,) = x.attrs
            factors = factors_of(x.args[0])
            if (solved := self.of_each_channel(factors)) is not None:
                return solved
            if b in self.out.full and any(f.op == "decay_mask" and b in f.axes for f in factors):
                node = leaf("matrix", x.key[:12], x.axes)
                self.out.prologue.matrices[node] = x
                return node
            if (
                b == COL
                and self.free(x)
                and any(f.op == "decay_mask" and set(f.axes) & set(self.out.tile) for f in factors)
            ):
                node = leaf("intra", x.key[:12], (ROW, *(a for a in x.axes if a != ROW)))
                self.out.prologue.intra[node] = x
                return node
            if b == COL and self.dense:
                inside = [f for f in factors if set(f.axes) <= {ROW, COL} and self.free(f)]
                if any(len(f.axes) == 2 and not (f.op == "leaf" and f.attrs[0] == "inner") for f in inside):
                    made = self.matrix(mul(*inside))
                    return total(mul(made, *(self.hoist(f) for f in factors if f not in inside)), COL)
            x = rebuild(x, (self.scale(x.args[0]),))
        if x.op == "mul" and self.dense and (moved := self.inward(x)) is not x:
            return self.hoist(moved)
        return rebuild(x, (self.hoist(a) for a in x.args)) if x.args else x

    def of_each_channel(self, factors: tuple[Node, ...]) -> Node | None:
        """The product with an inverse (I - T)^-1 of each channel, where T is one matrix times numbers of each step and channel,
        and perhaps times decays of the channel, as the solution of the system; None for other products."""
        inner = [f for f in factors if f.op == "leaf" and f.attrs[0] == "inner" and {ROW, COL} < set(f.axes)]
        found = [f for f in inner if self.definition(f).op == "inverse"]
        if len(found) != 1:
            return None
        (x,) = found
        names = dict(zip(self.base(x).attrs[2], x.attrs[2], strict=True))
        (t,), (direction,) = self.definition(x).args, self.definition(x).attrs
        while t.op == "leaf" and t.attrs[0] == "inner":
            t = rename(self.definition(t), dict(zip(self.base(t).attrs[2], t.attrs[2], strict=True)))
        parts = [_by_channel(term) for term in terms_of(rename(t, names))]
        if len({part[:2] for part in parts}) != 1 or any(COL in scale.axes for scale, *_ in parts):
            return None
        scale, masks, _ = parts[0]
        if len(masks) > 1:
            return None
        core = add(*(core for *_, core in parts))
        matrix = leaf("matrix", core.key[:12], (ROW, COL))
        self.out.prologue.matrices[matrix] = core
        right = rename(mul(*(f for f in factors if f is not x)), {COL: ROW})
        axes = tuple(a for a in x.axes if a != COL)
        decays, edges = [y for m in masks for y in m.args], [edge for m in masks for edge in m.attrs[:2]]
        return make("channel_solve", (matrix, scale, self.hoist(right), *decays), (direction, *edges), axes)

    def base(self, x: Node) -> Node:
        """A definition's leaf, with its axes as they are defined."""
        return next(d for d in self.out.prologue.definitions if d.attrs[1] == x.attrs[1])

    def inward(self, x: Node) -> Node:
        """A product with numbers of each read's step moved into the one sum over writes that it has, so that they become part of
        a matrix over the steps of a chunk."""
        numbers = [f for f in x.args if f.op == "leaf" and f.attrs[0] == "input" and f.axes == (ROW,)]
        sums = [f for f in x.args if f.op == "sum" and f.attrs == (COL,) and ROW in f.axes]
        if not numbers or len(sums) != 1:
            return x
        (f,) = sums
        moved = make("sum", (mul(*numbers, *factors_of(f.args[0])),), f.attrs, f.axes)
        return mul(moved, *(y for y in x.args if y is not f and y not in numbers))

    def matrix(self, node: Node) -> Node:
        """The leaf of a matrix that the prologue kernel makes, perhaps as the transposed one of another sweep."""
        turn = turned(node)
        node, axes = (node, (ROW, COL)) if turn is None else (turn, (COL, ROW))
        self.out.prologue.matrices[leaf("matrix", node.key[:12], (ROW, COL))] = node
        return leaf("matrix", node.key[:12], axes)

    def free(self, x: Node) -> bool:
        """Does x need no state?"""
        return not any(
            y.op == "leaf"
            and (y.attrs[0] == "state in" or (y.attrs[0] == "inner" and not self.free(self.definition(y))))
            for y in walk(x)
        )

    def definition(self, x: Node) -> Node:
        return self.out.prologue.definitions[self.base(x)]

    def scale(self, body: Node) -> Node:
        """A product with decays over a state's axes in it, with one leaf for what is over each of these axes."""
        factors = list(factors_of(body))
        for f in factors_of(body):
            if f not in factors or f.op not in ("decay_in", "decay_out") or len(f.axes) < 2 or self.summed(f):
                continue
            inside = [g for g in factors if set(g.axes) == set(f.axes)]
            if all(self.free(g) for g in inside):
                node = mul(*inside)
                x = leaf("scaled", node.key[:12], (ROW, *(a for a in f.axes if a != ROW)))
                self.out.prologue.scaled[x] = node
                factors = [x, *(g for g in factors if g not in inside)]
        return mul(*factors)

    def summed(self, decay: Node) -> bool:
        """Does the sweep sum reads for each of these decays' channels? Then it takes writes as exactly as what it reads."""
        tiled = any(a in self.out.tile for a in decay.axes)
        return tiled and any(boundary.totals for boundary in self.sweep.boundary_sums)

    def join(self) -> None:
        """One `intra` in the place of those that are only used in the same sum: less to store and to load."""
        out = self.out
        roots = [*out.definitions.values(), *out.outputs.values(), *out.states.values()]
        roots += [x for s in out.sums for x in s.reads.values()]
        nodes = [*walk(*roots)]
        uses = Counter([*roots, *(a for x in nodes for a in x.args)])
        named = Counter(x.attrs[:2] for x in nodes if x.op == "leaf")
        joined: dict[Node, Node] = {}
        for x in (x for x in nodes if x.op == "add"):
            alone: dict[tuple[str, ...], dict[Node, Node]] = {}
            for term in x.args:
                c, core = split_constant(term)
                if core in out.prologue.intra and uses[term] == uses[core] == named[core.attrs[:2]] == 1:
                    alone.setdefault(core.axes, {})[term] = mul(c, out.prologue.intra[core])
            made = []
            for axes, terms in alone.items():
                if len(terms) > 1:
                    node = add(*terms.values())
                    made.append(leaf("intra", node.key[:12], axes))
                    out.prologue.intra[made[-1]] = node
            if made:
                gone = {t for terms in alone.values() if len(terms) > 1 for t in terms}
                joined[x] = add(*made, *(replace(t, joined) for t in x.args if t not in gone))

        def new(nodes: dict[Any, Node]) -> dict[Any, Node]:
            return {k: replace(x, joined) for k, x in nodes.items()}

        out.definitions, out.outputs, out.states = new(out.definitions), new(out.outputs), new(out.states)
        for s in out.sums:
            s.reads = new(s.reads)

    def prune(self) -> None:
        """Drop definitions that are not used, and name the products of the prologue kernel."""
        out = self.out
        reads = [x for s in out.sums for x in s.reads.values()]
        out.definitions = _used(out.definitions, [*out.outputs.values(), *out.states.values(), *reads])
        # matrices that only another matrix uses stay definitions of the prologue kernel
        nodes = walk(*out.definitions.values(), *out.outputs.values(), *out.states.values(), *reads)
        live = {y.attrs[1] for y in nodes if y.op == "leaf" and y.attrs[0] in PROLOGUE_LEAVES}
        made = out.prologue
        matrices = {x: n for x, n in made.matrices.items() if x.attrs[1] in live}
        intra = {x: n for x, n in made.intra.items() if x.attrs[1] in live}
        definitions = _used(made.definitions, [*matrices.values(), *intra.values()])
        made.scaled = {x: n for x, n in made.scaled.items() if x.attrs[1] in live}
        made.intra = {x: add(*map(_as_sum, terms_of(self.product(n)))) for x, n in intra.items()}
        made.matrices = {x: self.product(n) for x, n in matrices.items()}
        made.definitions = {x: self.product(n) for x, n in definitions.items()}

    def product(self, x: Node) -> Node:
        if (
            x.op == "sum"
            and x.attrs[0] in self.out.full
            and any(f.op == "decay_mask" and x.attrs[0] in f.axes for f in factors_of(x.args[0]))
        ):
            node = leaf("product", x.key[:12], (ROW, COL))
            self.out.prologue.products[node] = x
            return node
        return rebuild(x, (self.product(a) for a in x.args)) if x.args else x


def _as_sum(x: Node) -> Node:
    """A sum over the writes of a chunk, with what it is multiplied by at each read among its factors."""
    c, core = split_constant(x)
    sums = [f for f in factors_of(core) if f.op == "sum" and f.attrs == (COL,)]
    if len(sums) != 1:
        return x
    others = (f for f in factors_of(core) if f is not sums[0])
    return mul(c, make("sum", (mul(*sums[0].args, *others),), (COL,), core.axes))


def longer(x: Node, step: str) -> Node | None:
    """Decays from the chunk's start up to what comes before a step, with those of the step as well; None for other nodes."""
    if step not in x.axes or x.op not in ("decay_in", "decay_out", "decay_mask"):
        return None
    *which, direction = x.attrs
    read = x.op == "decay_in" or (x.op == "decay_mask" and step == ROW)
    if read != (direction > 0):
        return None
    place = 1 if x.op == "decay_mask" and not read else 0
    if which[place] == read:
        return None
    which[place] = read
    return make(x.op, x.args, (*which, direction), x.axes)


def _replaced(x: Node, mapping: dict[Node, Node]) -> Node:
    """x with leaves replaced, but for those that decays between steps are made of."""
    if x.op in BETWEEN_STEPS:
        return x
    return mapping.get(x) or (rebuild(x, (_replaced(a, mapping) for a in x.args)) if x.args else x)


def _by_channel(x: Node) -> tuple[Node, tuple[Node, ...], Node]:
    """A product as what is over channels, the decays of these between two steps, and a matrix over the steps of a chunk."""
    factors = factors_of(x)
    over = [f for f in factors if set(f.axes) - {ROW, COL}]
    masks = tuple(f for f in over if f.op == "decay_mask")
    return mul(*(f for f in over if f not in masks)), masks, mul(*(f for f in factors if f not in over))


def _used(definitions: dict[Node, Node], roots: list[Node]) -> dict[Node, Node]:
    """The definitions that the roots need, in order."""
    names = {d.attrs[1]: d for d in definitions}
    needed: set[Node] = set()
    stack = list(roots)
    while stack:
        for y in walk(stack.pop()):
            if y.op == "leaf" and y.attrs[0] == "inner" and names[y.attrs[1]] not in needed:
                needed.add(names[y.attrs[1]])
                stack.append(definitions[names[y.attrs[1]]])
    return {d: n for d, n in definitions.items() if d in needed}


def made_in_prologue(o: Opened) -> dict[Node, Node]:
    """What a kernel that reads checkpointed states can't make itself."""
    return {x: n for x, n in o.matrices.items() if not made_here(n, o)} | o.prologue.scaled


def made_here(x: Node, o: Opened) -> bool:
    """Can a kernel that uses a matrix over the steps of a block make it: has it no decay for each channel, no inverse, and no sum
    over the axis that the kernel has but a tile of?"""
    named = {d.attrs[1]: n for d, n in (*o.prologue.definitions.items(), *o.definitions.items())}
    return not any(
        y.op in ("inverse", "channel_solve")
        or (y.op == "sum" and y.attrs[0] in o.tile)
        or (y.op == "leaf" and y.attrs[0] == "product")
        or (y.op == "leaf" and y.attrs[0] == "inner" and not made_here(named[y.attrs[1]], o))
        for y in walk(x)
    )
