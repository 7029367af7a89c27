"""Nodes as statements of torch over values whose axes have names: the part of the torch form's printer that knows no chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import sympy

from ..ir.code import (
    Code,
    Expanded,
    Group,
    Items,
    Literal,
    Name,
    Negative,
    Raised,
    atom,
    call,
    product,
)
from ..ir.expr import Node, dim_of, factors_of, leaves, walk
from ..ir.launch_ir import Statement, assign
from ..ir.python_code import leaf_code
from .dialects import TorchOfChunks, along_axes, einsum, matmul, moved
from .walk import Walk, summed

Leaf = Callable[[Node], str | Code]
Axes = tuple[str, ...]
LONGEST = 60  # a longer expression gets a name
BARE = ("leaf", "const", "number", "size")  # what needs no name
SIMPLE = ("add", "mul", "pow", "fn", "max")  # what needs none where it is used once


@dataclass(frozen=True)
class Factors:
    """Some of the factors of a contraction, and the axes that they have together."""

    nodes: tuple[Node, ...]
    axes: frozenset[str]

    @property
    def order(self) -> Axes:
        return tuple(sorted(self.axes))

    @property
    def single(self) -> bool:
        return len(self.nodes) == 1


class TorchText(Walk[Node, Code]):
    """Statements for nodes. Tensors have leading batch axes, then the node's axes in sorted order."""

    def __init__(
        self,
        of_leaf: Leaf,
        body: list[Statement],
        names: dict[Node, str],
        prefix: str = "t",
        dialect: TorchOfChunks | None = None,
    ) -> None:
        self.of_leaf, self.body, self.names, self.prefix = of_leaf, body, names, prefix
        self.dialect = dialect or TorchOfChunks(lambda d: f"size_{d}")
        self.uses: Counter[Node] = Counter()

    def count(self, roots: Iterable[Node]) -> None:
        for root in roots:
            self.uses[root] += 1
            for x in walk(root):
                self.uses.update(x.args)

    def value(self, x: Node) -> Code:
        """The value of x: a name, or an expression where it is used once."""
        if x not in self.names:
            made = self.operation(x)
            if x.op in BARE or (self.uses[x] <= 1 and x.op in SIMPLE and made.width < LONGEST):
                return made
            name = self.fresh(x)
            self.define(name, made)
            self.names[x] = name
        return Name(self.names[x])

    def fresh(self, x: Node) -> str:
        """A name for the value of x."""
        return f"{self.prefix}{len(self.body)}"

    def is_name(self, x: Node) -> bool:
        """Is the value of x a name, or that of a leaf with its axes swapped? So is one that was printed."""
        return x in self.names or (x.op == "leaf" and is_sorted_or_transposed(x.attrs[2]) and self.names_leaf(x))

    def names_leaf(self, x: Node) -> bool:
        """Is a leaf's value a name?"""
        return True

    def define(self, name: str, value: Code) -> None:
        """A statement that gives a name to a value."""
        self.body.append(assign(name, value))

    def arguments(self, nodes: Iterable[Node]) -> Items:
        """Step-level quantities as tensors, [B, H, T, *axes] where none of the first three need be whole."""
        values = []
        for x in nodes:
            self.count([x])
            value = self.value(x)
            if all(y.attrs[0] == "constant" for y in leaves(x)):
                ours = (False,) * 3 + (True,) * len(x.axes)
                value = Expanded(value, ours) if x.axes else self.dialect.filled(value, 3)
            values.append(value)
        return Items(tuple(values))

    def aligned(self, x: Node, axes: Axes) -> Code:
        """The value of x, so that it broadcasts over these axes."""
        value = self.value(x)
        if self.is_number(x) or not axes or all(a in x.axes for a in axes):
            return value
        return along_axes(value, x.axes, axes)

    def is_number(self, x: Node) -> bool:
        """Is x the same everywhere, and a number in Python, or a tensor that is only one?"""
        return all(y.op in ("const", "number", "size", "add", "mul", "pow", "fn", "max") for y in walk(x))

    # --- one operation

    def leaf(self, x: Node) -> Code:
        return sorted_axes(leaf_code(self.of_leaf(x)), x.attrs[2])

    def number(self, x: Node) -> Code:
        value = x.attrs[0]
        return Literal(float(value if x.op == "const" else sympy.N(sympy.sympify(value), 20)))

    def size(self, x: Node) -> Code:
        return self.dialect.size(x.attrs[0])

    def eye(self, x: Node) -> Code:
        return self.dialect.eye(dim_of(x.axes[0]))

    def sum(self, x: Node) -> Code:
        return Group(summed(self.operands(x)))

    def product(self, x: Node) -> Code:
        first, *others = self.operands(x)
        if first != Literal(-1.0):
            return product((first, *others))
        if len(others) == 1 and isinstance(others[0], Group) and isinstance(others[0].value, Negative):
            return others[0].value.value
        return Negative(product(others))

    def operands(self, x: Node) -> list[Code]:
        """The terms of a sum, or the factors of a product."""
        return [self.aligned(a, x.axes) for a in x.args]

    def power(self, x: Node) -> Code:
        (base,), n = x.args, x.attrs[0]
        if self.is_number(x):
            return Raised(self.value(base), Literal(float(n)))
        return self.dialect.power(self.value(base), n, uniform=False)

    def function(self, x: Node) -> Code:
        return self.dialect.function(x.attrs[0], self.value(x.args[0]), self.is_number(x.args[0]))

    def largest(self, x: Node) -> Code:
        """The largest of tensors, and no less than numbers. Derivatives are printed, so that those of `clamp` don't matter."""
        numbers = [a for a in x.args if not a.axes and all(y.attrs[0] == "constant" for y in leaves(a))]
        tensors = [self.aligned(a, x.axes) for a in x.args if a not in numbers]
        if (
            not tensors and (held := next((a for a in numbers if leaves(a)), None)) is not None
        ):  # constants are tensors, too
            numbers, tensors = [a for a in numbers if a is not held], [self.value(held)]
        if not tensors:
            return call("max", *map(self.value, numbers))
        found, *others = tensors
        for other in others:
            found = self.dialect.maximum(found, other, False, False)
        for a in numbers:
            found = call("torch.clamp", found, min=self.value(a))
        return found

    def peak(self, x: Node) -> Code:
        (body,) = x.args
        return self.dialect.peak(self.value(body), body.axes.index(x.attrs[0]), len(body.axes))

    def expansion(self, x: Node) -> Code:
        shape = (self.dialect.size(dim_of(a)) if a in x.attrs else Literal(-1) for a in x.axes)
        value = self.aligned(x.args[0], x.axes)
        if self.is_number(x.args[0]):
            value = self.dialect.filled(value, len(x.axes))
        return call("expanded", value, Items(tuple(shape), closed=True))

    def other(self, x: Node) -> Code:
        return leaf_code(self.of_leaf(x))

    # --- contractions

    def contraction(self, x: Node) -> Code:
        (b,), body = x.attrs, x.args[0]
        mask = next((f for f in factors_of(body) if f.op == "decay_mask" and len(f.axes) == 3), None)
        if mask is not None:
            return self._decayed(b, mask, [f for f in factors_of(body) if f is not mask])
        operands = [(self.joint(g), g.order) for g in self.grouped(body, b)]
        if len(operands) == 1:
            ((value, order),) = operands
            return self.dialect.sum(Group(value), order.index(b), len(order))
        return self._of_two(operands, x.axes)

    def grouped(self, body: Node, bound: str) -> list[Factors]:
        """The factors of a contraction as one operand or two: those whose axes others have as well join them."""
        groups = [Factors((f,), frozenset(f.axes)) for f in factors_of(body)]
        while len(groups) > 1:
            pairs = ((i, j) for i in range(len(groups)) for j in range(len(groups)) if i != j)
            pair = next(((i, j) for i, j in pairs if self.joins(groups[i], groups[j], len(groups) == 2, bound)), None)
            if pair is None and len(groups) == 2:
                break
            i, j = pair or (0, 1)
            groups[j] = Factors(groups[i].nodes + groups[j].nodes, groups[i].axes | groups[j].axes)
            del groups[i]
        return groups

    def joins(self, a: Factors, b: Factors, last: bool, bound: str) -> bool:
        """Do factors join others, which have their axes too? `last`: there are no more, and a vector and a matrix stay two."""
        return a.axes <= b.axes and not (last and a.axes == {bound} and len(b.axes) == 2)

    def joint(self, group: Factors) -> Code:
        """The product of factors."""
        if group.single:
            return self.value(group.nodes[0])
        return product(self.aligned(f, group.order) for f in group.nodes)

    def _decayed(self, b: str, mask: Node, factors: list[Node]) -> Code:
        """A contraction with one decay a channel: over the channels, or over the steps that write."""
        row, col, channel = mask.axes
        if b == channel:
            right = [f for f in factors if col in f.axes]
            sides, function = ((row, channel), (col, channel)), "channel_product"
        else:
            right = [f for f in factors if channel in f.axes]
            sides, function = ((row, col), (col, channel)), "channel_apply"
        left = [f for f in factors if f not in right]
        values = [
            product(self.aligned(f, axes) for f in group) if group else Literal(1.0)
            for group, axes in zip((left, right), sides, strict=True)
        ]
        return call(function, *values, self.decay_code(mask), *map(Literal, mask.attrs))

    def decay_code(self, mask: Node) -> Code:
        raise NotImplementedError

    def _of_two(self, operands: Sequence[tuple[Code, Axes]], out: Axes) -> Code:
        (left, a), (right, c) = operands
        b = next(iter((set(a) & set(c)) - set(out)))
        if len(a) == len(c) == 2 and len(out) == 2 and len(set(a) & set(c)) == 1:
            if out[0] not in a:
                left, a, right, c = right, c, left, a
            return matmul(atom(moved(left, a, (out[0], b))), moved(right, c, (b, out[1])))
        return einsum(operands, out)


def is_sorted_or_transposed(order: Axes) -> bool:
    return len(order) <= 2 or tuple(sorted(order)) == tuple(order)


def sorted_axes(value: Code, order: Axes) -> Code:
    """A tensor stored in `order`, with its axes sorted."""
    return moved(value, order, tuple(sorted(order)))


def stored(value: Code, order: Axes) -> Code:
    """A tensor whose axes are sorted, stored in `order`."""
    return moved(value, tuple(sorted(order)), order)
