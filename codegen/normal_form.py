"""Pass 3, normalize: find the read-write form of a step program.

    S_t = D_t * S_{t-1} + sum_r l_{r,t} w_{r,t}^T ,   reads y_t = S^T x  or  S x  of a snapshot of the step

The step is interpreted over matrix values `D * S + writes`; each contraction of such a value with a vector becomes a named
read. What doesn't fit raises `NotAffine`, with the term; the caller then falls back to the sequential kernel.

A snapshot says which part of the step a read has seen: `prev` nothing, `mid` the writes before the decay (an adjoint program
has those: q_t dy_t^T enters before the decay), `next` everything. Other snapshots are expanded into these.

States of the forward program are `trajectory` leaves here, also in the forward program itself, so that reads which the
adjoint needs of the forward states are the same nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import replace as dc_replace
from functools import cached_property

from .adjoint import Adjoint, trajectories
from .ir import (
    ONE,
    ZERO,
    Node,
    add,
    canonical_axis,
    depends,
    expand,
    factors_of,
    leaf,
    mul,
    power,
    rebuild,
    rename,
    replace,
    terms_of,
    total,
    walk,
)
from .step import StateVar, StepProgram


class NotAffine(Exception):
    """Why a step program has no read-write form: `term` is the node, `reason` a sentence about it."""

    def __init__(self, reason: str, term: Node) -> None:
        self.reason, self.term = reason, term
        super().__init__(f"{reason}: {term!r}")


@dataclass(frozen=True)
class RawWrite:
    """scalar * left right^T; left over the row axis, right over the column axis."""

    scalar: Node
    left: Node
    right: Node


@dataclass(frozen=True)
class MatrixValue:
    """decay * (S + before) + after, seen over the axes (row, col) that the term uses; None for an axis that S lacks.

    `others` holds further states that are added as a whole, each times a scalar; then all writes are in `after`.
    """

    state: str
    row: str | None
    col: str | None
    decay: Node | None = None
    before: tuple[RawWrite, ...] = ()
    after: tuple[RawWrite, ...] = ()
    others: tuple[tuple[str, Node], ...] = ()


@dataclass(frozen=True)
class Read:
    """`leaf` = the state at `snapshot` contracted with `vector` over its rows (side `row`: S^T x) or columns (`col`: S x)."""

    leaf: Node
    state: str
    side: str
    vector: Node
    snapshot: str


@dataclass(frozen=True)
class Write:
    """left right^T, added after the decay (`late`) or before it. `leaf` names the value of `right` where reads feed it."""

    state: str
    left: Node
    right: Node
    late: bool
    leaf: Node | None = None

    @property
    def value(self) -> Node:
        return self.leaf if self.leaf is not None else self.right


@dataclass(frozen=True)
class StateForm:
    """One state in read-write form: decay * S + sum of mix + writes. `row` is the axis that feedback contracts.

    `decay` is None where there is none.
    """

    name: str
    row: str | None
    col: str | None
    decay: Node | None
    writes: tuple[Write, ...]
    direction: int
    axes: tuple[str, ...]
    mix: tuple[tuple[str, Node], ...] = ()  # previous states of the group that are added as a whole: (name, scalar)

    @property
    def decay_axes(self) -> tuple[str, ...]:
        return self.decay.axes if self.decay is not None else ()


@dataclass(frozen=True)
class Pairing:
    """`leaf` = D_t <S_{t-1}, dS_t> over the decay's axes, at each step, with what both write before their decay.

    Writes and reads change <S, dS> by what they contribute, and a decay keeps it. So it is a sum over the steps that follow:
    of `late` at t and later, of `early` after t, and of <S_n, dS_n>. (d log lambda of the documents: a reverse cumulative sum
    of <q, dq> - <k, dk>.)
    """

    leaf: Node
    state: str
    late: Node
    early: Node


@dataclass(frozen=True)
class Cross:
    """`leaf` = <S_{t-1}, dT_t> for states S and T of one mixed group, dT_t before the step's own reads of T."""

    leaf: Node
    state: str
    gradient: str


@dataclass(frozen=True)
class NormalForm:
    """States in an order in which they can be computed (`groups`: states that feed one another), and all reads."""

    groups: tuple[tuple[StateForm, ...], ...]
    reads: dict[Node, Read]
    values: dict[str, Node]  # what was asked for, over inputs, reads, pairings and write leaves
    pairings: tuple[Pairing, ...] = ()
    crosses: tuple[Cross, ...] = ()

    def state(self, name: str) -> StateForm:
        return next(s for group in self.groups for s in group if s.name == name)

    @cached_property
    def _leaves(self) -> dict[tuple[str, str], Node]:
        named = (*self.reads, *self.write_leaves(), *(p.leaf for p in self.pairings), *(c.leaf for c in self.crosses))
        return {x.attrs[:2]: x for x in named}

    def parts(self, x: Node) -> Iterator[Node]:
        """The reads, solved writes and pairings in a node, whatever their axes are called there (d or d' of a square state)."""
        for y in walk(x):
            if y.op == "leaf" and y.attrs[:2] in self._leaves:
                yield self._leaves[y.attrs[:2]]

    def write_leaves(self) -> dict[Node, tuple[StateForm, Write]]:
        return {w.leaf: (s, w) for group in self.groups for s in group for w in s.writes if w.leaf is not None}


