"""What a kernel over chunks has made, or loaded: tiles, cumulative sums of decays, and matrices over the steps of a chunk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ....ir.code import Call, Code, Expanded, Literal, Name, call, plus, shape, times, zeros
from ....ir.code_parts import starts_with_minus, without_minus
from ....ir.expr import COL, Node, factors_of
from ....printing.cannot_print import CannotPrint


@dataclass(frozen=True)
class Fine:
    """An op that stands between others, which its roundings go through. What is float32 between kernels enters products on tensor
    cores in two parts, the second of which is what rounding left of the first; so do states, and what is added to them.

    `given` are inputs in float32, `gradients` the variables whose gradients are handed on so. `states`: those of all sweeps
    backwards are taken in two parts, not only of those that sum for decays.
    """

    given: frozenset[str] = frozenset()
    gradients: frozenset[str] = frozenset()
    states: bool = False


@dataclass
class Elements:
    """The elements of a tile that a sweep loads, by a variable of their own; `taken` where anything but a product uses them.
    `argument`: what it loads, where these elements may be a product's."""

    variable: str
    argument: str | None
    taken: bool = False


@dataclass(frozen=True)
class Cumulative:
    """Sums of a decay's logarithms that are loaded or made, or what these leave (`rests`): with each step, before it, or at the
    chunk's end (`edge`); with steps in `rows`, whatever the kernel's own order; over these axes beside steps."""

    decay: str
    rests: bool
    edge: str
    rows: bool
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Once:
    """What else is loaded or made once: of what, and where."""

    base: str
    what: str = ""


@dataclass(frozen=True)
class Value:
    """`code` has the axes in this order; `raw` says that its dtype is that of a tensor in memory, not float32, in which it is
    `wide`."""

    code: Code
    axes: tuple[str, ...]
    raw: bool = False
    wide: Code | None = None
    elements: Elements | None = None

    @property
    def named(self) -> bool:
        """Is it a name, which may be read more than once?"""
        return isinstance(self.code, Name)

    @property
    def name(self) -> str:
        assert isinstance(self.code, Name)
        return self.code.id

    def over(self, axes: tuple[str, ...]) -> Code:
        """The value in float32, to be broadcast over `axes`."""
        x = self.code
        if self.elements is not None:
            self.elements.taken = True
            x = Name(self.elements.variable)
        turned = len(self.axes) == 2 == len(axes) and self.axes == axes[::-1]
        if self.raw:
            if turned and self.wide is None:
                return call("tl.trans", x).to("tl.float32")
            x = x.to("tl.float32") if self.wide is None else self.wide
        if self.axes == axes or not self.axes:
            return x
        if len(axes) == 1:
            raise CannotPrint(f"a value over {self.axes} isn't one over {axes}")
        if self.axes != tuple(a for a in axes if a in self.axes):
            x = call("tl.trans", x)
            if len(axes) == 2:
                return x
        return Expanded(x, tuple(a in self.axes for a in axes))


def zeros_of(sizes: Iterable[str]) -> Code:
    """A tile of zeros, or zero where it has no axes."""
    of = shape(*sizes)
    return zeros(of) if of.values else call("tl.full", of, 0.0, "tl.float32")


def matrix_place(variable: str) -> Code:
    """Where the entries of a matrix over the steps of a chunk lie in [B, H, chunks, C, C]."""
    return plus(chunk_place(variable), times(Name("i").along(0, 2), "C"), Name("i").along(1, 2))


def chunk_place(variable: str) -> Code:
    """Where such a matrix begins."""
    return plus(variable, times(plus(times("bh", "chunks"), "c"), "C", "C"))


def running(x: Node) -> tuple[Node, Node] | None:
    """(mask, what is summed), of a sum over the steps before or after each step of what is made here. It may cancel, so that
    nothing of it is rounded."""
    factors = factors_of(x.args[0])
    order = [f for f in factors if f.op == "order_mask"]
    rest = [f for f in factors if f not in order]
    if len(order) != 1 or x.attrs != (COL,) or len(rest) != 1 or rest[0].op != "leaf" or rest[0].attrs[0] != "inner":
        return None
    return order[0], rest[0]


def added_to(total: Code | None, x: Code) -> Code:
    """A sum with one more term, which is subtracted where it has a minus."""
    if total is None:
        return x
    return total - without_minus(x) if starts_with_minus(x) else plus(total, x)


def dot_of(*operands: Code, exactly: bool = False) -> Code:
    """A product, of float32 on tensor cores, where an operand is cut into parts of 11 bits, and all but the smallest of their
    products are summed; or `exactly` as of float32."""
    return Call("tl.dot", operands, (("input_precision", Literal("ieee" if exactly else "tf32x3")),))
