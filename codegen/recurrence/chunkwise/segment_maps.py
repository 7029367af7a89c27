"""The affine map of a segment: what a sweep over some steps makes of the states that enter it.

    S_out = A (S_in) + b

Composing the maps of segments is what fills a GPU that few heads leave idle, and what the GPUs of a group exchange when they
share a sequence. b is the sweep from zero states. A is the same sweep with its constants set to zero, from the identity:

    a number or a vector    the product of the decays, where no write depends on a read of the states
    a small matrix          ... where states are added to each other, one entry for each pair of them
    a matrix [row, row']    where writes depend on reads; for each column of its own where feedback differs between columns
    1                       where nothing decays

Both are nodes over the streams of a chunk program (see `chunk_program.py`), for a segment of any length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from ...ir.expr import ONE, ZERO, Node, add, canonical_axis, dim_of, eye, leaf, mul, rename, total
from ..normal_form.form import Read, StateForm, Write, affine_terms
from .chunk_program import Builder
from .plan import Plan, Sweep

Pair = tuple[str, str]  # (the state that comes out, the state that goes in)


@dataclass(frozen=True)
class Affine:
    """An affine map of the states of a group. A block of `linear` that isn't there is zero.

    A block that has the axis `inner[row]` is a matrix, which sums over the entering state's rows; any other scales entry by
    entry.
    """

    group: tuple[StateForm, ...]
    linear: dict[Pair, Node]
    local: dict[str, Node]

    @cached_property
    def inner(self) -> dict[str, str]:
        return inner_axes(self.group)

    def is_matrix(self, to: str, of: str) -> bool:
        row = self._state(of).row
        return row is not None and self.inner[row] in self.linear[to, of].axes

    @cached_property
    def shape(self) -> dict[Pair, tuple[str, ...]]:
        """The axes of each block, wide enough that composing two maps of this shape gives one of this shape."""
        axes = {pair: set(x.axes) for pair, x in self.linear.items()}
        known: dict[Pair, set[str]] = {}
        while known != axes:
            known = axes
            some = Affine(self.group, {p: leaf("block", "|".join(p), sorted(a)) for p, a in known.items()}, {})
            product = some._composed_with(some)
            axes = {p: known.get(p, set()) | set(product[p].axes if p in product else ()) for p in {**known, **product}}
        order = [s.name for s in self.group]
        return {p: tuple(sorted(axes[p])) for p in sorted(axes, key=lambda p: [order.index(n) for n in p])}

    def applied(self, states: dict[str, Node]) -> dict[str, Node]:
        """The states that come out when `states` go in."""
        return {s.name: add(self._through(s.name, states), self.local[s.name]) for s in self.group}

    def after(self, earlier: Affine) -> Affine:
        """The map of two segments in the order of the sweep, `earlier` and then this one: (A A', A b' + b)."""
        local = {s.name: add(self._through(s.name, earlier.local), self.local[s.name]) for s in self.group}
        return Affine(self.group, self._composed_with(earlier), local)

    def transposed(self, group: tuple[StateForm, ...]) -> dict[Pair, Node]:
        """The linear part of the adjoint's map, whose states are `group`: each is named after its state, with a d before it."""
        out: dict[Pair, Node] = {}
        for (to, of), x in self.linear.items():
            rows = {n: self._state(n).row for n in (to, of)}
            moved: dict[str, str] = {}
            if self.is_matrix(to, of) and rows[of] is not None:
                moved[self.inner[rows[of]]] = rows[of]  # type: ignore[index, assignment]
            if moved or rows[of] is None:
                moved |= {row: self.inner[row] for row in (rows[to],) if row is not None}
            out[f"d{of}", f"d{to}"] = rename(x, moved)
        return out

    def _composed_with(self, earlier: Affine) -> dict[Pair, Node]:
        linear: dict[Pair, Node] = {}
        for (to, mid), a in self.linear.items():
            for (via, of), b in earlier.linear.items():
                if via == mid:
                    linear[to, of] = add(linear.get((to, of), ZERO), self._product(mid, a, b))
        return linear

    def _through(self, to: str, states: dict[str, Node]) -> Node:
        pairs = [(mid, a) for (name, mid), a in self.linear.items() if name == to]
        return add(*(self._product(mid, a, states[mid]) for mid, a in pairs))

    def _product(self, mid: str, a: Node, x: Node) -> Node:
        """A block applied to what leaves the state `mid`: a state, or another block."""
        row = self._state(mid).row
        if row is None or self.inner[row] not in a.axes:  # entry by entry
            return mul(a, x)
        between = canonical_axis(row, {*a.axes, *x.axes})
        return total(mul(rename(a, {self.inner[row]: between}), rename(x, {row: between})), between)

    def _state(self, name: str) -> StateForm:
        return next(s for s in self.group if s.name == name)