class Interpreter:
    """Interprets nodes over matrix values, and collects reads."""

    def __init__(self, states: dict[str, StateVar], kinds: dict[str, str]) -> None:
        self.states = states  # state name -> declaration
        self.kinds = kinds  # state name -> kind of its leaf (trajectory | state)
        self.by_leaf = {(kinds[n], n): n for n in states}
        self.memo: dict[Node, Node | MatrixValue] = {}
        self.touched: dict[Node, bool] = {}
        self.raw_reads: dict[Node, tuple[MatrixValue, str, Node]] = {}
        self.raw_pairings: dict[Node, tuple[MatrixValue, MatrixValue]] = {}

    # --- values -----------------------------------------------------------------------------------------------------

    def form(self, x: Node) -> Node | MatrixValue:
        if x not in self.memo:
            self.memo[x] = self._form(x)
        return self.memo[x]

    def plain(self, x: Node) -> Node:
        """x over reads; a state that stands there whole is read entry by entry."""
        value = self.form(x)
        return self.whole(value, x) if isinstance(value, MatrixValue) else value

    def whole(self, m: MatrixValue, x: Node) -> Node:
        if m.row is not None and m.col is not None:
            raise NotAffine("the whole state is used, not a product of it with a vector", x)
        return self.read(m, "col" if m.col is None else "row", ONE)

    def _form(self, x: Node) -> Node | MatrixValue:
        if x.op == "leaf":
            kind, name, order = x.attrs
            if (kind, name) not in self.by_leaf:
                return x
            flipped = dict(zip(self.states[name].axes, order, strict=True))
            row, col = (*(flipped[a] for a in self.states[name].axes), None, None)[:2]
            return MatrixValue(name, row, col)
        if not self._touches(x):
            return x
        match x.op:
            case "add":
                return self._add(x)
            case "mul":
                return self._mul(x)
            case "sum":
                return self._sum(x)
            case "expand":
                inner = self.form(x.args[0])
                if isinstance(inner, MatrixValue):
                    raise NotAffine("a state is repeated along another axis", x)
        inner_forms = [(a, self.form(a)) for a in x.args if len(a.axes) == 2]
        if any(isinstance(v, MatrixValue) and {v.row, v.col} >= set(a.axes) for a, v in inner_forms):
            raise NotAffine(f"{x.attrs[0] if x.op == 'fn' else x.op} of the state isn't affine in it", x)
        return rebuild(x, (self.plain(a) for a in x.args))

    def _touches(self, x: Node) -> bool:
        if x not in self.touched:
            self.touched[x] = (x.op == "leaf" and x.attrs[:2] in self.by_leaf) or any(self._touches(a) for a in x.args)
        return self.touched[x]

    def _add(self, x: Node) -> Node | MatrixValue:
        parts = [(a, self.form(a)) for a in x.args]
        matrices = [(a, v) for a, v in parts if isinstance(v, MatrixValue)]
        if not matrices:
            return add(*(v for _, v in parts if isinstance(v, Node)))
        first = matrices[0][1]
        if len({n for _, m in matrices for n in (m.state, *dict(m.others))}) > 1:
            if all(m.row is None or m.col is None for _, m in matrices):
                return add(*(self.plain(a) for a in x.args))
            if len(matrices) > 1:
                return self._mixed(x, parts, [m for _, m in matrices])
        if any((m.row, m.col) != (first.row, first.col) for _, m in matrices):
            raise NotAffine("a state is added to its transpose", x)
        base = first
        for _, m in matrices[1:]:
            if base.before or base.after or m.before or m.after:
                raise NotAffine("the state's update joins two different branches of itself", x)
            base = dc_replace(base, decay=add(base.decay or ONE, m.decay or ONE))
        writes = []
        for _, v in parts:
            if isinstance(v, Node):
                writes += rank_one(v, base.row, base.col)
        if base.decay is None:
            return dc_replace(base, before=base.before + tuple(writes))
        return dc_replace(base, after=base.after + tuple(writes))

    def _mixed(self, x: Node, parts: list[tuple[Node, Node | MatrixValue]], matrices: list[MatrixValue]) -> MatrixValue:
        """A sum of several states: one feeds another as a whole, as momentum does."""
        row, col = matrices[0].row, matrices[0].col
        if any((m.row, m.col) != (row, col) for m in matrices):
            raise NotAffine("a state is added to another's transpose", x)
        coefficients: dict[str, Node] = {}
        writes: list[RawWrite] = []
        for m in map(late_only, matrices):
            assert m.decay is not None
            for name, c in ((m.state, m.decay), *m.others):
                if c.axes:
                    raise NotAffine("a state that is added to another decays channel by channel", x)
                coefficients[name] = add(coefficients.get(name, ZERO), c)
            writes += m.after
        for _, v in parts:
            if isinstance(v, Node):
                writes += rank_one(v, row, col)
        name, *rest = sorted(coefficients, key=list(self.states).index)
        others = tuple((n, coefficients[n]) for n in rest)
        return MatrixValue(name, row, col, coefficients[name], (), tuple(writes), others)

    def _mul(self, x: Node) -> Node | MatrixValue:
        parts = [(a, self.form(a)) for a in x.args]
        matrices = [(a, v) for a, v in parts if isinstance(v, MatrixValue)]
        if not matrices:
            return mul(*(v for _, v in parts if isinstance(v, Node)))
        if len(matrices) > 1:
            if all(m.row is None or m.col is None for _, m in matrices):
                return mul(*(self.plain(a) for a in x.args))
            raise NotAffine("a product of states: the update isn't affine in the state", x)
        node, m = matrices[0]
        others = [v for _, v in parts if isinstance(v, Node)]
        allowed = {a for a in (m.row, m.col) if a}
        if any(len(o.axes) > 1 or not set(o.axes) <= allowed for o in others):
            if m.row is None or m.col is None:
                return mul(*(self.plain(a) for a in x.args))
            raise NotAffine("the state is multiplied by a full matrix, entry by entry", x)
        factor = mul(*others)
        if m.state in self._reads(factor):
            if m.row is None or m.col is None:
                return mul(*(self.plain(a) for a in x.args))
            raise NotAffine("the state is multiplied by something that depends on it", x)
        if (m.row is None or m.col is None) and not positive(factor):
            return mul(self.plain(node), factor)  # no decay: a vector state that is read as a whole, and fed back
        return scaled(m, factor)

    def _matrix_states(self, x: Node) -> set[str]:
        """The states that the terms of a sum hold as a whole."""
        if x.op == "leaf":
            return {x.attrs[1]} if x.attrs[:2] in self.by_leaf and len(x.axes) == 2 else set()
        if x.op in ("add", "mul") and len(x.axes) == 2 and self._touches(x):
            return set().union(*(self._matrix_states(a) for a in x.args))
        return set()

    def _reads(self, x: Node) -> set[str]:
        """The states that x reads."""
        names = {y.attrs[1] for y in walk(x) if y.op == "leaf" and y.attrs[0] == "raw"}
        return {m.state for raw, (m, _, _) in self.raw_reads.items() if raw.attrs[1] in names}

    def _sum(self, x: Node) -> Node:
        (b,) = x.attrs
        if (swapped := self._swapped(x)) is not None:
            return self.plain(swapped)
        factors = factors_of(x.args[0])
        for f in factors:  # a read of several states at once is the sum of its reads
            if f.op == "add" and b in f.axes and len(self._matrix_states(f)) > 1:
                return add(*(self.plain(total(mul(term, *(g for g in factors if g is not f)), b)) for term in f.args))
        values = [(f, self.form(f)) for f in factors]
        matrices = [(f, v) for f, v in values if isinstance(v, MatrixValue) and b in (v.row, v.col)]
        vectors = [f for f, v in matrices if v.row is None or v.col is None]
        if len(matrices) > 1 and vectors:  # vector states are read as a whole, so that none waits for another
            values = [(f, self.plain(f) if f in vectors else v) for f, v in values]
            matrices = [(f, v) for f, v in matrices if f not in vectors]
        if len(matrices) > 1:
            return self._pair(x, b, values, matrices)
        if not matrices:
            return self._summed([self.plain(f) for f in factors], b)
        _, m = matrices[0]
        others = [self.whole(v, f) if isinstance(v, MatrixValue) else v for f, v in values if v is not m]
        inside = [o for o in others if b in o.axes]
        if any(o.axes != (b,) for o in inside) and (m.row is None or m.col is None):
            return total(mul(*(self.plain(f) for f in factors)), b)
        if any(o.axes != (b,) for o in inside):
            raise NotAffine("the state is contracted with a full matrix", x)
        side = "row" if m.row == b else "col"
        kept = m.col if side == "row" else m.row
        if any(kept in o.axes for o in others) and kept is None:
            raise NotAffine("a broadcast of a state", x)
        return mul(self.read(m, side, mul(*inside)), *(o for o in others if b not in o.axes))

    def _summed(self, factors: list[Node], b: str) -> Node:
        """The sum over b of a product without states; a pairing that was summed over its first axis becomes a whole one."""
        inside = [f for f in factors if b in f.axes]
        if len(inside) == 1:
            (f,) = inside
            rest = [g for g in factors if g is not f]
            if f.op == "leaf" and f.attrs[0] == "raw pairing":
                whole = leaf("raw pairing", f"{f.attrs[1]}.{b}")
                self.raw_pairings[whole] = next(v for k, v in self.raw_pairings.items() if k.attrs[1] == f.attrs[1])
                return mul(whole, *rest)
            if f.op == "add" and depends(f, lambda y: y.op == "leaf" and y.attrs[0] == "raw pairing"):
                return add(*(self._summed([*rest, *factors_of(term)], b) for term in f.args))
        return total(mul(*factors), b)

    def _swapped(self, x: Node) -> Node | None:
        """sum_b sum_c w_c S dS as sum_c w_c sum_b S dS, which is a pairing over c with weights."""
        (b,), body = x.attrs, x.args[0]
        factors = factors_of(body)
        for f in factors:
            rest = [g for g in factors if g is not f]
            if f.op != "sum" or b not in f.axes or any(b in g.axes for g in rest):
                continue
            (c,), inner = f.attrs, factors_of(f.args[0])
            weights = [g for g in inner if g.axes == (c,)]
            if not weights or sum(bool(self._matrix_states(g)) for g in inner) != 2:
                continue
            fresh = {c: canonical_axis(c, {*body.axes, b})}
            pair = total(mul(*(rename(g, fresh) for g in inner if g not in weights)), b)
            return total(mul(*rest, *(rename(g, fresh) for g in weights), pair), fresh[c])
        return None

    def _pair(
        self, x: Node, b: str, values: list[tuple[Node, Node | MatrixValue]], matrices: list[tuple[Node, MatrixValue]]
    ) -> Node:
        """<S, dS> summed over one axis: what a decay's gradient needs of both states."""
        kinds = sorted((self.kinds[m.state], m.state) for _, m in matrices)
        others = [v for _, v in values if isinstance(v, Node)]
        if (
            [k for k, _ in kinds] != ["state", "trajectory"]
            or any(m.others for _, m in matrices)
            or len(matrices) + len(others) != len(values)
            or len({(m.row, m.col) for _, m in matrices}) != 1
            or any(b in o.axes for o in others)
        ):
            raise NotAffine("a product of states is summed: the term isn't affine in the state", x)
        pair = sorted((m for _, m in matrices), key=lambda m: self.kinds[m.state], reverse=True)
        here = self._declared_axes(pair[0])
        first, second = (_renamed_value(m, here, *self._row_and_col(m.state)) for m in pair)
        rest = tuple(a for a in (first.row, first.col) if a is not None and a != here[b])
        key = f"{first.state}.{make_key(first, '', ONE)}.{make_key(second, '', ONE)}.{here[b]}"
        node = leaf("raw pairing", key, rest)
        self.raw_pairings[node] = (first, second)
        back = {there: a for a, there in here.items()}
        return mul(rename(node, {a: back[a] for a in rest}), *others)

    def _row_and_col(self, state: str) -> tuple[str | None, str | None]:
        row, col = (*self.states[state].axes, None, None)[:2]
        return row, col

    def _declared_axes(self, m: MatrixValue) -> dict[str, str]:
        """The axes of a matrix value, as the term at hand has them -> as the state declares them."""
        row, col = self._row_and_col(m.state)
        return {a: b for a, b in ((m.row, row), (m.col, col)) if a is not None and b is not None}

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(self, m: MatrixValue, side: str, vector: Node) -> Node:
        """The read of a matrix value, as a leaf of kind `raw`. Scalars are taken out of the vector."""
        if m.others:
            assert m.decay is not None
            parts = [
                mul(c, self.read(MatrixValue(n, m.row, m.col), side, vector))
                for n, c in ((m.state, m.decay), *m.others)
            ]
            return add(*parts, *(contracted(w, side, vector, m.row if side == "row" else m.col) for w in m.after))
        scalar, core = split_scalars(vector)
        row, col = self._row_and_col(m.state)
        here = self._declared_axes(m)
        canonical = _renamed_value(m, here, row, col)
        core = _swap(core, here)
        out = (col if side == "row" else row,)
        axes = tuple(a for a in out if a is not None)
        key = make_key(canonical, side, core)
        raw = leaf("raw", key, axes)
        self.raw_reads[raw] = (canonical, side, core)
        back = {b: a for a, b in here.items()}
        return mul(scalar, rename(raw, {a: back[a] for a in axes}))


