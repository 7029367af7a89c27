"""Chunk-level nodes as statements on tiles: the one place where the mathematics of kernels over chunks is lowered.

A value is a tensor of at most two axes, in the order steps, full axis, tile axis; in a sweep the tile axis comes first, so that
what one product leaves in registers is the left operand of the next one, and goes through no shared memory. A contraction of two
values that leave one axis each is a product on tensor cores; every other one is a sum. Elementwise work is in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace as replaced
from fractions import Fraction

import sympy

from ....exact.rationals import irrational
from ....ir.code import (
    Attribute,
    Binary,
    Code,
    Either,
    Expanded,
    Function,
    Group,
    Literal,
    Load,
    Name,
    Negative,
    Not,
    Power,
    both,
    call,
    code,
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
    rebuild,
    rename,
    split_constant,
    terms_of,
    walk,
)
from ....ir.kernel_ir import Body, If, Let, Statement, Store, let
from ....ir.notation import plain
from ....printing.cannot_print import CannotPrint
from ..plan_passes.roles import PER_HEAD, PER_STEP, STEPS, WEIGHT, at_row, is_state
from ..print.axis_names import axis_name, block_name, size_name
from .arguments import Argument, Role
from .tile_values import Cumulative, Elements, Fine, Once, Value, added_to, dot_of, matrix_place, running, zeros_of

# What is zero beyond its axes' ends, as it is loaded or made; a product is one of vectors of both steps.
VANISHING = (
    "input",
    "cotangent",
    "read",
    "write",
    "stored",
    "scaled",
    "stream",
    "ahead",
    "product",
    "state in",
    "parameter",
)


DECAY_NAMES = {"decay_mask": "m", "decay_in": "since", "decay_out": "until", "decay_all": "kept"}
NAMED = ("read", "write", "stored", "scaled", "intra", "matrix", "ahead")


def _over_steps(x: Node) -> bool:
    """Is x made of sums over the steps of a chunk with a decay for each channel? These take the most registers while they are
    made, so that they come before what waits for them."""
    return any(y.op == "leaf" and y.attrs[0] == "intra" for y in walk(x))


class Tiles:
    """Lowers nodes to statements of a `body`, once each, and collects the kernel's arguments."""

    surely: Code = Name("count") > 0  # holds where a chunk is taken
    maps = False  # are there tiles beyond the states', of the columns of a matrix?
    by_head = True  # are numbers of each step that the op is given laid out by heads, in float32?

    def __init__(
        self,
        full: tuple[str, ...],
        tile: tuple[str, ...],
        direction: int,
        decays: dict[Node, Node],
        streams: dict[Node, Node],
        definitions: dict[Node, Node],
        name_of: Callable[[Node], str],
        sweeps: bool = False,
    ) -> None:
        self.full, self.tile, self.forward, self.sweeps = full, tile, direction > 0, sweeps
        self.decays, self.streams, self.definitions, self.name_of = decays, streams, definitions, name_of
        self.body: list[Statement] = []
        self.head: list[Statement] = []  # loads at the start of a chunk, so that nothing waits for them
        self.memo: dict[Node, Value] = {}
        self.loads: dict[Cumulative | Once, str] = {}  # the names of what is loaded or made once
        self.checkpoints: dict[str, Code] = {}  # what loads states where they are used first
        self.parts: dict[Code, tuple[str, str]] = {}  # of operands in two parts
        self.arguments: dict[str, Argument] = {}
        self.precise = (
            False  # are states two operands of products on tensor cores, of which one holds what rounding leaves?
        )
        self.parted = False  # is what precise states get two operands as well, with nothing rounded in what sums read?
        self.wide: frozenset[str] = frozenset()  # matrices that are float32 in memory
        self.fine: Fine | None = None
        self.by_range: list[str] | None = (
            None  # decays whose extent decides how a prologue kernel of the sweep splits them
        )
        # sums over the writes of a chunk without those that no decay lies before, where a kernel needs both
        self.apart: dict[Node, Value] | None = None
        self.split = False  # are rows that are of a large decay range stored by a kernel of their own?
        self.making: frozenset[str] = frozenset()  # decays whose sums the kernel makes
        self.intra: dict[
            str, Node
        ] = {}  # sums over the writes of a chunk, each with its decay, made here and not loaded
        self.loaded: list[tuple[str, str]] = []  # tiles: the argument, and the axis beside steps
        self.elements: list[Elements] = []  # of these tiles
        self.products = False  # may these be products with the identity?
        self.matrices: dict[str, Node] = {}  # over the steps of a chunk, made here and not loaded
        self.names: set[str] = {  # in plain letters
            "i",
            "c",
            "h",
            "b",
            "bh",
            "sh",
            "t0",
            "at",
            "row",
            "step",
            "first",
            "last",
            "tl",
            "T",
            "H",
            "C",
            "DT",
        }
        self.names |= {plain_name(axis_name(a)) for a in (*full, *tile)}

    @property
    def chunk(self) -> str:
        """The steps of a chunk; a kernel that doesn't sweep may take several at once."""
        return "C" if self.sweeps else "CHUNK"

    # --- names and axes ---------------------------------------------------------------------------------------------

    def rank(self, axis: str) -> tuple[int, str]:
        if axis in STEPS:
            return STEPS.index(axis), ""
        return (3 if axis in self.full else -1 if self.sweeps else 4), axis

    def ordered(self, axes: set[str] | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(axes, key=self.rank))

    def index(self, axis: str) -> str:
        return "i" if axis in STEPS else axis_name(axis)

    def along(self, x: Code | str, axis: str, axes: tuple[str, ...]) -> Code:
        """A vector over an axis, to be broadcast over two."""
        return code(x) if len(axes) < 2 else Expanded(code(x), (axes[0] == axis, axes[0] != axis))

    def inside(self, axes: tuple[str, ...]) -> Code:
        """Where a tile has an entry."""
        return both(*(self.along(self.ok(a), a, axes) for a in axes))

    def stored(self, axes: tuple[str, ...]) -> Code:
        """Where a tile has an entry that this kernel stores."""
        return both(*(self.along(self.stored_rows if a in STEPS else self.ok(a), a, axes) for a in axes))

    @property
    def stored_rows(self) -> str:
        return "i_new" if self.split else "i_ok"

    def fresh(self, wish: str) -> str:
        stem = plain_name(wish)
        name, n = stem, 1
        while name in self.names:
            n += 1
            name = f"{stem}{n}"
        self.names.add(name)
        return wish if n == 1 else f"{wish}{n}"

    def assign(self, wish: str, x: Code, axes: tuple[str, ...], raw: bool = False, note: str = "") -> Value:
        name = self.fresh(wish)
        self.body.append(let(name, x, note=note))
        return Value(Name(name), axes, raw)

    def argument(
        self,
        base: str,
        role: Role,
        layout: str,
        source: Node | None = None,
        axes: tuple[str, ...] = (),
        stores: bool = False,
    ) -> str:
        """The name of an argument that is loaded, or that the kernel `stores` to."""
        new = Argument(base, role, layout, source, axes, loaded=False)
        name = new.name
        self.names.add(plain_name(name))
        known = self.arguments.get(name, new)
        assert known.layout == layout, name
        self.arguments[name] = replaced(known, loaded=known.loaded or not stores, stored=known.stored or stores)
        return name

    def note(self, x: Node) -> str:
        """A node as a comment, over the names that the kernel has for what is computed or loaded."""
        names: dict[Node, str] = {}
        for y in walk(x):
            if y.op in DECAY_NAMES:
                names[y] = DECAY_NAMES[y.op]
            elif y.op == "leaf" and y.attrs[0] in NAMED:
                names[y] = self.name_of(leaf(*y.attrs[:2]))
            elif y.op == "leaf" and y.attrs[0] in ("inner", "product"):
                made = [v.code.text for d, v in self.memo.items() if d.op == "leaf" and d.attrs[:2] == y.attrs[:2]]
                names[y] = made[0] if made else "w"
            elif y.op == "leaf" and y.attrs[0] == "stream":
                known = [n for d, n in (*self.streams.items(), *self.decays.items()) if d.attrs[:2] == y.attrs[:2]]
                names[y] = f"({plain(known[0], step=False, subscripts=False)})" if known else "x"
        return plain(x, names, step=False, subscripts=False)

    # --- values -----------------------------------------------------------------------------------------------------

    def value(self, x: Node) -> Value:
        if x not in self.memo:
            steps = [a for a in x.axes if a in STEPS]
            if len(steps) == 1 and steps[0] != ROW:
                v = self.value(rename(x, {steps[0]: ROW}))
                self.memo[x] = replaced(v, axes=tuple(steps[0] if a == ROW else a for a in v.axes))
            else:
                self.memo[x] = self._value(x)
        return self.memo[x]

    def _value(self, x: Node) -> Value:
        match x.op:
            case "leaf":
                return self._leaf(x)
            case "const":
                c = x.attrs[0]
                return Value(Literal(float(c), Fraction(c)), ())
            case "number":
                n = float(sympy.N(sympy.sympify(x.attrs[0])))
                return Value(Literal(n, irrational(x.attrs[0])), ())
            case "size":  # no tile here need have that axis
                size = self.argument(size_name(x.attrs[0]), Role.SIZE, "size", x)
                return Value(call("tl.full", shape(), size, "tl.float32"), ())
            case "add":
                return self._add(x)
            case "mul":
                return self._product(x.args)
            case "pow":
                return self._power(x)
            case "fn" | "max":
                return self._function(x)
            case "expand":
                return self.value(x.args[0])
            case "sum":
                return self._sum(x)
            case "order_mask":
                return Value(where(self._seen(*x.attrs), 1.0, 0.0), (ROW, COL))
            case "apart_mask":
                least, direction = x.attrs
                later, sooner = (Name("i").along(n, 2) for n in ((0, 1) if direction > 0 else (1, 0)))
                return Value(where(later >= sooner + least, 1.0, 0.0), (ROW, COL))
            case "decay_mask":
                return self._mask(x)
            case "decay_in" | "decay_out" | "decay_all":
                return self._edge(x)
            case "inverse":
                t = self.value(x.args[0]).over((ROW, COL))
                late = ROW if self.forward else COL
                # what comes before the end may not see beyond it
                t = self.until_ends(t, x.args[0], (ROW, COL), (late,))
                return self.assign("x", call("inverse", t, "C", "LEVELS", "DT"), (ROW, COL), note="(I - T)^-1")
        raise CannotPrint(f"{x.op} in {x!r}")

    def _function(self, x: Node) -> Value:
        """Of one value, or the largest of several, tiles first."""
        axes = self.ordered(x.axes)
        if x.op == "fn":
            v = self.value(x.args[0])
            return Value(Group(Function(x.attrs[0], v.over(v.axes))), v.axes)
        first, *rest = [self.value(a).over(axes) for a in sorted(x.args, key=lambda a: not a.axes)]
        for other in rest:  # as torch.maximum
            first = call("tl.maximum", first, other, propagate_nan="tl.PropagateNan.ALL")
        return Value(Group(first), axes)

    def _add(self, x: Node) -> Value:
        """A sum. Products on tensor cores are added up where they are made, onto what else there is."""
        axes = self.ordered(x.axes)
        args = [self._subtracted(a) for a in x.args]
        dots = [a for a in args if a not in self.memo and self._is_dot(a) and self.ordered(a.axes) == axes]
        dots.sort(
            key=lambda a: not self._in_slices(a.attrs[0])
        )  # first what can be made where slices of states are read
        parts = [self.value(a) for a in sorted((a for a in args if a not in dots), key=lambda a: not _over_steps(a))]
        found: Code | None = None
        for p in parts:
            found = added_to(found, p.over(axes))
        if found is None:
            total, dots = self.value(dots[0]), dots[1:]
        elif not dots:
            return Value(Group(found), axes)
        elif any(not set(axes) <= set(p.axes) for p in parts):
            dots, first = dots[1:], self.value(dots[0])
            return self._onto(Value(Group(plus(found, first.over(axes))), axes), dots)
        else:
            total = Value(found if len(parts) == 1 else Group(found), axes)
        return self._onto(total, dots)

    def _onto(self, total: Value, dots: list[Node]) -> Value:
        for a in dots:
            total = self._dot(a, total)
        return total

    def _subtracted(self, x: Node) -> Node:
        """A product on tensor cores that is subtracted, as one that is added, of an operand that is computed anyway: else its
        result takes registers of its own."""
        sign, rest = split_constant(x)
        if sign != -1 or rest in self.memo or not self._is_dot(rest):
            return x
        factors = factors_of(rest.args[0])
        plain = all(f.op == "leaf" and len(f.axes) == 2 for f in factors)
        if plain or any(is_state(f) or self._in_two_parts([f]) for f in factors):
            return x
        return make("sum", (mul(const(-1), *factors),), rest.attrs, rest.axes)

    def _is_dot(self, x: Node) -> bool:
        return (
            x.op == "sum"
            and len(x.axes) == 2
            and not any(f.op == "decay_mask" and len(f.axes) == 3 for f in factors_of(x.args[0]))
            and running(x) is None
        )

    def _product(self, factors: tuple[Node, ...]) -> Value:
        """The product of factors, those over the same axes first."""
        if len(factors) == 1:
            return self.value(factors[0])
        groups: dict[tuple[str, ...], list[Code]] = {}
        negative = False
        for f in factors:
            if f.op == "const" and f.attrs[0] == -1:
                negative = True
                continue
            v = self.value(f)
            groups.setdefault(v.axes, []).append(v.over(v.axes))
        axes = self.ordered({a for g in groups for a in g})
        if len(axes) > 2:
            raise CannotPrint(f"a product over {axes}")
        parts = []
        for own, found in sorted(groups.items(), key=lambda g: (len(g[0]), g[0])):
            parts.append(Value(Group(times(*found)) if len(found) > 1 else found[0], own).over(axes))
        if negative:
            parts[0] = Negative(parts[0])
        return Value(Group(times(*parts)) if negative or len(parts) > 1 else parts[0], axes)

    def _power(self, x: Node) -> Value:
        v, n = self.value(x.args[0]), x.attrs[0]
        base = v.over(v.axes)
        if n.denominator == 2 and n.numerator in (1, -1):
            root = call("tl.sqrt", base)
            return Value(root if n > 0 else Group(1.0 / root), v.axes)
        if n.denominator != 1:
            return Value(Power(base, n, by_logarithm=True), v.axes)
        product = Group(times(*[base] * abs(n.numerator)))
        return Value(product if n > 0 else Group(1.0 / product), v.axes)

    # --- contractions -----------------------------------------------------------------------------------------------

    def _sum(self, x: Node) -> Value:
        (bound,), body = x.attrs, x.args[0]
        factors = factors_of(body)
        axes = self.ordered(x.axes)
        note = self.note(x)
        if any(f.op == "decay_mask" and len(f.axes) == 3 for f in factors):
            return self.decayed_sum(x, bound, factors)
        if order_and_sum := running(x):
            order, summed = order_and_sum
            inclusive, direction = order.attrs
            v = self.value(rename(summed, {COL: ROW}))
            sums = call("summed", v.over(self.ordered(v.axes)), "C", direction > 0, inclusive, "DT")
            return self.assign("sums", sums, self.ordered(v.axes), note=note)
        if len(axes) < 2:
            v = self._product(factors)
            inside = self.ordered({bound, *axes})
            total = call("tl.sum", self.until_ends(v.over(inside), body, inside, (bound,)), axis=inside.index(bound))
            if not self._in_slices(bound):
                return self.assign("s", total, axes, note=note)
            v = self.assign("s", self.zeros(axes), axes)
            self.body.append(Let((v.name,), total, "+=", note))
            return v
        return self._dot(x)

    def _dot(self, x: Node, onto: Value | None = None) -> Value:
        """A contraction that leaves two axes, added to another value where there is one."""
        (bound,) = x.attrs
        axes = p, q = self.ordered(x.axes)
        left, right = self._factors(x)
        n = 0 if p in self.tile else 1  # the side of what is written to a state
        sides = self._sides(x)
        again = [self._in_two_parts(left), self._in_two_parts(right)]
        if self.parted and self.precise and bound == ROW and not sides[n].raw:
            sides[n] = self.assign("w", sides[n].over(sides[n].axes), sides[n].axes)  # what a state gets
            again[n] = True
        rests = list(sides)
        for side in (0, 1):
            if again[side]:
                sides[side], rests[side] = self._in_parts(sides[side])
        a, b = sides
        operands = self._operand(a, (p, bound)), self._operand(b, (bound, q))
        note = ("... + " if onto is not None else "") + self.note(x)
        apart = self.sweeps and onto is None and set(axes) == {ROW, COL}
        if self._in_slices(bound) or apart:
            v = self.assign("p", self.zeros(axes) if onto is None else onto.over(axes), axes)
            added = let(v.name, dot_of(*operands, v.code), note=note)
            # in a region of its own, or else the compiler has each row of it made by two warps, as a sweep's tile has more rows
            self.body.append(If(self.surely, (added,)) if apart else added)
        else:
            v = self.assign("p", dot_of(*operands, *([] if onto is None else [onto.over(axes)])), axes, note=note)
        others = [(rests[0], b)] * again[0] + [(a, rests[1])] * again[1]
        if others:
            each = [(self._operand(y, (p, bound)), self._operand(z, (bound, q))) for y, z in others]
            self.body.append(If(Not(Name("EXACT")), tuple(let(v.name, call("tl.dot", *x, v.code)) for x in each)))
        return v

    def _factors(self, x: Node) -> tuple[list[Node], list[Node]]:
        """What the two operands of a contraction are products of."""
        (bound,), factors = x.attrs, factors_of(x.args[0])
        p, q = self.ordered(x.axes)
        left = [f for f in factors if p in f.axes]
        right = [f for f in factors if q in f.axes]
        if any(f in left for f in right):
            raise CannotPrint(f"a product over three axes: {x!r}")
        in_registers = p in self.tile  # the left operand: what is written to a state, if it is one
        for f in [f for f in factors if f not in left and f not in right]:
            # onto the side that is computed already; a tensor as loaded goes to the tensor cores as it is
            (right if self._to_right(bound, left, right, in_registers) else left).append(f)
        return left, right

    def _sides(self, x: Node) -> list[Value]:
        """The two operands of a contraction, of which one is zero beyond the end of what is summed over."""
        (bound,), factors = x.attrs, self._factors(x)
        sides = [self._product(tuple(side)) for side in factors]
        if bound in (ROW, *self.full, *self.tile) and not self._vanishes(x.args[0], bound):
            if bound == ROW:
                n = 0 if self.ordered(x.axes)[0] in self.tile else 1
            else:
                n = 1 if any(is_state(y) for y in walk(*factors[0])) else 0
            v = sides[n]
            sides[n] = Value(self.until_ends(v.over(v.axes), x.args[0], v.axes, (bound,)), v.axes)
        return sides

    def _to_right(self, bound: str, left: list[Node], right: list[Node], in_registers: bool) -> bool:
        """Does a number of each step that a product is over go to its right operand?"""
        if in_registers:
            return bound != ROW and self._plain(left) and not self._plain(right)
        return bound == ROW or not self._plain(right)

    def _in_slices(self, axis: str) -> bool:
        """Does a sweep take an axis slice by slice, so that sums over it are added up?"""
        return self.sweeps and axis in self.full

    def zeros(self, axes: tuple[str, ...]) -> Code:
        return zeros_of("C" if a in STEPS else block_name(a) for a in axes)

    def _in_parts(self, v: Value) -> tuple[Value, Value]:
        """What v is rounded to, and what that leaves of it."""
        if v.code not in self.parts:
            self.parts[v.code] = self.fresh("rounded"), self.fresh("rest")
            self.body.append(Let(self.parts[v.code], call("rounded_and_rest", v.code, "DT")))
        first, rest = (Value(Name(x), v.axes, raw=True) for x in self.parts[v.code])
        return first, rest

    def _in_two_parts(self, side: list[Node]) -> bool:
        """Is an operand that tensor cores take in two parts all of this side?"""
        if len(side) != 1 or side[0].op != "leaf":
            return False
        if is_state(side[0]):
            return self.precise
        kind, key = side[0].attrs[:2]
        if kind == "matrix" and key in self.wide:
            return True
        return self.fine is not None and (kind == "matrix" or (kind == "input" and key in self.fine.given))

    def kept(self, decay: Node) -> Value:
        """All decays of the chunk, of a state's decay as a step-level node."""
        (d,) = (d for d, x in self.decays.items() if x == decay)
        return self.value(make("decay_all", (d,), (), set(d.axes) - {ROW}))

    def paired(self, x: Node) -> Value:
        """A read of a state times what the other side writes, each rounded as it is there, if it is; so that sums of such terms
        over the chunks of two sweeps cancel as <S, dS> does."""
        axes = self.ordered(x.axes)
        found: list[Code] = []
        for term in terms_of(x):
            factors = factors_of(term)
            read = tuple(f for f in factors if any(is_state(y) for y in walk(f)))
            written = self._product(tuple(f for f in factors if f not in read))
            factor = written.over(axes) if self.parted else call("rounded_to", written.over(axes), "DT")
            found.append(times(factor, self._product(read).over(axes)))
        return Value(plus(*found), axes)

    def _plain(self, factors: list[Node]) -> bool:
        return len(factors) == 1 and self.value(factors[0]).raw

    def _operand(self, v: Value, axes: tuple[str, ...]) -> Code:
        if v.axes == axes:
            return v.code.to("DT")
        if v.axes == axes[::-1]:
            return call("tl.trans", v.code.to("DT"))
        raise CannotPrint(f"an operand has the axes {v.axes}, not {axes}")

    def until_ends(self, value: Code, x: Node, axes: tuple[str, ...], ends: Collection[str] = (ROW,)) -> Code:
        """`value`, which is x over these axes, with zeros beyond the ends of some: of the sequence, for an axis of steps."""
        oks = [self.along(self.ok(a), a, axes) for a in axes if a in ends and not self._vanishes(x, a)]
        return where(both(*oks), value, 0.0) if oks else value

    def _vanishes(self, x: Node, axis: str) -> bool:
        """Is x certainly zero beyond the end of `axis`, of the sequence where that is one of steps? A decay is one there."""
        if axis not in x.axes:
            return False
        if x.op == "leaf":
            kind, name, axes = x.attrs
            if kind != "inner":
                return kind in VANISHING or (kind == "decay" and self._written((axis,)))
            base = next(d for d in self.definitions if d.attrs[1] == name)
            return self._vanishes(rename(self.definitions[base], dict(zip(base.attrs[2], axes, strict=True))), axis)
        if x.op == "add":
            return all(self._vanishes(y, axis) for y in x.args)
        return x.op in ("mul", "sum", "expand") and any(self._vanishes(y, axis) for y in x.args)

    def _written(self, own: tuple[str, ...]) -> bool:
        """Is a decay over this axis something to write: with tiles of a matrix beside those of states, which have one decay for
        all columns? These get nothing of what is written."""
        return self.maps and bool(own) and own[0] in self.tile

    def decayed_sums(self, x: Node, reads: Tiles | None = None) -> Value:
        """What reads take of the writes of their own chunk, with a decay for each channel. What each read takes of each write but
        for that is the same for all channels: `reads` prints it, where a loop takes these block by block, and sums of each write
        over another axis."""
        for _, summed in map(split_constant, terms_of(x)):
            factors = factors_of(summed.args[0])
            (axis,) = {a for f in factors if f.op == "decay_mask" for a in f.axes} - {ROW, COL}
            where = reads or self
            for y in walk(*(rename(f, {COL: ROW}) for f in factors if f.axes == (COL,))):
                if y.op == "sum":
                    self.memo[y] = where.value(y)
            p = where.reads_of_writes(factors, axis)
            p = where.assign("p", p.over((ROW, COL)), (ROW, COL))
            self.memo[summed] = self.decayed_sum(summed, COL, factors, p)
        return self.value(x)

    def decayed_sum(self, x: Node, bound: str, factors: tuple[Node, ...], p: Value | None = None) -> Value:
        """sum_j p_ij w_jx decays_ijx, where the decay runs over the axis that is kept."""
        masks = [f for f in factors if f.op == "decay_mask" and len(f.axes) == 3]
        (axis,) = set(masks[0].axes) - {ROW, COL}
        if len(masks) > 1 or bound != COL or axis not in x.axes:
            raise CannotPrint(f"decays over three axes in {x!r}")
        p = p or self.reads_of_writes(factors, axis)
        w = self.tile_of(tuple(f for f in factors if f is not masks[0] and (axis in f.axes or f.axes == (COL,))), axis)
        late, write_late, inclusive, _ = masks[0].attrs
        alone = (
            self.apart is not None and inclusive and late == write_late
        )  # a step's own write, which no decay is before
        made = call(
            "decayed_sum",
            p.over((ROW, COL)),
            w.over((ROW, axis)),
            *self.halves(masks[0], axis),
            "C",
            self.chunk,
            "LEVELS",
            masks[0].attrs[3] > 0,
            inclusive and not alone,
            Literal(False) if self.by_range is None else "FLAT",
            "EXACT",
            "DT",
        )
        own = self.assign("own", call("diagonal", p.over((ROW, COL)), "C"), (ROW,)) if alone else None
        v = self.assign("p", made, (ROW, axis), note=self.note(x))
        if own is not None and self.apart is not None:
            self.apart[x] = v
            with_own = plus(v.code, times(own.over((ROW, axis)), w.over((ROW, axis))))
            v = self.assign("p", with_own, (ROW, axis), note="with each step's own")
        self.from_slow_path(
            masks[0], axis, None if masks[0].attrs[3] > 0 else (p.over((ROW, COL)), w.over((ROW, axis)))
        )
        return v

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

    def from_slow_path(self, mask: Node, axis: str, read: tuple[Code, Code] | None = None) -> None:
        """Which rows are stored by the kernel for those that are of a large decay range: from the first of these on, and the rows
        before it
        where they `read`, by a matrix, what these write."""
        if self.by_range is None:
            return
        late, write_late, _, direction = mask.attrs
        later = self._cumulative(mask.args[0], late if direction > 0 else not write_late, over=(ROW, axis))
        first = call("first_steep", "steep_from", *later, self.ok(axis), "C", "DT")
        lines: list[Statement] = [let("steep_from", first)]
        if read is not None:
            lines.append(let("again", call("adds_steep", "again", *read, "steep_from", "C")))
        lines.append(let("i_new", Name("i_ok") & Binary("|", Name("i") >= "steep_from", Name("again") > 0)))
        self.body.append(If(Not(Name("FLAT")), tuple(lines)))

    def tile_of(self, factors: tuple[Node, ...], axis: str) -> Value:
        """A product of what the steps of a chunk have, over an axis, even if all of it is the same along that."""
        v = self._product(factors) if factors else Value(Literal(1.0), ())
        v = replaced(v, axes=tuple(ROW if a == COL else a for a in v.axes))
        if axis in v.axes:
            if self._vanishes(mul(*factors), axis):
                return v
            return Value(self.until_ends(v.over(v.axes), mul(*factors), v.axes, (axis,)), v.axes)
        axes = self.ordered((ROW, axis))
        return self.assign("x", where(self.inside(axes), v.over(axes), 0.0), axes)

    def reads_of_writes(self, factors: tuple[Node, ...], axis: str) -> Value:
        """What each read takes of each write, but for decays over `axis` and numbers of each write: so that it is rounded as it
        is where these take from those."""
        others = tuple(f for f in factors if axis not in f.axes and f.axes != (COL,))
        square = shape("C", "C")
        p = self._product(others) if others else Value(call("tl.full", square, 1.0, "tl.float32"), (ROW, COL))
        return p if len(p.axes) == 2 else Value(call("tl.broadcast_to", p.over((ROW, COL)), square), (ROW, COL))

    def ends(self, mask: Node, axis: str) -> None:
        """Store the sums of a whole chunk for others, where the kernel makes them."""
        (d,) = mask.args
        name = self._decay_name(d)
        if name not in self.making:
            return
        end, _ = self._cumulative(d, True, end=True)
        index, width = self.index(axis), Name(size_name(dim_of(axis)))
        place = plus(f"{name}_sums", times("step", width), times("last", Group(Name("H") * width)), index)
        self.body.append(If(Name("SUMS"), (Store(place, Name(end), Name(f"{index}_ok")),)))

    def halves(self, mask: Node, axis: str) -> list[Code]:
        """What the helpers of `runtime/chunk_kernels/kernels.py` that work by halves take of a decay over an axis."""
        (d,) = mask.args
        late, write_late, _, direction = mask.attrs
        high, low = (late, write_late) if direction > 0 else (not write_late, not late)
        name = self._decay_name(d)
        width = Name(size_name(dim_of(axis)))
        sums, counts = (plus(f"{name}_{x}", times("step", width)) for x in ("sums", "rests"))
        if self.by_range is not None and name not in self.by_range:
            self.by_range.append(name)
            self.argument(name, Role.EXTENTS, "extent", self.decays[d], (axis,))
        edges = [Name(y) for x in (high, low) for y in self._cumulative(d, x, over=(ROW, axis))]
        index = self.index(axis)
        given = Either(counts, Name("EXACT"), Literal(None))
        return [sums, given, *edges, Name(index), Name(f"{index}_ok"), Name("last"), Name("H") * width]

    # --- decays -----------------------------------------------------------------------------------------------------

    def _seen(self, inclusive: bool, direction: int) -> Code:
        sign = (">" if direction > 0 else "<") + ("=" if inclusive else "")
        return Binary(sign, Name("i").along(0, 2), Name("i").along(1, 2))

    def _decay_name(self, d: Node) -> str:
        name = self.name_of(self.decays[d])
        own = tuple(a for a in d.axes if a not in STEPS)
        self.argument(name, Role.SUMS, "chunked", self.decays[d], own)
        self.argument(name, Role.RESTS, "chunked", self.decays[d], own)
        return name

    def _cumulative(
        self, d: Node, inclusive: bool, end: bool = False, over: tuple[str, ...] | None = None
    ) -> tuple[str, str]:
        """Cumulative log2 decay with this step (or before it; or at the chunk's end), and what its sums leave."""
        name = self._decay_name(d)
        own = tuple(a for a in d.axes if a not in STEPS)
        axes = self.ordered((ROW, *own)) if over is None else over
        edge = "end" if end else "with" if inclusive else "before"
        in_rows = axes != self.ordered(axes)
        suffix = {"end": "_end", "with": "", "before": "_before"}[edge] + ("_rows" if in_rows else "")
        names = []
        for rests, letter in ((False, "a"), (True, "n")):
            key = Cumulative(name, rests, edge, in_rows, own)
            if key not in self.loads:
                variable = self.loads[key] = self.fresh(f"{name}_{letter}{suffix}")
                loaded = self._loaded_sums(name, rests, edge, own, axes)
                made = not rests and name in self.making
                if made:
                    loaded = Either(self._made(d, key, inclusive, end), Name("SUMS"), loaded)
                in_body = own and not (end and self.by_range is None)
                (self.body if in_body else self.head).append(let(variable, loaded))
                if made and edge == "with" and not in_rows:
                    self._reached(variable, name)
            names.append(self.loads[key])
        return names[0], names[1]

    def _loaded_sums(self, name: str, rests: bool, edge: str, own: tuple[str, ...], axes: tuple[str, ...]) -> Code:
        """What loads cumulative sums of a decay, or what these leave."""
        end = edge == "end"
        row: Code = {"end": Name("last"), "with": Name("row"), "before": call("tl.minimum", Name("i") - 1, "last")}[
            edge
        ]
        masks: list[tuple[Code, int]] = [(Name("i") > 0, 0)] if edge == "before" else []
        sums = Name(f"{name}_{'rests' if rests else 'sums'}")
        if own:
            axis, width = Name(self.index(own[0])), Name(size_name(dim_of(own[0])))
            masks.append((Name(f"{axis.id}_ok"), 1))
            rows: Code = row
            columns: Code = axis
            if not end:
                rows, columns = self.along(Group(row), ROW, axes), self.along(axis, own[0], axes)
            place = plus(times(rows, Group(Name("H") * width)), columns)
            base = times("step", width)
        else:
            place, base = row, Name("at")
        shown = [m if not own or end else self.along(Group(m), (ROW, *own)[n], axes) for m, n in masks]
        x: Code = Load(plus(sums, base, place), *((both(*shown), Literal(0)) if shown else ()))
        if own and not self.sweeps:
            at = [Group(row), axis, Name(f"{axis.id}_ok")]
            if not end:
                at = [Expanded(y, (n == 0, n > 0)) for n, y in enumerate((Group(row), axis))]
                at.append(Expanded(Name(f"{axis.id}_ok"), (False, True)))
            x = call("over_block", x, plus(sums, base), *at, "last", Name("H") * width, "C", "CHUNK")
        if own and not end and self.sweeps and not rests:
            x = where(shown[-1], x, 0.0)  # as `_apart` has it
        if rests:
            none = call("tl.full", shape(1), 0, "tl.int32") if own and end else Literal(0)
            return Either(x, Name("EXACT"), none)
        return x

    def _made(self, d: Node, key: Cumulative, inclusive: bool, end: bool) -> Code:
        """Sums of a decay for each channel, from its logarithms: with each step, before it, or of the whole chunk."""
        log2 = Once(key.decay, "log2")
        if end or not inclusive:
            sums, _ = self._cumulative(d, True)
            return call("last_of", sums, "C") if end else Name(sums) - self.loads[log2]
        variable = self.loads[log2] = self.fresh(f"{key.decay}_log2")
        self.body.append(let(variable, Either(self.log2(d, key.axes[0]), Name("SUMS"), Literal(0.0))))
        return call("sums_of", variable, "C")

    def log2(self, d: Node, axis: str) -> Code:
        """A decay for each channel, of each step, as log2."""
        base, index = self.name_of(self.decays[d]), self.index(axis)
        self.argument(base, Role.GIVEN, "step", self.decays[d], (axis,))
        rows, columns = times(Name("i").along(0, 2), f"{base}_t"), Name(index).along(1, 2)
        place = plus(f"{base}_p", times("t0", f"{base}_t"), rows, columns)
        mask = both(Name("i_ok").along(0, 2), Name(f"{index}_ok").along(1, 2))
        return call("log2_of", Load(place, mask, Literal(0.0)))

    def _reached(self, sums: str, name: str) -> None:
        """How far sums that were made reach so far."""
        found = []
        for which, end in (("max", "most"), ("min", "least")):
            inside = call(f"tl.{which}", call(f"tl.{which}", sums, axis=1), axis=0)
            found.append(let(f"{name}_{end}", call(f"tl.{which}imum", f"{name}_{end}", inside)))
        self.body.append(If(Name("SUMS"), tuple(found)))

    def _mask(self, x: Node) -> Value:
        """Decays between the write of step j and the read of step i, where the read sees it."""
        if len(x.axes) != 2:
            raise CannotPrint(f"decays over {x.axes}")
        late, write_late, inclusive, direction = x.attrs
        (d,) = x.args
        if direction > 0:
            high, low = self._cumulative(d, late), self._cumulative(d, write_late)
        else:  # the write is the later one in time
            high, low = self._cumulative(d, not write_late), self._cumulative(d, not late)
        n = 0 if direction > 0 else 1
        between, rest = (Name(x).along(n, 2) - Name(y).along(1 - n, 2) for x, y in zip(high, low, strict=True))
        seen = self.assign("seen", self._seen(inclusive, direction), (ROW, COL))
        log2 = self.assign("log2", between, (ROW, COL))
        self.body.append(If(Name("EXACT"), (let(log2.name, log2.code + rest),)))
        return self.assign("m", call("power", log2.code, seen.code), (ROW, COL), note="decays from write to read")

    def _edge(self, x: Node) -> Value:
        """Decays from the chunk's start to a read, from a write to the chunk's end, or of the whole chunk."""
        (d,) = x.args
        own = tuple(a for a in d.axes if a not in STEPS)
        wish = {"decay_in": "since", "decay_out": "until", "decay_all": "kept"}[x.op]
        if x.op == "decay_all":
            a, n = self._cumulative(d, True, end=True)
            return self.assign(wish, call("span", a, n, 0.0, 0), own)
        late, direction = x.attrs
        axes = self.ordered((ROW, *own))
        from_start = (x.op == "decay_in") == (direction > 0)
        inclusive = late if direction > 0 else not late
        a, n = self._cumulative(d, inclusive)
        if from_start:
            return self.assign(wish, call("span", a, n, 0.0, 0), axes)
        ends = self._cumulative(d, True, end=True)
        shown = [self.along(x, own[0], axes) for x in ends] if own else list(map(Name, ends))
        return self.assign(wish, call("span", *shown, a, n), axes)

    # --- leaves -----------------------------------------------------------------------------------------------------

    def ok(self, axis: str) -> str:
        return f"{self.index(axis)}_ok"

    def _leaf(self, x: Node) -> Value:
        kind, name, order = x.attrs
        if kind == "inner":
            return self._inner(x)
        if kind == "state in" and name in self.checkpoints:
            return self.assign("s", self.checkpoints[name], self.ordered(x.axes), raw=True, note=name)
        if kind == "stream":
            return self._stream(x)
        if kind == "matrix" and name in self.matrices:
            known = leaf(kind, name, (ROW, COL))
            if known not in self.memo:
                self.memo[known] = self.made(self.matrices[name])
            return replaced(self.memo[known], axes=order)
        if kind == "matrix":
            variable = self.argument(self.name_of(x), Role.WHOLE, "matrix", x)
            if Once(variable) not in self.loads:
                self.loads[Once(variable)] = self.assign("t", Load(matrix_place(variable)), order, raw=True).name
            return Value(Name(self.loads[Once(variable)]), order, raw=True)
        if kind == WEIGHT:
            return self._weight(leaf(kind, name), order)
        if kind == "constant":
            return Value(Name(self.argument(self.name_of(x), Role.NUMBER, "number", x)), ())
        own = tuple(a for a in order if a not in STEPS)
        if kind == "intra" and name in self.intra:
            return self.decayed_sums(self.intra[name])
        if len(own) > 1:
            raise CannotPrint(f"{name} has two axes")
        if kind in PER_HEAD:
            return self._per_head(x, own)
        if kind not in PER_STEP:
            raise CannotPrint(f"the leaf {x!r}")
        base = self.name_of(leaf(kind, name, own))
        if self.by_head and not own and kind in ("input", "decay"):
            self.argument(base, Role.BY_HEAD, "chunked", leaf(kind, name, own))
            number: Code = Load(plus(f"{base}_by_head", "at", "i"), Name("i_ok"), Literal(0.0))
            return self.assign(base, Function("exp", number) if kind == "decay" else number, (ROW,))
        loaded, axes = self.load(base, leaf(kind, name, own), own)
        if kind == "decay":
            return self.assign(base, self._decay(leaf(kind, name, own), loaded, axes), axes)
        return self._apart(self.assign(base, loaded, axes, raw=True), f"{base}_p")

    def _decay(self, x: Node, loaded: Code, axes: tuple[str, ...]) -> Code:
        """A decay of each step, which is one where nothing is loaded."""
        decay: Code = Function("exp", loaded.to("tl.float32"))
        summed = next((d for d, y in self.decays.items() if y == x), None)
        if x.axes and summed is not None and self.by_range is not None:  # its sums are loaded anyway
            edges = [y for z in (True, False) for y in self._cumulative(summed, z, over=axes)]
            decay = Either(decay, Name("EXACT"), call("span", *edges))
        if self._written(x.axes):
            decay = where(self.along(self.ok(x.axes[0]), x.axes[0], axes), decay, 0.0)
        return decay

    def _weight(self, x: Node, order: tuple[str, ...]) -> Value:
        """How much of one state is in another at each step; or, over no axis, at the last one that the sweep takes of a chunk."""
        base = self.argument(self.name_of(x), Role.WHOLE, "chunked", x)
        place = Name("i") if order else Name("last") if self.forward else Literal(0)
        key = Once(base, "each" if order else "whole")
        if key not in self.loads:
            variable = self.loads[key] = self.fresh(f"{base}_{key.what}")
            masked = (Name("i_ok"), Literal(0.0)) if order else ()
            self.head.append(let(variable, Load(plus(base, "at", place), *masked)))
        return Value(Name(self.loads[key]), order)

    def made(self, x: Node) -> Value:
        """A matrix over the steps of a chunk that is made here."""
        v = self.value(x)
        return v if v.named else self.assign("t", v.over((ROW, COL)), (ROW, COL), note=self.note(x))

    def load(self, base: str, x: Node, own: tuple[str, ...]) -> tuple[Code, tuple[str, ...]]:
        """What loads numbers of each step, or a tile of them, and its axes."""
        layout = "chunked" if x.attrs[0] in ("scaled", "intra") else "step"
        self.argument(base, Role.GIVEN, layout, x, own)
        axes = self.ordered((ROW, *own))
        rows = self.along("i", ROW, axes)
        if layout == "chunked":
            width = size_name(dim_of(own[0]))
            place = plus(f"{base}_p", times("at", width), times(rows, width))
        else:
            place = plus(f"{base}_p", times("t0", f"{base}_t"), times(rows, f"{base}_t"))
        if own:
            self.loaded.append((f"{base}_p", own[0]))
            place = plus(place, self.along(self.index(own[0]), own[0], axes))
        return Load(place, self.inside(axes), Literal(0.0)), axes

    def _apart(self, v: Value, argument: str) -> Value:
        """A tile that was loaded, whose elements are taken through a select that changes nothing.

        Otherwise the compiler moves the change of layout that elementwise work needs up to the load, and then copies the tile to
        shared memory by single elements, which it can't do ahead of time for those of two bytes: a sweep then waits for the load.

        Elements of two bytes are products with the identity instead, where there is room (PRODUCTS): tensor cores read the tile
        as it lies in shared memory, without conflicts of its banks, and leave elements in the registers that they are needed in.
        """
        if not self.sweeps or len(v.axes) < 2:
            return v
        variable = self.fresh(f"{v.name}_each")
        each: Code = where(self.inside(v.axes), v.code, 0.0)
        products = self.products and v.axes[1] == ROW
        if products:
            fits = Binary("and", Name("PRODUCTS"), Attribute(v.code, "dtype").equals("DT"))
            each = Either(call("tl.dot", v.code.to("DT"), "identity"), fits, each)
        elements = Elements(variable, argument if products else None)
        self.elements.append(elements)
        self.body.append(let(variable, each))
        return replaced(v, elements=elements)

    def used(self, body: list[Statement]) -> Body:
        """The statements without elements that nothing takes: of tiles that are operands of products alone."""
        unused = {(x.variable,) for x in self.elements if not x.taken}
        return tuple(x for x in body if not isinstance(x, Let) or x.names not in unused)

    @property
    def by_products(self) -> frozenset[str]:
        """What is loaded whose elements may be products."""
        return frozenset(x.argument for x in self.elements if x.taken and x.argument is not None)

    def _per_head(self, x: Node, own: tuple[str, ...]) -> Value:
        kind, name, _ = x.attrs
        base = self.name_of(leaf(kind, name, own))
        self.argument(base, Role.GIVEN, "head", leaf(kind, name, own), own)
        if own:
            axis, width = self.index(own[0]), size_name(dim_of(own[0]))
            loaded = Load(plus(f"{base}_p", times("h", width), axis), Name(f"{axis}_ok"), Literal(0.0))
        else:
            loaded = Load(plus(f"{base}_p", "h"))
        number = loaded.to("tl.float32")
        return self.assign(base, Function("exp", number) if kind.startswith("decay") else number, own)

    def _inner(self, x: Node) -> Value:
        """A definition, perhaps over other names of its axes."""
        base = next(d for d in self.definitions if d.attrs[1] == x.attrs[1])
        if base not in self.memo:
            v = self.value(self.definitions[base])
            if not v.named:
                v = self.assign("w", v.over(v.axes), v.axes)
            self.memo[base] = v
        v = self.memo[base]
        names = dict(zip(base.attrs[2], x.attrs[2], strict=True))
        return replaced(v, axes=tuple(names[a] for a in v.axes))

    def _stream(self, x: Node) -> Value:
        """A step-level quantity computed on the tile; zero where there is no step or no channel."""
        node = self.streams[x] if x in self.streams else self.decays[x]
        v = self.value(at_row(node))
        if node.op == "leaf" and ROW in v.axes and node.attrs[0] != "decay":  # which is one where nothing is loaded
            return v
        axes = self.ordered({ROW, *v.axes})  # also what is the same at each step
        oks = both(*(Value(Name(self.ok(a)), (a,)).over(axes) for a in axes))
        return self.assign("x", where(oks, v.over(axes), 0.0), axes, note=self.note(node))