@dataclass(frozen=True)
class SegmentMap:
    """The map of a segment of a sweep, over the sweep's streams. `definitions` are computed once, in order."""

    affine: Affine
    streams: dict[Node, Node]
    decays: frozenset[Node]
    definitions: dict[Node, Node]
    direction: int


def segment_map(group: tuple[StateForm, ...], solve: bool, table: dict[Node, Read]) -> SegmentMap:
    """The map of a segment. Where not `solve`, writes are known, and what they depend on is no concern of the map."""
    programs = [_Local(group, (), solve, table).build()]
    linear: dict[Pair, Node] = {}
    for of in group:
        programs.append(_Linear(group, solve, table, of).build())
        linear |= {(to, of.name): x for to, x in programs[-1].states.items() if x is not ZERO}
    streams = {x: node for p in programs for x, node in p.streams.items()}
    definitions = {x: node for p in programs for x, node in p.definitions.items()}
    decays = frozenset(x for p in programs for x in p.decays)
    return SegmentMap(Affine(group, linear, programs[0].states), streams, decays, definitions, group[0].direction)


def inner_axes(group: tuple[StateForm, ...]) -> dict[str, str]:
    """For each row axis of a group the axis of its entering states, over which a matrix sums."""
    taken = {a for s in group for a in s.axes}
    inner: dict[str, str] = {}
    for s in group:
        if s.row is not None and s.row not in inner:
            inner[s.row] = canonical_axis(s.row, taken)
            taken.add(inner[s.row])
    return inner


def feeds_back(group: tuple[StateForm, ...], solve: bool) -> bool:
    """Do writes of the group depend on reads of its states?"""
    return solve and any(w.leaf is not None for s in group for w in s.writes)


def linear_sweep(group: tuple[StateForm, ...], table: dict[Node, Read]) -> Sweep | None:
    """The sweep whose last states are a matrix A where they start from the identity, [row, row']: constants set to zero.

    None where A isn't a state of a sweep, as `why_no_sweep` says.
    """
    if why_no_sweep(group, table) is not None:
        return None
    inner = inner_axes(group)
    columns = {s.col: inner[s.row] for s in group if s.col is not None and s.row is not None}
    names = tuple(s.name for s in group)
    forms = {s.name: s for s in group}
    writers = {w.leaf: s for s in group for w in s.writes if w.leaf is not None}

    def moved_to(x: Node, s: StateForm) -> Node:
        """What is read of s or written to it, over the columns of A; of a vector it is a number, and gets these."""
        kind, name, axes = x.attrs
        return rename(x, columns) if s.col is not None else leaf(kind, name, (*axes, inner[s.row or ""]))

    states = []
    for s in group:
        assert s.row is not None
        writes = []
        for w in (w for w in s.writes if w.leaf is not None):
            fed = _fed(w, names, table, writers)
            right = add(
                *(mul(scale, moved_to(x, writers[x] if x in writers else forms[table[x].state])) for scale, x in fed)
            )
            writes.append(replace(w, right=right, leaf=moved_to(w.value, s)))
        states.append(replace(s, col=inner[s.row], axes=(s.row, inner[s.row]), writes=tuple(writes)))
    reads = {moved_to(x, forms[r.state]): r for x, r in table.items() if r.state in names}
    own = {x: replace(r, leaf=x) for x, r in reads.items()}
    moved = tuple(states)
    return Sweep(moved, True, "row", (), names, Builder(moved, (), True, own).build())