def make_key(m: MatrixValue, side: str, vector: Node) -> str:
    parts = [m.state, side, vector.key, m.decay.key if m.decay is not None else ""]
    parts += [n + c.key for n, c in m.others]
    for group in (m.before, m.after):
        parts.append("|")
        parts += sorted(mul(w.scalar, w.left).key + w.right.key for w in group)
    import hashlib

    return hashlib.blake2b("".join(parts).encode(), digest_size=8).hexdigest()


def _swap(x: Node, mapping: dict[str, str]) -> Node:
    """Rename, also where names trade places."""
    return rename(x, {a: b for a, b in mapping.items() if a in x.axes})


def _renamed_value(m: MatrixValue, here: dict[str, str], row: str | None, col: str | None) -> MatrixValue:
    def write(w: RawWrite) -> RawWrite:
        return RawWrite(w.scalar, _swap(w.left, here), _swap(w.right, here))

    return MatrixValue(
        m.state,
        row,
        col,
        None if m.decay is None else _swap(m.decay, here),
        tuple(write(w) for w in m.before),
        tuple(write(w) for w in m.after),
        m.others,
    )


def scaled(m: MatrixValue, factor: Node) -> MatrixValue:
    """factor * m. Writes that came after an earlier decay are scaled, and stay after it."""
    if factor is ONE:
        return m
    if m.decay is None:
        return dc_replace(m, decay=factor)
    if m.others and factor.axes:
        raise NotAffine("states that are added to each other are scaled channel by channel", factor)
    return dc_replace(
        m,
        decay=mul(m.decay, factor),
        after=tuple(scaled_write(w, factor, m.row, m.col) for w in m.after),
        others=tuple((n, mul(c, factor)) for n, c in m.others),
    )


