"""How values with named positions are written in torch and in Triton: alignment, sums, powers, functions.

Torch: a value has any leading batch axes, then one for each position. Triton: a value is a tile with one dimension for
each position, padded to a power of two; sums mask what lies in the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from string import ascii_lowercase
from typing import ClassVar, Protocol

from ..ir.code import (
    Attribute,
    Binary,
    Call,
    Code,
    Expanded,
    Group,
    Items,
    Literal,
    Method,
    Name,
    Negative,
    Raised,
    atom,
    call,
    shape,
    where,
    zeros,
)
from ..ir.code_parts import walk_code
from ..ir.functions import TABLE, TORCH, TRITON
from ..ir.python_code import leaf_code
from ..ir.spellings import Function, Power, repeats
from .terms import Axes, Positions

NOTHING = Literal(0.0)
Operand = tuple[Code, Positions]


class Dialect(Protocol):
    """What `NodePrinter` needs of a target language."""

    masked: bool  # does padding take part in sums unless it is masked?

    def align(self, value: Code, own: Positions, target: Positions) -> Code:
        """A value over positions `own`, so that it broadcasts over `target`."""
        ...

    def contract(self, groups: list[Operand], bound: int, rank: int) -> Code | None:
        """The sum over position `bound` of a product of operands, or None where product and `sum` are as good."""
        ...

    def sum(self, value: Code, position: int, rank: int) -> Code: ...
    def wide(self, value: Code) -> Code:
        """A value in float64."""
        ...

    def wide_sum(self, value: Code, position: int, rank: int) -> Code:
        """The sum of values in float64, as one of the usual type."""
        ...

    def peak(self, value: Code, position: int, rank: int) -> Code: ...
    def mask(self, value: Code, dims: tuple[str, ...], position: int, held: Code = NOTHING) -> Code: ...
    def spread(self, value: Code, dims: tuple[str, ...]) -> Code:
        """A value that may lack axes, as one that has them all."""
        ...

    def power(self, value: Code, n: Fraction, uniform: bool) -> Code: ...
    def repeats(self, name: str) -> bool:
        """Does the text of this function repeat its argument?"""
        ...

    def maximum(self, a: Code, b: Code, a_uniform: bool, b_uniform: bool) -> Code:
        """The larger of two; a uniform one is the same everywhere."""
        ...

    def function(self, name: str, value: Code, uniform: bool) -> Code: ...
    def eye(self, dim: str) -> Code: ...
    def size(self, dim: str) -> Code: ...


@dataclass(frozen=True)
class Torch:
    """Torch. `size_text`: a dim's size; `like` is a tensor with the values' dtype and device."""

    size_text: Callable[[str], str | Code]
    like: str
    masked = False
    METHODS: ClassVar = {
        Fraction(2): "square",
        Fraction(1, 2): "sqrt",
        Fraction(-1, 2): "rsqrt",
    }  # powers that have one

    def align(self, value: Code, own: Positions, target: Positions) -> Code:
        order = tuple(p for p in target if p in own)
        return along_axes(moved(value, own, order), order, target)

    def contract(self, groups: list[Operand], bound: int, rank: int) -> Code | None:
        if len(groups) == 1 or rank == 1:
            return None
        if len(groups) == 2:
            (a, own_a), (b, own_b) = sorted(groups, key=lambda g: (-len(g[1]), g[1]))
            free_a, free_b = [p for p in own_a if p != bound], [p for p in own_b if p != bound]
            if not free_b:  # of a matrix and a vector, many at once: a product and a sum are several times faster
                return None
            if len(free_a) == 1 and len(free_b) == 1 and free_a != free_b:
                if free_a[0] > free_b[0]:
                    (a, own_a, free_a), (b, own_b, free_b) = (b, own_b, free_b), (a, own_a, free_a)
                return matmul(self.align(a, own_a, (free_a[0], bound)), self.align(b, own_b, (bound, free_b[0])))
            if not set(free_a) - set(free_b) or not set(free_b) - set(free_a):
                return None
        return einsum(groups, tuple(p for p in range(rank) if p != bound))

    def sum(self, value: Code, position: int, rank: int) -> Code:
        return Method(value, "sum", (Literal(position - rank),))

    def wide(self, value: Code) -> Code:
        return Method(value, "double", ())

    def wide_sum(self, value: Code, position: int, rank: int) -> Code:
        return Method(self.sum(value, position, rank), "to", (self._of_like("dtype"),))

    def peak(self, value: Code, position: int, rank: int) -> Code:
        return Method(value, "amax", (Literal(position - rank),))

    def mask(self, value: Code, dims: tuple[str, ...], position: int, held: Code = NOTHING) -> Code:
        return value

    def spread(self, value: Code, dims: tuple[str, ...]) -> Code:
        raise NotImplementedError("batch axes have no names: expand the value where it is used")

    def power(self, value: Code, n: Fraction, uniform: bool) -> Code:
        if not uniform and n in self.METHODS:
            return Method(value, self.METHODS[n], ())
        return Raised(value, Literal(n.numerator if n.denominator == 1 else float(n)))

    def repeats(self, name: str) -> bool:
        return repeats(name, TORCH)

    def function(self, name: str, value: Code, uniform: bool) -> Code:
        if uniform:
            value = self.tensor(value)
        if g := TABLE[name].turned:
            turned = (
                value.value if isinstance(value, Negative) and isinstance(value.value, Name) else Negative(Group(value))
            )
            return Group(Negative(Function(g, turned, TORCH)))
        return Function(name, value, TORCH)

    def tensor(self, number: Code) -> Code:
        """A number as a tensor. What a function of one makes is a tensor already; what has a name, and the larger of two, may be
        either."""
        parts = [*walk_code(number)]
        calls = {x.function for x in parts if isinstance(x, Call)}
        made = "torch.as_tensor" in calls or any(isinstance(x, Method) and x.name == "new_tensor" for x in parts)
        if made and "max" not in calls:
            return number
        if any(isinstance(x, Name) for x in parts):
            return call("torch.as_tensor", number, **self.made_like())
        return Method(leaf_code(self.like), "new_tensor", (number,))

    def maximum(self, a: Code, b: Code, a_uniform: bool, b_uniform: bool) -> Code:
        if a_uniform:
            return call("max", a, b)
        return call("torch.maximum", a, self.tensor(b) if b_uniform else b)

    def eye(self, dim: str) -> Code:
        return call("torch.eye", self.size(dim), **self.made_like())

    def made_like(self) -> dict[str, Code]:
        """What makes a tensor one of the computation."""
        return {n: self._of_like(n) for n in ("dtype", "device")}

    def size(self, dim: str) -> Code:
        return leaf_code(self.size_text(dim))

    def _of_like(self, attribute: str) -> Code:
        return Attribute(leaf_code(self.like), attribute)


@dataclass(frozen=True)
class TorchOfChunks(Torch):
    """Torch where functions have the dtype and the device, and where numbers may be tensors of one entry."""

    like: str = ""
    METHODS: ClassVar = {**Torch.METHODS, Fraction(-1): "reciprocal"}

    def tensor(self, number: Code) -> Code:
        return self.filled(number, 0)

    def filled(self, number: Code, rank: int) -> Code:
        """A number as a tensor of so many axes."""
        return call("torch.full", Items((Literal(1),) * rank), number, **self.made_like())

    def _of_like(self, attribute: str) -> Code:
        return Name(attribute)


def moved(value: Code, own: Axes | Positions, wanted: Axes | Positions) -> Code:
    """A tensor of torch whose last axes are `own`, with these in another order."""
    if own == wanted:
        return value
    if len(own) == 2:
        return Attribute(value, "mT")
    places = (Items(tuple(Literal(n - len(own)) for n in x)) for x in (map(own.index, wanted), range(len(own))))
    return Method(value, "movedim", tuple(places))


def along_axes(value: Code, own: Axes | Positions, target: Axes | Positions) -> Code:
    """A tensor of torch, so that it broadcasts over more axes than its own."""
    return value if own == target else Expanded(value, tuple(p in own for p in target), batched=True)


def matmul(left: Code, right: Code) -> Code:
    return Binary("@", left, atom(right))


def einsum(operands: Sequence[tuple[Code, Axes | Positions]], result: Axes | Positions) -> Call:
    """The sum of the products of operands over all axes that the result hasn't, with any axes before these."""
    letters = subscripts([own for _, own in operands], result, "...")
    return call("torch.einsum", Literal(letters), *(x for x, _ in operands))