def why_no_sweep(group: tuple[StateForm, ...], table: dict[Node, Read]) -> str | None:
    """Why the matrix of a segment's map isn't a state of a sweep, in words; None where it is."""
    names = tuple(s.name for s in group)
    columns = {s.col for s in group if s.col is not None}
    if columns and any(s.col is None for s in group):
        return "vectors and matrices are written together"
    for s in group:
        if s.row is None:
            return f"{s.name} has no rows"
        of_each = "so that a segment multiplies each channel by a matrix of its own"
        if s.col is not None and s.col in s.decay_axes:
            return f"what {s.name} writes of its reads decays for each channel of {dim_of(s.col)}, {of_each}"
        for w in (w for w in s.writes if w.leaf is not None):
            for scale, _ in _fed(w, names, table):
                if channel := next((a for a in scale.axes if a in columns), None):
                    return f"what {s.name} writes of its reads has a strength for each channel of {dim_of(channel)}, {of_each}"
    return None


def _fed(
    w: Write, names: tuple[str, ...], table: dict[Node, Read], writers: Collection[Node] = ()
) -> list[tuple[Node, Node]]:
    """What is written of reads of these states, and of what else they are written: (what a read is times, the read)."""
    terms = affine_terms(w.right, lambda x: x in writers or (x in table and table[x].state in names))
    return [(scale, read) for _, scale, read in terms if read is not None]


def why_one_sweep(plans: Iterable[Plan]) -> str | None:
    """Why kernels take a sequence from end to end and not in segments side by side, in words; None where they take segments:
    of states that are written without reads of them, and of one whose map is a matrix."""
    for plan in plans:
        for sweep in plan.sweeps:
            group, reads = sweep.group, plan.form.reads
            names = " and ".join(s.name for s in group)
            if any(s.coupling for s in group):
                return f"{names} are added to each other"
            if any(s.signed for s in group):
                return f"{names} is multiplied by a number of either sign"
            if not feeds_back(group, sweep.solve):
                continue
            if (why := why_no_sweep(group, reads)) is not None:
                return why
            if len(group) > 1:
                return f"{names} are written of reads of each other"
            if not same_sweep(group, reads):
                return f"what {names} writes has more in it than its reads and values of each channel"
    return None


def same_sweep(group: tuple[StateForm, ...], table: dict[Node, Read]) -> bool:
    """Are columns of A what the sweep over the states itself makes of columns of the identity, where all that it loads for
    columns
    is zero? So it is where each constant is a product with something that it loads for them."""
    names = tuple(s.name for s in group)
    for s in group:
        for w in s.writes:
            terms = affine_terms(w.right, lambda x: x in table and table[x].state in names)
            for term in (term for term, _, read in terms if read is None):
                if s.col is None or not _is_loaded(term, s.col):
                    return False
    return True


def _is_loaded(x: Node, axis: str) -> bool:
    """Is x made of something that has this axis? What is summed over it is the same for all columns, however the sum calls it."""
    if axis not in x.axes:
        return False
    return x.op == "leaf" or any(_is_loaded(a, axis) for a in x.args)


# --- the two parts of a map -------------------------------------------------------------------------------------------


class _Local(Builder):
    """The sweep from zero states."""

    def entering(self, s: StateForm) -> Node:
        return ZERO


class _Linear(Builder):
    """The sweep without constants, from the identity of one state; the group's other states start from zero."""

    def __init__(self, group: tuple[StateForm, ...], solve: bool, table: dict[Node, Read], of: StateForm) -> None:
        free = tuple(replace(s, writes=tuple(w for w in s.writes if solve and w.leaf is not None)) for s in group)
        super().__init__(free, (), solve, table)
        self.of, self.matrix, self.inner = of, feeds_back(group, solve), inner_axes(group)

    def entering(self, s: StateForm) -> Node:
        if s.name != self.of.name:
            return ZERO
        return eye(s.row, self.inner[s.row]) if self.matrix and s.row is not None else ONE

    def _feedback(self, w: Write) -> tuple[Node, dict[tuple[str, str, Node], Node], dict[Node, Node]]:
        return ZERO, *super()._feedback(w)[1:]


# --- maps by name: what a printer and a gate put values in for -------------------------------------------------------


def named(a: Affine, kind: str) -> Affine:
    """A map of the same shape that has a leaf (kind, name) for each part: `to<-of` for blocks, `to` for the local part."""
    linear = {(to, of): leaf(kind, f"{to}<-{of}", axes) for (to, of), axes in a.shape.items()}
    return Affine(a.group, linear, {s.name: leaf(kind, s.name, s.axes) for s in a.group})


def composed(a: Affine) -> Affine:
    """The law by which maps of this shape compose, over the leaves of `named` maps `later` and `earlier`."""
    return named(a, "later").after(named(a, "earlier"))