def late_only(m: MatrixValue) -> MatrixValue:
    """The same value with every write after the decay."""
    decay = ONE if m.decay is None else m.decay
    moved = tuple(scaled_write(w, decay, m.row, m.col) for w in m.before)
    return dc_replace(m, decay=decay, before=(), after=(*moved, *m.after))


def contracted(w: RawWrite, side: str, vector: Node, axis: str | None) -> Node:
    """What a read with `vector` takes of a write."""
    along, across = (w.left, w.right) if side == "row" else (w.right, w.left)
    product = mul(along, vector)
    return mul(w.scalar, total(product, axis) if axis is not None else product, across)


def scaled_write(w: RawWrite, factor: Node, row: str | None, col: str | None) -> RawWrite:
    scalars: list[Node] = []
    rows: list[Node] = []
    cols: list[Node] = []
    for f in factors_of(factor):
        (scalars if not f.axes else rows if f.axes == (row,) else cols).append(f)
    return RawWrite(mul(w.scalar, *scalars), mul(w.left, *rows), mul(w.right, *cols))


def split_scalars(x: Node) -> tuple[Node, Node]:
    """x as (scalar factors, the rest)."""
    factors = factors_of(x)
    return mul(*(f for f in factors if not f.axes)), mul(*(f for f in factors if f.axes))