def subscripts(operands: Iterable[Axes | Positions], result: Axes | Positions, batch: str = "") -> str:
    """What `torch.einsum` is told of the axes of its operands and of its result."""
    found = list(operands)
    letters = dict(zip(sorted({a for own in found for a in own}), ascii_lowercase, strict=False))
    told = [batch + "".join(letters[a] for a in own) for own in (*found, result)]
    return f"{','.join(told[:-1])}->{told[-1]}"


@dataclass(frozen=True)
class Triton:
    """Triton expressions. For a dim: its size, its indices (a range), their mask, and the tile's width, as names or values."""

    size_text: Callable[[str], str | Code]
    index_text: Callable[[str], str | Code]
    mask_text: Callable[[str], str | Code]
    block_text: Callable[[str], str | Code]
    masked = True

    def align(self, value: Code, own: Positions, target: Positions) -> Code:
        if not own:
            return value
        order = tuple(p for p in target if p in own)
        if order != own:
            if len(own) == 2:
                value = call("tl.trans", value)
            else:
                value = call("tl.permute", value, Items(tuple(Literal(own.index(p)) for p in order)))
        return value if order == target else Expanded(value, tuple(p in own for p in target))

    def contract(self, groups: list[Operand], bound: int, rank: int) -> Code | None:
        if len(groups) != 2 or rank != 3:
            return None
        (a, own_a), (b, own_b) = groups
        free_a, free_b = [p for p in own_a if p != bound], [p for p in own_b if p != bound]
        if len(free_a) != 1 or len(free_b) != 1:
            return None
        if free_a[0] > free_b[0]:
            (a, own_a, free_a), (b, own_b, free_b) = (b, own_b, free_b), (a, own_a, free_a)
        left, right = self.align(a, own_a, (free_a[0], bound)), self.align(b, own_b, (bound, free_b[0]))
        return Call("tl.dot", (left, right), (("input_precision", Literal("tf32x3")),))  # as float32, on tensor cores

    def sum(self, value: Code, position: int, rank: int) -> Code:
        return call("tl.sum", value, axis=position)

    def wide(self, value: Code) -> Code:
        return value.to("tl.float64")

    def wide_sum(self, value: Code, position: int, rank: int) -> Code:
        return call("tl.sum", value, axis=position).to("tl.float32")

    def peak(self, value: Code, position: int, rank: int) -> Code:
        return call("tl.max", value, axis=position)

    def mask(self, value: Code, dims: tuple[str, ...], position: int, held: Code = NOTHING) -> Code:
        mask = self.align(leaf_code(self.mask_text(dims[position])), (position,), tuple(range(len(dims))))
        return where(mask, value, held)

    def spread(self, value: Code, dims: tuple[str, ...]) -> Code:
        if not dims:
            return call("tl.cast", value, "tl.float32")
        return zeros(shape(*(leaf_code(self.block_text(d)) for d in dims))) + value

    def power(self, value: Code, n: Fraction, uniform: bool) -> Code:
        return Power(value, n)

    def repeats(self, name: str) -> bool:
        return repeats(name, TRITON)

    def function(self, name: str, value: Code, uniform: bool) -> Code:
        return Function(name, value)

    def maximum(self, a: Code, b: Code, a_uniform: bool, b_uniform: bool) -> Code:
        return larger(a, b)

    def eye(self, dim: str) -> Code:
        index = leaf_code(self.index_text(dim))
        return where(index.along(0, 2).equals(index.along(1, 2)), 1.0, 0.0)

    def size(self, dim: str) -> Code:
        return call("tl.full", shape(), leaf_code(self.size_text(dim)), "tl.float32")


def larger(a: Code, b: Code) -> Code:
    """The larger of two in Triton, as torch.maximum has it."""
    return call("tl.maximum", a, b, propagate_nan="tl.PropagateNan.ALL")
