"""Sums over the writes of a chunk with a decay for each channel, which work by halves of the chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replaced

from ....ir.code import (
    Binary,
    Code,
    Either,
    Group,
    Literal,
    Name,
    Negative,
    Not,
    both,
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
    dim_of,
    factors_of,
    leaf,
    make,
    mul,
    rebuild,
    rename,
    split_constant,
    terms_of,
    walk,
)
from ....ir.kernel_ir import If, Note, Statement, Store, let
from ....printing.cannot_print import CannotPrint
from ..plan_passes.roles import STEPS
from ..print.axis_names import size_name
from .arguments import Role
from .tile_names import Scope
from .tile_products import TileProducts
from .tile_values import Once, Value


class ChannelDecays(TileProducts):
    """Lowers sums in which a decay has an axis of its own."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        # sums over the writes of a chunk without those that no decay lies before, where a kernel needs both
        self.apart: dict[Node, Value] | None = None
        self.split = False  # are rows that are of a large decay range stored by a kernel of their own?
        self.intra: dict[
            str, Node
        ] = {}  # sums over the writes of a chunk, each with its decay, made here and not loaded

    def decayed_sums(self, x: Node, reads: ChannelDecays | None = None) -> Value:
        """What reads take of the writes of their own chunk, with a decay for each channel. What each read takes of each write but
        for that is the same for all channels: `reads` prints it, where a loop takes these block by block, and sums of each write
        over another axis. Several sums have a factor in common, which they are multiplied by once."""
        if len(terms_of(x)) > 1 and self._factor_of(x) is not None:
            return self._added_sums(x)
        for _, summed in map(split_constant, terms_of(x)):
            factors = factors_of(summed.args[0])
            self.memo[summed] = self.decayed_sum(summed, COL, factors, self._reads(factors, reads))
        return self.value(x)

    def _reads(self, factors: tuple[Node, ...], reads: ChannelDecays | None = None) -> Value:
        """What each read takes of each write, but for the decays of a sum of these factors."""
        (axis,) = {a for f in factors if f.op == "decay_mask" for a in f.axes} - {ROW, COL}
        where = reads or self
        for y in walk(*(rename(f, {COL: ROW}) for f in factors if f.axes == (COL,))):
            if y.op == "sum":
                self.memo[y] = where.value(y)
        p = where.reads_of_writes(factors, axis)
        return where.assign("reads", p.over((ROW, COL)), (ROW, COL))

    def _factor_of(self, x: Node) -> Node | None:
        """The decays from a chunk's start to its reads, or from these to its end, if all sums of x, in a kernel that makes them
        of what it loads, have these in common."""
        sums = [split_constant(t) for t in terms_of(x)]
        if self.by_range is None or x not in self.intra.values() or any(n not in (1, -1) for n, _ in sums):
            return None
        masks = [f for _, y in sums for f in factors_of(y.args[0]) if f.op == "decay_mask" and len(f.axes) == 3]
        found = {make("decay_in", m.args, (m.attrs[0], m.attrs[3]), set(m.axes) - {COL}) for m in masks}
        return found.pop() if len(found) == 1 and len(masks) == len(sums) == len({*masks}) else None

    def read_with_state(self, x: Node) -> Value | None:
        """What a read takes of the state at the chunk's start and of the writes of the chunk, if it is that: both have the decays
        up to the read, and are added up before they are multiplied by these."""
        terms = terms_of(x)
        inside = [t for t in terms if t.op == "leaf" and t.attrs[0] == "intra" and t.attrs[1] in self.intra]
        if len(terms) != 2 or len(inside) != 1:
            return None
        (other,) = (t for t in terms if t is not inside[0])
        writes = self.intra[inside[0].attrs[1]]
        since, factors = self._factor_of(writes), factors_of(other)
        if since is None or since.attrs[1] < 0 or since not in factors:
            return None
        (axis,) = set(since.axes) - {ROW}

        def onto() -> Value:
            read = self._product(tuple(f for f in factors if f is not since))
            edges = map(Name, self._cumulative(since.args[0], since.attrs[0], over=(ROW, axis)))
            state = call("from_state", read.over((ROW, axis)), *edges, "SMALL_RANGE", "EXACT", "DT")
            return self.assign("from_start", state, (ROW, axis), note=self.note(other))

        return self._added_sums(writes, onto, x)

    def _added_sums(self, x: Node, onto: Callable[[], Value] | None = None, whole: Node | None = None) -> Value:
        """The sums of x, and a value that they are added `onto`, which is made once the first sum has its operands: then this is
        the read that is the `whole` of both."""
        own: list[Code] = []
        total: Value | None = None
        for sign, summed in map(split_constant, terms_of(x)):
            factors = factors_of(summed.args[0])
            (mask,) = (f for f in factors if f.op == "decay_mask" and len(f.axes) == 3)
            (axis,) = set(mask.axes) - {ROW, COL}
            p = self._reads(factors).over((ROW, COL))
            w = self._written_over(factors, mask, axis).over((ROW, axis))
            alone, forward = self._own_apart(mask), mask.attrs[3] > 0
            edges = self.halves(mask, axis)
            if total is None:
                total = Value(call("tl.zeros_like", w), (ROW, axis)) if onto is None else onto()
            ways = forward, mask.attrs[2] and not alone, "SMALL_RANGE", "EXACT", "DT"
            read = p if sign > 0 else Negative(p)
            added = call("added_sum", total.code, read, w, *edges, "C", self.chunk, "LEVELS", *ways)
            total = self.assign("added", added, (ROW, axis), note=self.note(summed))
            if alone:
                each = self.assign("own", call("diagonal", p, "C"), (ROW,)).over((ROW, axis))
                own.append(times(each, w) if sign > 0 else Negative(times(each, w)))
            self.from_slow_path(mask, axis, None if forward else (p, w))
        assert total is not None
        made = call("of_reads", total.code, *edges[2:6], forward, "SMALL_RANGE", "EXACT", "DT")
        if whole is not None and not own:
            return Value(made, total.axes)
        v = self.assign("decayed", made, total.axes)
        if self.apart is not None:
            self.apart[whole or x] = v
        if own and whole is None:
            return self.assign("decayed", plus(v.code, *own), v.axes, note="with each step's own")
        return Value(plus(v.code, *own), v.axes) if own else v

    def _written_over(self, factors: tuple[Node, ...], mask: Node, axis: str) -> Value:
        """What is written, over the channels that have decays of their own."""
        return self.tile_of(tuple(f for f in factors if f is not mask and (axis in f.axes or f.axes == (COL,))), axis)

    def _own_apart(self, mask: Node) -> bool:
        """Is each step's own write, which no decay is before, added apart?"""
        late, write_late, inclusive, _ = mask.attrs
        return self.apart is not None and inclusive and late == write_late

    def decayed_sum(self, x: Node, bound: str, factors: tuple[Node, ...], p: Value | None = None) -> Value:
        """sum_j p_ij w_jx decays_ijx, where the decay runs over the axis that is kept."""
        masks = [f for f in factors if f.op == "decay_mask" and len(f.axes) == 3]
        (axis,) = set(masks[0].axes) - {ROW, COL}
        if len(masks) > 1 or bound != COL or axis not in x.axes:
            raise CannotPrint(f"decays over three axes in {x!r}")
        p = p or self.reads_of_writes(factors, axis)
        w = self._written_over(factors, masks[0], axis)
        alone = self._own_apart(masks[0])
        made = call(
            "decayed_sum",
            p.over((ROW, COL)),
            w.over((ROW, axis)),
            *self.halves(masks[0], axis),
            "C",
            self.chunk,
            "LEVELS",
            masks[0].attrs[3] > 0,
            masks[0].attrs[2] and not alone,
            Literal(False) if self.by_range is None else "SMALL_RANGE",
            "EXACT",
            "DT",
        )
        own = self.assign("own", call("diagonal", p.over((ROW, COL)), "C"), (ROW,)) if alone else None
        v = self.assign("decayed", made, (ROW, axis), note=self.note(x))
        if own is not None and self.apart is not None:
            self.apart[x] = v
            with_own = plus(v.code, times(own.over((ROW, axis)), w.over((ROW, axis))))
            v = self.assign("decayed", with_own, (ROW, axis), note="with each step's own")
        self.from_slow_path(
            masks[0], axis, None if masks[0].attrs[3] > 0 else (p.over((ROW, COL)), w.over((ROW, axis)))
        )
        return v

    def add_product(self, total: str, x: Node, axis: str) -> None:
        """Add to a matrix sum_x r_ix w_jx decays_ijx, over channels, of those of a block of these that are at hand."""
        factors = factors_of(x.args[0])
        mask = next(f for f in factors if f.op == "decay_mask")
        writes = [f for f in factors if COL in f.axes and f is not mask]
        reads = [f for f in factors if f not in writes and f is not mask]
        r, w = (self.tile_of(tuple(part), axis).over(self.ordered((ROW, axis))) for part in (reads, writes))
        self.body.append(Note(self.note(x)))
        self.ends(mask, axis)
        how = "C", self.chunk, "LEVELS", mask.attrs[3] > 0, mask.attrs[2], "SMALL_RANGE", "EXACT", "DT"
        self.body.append(let(total, call("decayed_product", total, r, w, *self.halves(mask, axis), *how)))
        self.from_slow_path(mask, axis)

    def halves(self, mask: Node, axis: str) -> list[Code]:
        """What the helpers of `runtime/chunk_kernels/decays.py` that work by halves take of a decay over an axis."""
        (d,) = mask.args
        late, write_late, _, direction = mask.attrs
        high, low = (late, write_late) if direction > 0 else (not write_late, not late)
        name = self._decay_name(d)
        if self.by_range is not None and name not in self.by_range:
            self.by_range.append(name)
            self.argument(name, Role.EXTENTS, "extent", self.decays[d], (axis,))
        return self.in_memory(d, axis, high, low)

    def in_memory(self, d: Node, axis: str, high: bool, low: bool) -> list[Code]:
        """Where cumulative sums of a decay over an axis lie, and those up to the later step of a pair and to the earlier one,
        each with the step's own where `high` or `low`."""
        name = self._decay_name(d)
        width = Name(size_name(dim_of(axis)))
        sums, counts = (plus(f"{name}_{x}", times("step", width)) for x in ("sums", "rests"))
        edges = [Name(y) for x in (high, low) for y in self._cumulative(d, x, over=(ROW, axis))]
        index = self.index(axis)
        given = Either(counts, Name("EXACT"), Literal(None))
        return [sums, given, *edges, Name(index), Name(f"{index}_ok"), Name("last"), Name("H") * width]

    def reads_of_writes(self, factors: tuple[Node, ...], axis: str) -> Value:
        """What each read takes of each write, but for decays over `axis` and numbers of each write: so that it is rounded as it
        is where these take from those."""
        others = tuple(f for f in factors if axis not in f.axes and f.axes != (COL,))
        square = shape("C", "C")
        p = self._product(others) if others else Value(call("tl.full", square, 1.0, "tl.float32"), (ROW, COL))
        return p if len(p.axes) == 2 else Value(call("tl.broadcast_to", p.over((ROW, COL)), square), (ROW, COL))

    def tile_of(self, factors: tuple[Node, ...], axis: str) -> Value:
        """A product of what the steps of a chunk have, over an axis, even if all of it is the same along that."""
        v = self._product(factors) if factors else Value(Literal(1.0), ())
        v = replaced(v, axes=tuple(ROW if a == COL else a for a in v.axes))
        if axis in v.axes:
            x = mul(*(rename(f, {COL: ROW}) for f in factors))
            if self._vanishes(x, axis):
                return v
            return Value(self.until_ends(v.over(v.axes), x, v.axes, (axis,)), v.axes)
        axes = self.ordered((ROW, axis))
        return self.assign("factor", where(self.inside(axes), v.over(axes), 0.0), axes)

    def from_slow_path(self, mask: Node, axis: str, read: tuple[Code, Code] | None = None) -> None:
        """Which rows are stored by the kernel for those that are of a large decay range: from the first of these on, and the rows
        before it
        where they `read`, by a matrix, what these write."""
        if self.by_range is None:
            return
        late, write_late, _, direction = mask.attrs
        later = self._cumulative(mask.args[0], late if direction > 0 else not write_late, over=(ROW, axis))
        first = call("first_large_range", "large_range_from", *later, self.ok(axis), "C", "DT")
        lines: list[Statement] = [let("large_range_from", first)]
        if read is not None:
            lines.append(let("again", call("adds_large_range", "again", *read, "large_range_from", "C")))
        lines.append(let("i_new", Name("i_ok") & Binary("|", Name("i") >= "large_range_from", Name("again") > 0)))
        self.body.append(If(Not(Name("SMALL_RANGE")), tuple(lines)))

    def without_own(self, x: Node) -> Node:
        """x with what there is of sums without each step's own write in their place, and without what a chunk's last step writes
        to states beyond the chunk: of these pairs no decay of the chunk lies between."""
        if x.op == "leaf" and x.attrs[0] == "intra" and x.attrs[1] in self.intra:
            return self.without_own(self.intra[x.attrs[1]])
        if self.apart and x in self.apart:
            y = leaf("apart", x.key[:12], x.axes)
            self.memo[y] = self.apart[x]
            return y
        edges = [f for f in factors_of(x) if f.op == "decay_in" and not f.attrs[0] and len(f.axes) > 1]
        if edges and self.apart is not None and not self.forward:
            y, v = leaf("apart", x.key[:12], x.axes), self.value(x)
            if y not in self.memo:
                before_last = self.along(Group(Name("i") < "last"), ROW, v.axes)
                self.memo[y] = Value(where(before_last, v.over(v.axes), 0.0), v.axes)
            return y
        return rebuild(x, map(self.without_own, x.args)) if x.args else x

    def ends(self, mask: Node, axis: str) -> None:
        """Store the sums of a whole chunk for others, where the kernel makes them, once; and note how far they reach."""
        (d,) = mask.args
        name = self._decay_name(d)
        if name not in self.making or Once(name, "ends") in self.loads:
            return
        self.loads[Once(name, "ends")] = name
        end, _ = self._cumulative(d, True, end=True)
        index, width = self.index(axis), Name(size_name(dim_of(axis)))
        place = plus(f"{name}_sums", times("step", width), times("last", Group(Name("H") * width)), index)
        store = Store(place, Name(end), Name(f"{index}_ok"))
        self.body.append(If(Name("SUMS"), (store, *self.reached(end, name))))

    def stored(self, axes: tuple[str, ...]) -> Code:
        """Where a tile has an entry that this kernel stores."""
        return both(*(self.along(self.stored_rows if a in STEPS else self.ok(a), a, axes) for a in axes))

    @property
    def stored_rows(self) -> str:
        return "i_new" if self.split else "i_ok"
