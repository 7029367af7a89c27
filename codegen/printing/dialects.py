"""How values with named positions are written in torch and in Triton: alignment, sums, powers, functions.

Torch: a value has any leading batch axes, then one for each position. Triton: a value is a tile with one dimension for
each position, padded to a power of two; sums mask what lies in the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from ..ir.functions import TABLE, in_torch
from .terms import Positions

ADD, MUL, UNARY, ATOM = range(4)  # how tightly a text binds


@dataclass(frozen=True)
class Text:
    """Source text of a value, and how tightly it binds."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """In parentheses where something binds more tightly than it."""
        return self.text if self.level >= level else f"({self.text})"


Operand = tuple[Text, Positions]


class Dialect(Protocol):
    """What `NodePrinter` needs of a target language."""

    masked: bool  # does padding take part in sums unless it is masked?

    def align(self, value: Text, own: Positions, target: Positions) -> Text:
        """A value over positions `own`, so that it broadcasts over `target`."""
        ...

    def contract(self, groups: list[Operand], bound: int, rank: int) -> Text | None:
        """The sum over position `bound` of a product of operands, or None where product and `sum` are as good."""
        ...

    def sum(self, value: Text, position: int, rank: int) -> Text: ...
    def peak(self, value: Text, position: int, rank: int) -> Text: ...
    def mask(self, value: Text, dims: tuple[str, ...], position: int, held: str = "0.0") -> Text: ...
    def spread(self, value: Text, dims: tuple[str, ...]) -> Text:
        """A value that may lack axes, as one that has them all."""
        ...

    def power(self, value: Text, n: Fraction, uniform: bool) -> Text: ...
    def repeats(self, name: str) -> bool:
        """Does the text of this function repeat its argument?"""
        ...

    def function(self, name: str, value: Text, uniform: bool) -> Text: ...
    def maximum(self, a: Text, b: Text, a_uniform: bool, b_uniform: bool) -> Text:
        """The larger of two; a uniform one is the same everywhere."""
        ...

    def eye(self, dim: str) -> Text: ...
    def size(self, dim: str) -> Text: ...


@dataclass(frozen=True)
class Torch:
    """Torch text. `size_text` gives the text of a dim's size; `like` is a tensor with the values' dtype and device."""

    size_text: Callable[[str], str]
    like: str
    masked = False

    def align(self, value: Text, own: Positions, target: Positions) -> Text:
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

    def contract(self, groups: list[Operand], bound: int, rank: int) -> Text | None:
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

    def sum(self, value: Text, position: int, rank: int) -> Text:
        return Text(f"{value.at(ATOM)}.sum({position - rank})")

    def peak(self, value: Text, position: int, rank: int) -> Text:
        return Text(f"{value.at(ATOM)}.amax({position - rank})")

    def mask(self, value: Text, dims: tuple[str, ...], position: int, held: str = "0.0") -> Text:
        return value

    def spread(self, value: Text, dims: tuple[str, ...]) -> Text:
        raise NotImplementedError("batch axes have no names: expand the value where it is used")

    def power(self, value: Text, n: Fraction, uniform: bool) -> Text:
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

    def function(self, name: str, value: Text, uniform: bool) -> Text:
        argument = f"{self.like}.new_tensor({value.text})" if uniform else value.text
        return Text(in_torch(name, argument))

    def maximum(self, a: Text, b: Text, a_uniform: bool, b_uniform: bool) -> Text:
        if a_uniform:
            return Text(f"max({a.text}, {b.text})")
        other = f"{self.like}.new_tensor({b.text})" if b_uniform else b.text
        return Text(f"torch.maximum({a.text}, {other})")

    def eye(self, dim: str) -> Text:
        return Text(f"torch.eye({self.size_text(dim)}, dtype={self.like}.dtype, device={self.like}.device)")

    def size(self, dim: str) -> Text:
        return Text(self.size_text(dim))


@dataclass(frozen=True)
class Triton:
    """Triton text. For a dim: the text of its size, of its indices (a range), of their mask, and of the tile's width."""

    size_text: Callable[[str], str]
    index_text: Callable[[str], str]
    mask_text: Callable[[str], str]
    block_text: Callable[[str], str]
    masked = True

    def align(self, value: Text, own: Positions, target: Positions) -> Text:
        if not own:
            return value
        order = tuple(p for p in target if p in own)
        text = value.at(ATOM)
        if order != own:
            if len(own) == 2:
                text = f"tl.trans({value.text})"
            else:
                text = f"tl.permute({value.text}, ({', '.join(str(own.index(p)) for p in order)}))"
        if order == target:
            return value if order == own else Text(text)
        return Text(f"{text}[{', '.join(':' if p in own else 'None' for p in target)}]")

    def contract(self, groups: list[Operand], bound: int, rank: int) -> Text | None:
        if len(groups) != 2 or rank != 3:
            return None
        (a, own_a), (b, own_b) = groups
        free_a, free_b = [p for p in own_a if p != bound], [p for p in own_b if p != bound]
        if len(free_a) != 1 or len(free_b) != 1:
            return None
        if free_a[0] > free_b[0]:
            (a, own_a, free_a), (b, own_b, free_b) = (b, own_b, free_b), (a, own_a, free_a)
        left, right = self.align(a, own_a, (free_a[0], bound)), self.align(b, own_b, (bound, free_b[0]))
        return Text(f'tl.dot({left.text}, {right.text}, input_precision="ieee")')

    def sum(self, value: Text, position: int, rank: int) -> Text:
        return Text(f"tl.sum({value.text}, axis={position})")

    def peak(self, value: Text, position: int, rank: int) -> Text:
        return Text(f"tl.max({value.text}, axis={position})")

    def mask(self, value: Text, dims: tuple[str, ...], position: int, held: str = "0.0") -> Text:
        mask = self.align(Text(self.mask_text(dims[position])), (position,), tuple(range(len(dims))))
        return Text(f"tl.where({mask.text}, {value.text}, {held})")

    def spread(self, value: Text, dims: tuple[str, ...]) -> Text:
        if not dims:
            return Text(f"tl.cast({value.text}, tl.float32)")
        blocks = ", ".join(self.block_text(d) for d in dims)
        return Text(f"tl.zeros([{blocks}], tl.float32) + {value.at(MUL)}", ADD)

    def power(self, value: Text, n: Fraction, uniform: bool) -> Text:
        if n.denominator > 2 or abs(n) > 16:
            return Text(f"tl.exp({float(n)!r} * tl.log({value.text}))")
        whole, half = divmod(abs(n), 1)
        factors = [value.at(ATOM)] * int(whole) + ([f"tl.sqrt({value.text})"] if half else [])
        product = " * ".join(factors)
        if n > 0:
            return Text(product, MUL if len(factors) > 1 else ATOM)
        return Text(f"1.0 / ({product})" if len(factors) > 1 else f"1.0 / {product}", MUL)

    def repeats(self, name: str) -> bool:
        return TABLE[name].triton.count("{") > 1

    def function(self, name: str, value: Text, uniform: bool) -> Text:
        return Text(TABLE[name].triton.format(value.text))

    def maximum(self, a: Text, b: Text, a_uniform: bool, b_uniform: bool) -> Text:
        return Text(f"tl.maximum({a.text}, {b.text}, propagate_nan=tl.PropagateNan.ALL)")  # as torch.maximum

    def eye(self, dim: str) -> Text:
        index = self.index_text(dim)
        return Text(f"tl.where({index}[:, None] == {index}[None, :], 1.0, 0.0)")

    def size(self, dim: str) -> Text:
        return Text(f"tl.full([], {self.size_text(dim)}, tl.float32)")
