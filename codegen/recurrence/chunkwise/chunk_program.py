"""Pass 4, chunk: a sweep's read-write form -> the same over C steps at once, as matrix products.

With a the cumulative log decay of the chunk, a read at step i weighs the write of step j by exp(a_i - a_j), and the incoming
state by exp(a_i). Where writes depend on reads of the state, W = (I - T)^-1 (C + X S_0) with T strictly triangular.

Steps of a chunk are the axis ROW, and COL where a second one is needed. Decays enter through five operations, each with the
decay itself (not its logarithm) as its argument, so that a gate can evaluate the program exactly in a prime field:

    order_mask                  1 where the read of step i sees the write of step j
    apart_mask                  1 where it comes at least so many steps after that
    decay_mask                  ... times the decays between the write and the read
    decay_in, decay_out         the decays from the chunk's start to a read, from a write to the chunk's end
    decay_all                   all decays of the chunk
    left_out                    products of a state and its gradient at each step of a channel, without the step's own decay
    inverse                     (I - T)^-1
    channel_solve               w = right + scale . (T w), for each channel, of a matrix T over steps, perhaps with decays of the
                                channel between these; kernels alone have it

Each carries the direction of the sweep; a write is `late` when it comes after its step's decay, a read likewise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from ...ir.evaluate import BEYOND, CHUNK_OPERATIONS, Arithmetic, stacked
from ...ir.expr import (
    COL,
    INNER,
    ONE,
    ROW,
    ZERO,
    Node,
    add,
    const,
    factors_of,
    leaf,
    make,
    mul,
    rename,
    split_constant,
    total,
)
from ..normal_form.abstract_values import split_scalars
from ..normal_form.form import NotAffine, Read, StateForm, Write, affine_terms
from .coupled_states import TRANSITIONS, Transition, factored, is_coupled, state_in

DECAYS = frozenset(("decay_mask", "decay_in", "decay_out", "decay_all"))  # operations: decays over steps of a chunk
BETWEEN_STEPS = DECAYS | TRANSITIONS
SNAPSHOT_LATE = {"prev": False, "mid": False, "next": True}


@dataclass(frozen=True)
class ChunkProgram:
    """One chunk of a sweep.

    `streams` gives for each stream leaf (axes: ROW, then the quantity's) the step-level node that it holds; a stream is zero
    beyond the sequence's end, a decay one. `outputs` maps each read or solved write leaf to its chunk node, `states` each
    state's name to the state that leaves the chunk.
    """

    streams: dict[Node, Node]
    decays: frozenset[Node]
    definitions: dict[Node, Node]  # inner quantities, each computed once, in order
    outputs: dict[Node, Node]
    states: dict[str, Node]
    direction: int
    state_axes: dict[str, tuple[str, ...]] = field(default_factory=dict)


def chunk_program(
    group: tuple[StateForm, ...], reads: tuple[Read, ...], solve: bool, table: dict[Node, Read]
) -> ChunkProgram:
    """The chunk program of a sweep over `group`: solved writes (when `solve`), `reads`, and the outgoing states.

    `table` holds every read that a solved write may refer to.
    """
    return Builder(group, reads, solve, table).build()


class Builder:
    """Makes the nodes of a chunk program, and collects its streams."""

    def __init__(
        self, group: tuple[StateForm, ...], reads: tuple[Read, ...], solve: bool, table: dict[Node, Read]
    ) -> None:
        self.group, self.reads, self.solve, self.table = group, reads, solve, table
        self.streams: dict[Node, Node] = {}
        self.decays: set[Node] = set()
        self.definitions: dict[Node, Node] = {}
        self.values: dict[Node, Node] = {}  # solved write leaf -> chunk node over ROW

    def build(self) -> ChunkProgram:
        outputs: dict[Node, Node] = {}
        if self.solve:
            self._solve()
            outputs |= self.values
        for r in self.reads:
            s = next(s for s in self.group if s.name == r.state)
            outputs[r.leaf] = self.read(s, r.side, self.stream(r.vector), r.snapshot)
        states = {s.name: self.state_out(s) for s in self.group}
        definitions = self.definitions
        if self.transition is not None:
            definitions, outputs = ({x: factored(n) for x, n in nodes.items()} for nodes in (definitions, outputs))
            states = {name: factored(n) for name, n in states.items()}
        return ChunkProgram(
            self.streams,
            frozenset(self.decays),
            definitions,
            outputs,
            states,
            self.group[0].direction,
            {s.name: s.axes for s in self.group},
        )

    @functools.cached_property
    def transition(self) -> Transition | None:
        """Where states of the group are added to each other, the weights between them."""
        return Transition(self.group, self.stream) if is_coupled(self.group) else None

    def sources(self, s: StateForm) -> tuple[StateForm, ...]:
        """The states whose past a read of s sees."""
        return self.group if self.transition is not None else (s,)

    def entering(self, s: StateForm) -> Node:
        """The state that enters the chunk."""
        return state_in(s)

    def define(self, node: Node) -> Node:
        """Name an inner quantity, so that it is computed once however its axes are called later."""
        if node.op in ("leaf", "const"):
            return node
        x = leaf("inner", node.key[:12], node.axes)
        self.definitions[x] = node
        return x

    # --- leaves -----------------------------------------------------------------------------------------------------

    def stream(self, node: Node) -> Node:
        """A step-level quantity over the chunk's rows, or a number."""
        return node if node.op == "const" else self.ending(node)

    def ending(self, node: Node) -> Node:
        """A step-level quantity over the chunk's rows, which ends with the sequence even if it is a number."""
        x = leaf("stream", node.key[:12], (ROW, *node.axes))
        self.streams[x] = node
        return x

    def left(self, w: Write) -> Node:
        """What a write is on the side of the rows; see `written`."""
        number, left = self.multiple(w.left)
        return mul(number, self.ending(left) if self.solve and w.leaf is not None else self.stream(left))

    def multiple(self, x: Node) -> tuple[Node, Node]:
        """x as a number and what that multiplies, where coupled states are written several multiples of the same: `factored`
        makes one product of these, and one weight of theirs."""
        number, core = split_constant(x)
        return (const(number), core) if core in self.multiples else (ONE, x)

    @functools.cached_property
    def multiples(self) -> frozenset[Node]:
        """What several numbers multiply, in writes to coupled states."""
        if self.transition is None:
            return frozenset()
        found: dict[Node, set[Fraction]] = {}
        for x in (y for s in self.group for w in s.writes for y in (w.left, w.value)):
            number, core = split_constant(x)
            found.setdefault(core, set()).add(number)
        return frozenset(core for core, numbers in found.items() if len(numbers) > 1 and core is not ONE)

    def written(self, w: Write) -> Node:
        """What is written with `left`: one of the two is zero beyond the sequence's end."""
        if w.leaf in self.values:
            return self.values[w.leaf]
        number, value = self.multiple(w.value)
        return mul(number, self.ending(value) if w.left.op == "const" else self.stream(value))

    def decays_of(self, s: StateForm) -> tuple[Node, ...]:
        """The decays of a state, over the chunk's rows: at most one for each of its axes."""
        found = tuple(map(self.ending, s.decays))
        self.decays.update(found)
        return found

    # --- weights ----------------------------------------------------------------------------------------------------

    def mask(self, s: StateForm, snapshot: str, w: Write) -> Node:
        late = SNAPSHOT_LATE[snapshot]
        if self.transition is not None:
            return self.transition.mask(s, self.state_of(w), late)
        inclusive = snapshot == "next" or (snapshot == "mid" and not w.late)
        masks = [
            make("decay_mask", (d,), (late, w.late, inclusive, s.direction), (*d.axes, ROW, COL))
            for d in self.decays_of(s)
        ]
        return mul(*masks) if masks else make("order_mask", (), (inclusive, s.direction), (ROW, COL))

    def state_of(self, w: Write) -> StateForm:
        return next(s for s in self.group if s.name == w.state)

    def incoming(self, s: StateForm, of: StateForm, snapshot: str) -> Node:
        if self.transition is not None:
            return self.transition.incoming(s, of, SNAPSHOT_LATE[snapshot])
        return mul(*(make("decay_in", (d,), (SNAPSHOT_LATE[snapshot], s.direction), d.axes) for d in self.decays_of(s)))

    def outgoing(self, s: StateForm, w: Write) -> Node:
        if self.transition is not None:
            return self.transition.outgoing(s, self.state_of(w))
        return mul(*(make("decay_out", (d,), (w.late, s.direction), d.axes) for d in self.decays_of(s)))

    def weights(self, s: StateForm, side: str, vector: Node, snapshot: str, w: Write) -> Node:
        """What a read takes of each write of the chunk: over (ROW, COL), and the kept axis where the decay runs over it."""
        along = s.row if side == "row" else s.col
        mine = self.left(w) if side == "row" else self.written(w)
        product = mul(vector, to_col(mine))
        inside, outside = over(self.mask(s, snapshot, w), along)
        return mul(outside, total(mul(product, inside), along) if along is not None else product)

    # --- reads, writes, states --------------------------------------------------------------------------------------

    def from_state(self, s: StateForm, side: str, vector: Node, snapshot: str) -> Node:
        along = s.row if side == "row" else s.col
        parts = []
        for of in self.sources(s):
            inside, outside = over(self.incoming(s, of, snapshot), along)
            product = mul(vector, self.entering(of), inside)
            parts.append(mul(outside, total(product, along) if along is not None else product))
        return add(*parts)

    def from_write(self, s: StateForm, side: str, vector: Node, snapshot: str, w: Write) -> Node:
        other = self.written(w) if side == "row" else self.left(w)
        return total(mul(self.weights(s, side, vector, snapshot, w), to_col(other)), COL)

    def read(self, s: StateForm, side: str, vector: Node, snapshot: str) -> Node:
        parts = [self.from_write(s, side, vector, snapshot, w) for of in self.sources(s) for w in of.writes]
        return add(self.from_state(s, side, vector, snapshot), *parts)

    def state_out(self, s: StateForm) -> Node:
        parts = [
            total(mul(self.left(w), self.outgoing(s, w), self.written(w)), ROW)
            for of in self.sources(s)
            for w in of.writes
        ]
        if self.transition is not None:
            return add(*(mul(self.transition.all(s, of), self.entering(of)) for of in self.group), *parts)
        return add(mul(self.whole(s), self.entering(s)), *parts)

    def whole(self, s: StateForm) -> Node:
        """All decays of the chunk."""
        return mul(*(make("decay_all", (d,), (), set(d.axes) - {ROW}) for d in self.decays_of(s)))

    # --- the triangular solve ---------------------------------------------------------------------------------------

    def _solve(self) -> None:
        """W_u = (I - T)^-1 (C + reads of the incoming states and of known writes), by blocks where several writes are solved."""
        states = {s.name: s for s in self.group}
        unknown: dict[Node, Write] = {}
        for s in self.group:
            for w in s.writes:
                if w.leaf is not None:
                    unknown.setdefault(w.leaf, w)
        order = self._order(unknown)
        right: dict[Node, Node] = {}
        blocks: dict[tuple[Node, Node], Node] = {}
        diagonals: dict[tuple[Node, Node], Node] = {}  # what others of the same step are times
        for u in order:
            constant, feedback, same = self._feedback(unknown[u])
            diagonals |= {(u, x): self.stream(c) for x, c in same.items()}
            parts = [self.stream(constant)] if constant is not ZERO else []
            for (name, snapshot, scale), vector in feedback.items():
                s, x, scaling = states[name], self.stream(vector), self.stream(scale)
                parts.append(mul(scaling, self.from_state(s, "row", x, snapshot)))
                for w in (w for of in self.sources(s) for w in of.writes):
                    if w.leaf is None:
                        parts.append(mul(scaling, self.from_write(s, "row", x, snapshot, w)))
                    else:
                        block = mul(scaling, self.weights(s, "row", x, snapshot, w))
                        blocks[u, w.leaf] = add(blocks.get((u, w.leaf), ZERO), block)
            right[u] = self.define(add(*parts))
        blocks = {key: self.define(block) for key, block in blocks.items()}
        # forward elimination, then substitution backwards; each diagonal block stays strictly triangular
        inverses: dict[Node, Node] = {}
        for n, u in enumerate(order):
            t = blocks.get((u, u), ZERO)
            inverses[u] = (
                self.define(make("inverse", (t,), (self.group[0].direction,), t.axes)) if t is not ZERO else ONE
            )
            for v in order[n + 1 :]:
                factor, diagonal = blocks.get((v, u), ZERO), diagonals.get((v, u), ZERO)
                if factor is ZERO and diagonal is ZERO:
                    continue
                if inverses[u] is not ONE:
                    factor, diagonal = self.define(_times(factor, diagonal, inverses[u])), ZERO
                right[v] = self.define(add(right[v], _applied(factor, diagonal, right[u])))
                for x in order[n + 1 :]:
                    if (u, x) in blocks:
                        blocks[v, x] = self.define(
                            add(blocks.get((v, x), ZERO), _times(factor, diagonal, blocks[u, x]))
                        )
        for n, u in reversed(list(enumerate(order))):
            known = [applied(blocks[u, x], self.values[x]) for x in order[n + 1 :] if (u, x) in blocks]
            side = self.define(add(right[u], *known))
            self.values[u] = side if inverses[u] is ONE else self.define(applied(inverses[u], side))

    def _order(self, unknown: dict[Node, Write]) -> list[Node]:
        """Solved writes, those that others of the same step have seen before these."""
        import networkx as nx

        graph: nx.DiGraph = nx.DiGraph()
        graph.add_nodes_from(unknown)
        for u, write in unknown.items():
            _, feedback, same = self._feedback(write)
            graph.add_edges_from((x, u) for x in same)
            for state, snapshot, _ in feedback:
                seen = next(s for s in self.group if s.name == state).writes
                sees = [w for w in seen if snapshot == "next" or (snapshot == "mid" and not w.late)]
                graph.add_edges_from((w.leaf, u) for w in sees if w.leaf is not None)
        if not nx.is_directed_acyclic_graph(graph):
            u = next(iter(nx.simple_cycles(graph)))[0]
            raise NotAffine("a write depends on a read that already sees it", unknown[u].right)
        return list(nx.lexicographical_topological_sort(graph, key=lambda x: list(unknown).index(x)))

    def _feedback(self, w: Write) -> tuple[Node, dict[tuple[str, str, Node], Node], dict[Node, Node]]:
        """w.right as (c, {(state, snapshot, g): x}, {write: n}): c + sum of g * snapshot^T x, where g scales entry by entry, and
        of n * what else the step writes.

        A g that isn't one gives each channel a triangular system of its own, as a decay over the written axis does.
        """
        own = {s.name for s in self.group}
        written = {x.leaf for s in self.group for x in s.writes if x.leaf is not None}
        table = self.table
        constant: list[Node] = []
        feedback: dict[tuple[str, str, Node], Node] = {}
        same: dict[Node, Node] = {}
        fed = affine_terms(w.right, lambda y: y in written or (y in table and table[y].state in own))
        for term, coefficient, read in fed:
            if read is None:
                constant.append(term)
                continue
            if read in written:
                same[read] = add(same.get(read, ZERO), coefficient)
                continue
            r = table[read]
            scalar, scale = split_scalars(coefficient)
            key = (r.state, r.snapshot, scale)
            feedback[key] = add(feedback.get(key, ZERO), mul(scalar, r.vector))
        return add(*constant), feedback, same


def over(x: Node, axis: str | None) -> tuple[Node, Node]:
    """The factors of x over an axis, and those without it."""
    inside = [f for f in factors_of(x) if axis is not None and axis in f.axes]
    return mul(*inside), mul(*(f for f in factors_of(x) if f not in inside))


def to_col(x: Node) -> Node:
    return rename(x, {ROW: COL})


def product(a: Node, b: Node) -> Node:
    """The matrix product over chunk steps: a[i, m] b[m, j]."""
    return total(mul(rename(a, {COL: INNER}), rename(b, {ROW: INNER})), INNER)


def _times(a: Node, diagonal: Node, b: Node) -> Node:
    """(a + diagonal) b."""
    return mul(diagonal, b) if a is ZERO else add(product(a, b), mul(diagonal, b))


def _applied(a: Node, diagonal: Node, x: Node) -> Node:
    """(a + diagonal) x, of a quantity over ROW."""
    return mul(diagonal, x) if a is ZERO else add(applied(a, x), mul(diagonal, x))


def applied(a: Node, x: Node) -> Node:
    """A matrix over (ROW, COL) applied to a quantity over ROW."""
    return total(mul(a, to_col(x)), COL)


# --- exact meaning, for gates -----------------------------------------------------------------------------------------
# Values may have axes before those of their nodes, as of many chunks that are evaluated together.


def _between(d: Any, i: int, j: int, late: bool, write_late: bool, m: Any, order: list[int]) -> Any:
    """The decays between the write of sweep position j and the read of position i >= j."""
    value = None
    positions = [*([j] if not write_late else []), *range(j + 1, i), *([i] if late and i != j else [])]
    if i == j:
        positions = [i] if late and not write_late else []
    for s in positions:
        step = d[..., order[s]]
        value = step if value is None else m.mul(value, step)
    return value


def _rows_last(x: Node, value: object, m: Arithmetic, sizes: dict[str, int]) -> np.ndarray:
    """The decay's values with the chunk axis last, one beyond the sequence's end."""
    position = x.axes.index(ROW) - len(x.axes)
    d = np.moveaxis(np.asarray(value, dtype=object), position, -1).copy()
    d[..., d.shape[-1] - sizes.get(BEYOND, 0) :] = m.const(Fraction(1)).item()
    return d


def _many_first(made: np.ndarray, steps: int, many: int) -> np.ndarray:
    """What was made with so many axes of chunks after those of steps, with these axes first."""
    return np.moveaxis(made, range(steps, steps + many), range(many)) if many else made


def _sweep_order(count: int, direction: int) -> list[int]:
    return list(range(count)) if direction > 0 else list(range(count - 1, -1, -1))


def _mask(x: Node, args: Sequence[object], m: Arithmetic, sizes: dict[str, int]) -> np.ndarray:
    count = sizes[ROW]
    late, write_late, inclusive, direction = x.attrs if x.op == "decay_mask" else (False, False, *x.attrs)
    least = inclusive if x.op == "apart_mask" else 0 if inclusive else 1
    order = _sweep_order(count, direction)
    d = _rows_last(x.args[0], args[0], m, sizes) if args else None
    lead = d.shape[:-1] if d is not None else ()
    one, zero = m.const(Fraction(1)), m.const(Fraction(0))
    out = np.empty((count, count, *lead), dtype=object)
    for i in range(count):
        for j in range(count):
            value = zero
            if i - j >= least:
                weight = _between(d, i, j, late, write_late, m, order) if d is not None else None
                value = one if weight is None else weight
            out[order[i], order[j]] = np.broadcast_to(value, lead) if lead else np.asarray(value, dtype=object).item()
    return _many_first(out, 2, len(lead) + 1 - len(x.args[0].axes) if args else 0)


def _edge(x: Node, args: Sequence[object], m: Arithmetic, sizes: dict[str, int]) -> np.ndarray:
    d = _rows_last(x.args[0], args[0], m, sizes)
    count, lead = d.shape[-1], d.shape[:-1]
    late, direction = x.attrs
    order = _sweep_order(count, direction)
    out = np.empty((count, *lead), dtype=object)
    for i in range(count):
        if x.op == "decay_in":
            steps = range(i + 1) if late else range(i)
        else:
            steps = range(i + 1, count) if late else range(i, count)
        value = np.broadcast_to(m.const(Fraction(1)), lead)
        for s in steps:
            value = m.mul(value, d[..., order[s]])
        out[order[i]] = value if lead else np.asarray(value, dtype=object).item()
    return _many_first(out, 1, d.ndim - len(x.args[0].axes))


def _all(x: Node, args: Sequence[object], m: Arithmetic, sizes: dict[str, int]) -> np.ndarray:
    d = _rows_last(x.args[0], args[0], m, sizes)
    value = np.broadcast_to(m.const(Fraction(1)), d.shape[:-1])
    for s in range(d.shape[-1]):
        value = m.mul(value, d[..., s])
    return value


def _inverse(x: Node, args: Sequence[object], m: Arithmetic, sizes: dict[str, int]) -> np.ndarray:
    """(I - T)^-1 = I + T + T^2 + ... for strictly triangular T, exactly; one system for each entry of further axes."""
    count = sizes[ROW]
    t = np.asarray(args[0], dtype=object)
    many = t.ndim - len(x.args[0].axes)
    t = np.moveaxis(t, range(many), range(2, 2 + many)) if many else t
    lead = t.shape[2:]
    t = np.broadcast_to(t, (count, count, *lead))
    one, zero = m.const(Fraction(1)).item(), m.const(Fraction(0)).item()
    identity = np.empty((count, count, *lead), dtype=object)
    for i in range(count):
        for j in range(count):
            identity[i, j] = one if i == j else zero
    out, term = identity, identity
    for _ in range(count - 1):
        columns = []
        for j in range(count):
            products = [m.mul(term[:, k], t[k, j]) for k in range(count)]
            columns.append(functools.reduce(m.add, products))
        term = stacked(columns, axis=1)
        out = m.add(out, term)
    return _many_first(out, 2, many)


def _channel_solve(x: Node, args: Sequence[object], m: Arithmetic, sizes: dict[str, int]) -> np.ndarray:
    """Step after step; see `runtime/chunk_kernels/channel_systems.py`."""
    count, (direction, *edges) = sizes[ROW], x.attrs
    late, write_late = edges or (False, True)
    own = (*(a for a in x.axes if a != ROW), ROW)
    places = ((COL, ROW), own, own)
    matrix, scale, right = (_over(v, y.axes, to, sizes) for v, y, to in zip(args, x.args, places, strict=False))
    decays = [_over(_rows_last(y, v, m, sizes), own, own, sizes) for v, y in zip(args[3:], x.args[3:], strict=True)]
    steps: dict[int, Any] = {}
    held: dict[int, Any] = {}  # what is left of what each step wrote

    def forget(i: int) -> None:
        for d in decays:
            held.update({j: m.mul(y, d[..., i]) for j, y in held.items()})

    for i in _sweep_order(count, direction):
        if late:
            forget(i)
        products = [m.mul(matrix[..., None, j, i], y) for j, y in held.items()]
        steps[i] = right[..., i]
        if products:
            steps[i] = m.add(steps[i], m.mul(scale[..., i], functools.reduce(m.add, products)))
        if not late:
            forget(i)
        held[i] = steps[i]
        if not write_late:
            held[i] = functools.reduce(m.mul, (d[..., i] for d in decays), held[i])
    made = stacked(np.broadcast_arrays(*(steps[i] for i in range(count))), axis=-1)
    return made if x.axes == own else np.swapaxes(made, -1, -2)


def _left_out(x: Node, args: Sequence[object], m: Arithmetic, sizes: dict[str, int]) -> np.ndarray:
    """Step after step, over pairs of a read and a write; see `runtime/torch_form/decays.py`."""
    count, (read_late, late) = sizes[ROW], x.attrs
    sizes = {**sizes, COL: count}  # also where weights are the same for all, as where nothing is read
    (channel,) = (a for a in x.axes if a != ROW)
    own = (channel, ROW)
    d = _over(_rows_last(x.args[0], args[0], m, sizes), own, own, sizes)
    places = (own, own, (channel, ROW, COL), own, own, (channel,))
    given = zip(args[1:], x.args[1:], places, strict=True)
    read, write, weights, start, end, both = (_over(v, y.axes, to, sizes) for v, y, to in given)

    def product(*factors: np.ndarray) -> np.ndarray:
        return functools.reduce(m.mul, factors)

    def decays(*spans: range) -> list[np.ndarray]:
        return [d[..., n] for span in spans for n in span]

    found = []
    for t in range(count):
        reads = range(t + 1, count) if read_late else range(t, count)
        writes = range(t) if late else range(t + 1)
        after = {i: range(t + 1, i if read_late else i + 1) for i in reads}
        before = {j: range(j + 1 if late else j, t) for j in writes}
        terms = [product(both, *decays(range(t), range(t + 1, count)))]
        terms += [product(read[..., i], start[..., i], *decays(range(t), after[i])) for i in reads]
        terms += [product(write[..., j], end[..., j], *decays(before[j], range(t + 1, count))) for j in writes]
        for i in reads:
            for j in writes:
                terms.append(product(read[..., i], write[..., j], weights[..., i, j], *decays(before[j], after[i])))
        found.append(functools.reduce(m.add, terms))
    made = stacked(np.broadcast_arrays(*found), axis=-1)
    return made if x.axes == own else np.swapaxes(made, -1, -2)


def _over(value: object, own: tuple[str, ...], axes: tuple[str, ...], sizes: dict[str, int]) -> np.ndarray:
    """A value over some of these axes as one over all of them, in this order."""
    a = np.asarray(value, dtype=object)
    lead = a.ndim - len(own)
    kept = [x for x in axes if x in own]
    a = np.moveaxis(a, [lead + own.index(x) for x in kept], range(lead, a.ndim))
    a = a[(..., *(slice(None) if x in own else None for x in axes))]
    return np.broadcast_to(a, (*a.shape[:lead], *(sizes.get(x, n) for x, n in zip(axes, a.shape[lead:], strict=True))))


CHUNK_OPERATIONS.update(
    order_mask=_mask,
    apart_mask=_mask,
    decay_mask=_mask,
    decay_in=_edge,
    decay_out=_edge,
    decay_all=_all,
    left_out=_left_out,
    inverse=_inverse,
    channel_solve=_channel_solve,
)
