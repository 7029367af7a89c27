"""Products and contractions on tiles.

A contraction of two values that leave one axis each is a product on tensor cores; every other one is a sum.
"""

from __future__ import annotations

from collections.abc import Collection

from ....ir.code import (
    Code,
    Either,
    Group,
    Name,
    Negative,
    Not,
    both,
    call,
    plus,
    times,
    where,
)
from ....ir.expr import (
    COL,
    ROW,
    Node,
    factors_of,
    rename,
    terms_of,
    walk,
)
from ....ir.kernel_ir import If, Let, let
from ....printing.cannot_print import CannotPrint
from ..plan_passes.roles import is_state
from .tile_decays import TileDecays
from .tile_names import Scope
from .tile_values import Fine, Value, dot_of, running

# What is zero beyond its axes' ends, as it is loaded or made; a product is one of vectors of both steps.
VANISHING = (
    "input",
    "cotangent",
    "read",
    "write",
    "stored",
    "scaled",
    "stream",
    "prologue",
    "product",
    "state in",
    "parameter",
)


class TileProducts(TileDecays):
    """Lowers products: elementwise, and on tensor cores."""

    surely: Code = Name("count") > 0  # holds where a chunk is taken
    maps = False  # are there tiles beyond the states', of the columns of a matrix?

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.parts: dict[Code, tuple[str, str]] = {}  # of operands in two parts
        # are states two operands of products on tensor cores, of which one holds what rounding leaves?
        self.precise = False
        self.parted = False  # is what precise states get two operands as well, with nothing rounded in what sums read?
        self.wide: frozenset[str] = frozenset()  # matrices that are float32 in memory
        self.fine: Fine | None = None
        self.divided: frozenset[Node] = frozenset()  # products that a quotient may make many times as large
        self.products_made: dict[tuple[Code, Code], Code] | None = None  # by operands, where a transpose is of use

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

    def _is_dot(self, x: Node) -> bool:
        return (
            x.op == "sum"
            and len(x.axes) == 2
            and not any(f.op == "decay_mask" and len(f.axes) == 3 for f in factors_of(x.args[0]))
            and running(x) is None
        )

    def _dot(self, x: Node, onto: Value | None = None, wish: str = "") -> Value:
        """A contraction that leaves two axes, added to another value where there is one; called as is wished, or by its tiles."""
        (bound,) = x.attrs
        axes = p, q = self.ordered(x.axes)
        left, right = self._factors(x)
        n = 0 if p in self.tile else 1  # the side of what is written to a state
        sides = self._sides(x)
        again = [self._in_two_parts(left), self._in_two_parts(right)]
        if self.parted and self.precise and bound == ROW and not sides[n].raw:
            sides[n] = self.assign("written", sides[n].over(sides[n].axes), sides[n].axes)  # what a state gets
            again[n] = True
        rests = list(sides)
        for side in (0, 1):
            if again[side]:
                sides[side], rests[side] = self._in_parts(sides[side])
        a, b = sides
        operands = self._operand(a, (p, bound)), self._operand(b, (bound, q))
        wish = wish or self.wish(x, "product")
        note = ("... + " if onto is not None else "") + self.note(x)
        apart = self.sweeps and onto is None and set(axes) == {ROW, COL}
        if self._in_slices(bound) or apart:
            v = self.assign(wish, self.zeros(axes) if onto is None else onto.over(axes), axes)
            added = let(v.name, dot_of(*operands, v.code, exactly=x in self.divided), note=note)
            # in a region of its own, or else the compiler has each row of it made by two warps, as a sweep's tile has more rows
            self.body.append(If(self.surely, (added,)) if apart else added)
        else:
            product = dot_of(*operands, *([] if onto is None else [onto.over(axes)]), exactly=x in self.divided)
            alone = onto is None and not any(again)
            v = self.assign(wish, self._or_transpose(a.code, b.code, product) if alone else product, axes, note=note)
            if alone and self.products_made is not None:
                self.products_made[a.code, b.code] = v.code
        others = [(rests[0], b)] * again[0] + [(a, rests[1])] * again[1]
        if others:
            each = [(self._operand(y, (p, bound)), self._operand(z, (bound, q))) for y, z in others]
            self.body.append(If(Not(Name("EXACT")), tuple(let(v.name, call("tl.dot", *x, v.code)) for x in each)))
        return v

    def _or_transpose(self, left: Code, right: Code, product: Code) -> Code:
        """A product; in float32, whose operands fill shared memory, the transpose of one that is there, if this is it. In 16
        bits a product costs less than the registers that hold the other until then."""
        there = (self.products_made or {}).get((right, left))
        return product if there is None else Either(call("tl.trans", there), Name("EXACT"), product)

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

    def _plain(self, factors: list[Node]) -> bool:
        return len(factors) == 1 and self.value(factors[0]).raw

    def _operand(self, v: Value, axes: tuple[str, ...]) -> Code:
        if v.axes == axes:
            return v.code.to("DT")
        if v.axes == axes[::-1]:
            return call("tl.trans", v.code.to("DT"))
        raise CannotPrint(f"an operand has the axes {v.axes}, not {axes}")

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
        if x.op == "channel_solve":
            return all(self._vanishes(y, axis) for y in x.args[1:])
        return x.op in ("mul", "sum", "expand") and any(self._vanishes(y, axis) for y in x.args)

    def _written(self, own: tuple[str, ...]) -> bool:
        """Is a decay over this axis something to write: with tiles of a matrix beside those of states, which have one decay for
        all columns? These get nothing of what is written."""
        return self.maps and bool(own) and own[0] in self.tile
