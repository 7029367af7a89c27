"""The canonical read-write form: snapshots of states, reads and writes as `form.py` has them, in groups in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace as dc_replace
from fractions import Fraction

from ...ir.expr import (
    ONE,
    Node,
    add,
    expand,
    factors_of,
    leaf,
    mul,
    power,
    rename,
    replace,
    split_constant,
    terms_of,
    total,
    walk,
)
from ...ir.ranges import Ranges
from .abstract_interpreter import Interpreter
from .abstract_values import MatrixValue, RawWrite, contracted, late_only, scaled_write, split_scalars
from .drafts import Draft, coupled_states, forgets, is_signed
from .form import Cross, NormalForm, NotAffine, Read, StateAdjointProduct, StateForm, Write, affine_terms

LEAST = Fraction(1, 10)  # what is written tells a read if at least so much of that is in it


class Canonical:
    def __init__(
        self,
        interpreter: Interpreter,
        drafts: list[Draft],
        values: dict[str, Node],
    ) -> None:
        self.i = interpreter
        # state-adjoint products: of which state, and what is added to each, see `state_adjoint_products.py`
        self.state_adjoints: dict[Node, tuple[str, Node, Node]] = {}
        self.drafts = {d.name: d for d in drafts}
        self.values = values
        self.coupled = coupled_states(drafts, interpreter)
        self.crosses: dict[Node, Cross] = {}
        self.final: dict[str, MatrixValue] = {}
        self.reads: dict[Node, Read] = {}
        self.replacement: dict[Node, Node] = {}

    def form(self) -> NormalForm:
        from .state_adjoint_products import cancelled

        for d in self.drafts.values():
            self.final[d.name] = self._phases(d)
        for raw in list(self.i.raw_reads):
            self._canonical_read(raw)
        for raw in list(self.i.raw_state_adjoints):
            self._canonical_state_adjoint(raw)
        groups = self._groups()
        formed: list[tuple[StateForm, ...]] = []
        for group in groups:
            formed.append(self._group(group))
        leaves = {w.right: w.leaf for g in formed for s in g for w in s.writes if w.leaf is not None}
        values = {n: cancelled(replace(self._rewritten(x), leaves)) for n, x in self.values.items()}
        vectors = {n: replace(self._rewritten(r.vector), leaves) for n, r in self.reads.items()}
        joined = {n: self._joined(x, vectors, leaves) for n, x in values.items()}
        forms = [self._formed(formed, x, vectors, leaves) for x in (values, *([joined] if joined != values else []))]
        return min(forms, key=lambda form: len(form.reads))

    def _formed(
        self,
        groups: list[tuple[StateForm, ...]],
        values: dict[str, Node],
        vectors: dict[Node, Node],
        leaves: dict[Node, Node],
    ) -> NormalForm:
        """The form in which values are so, with no more reads than they take."""
        made = {y: y.leaf for x in values.values() for y in map(self._read_at, _outside_sums(x)) if y is not None}
        values = {n: self._from_other_side(x, made, vectors) for n, x in values.items()}
        known = {r: leaves[r.leaf] for r in self.reads.values() if r.leaf in leaves} | made  # writes that are reads

        def shorter(x: Node) -> Node:
            while (y := self._from_other_side(x, known, vectors, unless=made)) is not x:
                x = y
            return x

        values = {n: shorter(x) for n, x in values.items()}
        state_adjoints = tuple(
            StateAdjointProduct(x, n, *(shorter(replace(self._rewritten(y), leaves)) for y in parts))
            for x, (n, *parts) in self.state_adjoints.items()
        )
        formed = [tuple(self._known(s, leaves) for s in g) for g in groups]
        reads = {n: dc_replace(r, vector=vectors[n]) for n, r in self.reads.items()}
        values = {n: self._shortened(x, formed) for n, x in values.items()}
        wanted = [*values.values(), *(x for p in state_adjoints for x in (p.late, p.early))]
        needed = self._needed(wanted, formed, reads)
        crosses = tuple(self.crosses.values())
        return NormalForm(
            tuple(formed), {n: r for n, r in reads.items() if n in needed}, values, state_adjoints, crosses
        )

    def _joined(self, x: Node, vectors: dict[Node, Node], leaves: dict[Node, Node]) -> Node:
        """x with what it reads of a state with several vectors as one read with their sum: a S v + b S w = S (a v + b w)."""
        groups: dict[object, list[tuple[Node, Node, Node]]] = {}
        for term in terms_of(x):
            found = [f for f in factors_of(term) if f in self.reads]
            coefficient = mul(*(f for f in factors_of(term) if f not in found))
            if len(found) == 1 and not coefficient.axes and not any(map(_is_made, walk(coefficient))):
                r = self.reads[found[0]]
                groups.setdefault((r.state, r.side, r.snapshot), []).append((term, coefficient, r.leaf))
        for parts in groups.values():
            if len(parts) < 2 or not all(vectors[y].axes for *_, y in parts):
                continue
            shared = set.intersection(*({f for f in factors_of(c) if f.op != "const"} for _, c, _ in parts))
            outside, vector = ONE, add(*(mul(c, vectors[y]) for _, c, y in parts))
            if vector not in leaves:
                outside = mul(*shared)
                rest = (mul(*(f for f in factors_of(c) if f not in shared)) for _, c, _ in parts)
                vector = add(*(mul(c, vectors[y]) for c, (*_, y) in zip(rest, parts, strict=True)))
            vector, read = leaves.get(vector, vector), self.reads[parts[0][2]]
            name = f"{read.leaf.attrs[1].rpartition('.')[0]}.{vector.key[:10]}"
            made = leaf("read", name, read.leaf.attrs[2])
            self.reads[made], vectors[made] = dc_replace(read, leaf=made, vector=vector), vector
            x = add(x, mul(outside, made), *(mul(-1, term) for term, _, _ in parts))
        return x

    def _shortened(self, x: Node, formed: list[tuple[StateForm, ...]]) -> Node:
        """x without reads that a solved write already tells: w = c + g y gives g y = w - c, wherever g divides the term.

        But not where g may be so small that little of y is left in w, as a decay and a gate may be."""
        for w in (w for g in formed for s in g for w in s.writes if w.leaf is not None):
            parts = affine_terms(w.right, lambda y: y in self.reads)
            fed = [(c, y) for _, c, y in parts if y is not None]
            if len(fed) != 1:
                continue
            assert w.leaf is not None
            (coefficient, read), rest = fed[0], [t for t, _, y in parts if y is None]
            if Ranges()(mul(coefficient, coefficient)).low < LEAST**2:
                continue
            known = mul(*(power(f, -1) for f in factors_of(coefficient)), add(w.leaf, mul(-1, add(*rest))))
            terms = []
            for term in terms_of(x):
                shorter = replace(term, {read: known})
                before = {y for y in walk(term) if y.op == "pow"}
                terms.append(shorter if all(y in before for y in walk(shorter) if y.op == "pow") else term)
            x = expand(add(*terms), x.axes)
        return x

    def _from_other_side(
        self, x: Node, made: dict[Read, Node], vectors: dict[Node, Node], unless: Collection[Read] = ()
    ) -> Node:
        """x with sums x^T S y over a read S^T x as sums over a read S y, where that is made anyway, `unless` the first is too."""
        found: dict[Node, Node] = {}
        for y in walk(x):
            factors = factors_of(y.args[0]) if y.op == "sum" else ()
            reads = [f for f in factors if self._read_at(f) is not None and f.axes == y.attrs]
            if len(reads) != 1:
                continue
            r = self._read_at(reads[0])
            assert r is not None
            if r in unless:
                continue
            scalar, rest = split_scalars(mul(*(f for f in factors if f is not reads[0])))
            for other, known in made.items():
                same = (other.state, other.snapshot) == (r.state, r.snapshot) and other.side != r.side
                vector = vectors[other.leaf]
                if same and rename(vector, dict(zip(vector.axes, rest.axes, strict=False))) is rest:
                    found[y] = mul(scalar, total(mul(vectors[r.leaf], known), *known.axes))
        return replace(x, found)

    def _known(self, s: StateForm, leaves: dict[Node, Node]) -> StateForm:
        """Known writes that repeat a solved one use its leaf, and so do solved ones that depend on others of their step."""
        return dc_replace(
            s,
            writes=tuple(
                dc_replace(w, left=replace(w.left, leaves), right=replace(w.right, leaves))
                if w.leaf is None
                else dc_replace(w, right=self._over_writes(w, leaves))
                for w in s.writes
            ),
        )

    def _over_writes(self, w: Write, leaves: dict[Node, Node]) -> Node:
        """What is written, in terms of what else the step has written before it, where that comes as a whole, times numbers.

        In terms of reads alone it is the same, but not in floats: the system of one of several corrections would have the
        others in it, without what corrects these in turn, and its solution may grow beyond all bounds along a chunk."""
        x = w.right
        for right in sorted(leaves, key=lambda y: -len(list(walk(y)))):
            alone = self._one_read(right)
            if right is not w.right and (alone is None or alone[1] is not (self._one_read(w.right) or (ONE, ONE))[1]):
                made = replace(x, {right: leaves[right]}) if alone is None else _in_place(x, *alone, leaves[right])
                x = made if _times_numbers(made, leaves[right]) else x
        return x

    def _one_read(self, x: Node) -> tuple[Node, Node] | None:
        """(a number of the step, a read) whose product x is."""
        terms = affine_terms(x, lambda y: y in self.reads)
        (_, c, read) = terms[0]
        return (c, read) if len(terms) == 1 and read is not None and not c.axes else None

    def _needed(self, wanted: list[Node], formed: list[tuple[StateForm, ...]], reads: dict[Node, Read]) -> set[Node]:
        roots = [*wanted]
        for g in formed:
            for s in g:
                roots += [w.left for w in s.writes] + [w.right for w in s.writes] + [c for _, c in s.coupling]
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

    def _phases(self, d: Draft) -> MatrixValue:
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
            raw = {y for y in walk(x) if y.op == "leaf" and y.attrs[0] in ("raw", "raw state-adjoint product")}
            if not raw:
                return x
            x = replace(x, {y: self._lookup(y) for y in raw})

    def _lookup(self, y: Node) -> Node:
        """A raw read leaf, possibly over renamed axes."""
        kind, key, axes = y.attrs
        original = next(r for r in (*self.i.raw_reads, *self.i.raw_state_adjoints) if r.attrs[:2] == (kind, key))
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

    def _canonical_state_adjoint(self, raw: Node) -> None:
        first, second = self.i.raw_state_adjoints[raw]
        forward = self.drafts[first.state].value
        decay = forward.decay
        if first.state in self.coupled and second.state in self.coupled:
            if not raw.axes:
                self.replacement[raw] = self._cross(late_only(first), late_only(second))
            return
        if second.state != f"d{first.state}" or decay is None:
            raise NotAffine("the state is scaled at several places of the step", raw)
        if not set(raw.axes) <= set(decay.axes):
            return  # one axis of the two is summed so far: `_sum` does the other
        from .state_adjoint_products import product_leaf, state_adjoint_terms, state_adjoint_value

        after, adjoint_after = self.final[first.state], self.final[second.state]
        product = product_leaf(forward, raw.axes)
        if forgets(forward):
            self.crosses[product] = Cross(product, first.state, second.state)
        elif product not in self.state_adjoints:
            terms = state_adjoint_terms(self.i, product.axes, forward, after, adjoint_after)
            self.state_adjoints[product] = (first.state, *terms)
        self.replacement[raw] = state_adjoint_value(
            self.i, product, raw, first, second, after, adjoint_after, divides=not forgets(forward)
        )
        for new in list(self.i.raw_reads):
            self._canonical_read(new)

    def _cross(self, first: MatrixValue, second: MatrixValue) -> Node:
        """<first, second> from the states before the step, and what the step has written so far."""
        assert first.decay is not None and second.decay is not None
        node = leaf("state-adjoint product", f"{first.state}.{second.state}")
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

        def feeds(x: Node) -> bool:
            return bool(self._states_in(x) & own)

        drafts = {n: self._numbers_written(n, self._writes(n), feeds, len(names) == 1) for n in names}
        flipped = set()
        for n, writes in drafts.items():
            fed = [w for w, _ in writes if feeds(w.left)]
            if fed and any(feeds(w.right) for w, _ in writes):
                both = any(feeds(w.right) for w in fed)
                why = "a write multiplies two reads of the state" if both else "writes depend on reads from both sides"
                raise NotAffine(why, mul(fed[0].left, fed[0].right))
            if fed:
                flipped.add(n)
        if flipped and own & self.coupled:
            flipped = own
            if any(feeds(w.right) for n in own for w, _ in drafts[n]):
                raise NotAffine(
                    "states that are added to each other are read from both sides", self.final[names[0]].decay or ONE
                )
        drafts = {n: _merged(writes, n in flipped) for n, writes in drafts.items()}
        for n in names:
            if n in flipped:
                self._flip_reads(n)
        if own & self.coupled and not own <= self.coupled:
            raise NotAffine(
                "a state feeds states that are added to each other, and is fed by them",
                self.final[names[0]].decay or ONE,
            )
        out = []
        for n in names:
            final = self.final[n]
            row, col = final.row, final.col
            if final.decay is not None and feeds(final.decay):
                raise NotAffine("the decay depends on the state", final.decay)
            if n in flipped:
                row, col = col, row
            decay = self._rewritten(final.decay) if final.decay is not None else None
            made = [self._made(n, raw, late, n in flipped, own) for raw, late in drafts[n]]
            coupling = tuple((o, self._rewritten(c)) for o, c in final.others)
            if any(feeds(c) for _, c in coupling):
                raise NotAffine("what a state is scaled by depends on the states", coupling[0][1])
            never_negative = forgets(final)
            signed = is_signed(final) and not never_negative
            direction, axes = self.drafts[n].direction, self.i.states[n].axes
            out.append(StateForm(n, row, col, decay, tuple(made), direction, axes, coupling, signed, never_negative))
        return tuple(out)

    def _made(self, state: str, raw: RawWrite, late: bool, flipped: bool, own: set[str]) -> Write:
        """A write of a state; it has a name where it depends on reads of its `own` group."""
        left, right = (raw.right, raw.left) if flipped else (raw.left, raw.right)
        named, scalar = None, raw.scalar
        if self._states_in(right) & own:
            self._check_affine(right, own)
            c = _number_of(right)
            right, scalar = mul(1 / c, right), mul(c, scalar)
            named = leaf("write", right.key[:10], right.axes)
        return Write(state, mul(scalar, left), right, late, named)

    def _flip_reads(self, state: str) -> None:
        for node, r in self.reads.items():
            if r.state == state:
                self.reads[node] = dc_replace(r, side="col" if r.side == "row" else "row")

    def _writes(self, name: str) -> list[tuple[RawWrite, bool]]:
        """The writes of a state, and whether each comes after the decay."""
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
            out += [(w, late) for w in raw]
        return out

    def _numbers_written(
        self, state: str, writes: list[tuple[RawWrite, bool]], feeds: Callable[[Node], bool], alone: bool
    ) -> list[tuple[RawWrite, bool]]:
        """Writes none of which is scaled by what is read: all of a number's write is a number, and so is what is read of a vector
        that stands `alone`, and written to it."""
        axes = self.i.states[state].axes
        found = []
        for w, late in writes:
            if not axes:
                w = RawWrite(ONE, ONE, mul(w.scalar, w.left, w.right))
            elif feeds(w.scalar) and len(axes) == 1 and alone:
                w = RawWrite(ONE, w.left, mul(w.scalar, w.right))
            if feeds(w.scalar):
                vectors = "vectors are corrected by numbers that are read of each other"
                why = "a write is scaled by something that depends on the state" if len(axes) > 1 else vectors
                raise NotAffine(why, w.scalar)
            found.append((w, late))
        return found

    def _check_affine(self, x: Node, own: set[str]) -> None:
        """x = c + sum of coefficient * read: what the triangular solve needs."""
        for term, coefficient, read in affine_terms(x, lambda y: y in self.reads and self.reads[y].state in own):
            if read is None:
                if self._states_in(term) & own:
                    summed = any(f.op == "sum" and self._states_in(f) & own for f in factors_of(term))
                    why = (
                        "a matrix multiplies what is read" if summed else "what is written isn't affine in what is read"
                    )
                    if any(
                        self._read_at(f) is not None for f in factors_of(term)
                    ):  # of a square state: over its other axis
                        why = "what is written reads the state from its other side"
                    raise NotAffine(why, term)
                continue
            if self._states_in(coefficient) & own:
                raise NotAffine("what is written isn't affine in what is read", term)
            r = self.reads[read]
            if r.side != "row":
                raise NotAffine("what is written reads the state from its other side", term)
            if self._states_in(r.vector) & own:
                raise NotAffine("the state is read with a vector that depends on the state", term)


def _number_of(x: Node) -> Fraction:
    """The number that all terms of a sum have in common, up to their signs; 1 where there is none."""
    numbers = {abs(split_constant(t)[0]) for t in terms_of(x)}
    return numbers.pop() if len(numbers) == 1 else Fraction(1)


def _in_place(x: Node, number: Node, read: Node, written: Node) -> Node:
    """x with what is written, which is a number times a read, in the place of the read, where nothing more is divided by."""
    instead = mul(written, *(power(f, -1) for f in factors_of(number)))
    terms = [(t, replace(t, {read: instead})) for t in terms_of(x)]
    return add(*(new if _divisors(new) <= _divisors(t) else t for t, new in terms))


def _divisors(x: Node) -> set[Node]:
    return {y.args[0] for y in walk(x) if y.op == "pow" and y.attrs[0] < 0}


def _times_numbers(x: Node, written: Node) -> bool:
    """Is x affine in what is written, which is multiplied by numbers?"""
    terms = affine_terms(x, lambda y: y is written)
    return all(not c.axes if y is not None else written not in walk(c) for _, c, y in terms)


def _outside_sums(x: Node) -> Iterable[Node]:
    """The leaves in x that stand in no sum."""
    if x.op == "leaf":
        yield x
    elif x.op != "sum":
        for y in x.args:
            yield from _outside_sums(y)


def _is_made(x: Node) -> bool:
    """Is x what a sweep yields?"""
    return x.op == "leaf" and x.attrs[0] in ("read", "write", "state-adjoint product")


def _scalars(*nodes: Node) -> Iterable[Node]:
    return [split_scalars(x)[0] for x in nodes]


def _merged(writes: list[tuple[RawWrite, bool]], flipped: bool) -> list[tuple[RawWrite, bool]]:
    """Writes of one phase that share a vector become one: first those with the one that feedback contracts."""
    for alike, other in (("right", "left"), ("left", "right"))[:: 1 if flipped else -1]:
        groups: dict[tuple[Node, bool], list[RawWrite]] = {}
        for w, late in writes:
            groups.setdefault((getattr(w, alike), late), []).append(w)
        writes = []
        for (vector, late), same in groups.items():
            one = same[0]
            if len(same) > 1:
                common = one.scalar if len({w.scalar for w in same}) == 1 else ONE
                parts = [getattr(w, other) if common is not ONE else mul(w.scalar, getattr(w, other)) for w in same]
                one = RawWrite(common, **{alike: vector, other: add(*parts)})
            writes.append((one, late))
    return writes