def rank_one(x: Node, row: str | None, col: str | None) -> list[RawWrite]:
    """A term over (row, col) as a sum of products left right^T."""
    if x is ZERO:
        return []
    if x.op == "expand" and len(x.args[0].axes) < 2:
        x = x.args[0]
    if x.op == "add" and len(x.axes) == 2:
        return [w for a in x.args for w in rank_one(a, row, col)]
    scalars: list[Node] = []
    rows: list[Node] = []
    cols: list[Node] = []
    both: list[Node] = []
    for f in factors_of(x):
        over = set(f.axes)
        if not over <= {row, col}:
            raise NotAffine("a write uses an axis that the state lacks", x)
        group = scalars if not over else rows if over == {row} else cols if over == {col} else both
        group.append(f)
    if not both:
        return [RawWrite(mul(*scalars), mul(*rows), mul(*cols))]
    if len(both) > 1 or both[0].op != "add":
        raise NotAffine("what is written isn't an outer product of two vectors", x)
    return [
        RawWrite(mul(w.scalar, *scalars), mul(w.left, *rows), mul(w.right, *cols)) for w in rank_one(both[0], row, col)
    ]


# --- from raw reads and writes to the canonical form ----------------------------------------------------------------


@dataclass
class _Draft:
    """A state on its way to canonical form."""

    name: str
    value: MatrixValue
    direction: int
    flipped: bool = False


def normalize(program: StepProgram) -> NormalForm:
    """The read-write form of a forward program."""
    from .refusal import spelled_out

    to_trajectory = trajectories(program, *program.updates.values(), *program.outputs.values())
    interpreter = Interpreter({s.name: s for s in program.states}, {s.name: "trajectory" for s in program.states})
    with spelled_out(interpreter) as spelling:
        drafts = _drafts(interpreter, program, to_trajectory)
        values = {n: interpreter.plain(replace(x, to_trajectory)) for n, x in program.outputs.items()}
        canonical = _Canonical(interpreter, drafts, values)
        spelling.reads, spelling.snapshots = canonical.reads, canonical.final
        return canonical.form()


def normalize_adjoint(a: Adjoint) -> NormalForm:
    """The read-write form of an adjoint program together with the forward states whose trajectory it reads."""
    from .refusal import spelled_out

    to_trajectory = trajectories(a.forward, *a.forward.updates.values(), *a.forward.outputs.values())
    states = {s.name: s for s in (*a.forward.states, *a.program.states)}
    kinds = {s.name: "trajectory" for s in a.forward.states} | {s.name: "state" for s in a.program.states}
    interpreter = Interpreter(states, kinds)
    with spelled_out(interpreter) as spelling:
        drafts = _drafts(interpreter, a.forward, to_trajectory) + _drafts(interpreter, a.program, {})
        values = {n: interpreter.plain(x) for n, x in a.program.outputs.items()}
        canonical = _Canonical(interpreter, drafts, values)
        spelling.reads, spelling.snapshots = canonical.reads, canonical.final
        return canonical.form()


def _drafts(interpreter: Interpreter, program: StepProgram, to_trajectory: dict[Node, Node]) -> list[_Draft]:
    drafts = []
    for s in program.states:
        node = replace(program.updates[s.name], to_trajectory)
        value = interpreter.form(node)
        if not isinstance(value, MatrixValue):
            row, col = (*s.axes, None, None)[:2]  # the update forgets the state at each step
            value = MatrixValue(s.name, row, col, ZERO, (), tuple(rank_one(value, row, col)))
        if value.state != s.name:
            value = _based_on(value, s.name)
        if (value.row, value.col) != (*s.axes, None, None)[:2]:
            raise NotAffine("the state is transposed in each step", node)
        if value.decay is not None and len(value.decay.axes) > 1:
            raise NotAffine("the decay runs over both axes of the state, entry by entry", value.decay)
        drafts.append(_Draft(s.name, value, program.direction))
    mixed = mixed_states(drafts)
    for d in drafts:
        if d.name in mixed:
            d.value = late_only(d.value)
            if d.value.decay is not None and d.value.decay.axes:
                raise NotAffine("a state that is added to another decays channel by channel", d.value.decay)
        elif d.value.decay not in (None, ZERO) and not positive(d.value.decay):
            raise NotAffine(
                "this decay may be zero or negative: declare it with r.decay, or write it as exp(...) or sigmoid(...)",
                d.value.decay,
            )
    return drafts


def mixed_states(drafts: Iterable[_Draft]) -> set[str]:
    """States that are added to others, or have others added to them."""
    return {n for d in drafts if d.value.others for n in (d.name, *dict(d.value.others))}


def _based_on(m: MatrixValue, name: str) -> MatrixValue:
    """A sum of states, as an update of the state `name`."""
    m = late_only(m)
    assert m.decay is not None
    coefficients = {m.state: m.decay, **dict(m.others)}
    if any(c.axes for c in coefficients.values()):
        raise NotAffine("a state that is added to another decays channel by channel", m.decay)
    own = coefficients.pop(name, ZERO)
    return dc_replace(m, state=name, decay=own, others=tuple(coefficients.items()))


def positive(x: Node) -> bool:
    """Is x > 0 whatever the inputs?"""
    match x.op:
        case "leaf":
            return x.attrs[0].startswith("decay")
        case "const":
            return x.attrs[0] > 0
        case "mul":
            return all(positive(a) for a in x.args)
        case "add":
            return all(positive(a) for a in x.args) or below_one(x) is not None
        case "pow":
            return positive(x.args[0])
        case "fn":
            return x.attrs[0] in ("exp", "sigmoid", "softplus")
    return False


def below_one(x: Node) -> Node | None:
    """y where x = 1 - sigmoid(y), which is sigmoid(-y)."""
    rest = add(1, mul(-1, x))
    return rest.args[0] if rest.op == "fn" and rest.attrs[0] == "sigmoid" else None


