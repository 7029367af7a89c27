"""How values with named positions are written in torch and in Triton: alignment, sums, powers, functions.

Torch: a value has any leading batch axes, then one for each position. Triton: a value is a tile with one dimension for
each position, padded to a power of two; sums mask what lies in the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from ..ir.code import (
    ATOM,
    MUL,
    UNARY,
    Call,
    Code,
    Expanded,
    Function,
    Items,
    Literal,
    Power,
    Text,
    call,
    leaf_code,
    shape,
    where,
    zeros,
)
from ..ir.functions import TABLE, in_torch
from .terms import Positions

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
    """Torch text. `size_text` gives the text of a dim's size; `like` is a tensor with the values' dtype and device."""

    size_text: Callable[[str], str]
    like: str
    masked = False

    def align(self, value: Code, own: Positions, target: Positions) -> Code:
        order = tuple(p for p in target if p in own)
        text = value.at(ATOM)
        if order != own:
            if len(own) == 2:
                text = f"{text}.mT"
            else:
                source = ", ".join(str(own.index(p) - len(own)) for p in order)
                text = f"{text}.movedim(({source}), ({', '.join(str(i - len(own)) for i in range(len(own)))}))"
        if order == target:
            return value if order == own else Text(text)
        return Text(f"{text}[..., {', '.join(':' if p in own else 'None' for p in target)}]")

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
                left, right = self.align(a, own_a, (free_a[0], bound)), self.align(b, own_b, (bound, free_b[0]))
                return Text(f"{left.at(MUL)} @ {right.at(ATOM)}", MUL)
            if not set(free_a) - set(free_b) or not set(free_b) - set(free_a):
                return None
        letters = "abcdefghijklmnopqrstuvwxyz"
        inputs = ",".join("..." + "".join(letters[p] for p in own) for _, own in groups)
        result = "".join(letters[p] for p in range(rank) if p != bound)
        return Text(f'torch.einsum("{inputs}->...{result}", {", ".join(t.text for t, _ in groups)})')

    def sum(self, value: Code, position: int, rank: int) -> Code:
        return Text(f"{value.at(ATOM)}.sum({position - rank})")

    def wide(self, value: Code) -> Code:
        return Text(f"{value.at(ATOM)}.double()")

    def wide_sum(self, value: Code, position: int, rank: int) -> Code:
        return Text(f"{value.at(ATOM)}.sum({position - rank}).to({self.like}.dtype)")

    def peak(self, value: Code, position: int, rank: int) -> Code:
        return Text(f"{value.at(ATOM)}.amax({position - rank})")

    def mask(self, value: Code, dims: tuple[str, ...], position: int, held: Code = NOTHING) -> Code:
        return value

    def spread(self, value: Code, dims: tuple[str, ...]) -> Code:
        raise NotImplementedError("batch axes have no names: expand the value where it is used")

    def power(self, value: Code, n: Fraction, uniform: bool) -> Code:
        if uniform:
            return Text(f"{value.at(ATOM)} ** {n if n.denominator == 1 else float(n)}", UNARY)
        if n == 2:
            return Text(f"{value.at(ATOM)}.square()")
        if n == Fraction(1, 2):
            return Text(f"{value.at(ATOM)}.sqrt()")
        if n == Fraction(-1, 2):
            return Text(f"{value.at(ATOM)}.rsqrt()")
        return Text(f"{value.at(ATOM)} ** {n if n.denominator == 1 else float(n)}", UNARY)

    def repeats(self, name: str) -> bool:
        return TABLE[name].torch.count("{") > 1

    def function(self, name: str, value: Code, uniform: bool) -> Code:
        argument = f"{self.like}.new_tensor({value.text})" if uniform else value.text
        return Text(in_torch(name, argument))

    def maximum(self, a: Code, b: Code, a_uniform: bool, b_uniform: bool) -> Code:
        if a_uniform:
            return Text(f"max({a.text}, {b.text})")
        other = f"{self.like}.new_tensor({b.text})" if b_uniform else b.text
        return Text(f"torch.maximum({a.text}, {other})")

    def eye(self, dim: str) -> Code:
        return Text(f"torch.eye({self.size_text(dim)}, dtype={self.like}.dtype, device={self.like}.device)")

    def size(self, dim: str) -> Code:
        return Text(self.size_text(dim))


@dataclass(frozen=True)
class Asking(Torch):
    """The same, which keeps what the text is made of beside values: sizes, by their texts, and `like`."""

    asked: set[str] = field(default_factory=set)

    def function(self, name: str, value: Code, uniform: bool) -> Code:
        self._like(uniform)
        return super().function(name, value, uniform)

    def maximum(self, a: Code, b: Code, a_uniform: bool, b_uniform: bool) -> Code:
        self._like(b_uniform and not a_uniform)
        return super().maximum(a, b, a_uniform, b_uniform)

    def wide_sum(self, value: Code, position: int, rank: int) -> Code:
        self._like(True)
        return super().wide_sum(value, position, rank)

    def eye(self, dim: str) -> Code:
        self._like(True)
        self.asked.add(self.size_text(dim))
        return super().eye(dim)

    def size(self, dim: str) -> Code:
        self.asked.add(self.size_text(dim))
        return super().size(dim)

    def _like(self, asked: bool) -> None:
        if asked:
            self.asked.add(self.like)


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
        return TABLE[name].triton.count("{") > 1

    def function(self, name: str, value: Code, uniform: bool) -> Code:
        return Function(name, value)

    def maximum(self, a: Code, b: Code, a_uniform: bool, b_uniform: bool) -> Code:
        return call("tl.maximum", a, b, propagate_nan="tl.PropagateNan.ALL")  # as torch.maximum

    def eye(self, dim: str) -> Code:
        index = leaf_code(self.index_text(dim))
        return where(index.along(0, 2).equals(index.along(1, 2)), 1.0, 0.0)

    def size(self, dim: str) -> Code:
        return call("tl.full", shape(), leaf_code(self.size_text(dim)), "tl.float32")
