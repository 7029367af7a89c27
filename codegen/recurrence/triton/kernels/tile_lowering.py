"""Chunk-level nodes as statements on tiles: the one place where the mathematics of kernels over chunks is lowered.

A value is a tensor of at most two axes, in the order steps, full axis, tile axis; in a sweep the tile axis comes first, so that
what one product leaves in registers is the left operand of the next one, and goes through no shared memory. A contraction of two
values that leave one axis each is a product on tensor cores; every other one is a sum. Elementwise work is in float32.
"""

from __future__ import annotations

from dataclasses import replace as replaced
from fractions import Fraction
from functools import reduce

import sympy

from ....exact.rationals import irrational
from ....ir.code import (
    Code,
    Group,
    Literal,
    Name,
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
    factors_of,
    make,
    mul,
    rename,
    split_constant,
    walk,
)
from ....ir.kernel_ir import Let
from ....ir.spellings import Function, Power
from ....printing.cannot_print import CannotPrint
from ....printing.dialects import larger
from ....printing.walk import Walk
from ..plan_passes.roles import STEPS, is_state
from ..print.axis_names import size_name
from .arguments import Role
from .tile_leaves import TileLeaves
from .tile_values import Value, added_to, running


class Tiles(TileLeaves, Walk[Node, Value]):
    """Lowers nodes to statements of a `body`, once each, and collects the kernel's arguments."""

    def value(self, x: Node) -> Value:
        if x not in self.memo:
            steps = [a for a in x.axes if a in STEPS]
            if len(steps) == 1 and steps[0] != ROW:
                v = self.value(rename(x, {steps[0]: ROW}))
                self.memo[x] = replaced(v, axes=tuple(steps[0] if a == ROW else a for a in v.axes))
            else:
                self.memo[x] = self.operation(x)
        return self.memo[x]

    # --- one operation

    def number(self, x: Node) -> Value:
        value = x.attrs[0]
        if x.op == "const":
            return Value(Literal(float(value), Fraction(value)), ())
        return Value(Literal(float(sympy.N(sympy.sympify(value))), irrational(value)), ())

    def size(self, x: Node) -> Value:  # no tile here need have that axis
        size = self.argument(size_name(x.attrs[0]), Role.SIZE, "size", x)
        return Value(call("tl.full", shape(), size, "tl.float32"), ())

    def sum(self, x: Node) -> Value:
        """A sum. Products on tensor cores are added up where they are made, onto what else there is."""
        if (read := self.read_with_state(x)) is not None:
            return read
        axes = self.ordered(x.axes)
        args = [self._subtracted(a) for a in x.args]
        dots = [a for a in args if a not in self.memo and self._is_dot(a) and self.ordered(a.axes) == axes]
        # first what can be made where slices of states are read, and no tile is held while systems of channels are solved
        dots.sort(key=lambda a: (not self._in_slices(a.attrs[0]), not self._waits(a)))
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
            return self._onto(Value(Group(plus(found, first.over(axes))), axes), dots, x)
        else:
            total = Value(found if len(parts) == 1 else Group(found), axes)
        return self._onto(total, dots, x)

    def product(self, x: Node) -> Value:
        return self._product(x.args)

    def power(self, x: Node) -> Value:
        v, n = self.value(x.args[0]), x.attrs[0]
        base = v.over(v.axes)
        if n.denominator == 2 and n.numerator in (1, -1):
            root = call("tl.sqrt", base)
            return Value(root if n > 0 else Group(1.0 / root), v.axes)
        if n.denominator != 1:
            return Value(Power(base, n, by_logarithm=True), v.axes)
        product = Group(times(*[base] * abs(n.numerator)))
        return Value(product if n > 0 else Group(1.0 / product), v.axes)

    def function(self, x: Node) -> Value:
        v = self.value(x.args[0])
        return Value(Group(Function(x.attrs[0], v.over(v.axes))), v.axes)

    def largest(self, x: Node) -> Value:
        """The largest of several, tiles first."""
        axes = self.ordered(x.axes)
        found = (self.value(a).over(axes) for a in sorted(x.args, key=lambda a: not a.axes))
        return Value(Group(reduce(larger, found)), axes)

    def expansion(self, x: Node) -> Value:
        return self.value(x.args[0])

    def contraction(self, x: Node) -> Value:
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
                return self.assign(self.wish(x, "sums"), total, axes, note=note)
            v = self.assign(self.wish(x, "sums"), self.zeros(axes), axes)
            self.body.append(Let((v.name,), total, "+=", note))
            return v
        return self._dot(x)

    def eye(self, x: Node) -> Value:
        raise CannotPrint(f"{x.op} in {x!r}")

    def peak(self, x: Node) -> Value:
        raise CannotPrint(f"{x.op} in {x!r}")

    def other(self, x: Node) -> Value:
        match x.op:
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
            case "inverse" | "channel_solve":
                return self._solved(x)
            case "left_out":
                return self._left_out(x)
        raise CannotPrint(f"{x.op} in {x!r}")

    def _solved(self, x: Node) -> Value:
        """What a triangular matrix is solved for: its inverse, or one system for each channel."""
        if x.op == "channel_solve":
            return self._channel_solve(x)
        t = self.value(x.args[0]).over((ROW, COL))
        late = ROW if self.forward else COL
        # what comes before the end may not see beyond it
        t = self.until_ends(t, x.args[0], (ROW, COL), (late,))
        return self.assign(
            self.wish(x, "solved"), call("inverse", t, "C", "LEVELS", "DT"), (ROW, COL), note="(I - T)^-1"
        )

    def _left_out(self, x: Node) -> Value:
        """Products of a state and its gradient at each step, without its own decay."""
        decay, read, write, weights, start, end, both = x.args
        own = self.ordered(x.axes)
        (channel,) = (a for a in own if a != ROW)
        tile = [self._whole(y, own) for y in (read, write)]
        matrix = self._whole(weights, (ROW, COL))
        edges = [self._whole(y, own) for y in (start, end)]
        last = self._whole(both, (channel,))
        read_late, write_late = x.attrs
        ways = *x.attrs, "C", self.chunk, "LEVELS", "EXACT", "DT"
        places = self.in_memory(decay, channel, not read_late, write_late)
        made = call("products_left_out", *tile, matrix, *edges, last, *places, *ways)
        return self.assign(self.wish(x, "products"), made, own, note="without the step's own decay")

    def _whole(self, x: Node, axes: tuple[str, ...]) -> Code:
        """A value as a tile over all of these axes."""
        v = self.value(x)
        if set(v.axes) == set(axes):
            return v.over(axes)
        return plus(self.zeros(axes), v.over(axes))

    def _channel_solve(self, x: Node) -> Value:
        """One triangular system for each channel; functions have steps on the last axis, and load the matrix row by row."""
        matrix, scale, right, *decays = x.args
        (channel,) = (a for a in x.axes if a != ROW)
        axes, own = (channel, ROW), self.ordered(x.axes)
        given = [self.value(y).over(own) for y in (scale, right)]
        given = [self.until_ends(v, y, own) for v, y in zip(given, (scale, right), strict=True)]
        factors, constants = given if own == axes else [call("tl.trans", v) for v in given]
        t = self.matrix_in_memory(matrix)
        direction, *edges = x.attrs
        made = call("channel_solve", constants, factors, t, direction > 0, "C")
        for d in decays:
            with_own, before = (self._cumulative(d, inclusive) for inclusive in (True, False))
            step: Code = call("span", *with_own, *before)
            step = step if own == axes else call("tl.trans", step)
            made = call("decayed_channel_solve", constants, factors, t, step, direction > 0, *edges, "C")
        return self.assign(self.wish(x, "solution"), made, axes, note="a system for each channel")

    def _onto(self, total: Value, dots: list[Node], x: Node) -> Value:
        for a in dots:
            total = self._dot(a, total, self.wish(x, "added"))
        return total

    def _waits(self, x: Node) -> bool:
        """Is x made of what systems of channels are solved for, which take one step after the other?"""
        inner = {y.attrs[1] for y in walk(x) if y.op == "leaf" and y.attrs[0] == "inner"}
        made = [node for d, node in self.definitions.items() if d.attrs[1] in inner]
        return any(y.op == "channel_solve" for y in walk(x)) or any(map(self._waits, made))

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


def _over_steps(x: Node) -> bool:
    """Is x made of sums over the steps of a chunk with a decay for each channel? These take the most registers while they are
    made, so that they come before what waits for them."""
    return any(y.op == "leaf" and y.attrs[0] == "intra" for y in walk(x))