class _Canonical:
    def __init__(
        self,
        interpreter: Interpreter,
        drafts: list[_Draft],
        values: dict[str, Node],
    ) -> None:
        self.i = interpreter
        self.pairings: dict[str, tuple[Node, Node]] = {}  # state -> what is added to its pairing, see `pairings.py`
        self.drafts = {d.name: d for d in drafts}
        self.values = values
        self.mixed = mixed_states(drafts)
        self.crosses: dict[Node, Cross] = {}
        self.final: dict[str, MatrixValue] = {}
        self.reads: dict[Node, Read] = {}
        self.replacement: dict[Node, Node] = {}

    def form(self) -> NormalForm:
        for d in self.drafts.values():
            self.final[d.name] = self._phases(d)
        for raw in list(self.i.raw_reads):
            self._canonical_read(raw)
        for raw in list(self.i.raw_pairings):
            self._canonical_pairing(raw)
        groups = self._groups()
        formed: list[tuple[StateForm, ...]] = []
        for group in groups:
            formed.append(self._group(group))
        leaves = {w.right: w.leaf for g in formed for s in g for w in s.writes if w.leaf is not None}
        values = {n: replace(self._rewritten(x), leaves) for n, x in self.values.items()}
        pairings = tuple(
            Pairing(
                leaf("pairing", n, self.drafts[n].value.decay.axes),  # type: ignore[union-attr]
                n,
                *(replace(self._rewritten(x), leaves) for x in parts),
            )
            for n, parts in self.pairings.items()
        )
        formed = [tuple(self._known(s, leaves) for s in g) for g in formed]
        reads = {r.leaf: dc_replace(r, vector=replace(self._rewritten(r.vector), leaves)) for r in self.reads.values()}
        values = {n: self._shortened(x, formed) for n, x in values.items()}
        wanted = [*values.values(), *(x for p in pairings for x in (p.late, p.early))]
        needed = self._needed(wanted, formed, reads)
        crosses = tuple(self.crosses.values())
        return NormalForm(tuple(formed), {n: r for n, r in reads.items() if n in needed}, values, pairings, crosses)

    def _shortened(self, x: Node, formed: list[tuple[StateForm, ...]]) -> Node:
        """x without reads that a solved write already tells: w = c + g y gives g y = w - c, wherever g divides the term."""
        for w in (w for g in formed for s in g for w in s.writes if w.leaf is not None):
            parts = affine_terms(w.right, lambda y: y in self.reads)
            fed = [(c, y) for _, c, y in parts if y is not None]
            if len(fed) != 1:
                continue
            assert w.leaf is not None
            (coefficient, read), rest = fed[0], [t for t, _, y in parts if y is None]
            known = mul(*(power(f, -1) for f in factors_of(coefficient)), add(w.leaf, mul(-1, add(*rest))))
            terms = []
            for term in terms_of(x):
                shorter = replace(term, {read: known})
                before = {y for y in walk(term) if y.op == "pow"}
                terms.append(shorter if all(y in before for y in walk(shorter) if y.op == "pow") else term)
            x = expand(add(*terms), x.axes)
        return x

    def _known(self, s: StateForm, leaves: dict[Node, Node]) -> StateForm:
        """Known writes that repeat a solved one use its leaf."""
        return dc_replace(
            s,
            writes=tuple(
                w if w.leaf is not None else dc_replace(w, left=replace(w.left, leaves), right=replace(w.right, leaves))
                for w in s.writes
            ),
        )

    def _needed(self, wanted: list[Node], formed: list[tuple[StateForm, ...]], reads: dict[Node, Read]) -> set[Node]:
        roots = [*wanted]
        for g in formed:
            for s in g:
                roots += [w.left for w in s.writes] + [w.right for w in s.writes] + [c for _, c in s.mix]
                roots += [] if s.decay is None else [s.decay]
        seen: set[Node] = set()
        stack = roots
        while stack:
            for x in walk(stack.pop()):
                if x.op == "leaf" and x.attrs[0] == "read" and (x := self._natural(x)) not in seen:
                    seen.add(x)
                    stack.append(reads[x].vector)
        return seen

    # where the phases of a step lie

    def _phases(self, d: _Draft) -> MatrixValue:
        """The update with its writes before and after the decay; without a decay, before and after the snapshot read most."""
        v = d.value
        seen = [m for m, _, _ in self.i.raw_reads.values() if m.state == d.name and m.decay is None and m.before]
        if v.decay is None:
            partial = [set(m.before) for m in seen if set(m.before) < set(v.before)]
            mid: set[RawWrite] = min(partial, key=len) if partial else set()
            return dc_replace(
                v,
                decay=None,
                before=tuple(w for w in v.before if w in mid),
                after=tuple(w for w in v.before if w not in mid),
            )
        if any(set(m.before) <= set(v.before) for m in seen):
            return v
        return dc_replace(
            v,
            before=(),
            after=(*(scaled_write(w, v.decay, v.row, v.col) for w in v.before), *v.after),
        )

    # reads

    def _rewritten(self, x: Node) -> Node:
        while True:
            raw = {y for y in walk(x) if y.op == "leaf" and y.attrs[0] in ("raw", "raw pairing")}
            if not raw:
                return x
            x = replace(x, {y: self._lookup(y) for y in raw})

    def _lookup(self, y: Node) -> Node:
        """A raw read leaf, possibly over renamed axes."""
        kind, key, axes = y.attrs
        original = next(r for r in (*self.i.raw_reads, *self.i.raw_pairings) if r.attrs[:2] == (kind, key))
        if original not in self.replacement:
            raise NotAffine("the state and its gradient are multiplied entry by entry", y)
        return rename(self.replacement[original], dict(zip(original.attrs[2], axes, strict=True)))

    def _canonical_read(self, raw: Node) -> None:
        if raw in self.replacement:
            return
        m, side, vector = self.i.raw_reads[raw]
        update, final = self.drafts[m.state].value, self.final[m.state]
        axis = m.row if side == "row" else m.col
        if (
            not update.others
            and m.decay is update.decay
            and set(m.before) == set(update.before)
            and set(m.after) == set(update.after)
        ):
            self.replacement[raw] = self._read(m.state, "next", side, vector)
            return
        extra = [*m.after]
        decay = m.decay
        snapshot = "prev"
        if final.before and set(final.before) <= set(m.before):
            snapshot = "mid"
            inner = [w for w in m.before if w not in set(final.before)]
        else:
            inner = list(m.before)
        if decay is not None:
            extra += [scaled_write(w, decay, m.row, m.col) for w in inner]
        else:
            extra += inner
        inside: list[Node] = [vector]
        outside: list[Node] = []
        for f in factors_of(decay) if decay is not None else ():
            (inside if f.axes == (axis,) else outside).append(f)
        scalar, core = split_scalars(mul(*inside))
        parts = [mul(scalar, *outside, self._read(m.state, snapshot, side, core))]
        parts += [contracted(w, side, vector, axis) for w in extra]
        self.replacement[raw] = add(*parts)

    def _canonical_pairing(self, raw: Node) -> None:
        first, second = self.i.raw_pairings[raw]
        forward = self.drafts[first.state].value
        decay = forward.decay
        if first.state in self.mixed and second.state in self.mixed:
            if not raw.axes:
                self.replacement[raw] = self._cross(late_only(first), late_only(second))
            return
        if second.state != f"d{first.state}" or decay is None:
            raise NotAffine("the state is scaled at several places of the step", raw)
        if not set(raw.axes) <= set(decay.axes):
            return  # one axis of the two is summed so far: `_sum` does the other
        from .pairings import pairing_terms, pairing_value

        ahead, back = self.final[first.state], self.final[second.state]
        if first.state not in self.pairings:
            self.pairings[first.state] = pairing_terms(self.i, forward, ahead, back)
        self.replacement[raw] = pairing_value(self.i, raw.axes, first, second, ahead, back)
        for new in list(self.i.raw_reads):
            self._canonical_read(new)

    def _cross(self, first: MatrixValue, second: MatrixValue) -> Node:
        """<first, second> from the states before the step, and what the step has written so far."""
        assert first.decay is not None and second.decay is not None
        node = leaf("pairing", f"{first.state}.{second.state}")
        self.crosses[node] = Cross(node, first.state, second.state)
        row = first.row

        def product(state: str, w: RawWrite) -> Node:
            scalar, core = split_scalars(w.right)
            read = mul(w.left, self._read(state, "prev", "col", core))
            return mul(w.scalar, scalar, total(read, row) if row is not None else read)

        parts = [mul(first.decay, second.decay, node)]
        parts += [mul(first.decay, product(first.state, w)) for w in second.after]
        parts += [mul(second.decay, product(second.state, w)) for w in first.after]
        for a in first.after:
            for b in second.after:
                inner = mul(total(mul(a.left, b.left), first.row), total(mul(a.right, b.right), first.col))  # type: ignore[arg-type]
                parts.append(mul(a.scalar, b.scalar, inner))
        return add(*parts)

    def _read(self, state: str, snapshot: str, side: str, vector: Node) -> Node:
        s = self.i.states[state]
        row, col = (*s.axes, None, None)[:2]
        out = col if side == "row" else row
        node = leaf("read", f"{state}.{snapshot}.{side}.{vector.key[:10]}", () if out is None else (out,))
        self.reads[node] = Read(node, state, side, vector, snapshot)
        return node

    def _read_at(self, x: Node) -> Read | None:
        """The read that a leaf stands for, whatever its axis is called (d or d' of a square state)."""
        return self.reads.get(self._natural(x)) if x.op == "leaf" and x.attrs[0] == "read" else None

    def _natural(self, x: Node) -> Node:
        """The leaf of a read, over the axis that the state leaves."""
        return next(y for y in self.reads if y.attrs[1] == x.attrs[1])

    # groups of states that feed one another

    def _groups(self) -> list[list[str]]:
        import networkx as nx

        graph: nx.DiGraph = nx.DiGraph()
        graph.add_nodes_from(self.drafts)
        for name, final in self.final.items():
            for w in (*final.before, *final.after):
                for other in self._states_in(mul(w.scalar, w.left, w.right)):
                    graph.add_edge(other, name)
            for c in (final.decay, *(c for _, c in final.others)):
                if c is not None:
                    graph.add_edges_from((other, name) for other in self._states_in(c))
            for other, _ in final.others:  # states that are added to each other are swept together
                graph.add_edges_from([(other, name), (name, other)])
        condensed = nx.condensation(graph)
        declared = list(self.drafts).index
        members = {c: sorted(condensed.nodes[c]["members"], key=declared) for c in condensed}
        return [
            members[c] for c in nx.lexicographical_topological_sort(condensed, key=lambda c: declared(members[c][0]))
        ]

    def _states_in(self, x: Node) -> set[str]:
        found: set[str] = set()
        stack = [self._rewritten(x)]
        while stack:
            for y in walk(stack.pop()):
                if (r := self._read_at(y)) is not None:
                    found.add(r.state)
                    stack.append(self._rewritten(r.vector))
        return found

    def _group(self, names: list[str]) -> tuple[StateForm, ...]:
        own = set(names)
        drafts = {n: self._merged(n) for n in names}

        def feeds(x: Node) -> bool:
            return bool(self._states_in(x) & own)

        flipped = set()
        for n, writes in drafts.items():
            for w, _ in writes:
                if feeds(w.scalar):
                    raise NotAffine("a write is scaled by something that depends on the state", w.scalar)
            fed = [w for w, _ in writes if feeds(w.left)]
            if fed and any(feeds(w.right) for w, _ in writes):
                raise NotAffine("a write multiplies two reads of the state", mul(fed[0].left, fed[0].right))
            if fed:
                flipped.add(n)
        if flipped and own & self.mixed:
            flipped = own
            if any(feeds(w.right) for n in own for w, _ in drafts[n]):
                raise NotAffine(
                    "states that are added to each other are read from both sides", self.final[names[0]].decay or ONE
                )
        for n in names:
            if n in flipped:
                self._flip_reads(n)
        if own & self.mixed and not own <= self.mixed:
            raise NotAffine(
                "a state feeds states that are added to each other, and is fed by them",
                self.final[names[0]].decay or ONE,
            )
        out = []
        for n in names:
            final = self.final[n]
            row, col = final.row, final.col
            writes = drafts[n]
            if final.decay is not None and feeds(final.decay):
                raise NotAffine("the decay depends on the state", final.decay)
            if n in flipped:
                row, col = col, row
            decay = self._rewritten(final.decay) if final.decay is not None else None
            made = []
            for raw, late in writes:
                left, right = (raw.right, raw.left) if n in flipped else (raw.left, raw.right)
                named = None
                if feeds(right):
                    self._check_affine(right, own)
                    named = leaf("write", right.key[:10], right.axes)
                made.append(Write(n, mul(raw.scalar, left), right, late, named))
            mix = tuple((o, self._rewritten(c)) for o, c in final.others)
            if any(feeds(c) for _, c in mix):
                raise NotAffine("what a state is scaled by depends on the states", mix[0][1])
            direction, axes = self.drafts[n].direction, self.i.states[n].axes
            out.append(StateForm(n, row, col, decay, tuple(made), direction, axes, mix))
        return tuple(out)

    def _flip_reads(self, state: str) -> None:
        for node, r in self.reads.items():
            if r.state == state:
                self.reads[node] = dc_replace(r, side="col" if r.side == "row" else "row")

    def _merged(self, name: str) -> list[tuple[RawWrite, bool]]:
        """Writes of one phase that share their left vector (or their right one) become one."""
        final = self.final[name]
        out: list[tuple[RawWrite, bool]] = []
        for late, group in ((False, final.before), (True, final.after)):
            raw = [
                RawWrite(self._rewritten(w.scalar), self._rewritten(w.left), self._rewritten(w.right)) for w in group
            ]
            raw = [
                RawWrite(mul(w.scalar, *_scalars(w.left, w.right)), *(split_scalars(x)[1] for x in (w.left, w.right)))
                for w in raw
            ]
            by_left: dict[Node, list[RawWrite]] = {}
            for w in raw:
                by_left.setdefault(w.left, []).append(w)
            singles: list[RawWrite] = []
            for left, same in by_left.items():
                if len(same) == 1:
                    singles += same
                    continue
                common = same[0].scalar if len({w.scalar for w in same}) == 1 else ONE
                right = add(*(mul(w.right if common is not ONE else mul(w.scalar, w.right)) for w in same))
                singles.append(RawWrite(common, left, right))
            by_right: dict[Node, list[RawWrite]] = {}
            for w in singles:
                by_right.setdefault(w.right, []).append(w)
            for right, same in by_right.items():
                if right is not ONE or len(same) == 1:
                    out += [(w, late) for w in same]
                else:
                    out.append((RawWrite(ONE, add(*(mul(w.scalar, w.left) for w in same)), right), late))
        return out

    def _check_affine(self, x: Node, own: set[str]) -> None:
        """x = c + sum of coefficient * read: what the triangular solve needs."""
        for term, coefficient, read in affine_terms(x, lambda y: y in self.reads and self.reads[y].state in own):
            if read is None:
                if self._states_in(term) & own:
                    raise NotAffine("what is written isn't affine in what is read", term)
                continue
            if self._states_in(coefficient) & own:
                raise NotAffine("what is written isn't affine in what is read", term)
            r = self.reads[read]
            if r.side != "row":
                raise NotAffine("what is written reads the state from its other side", term)
            if self._states_in(r.vector) & own:
                raise NotAffine("the state is read with a vector that depends on the state", term)


def _scalars(*nodes: Node) -> Iterable[Node]:
    return [split_scalars(x)[0] for x in nodes]


def affine_terms(x: Node, is_read: object) -> list[tuple[Node, Node, Node | None]]:
    """x as a list of (term, coefficient, read): the term is coefficient * read, or has no read at its top level.

    A coefficient is a scalar, or scales the read entry by entry.
    """
    out: list[tuple[Node, Node, Node | None]] = []
    for term in terms_of(x):
        factors = factors_of(term)
        reads = [f for f in factors if is_read(f)]  # type: ignore[operator]
        sums = [f for f in factors if f.op == "add" and any(is_read(y) for y in walk(f))]  # type: ignore[operator]
        if len(reads) == 1 and not sums:
            out.append((term, mul(*(f for f in factors if f is not reads[0])), reads[0]))
        elif len(sums) == 1 and not reads:
            rest = mul(*(f for f in factors if f is not sums[0]))
            out += [(mul(rest, t), mul(rest, c), r) for t, c, r in affine_terms(sums[0], is_read)]
        else:
            out.append((term, term, None))
    return out
