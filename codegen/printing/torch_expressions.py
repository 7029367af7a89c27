"""Nodes as torch statements: the part of the torch printer that knows no chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import sympy

from ..ir.expr import Node, dim_of, factors_of, leaves, walk
from ..ir.functions import in_torch

Leaf = Callable[[Node], str]


class TorchText:
    """Statements for nodes. Tensors have leading batch axes, then the node's axes in sorted order."""

    def __init__(self, leaf_text: Leaf, lines: list[str], names: dict[Node, str], prefix: str = "t") -> None:
        self.leaf_text, self.lines, self.names, self.prefix = leaf_text, lines, names, prefix
        self.uses: Counter[Node] = Counter()
        self.asked: set[str] = set()  # what texts have beside values: sizes, the dtype and the device

    def count(self, roots: Iterable[Node]) -> None:
        for root in roots:
            self.uses[root] += 1
            for x in walk(root):
                self.uses.update(x.args)

    def value(self, x: Node) -> str:
        """The text of x: a name, or an expression in brackets where it is used once."""
        if x not in self.names:
            text = self.expression(x)
            if x.op in ("leaf", "const", "number", "size") or (
                self.uses[x] <= 1 and x.op in ("add", "mul", "pow", "fn", "max") and len(text) < 60
            ):
                return text
            name = self.fresh(x)
            self.define(name, text)
            self.names[x] = name
        return self.names[x]

    def fresh(self, x: Node) -> str:
        """A name for the value of x."""
        return f"{self.prefix}{len(self.lines)}"

    def size(self, dim: str) -> str:
        self.asked.add(f"size_{dim}")
        return f"size_{dim}"

    def like(self) -> str:
        """What makes a tensor one of the computation."""
        self.asked |= {"dtype", "device"}
        return "dtype=dtype, device=device"

    def is_name(self, x: Node) -> bool:
        """Is the value of x a name, or that of a leaf with its axes swapped? So is one that was printed."""
        return x in self.names or (x.op == "leaf" and is_sorted_or_transposed(x.attrs[2]) and self.names_leaf(x))

    def names_leaf(self, x: Node) -> bool:
        """Is a leaf's text a name?"""
        return True

    def define(self, name: str, text: str) -> None:
        """A statement that gives a name to a text."""
        self.lines.append(f"{name} = {text}")

    def arguments(self, nodes: Iterable[Node]) -> list[str]:
        """Texts of step-level quantities as tensors, [B, H, T, *axes] where none of the first three need be whole."""
        texts = []
        for x in nodes:
            self.count([x])
            number = all(y.attrs[0] == "constant" for y in leaves(x))
            texts.append(f"torch.full((1, 1, 1), {self.value(x)}, {self.like()})" if number else self.value(x))
        return texts

    def aligned(self, x: Node, axes: tuple[str, ...]) -> str:
        text = self.value(x)
        if self.is_number(x) or x.axes == axes or not axes:
            return text
        if all(a in x.axes for a in axes):
            return text
        index = ", ".join(":" if a in x.axes else "None" for a in axes)
        return f"{self._atom(text)}[..., {index}]"

    def _atom(self, text: str) -> str:
        return taken_whole(text)

    def expression(self, x: Node) -> str:
        match x.op:
            case "leaf":
                return swapped(self.leaf_text(x), x.attrs[2])
            case "const":
                return repr(float(x.attrs[0]))
            case "number":
                return repr(float(sympy.N(sympy.sympify(x.attrs[0]), 20)))
            case "size":
                return self.size(x.attrs[0])
            case "eye":
                return f"torch.eye({self.size(dim_of(x.axes[0]))}, {self.like()})"
            case "add":
                return self._sum_text(x)
            case "mul":
                return self._product_text(x)
            case "pow":
                return self._power_text(x)
            case "fn":
                text = self.value(x.args[0])
                if self.is_number(x.args[0]):
                    text = self.tensor(text)
                return in_torch(x.attrs[0], text)
            case "max":
                return self._largest(x)
            case "sum":
                return self._contraction(x)
            case "peak":
                (body,) = x.args
                return f"{self._atom(self.value(body))}.amax({body.axes.index(x.attrs[0]) - len(body.axes)})"
            case "expand":
                return self._expand(x)
        return self.leaf_text(x)

    def is_number(self, x: Node) -> bool:
        """Is x the same everywhere, and a number in Python, or a tensor that is only one?"""
        return all(y.op in ("const", "number", "size", "add", "mul", "pow", "fn", "max") for y in walk(x))

    def tensor(self, number: str, rank: int = 0) -> str:
        """A number as a tensor of so many axes."""
        return f"torch.full({(1,) * rank}, {number}, {self.like()})"

    def _sum_text(self, x: Node) -> str:
        out = ""
        for a in x.args:
            sign, text = " + ", self.aligned(a, x.axes)
            if text.startswith("-"):
                sign, text = " - ", text[1:]
            out += (sign if out else "-" if sign == " - " else "") + text
        return f"({out})"

    def _largest(self, x: Node) -> str:
        """The largest of tensors, and no less than numbers. Derivatives are printed, so that those of `clamp` don't matter."""
        numbers = [a for a in x.args if not a.axes and all(y.attrs[0] == "constant" for y in leaves(a))]
        tensors = [self.aligned(a, x.axes) for a in x.args if a not in numbers]
        if not tensors:
            return f"max({', '.join(map(self.value, numbers))})"
        out = tensors[0]
        for text in tensors[1:]:
            out = f"torch.maximum({out}, {text})"
        for a in numbers:
            out = f"torch.clamp({out}, min={self.value(a)})"
        return out

    def _product_text(self, x: Node) -> str:
        parts = [self.aligned(a, x.axes) for a in x.args]
        if parts[0] == "-1.0":
            rate = len(parts) == 2 and x.args[1].op == "fn" and x.args[1].attrs[0] == "softplus"
            if rate and parts[1].startswith("(-") and parts[1].endswith(")"):
                return parts[1][2:-1]
            return "-" + " * ".join(parts[1:])
        return " * ".join(parts)

    def _power_text(self, x: Node) -> str:
        (base,), n = x.args, x.attrs[0]
        text = self._atom(self.value(base))
        if self.is_number(x):
            return f"{text} ** {float(n)}"
        special = {-1: "{}.reciprocal()", 2: "{}.square()", 0.5: "{}.sqrt()", -0.5: "{}.rsqrt()"}
        return special.get(float(n), "{} ** " + str(n.numerator if n.denominator == 1 else float(n))).format(text)

    def _expand(self, x: Node) -> str:
        shape = ", ".join(self.size(dim_of(a)) if a in x.attrs else "-1" for a in x.axes)
        count = len(x.axes)
        text = self.aligned(x.args[0], x.axes)
        if self.is_number(x.args[0]):
            text = self.tensor(text, count)
        return f"expanded({text}, ({shape},))"

    def _contraction(self, x: Node) -> str:
        (b,), body = x.attrs, x.args[0]
        mask = next((f for f in factors_of(body) if f.op == "decay_mask" and len(f.axes) == 3), None)
        if mask is not None:
            return self._decayed(b, mask, [f for f in factors_of(body) if f is not mask])
        groups = [([f], set(f.axes)) for f in factors_of(body)]
        while len(groups) > 1:
            pair = next(
                (
                    (i, j)
                    for i, (_, a) in enumerate(groups)
                    for j, (_, c) in enumerate(groups)
                    if i != j and a <= c and not (len(groups) == 2 and len(a | c) > len(c))
                ),
                None,
            )
            if pair is None and len(groups) == 2:
                break
            i, j = pair or (0, 1)
            if len(groups) == 2 and groups[i][1] == {b} and len(groups[j][1]) == 2:
                break  # a vector times a matrix
            groups[j] = (groups[i][0] + groups[j][0], groups[i][1] | groups[j][1])
            del groups[i]
        texts = []
        for factors, axes in groups:
            order = tuple(sorted(axes))
            if len(factors) == 1:
                texts.append((self.value(factors[0]), order))
            else:
                texts.append((" * ".join(self.aligned(f, order) for f in factors), order))
        if len(texts) == 1:
            text, order = texts[0]
            return f"({text}).sum({order.index(b) - len(order)})"
        return self._einsum(texts, x.axes)

    def _decayed(self, b: str, mask: Node, factors: list[Node]) -> str:
        """A contraction with one decay a channel: over the channels, or over the steps that write."""
        row, col, channel = mask.axes
        if b == channel:
            right = [f for f in factors if col in f.axes]
            sides, function = ((row, channel), (col, channel)), "channel_product"
        else:
            right = [f for f in factors if channel in f.axes]
            sides, function = ((row, col), (col, channel)), "channel_apply"
        left = [f for f in factors if f not in right]
        texts = [
            " * ".join(self.aligned(f, axes) for f in group) or "1.0"
            for group, axes in zip((left, right), sides, strict=True)
        ]
        decay = self.decay_text(mask)
        flags = ", ".join(str(a) for a in mask.attrs)
        return f"{function}({', '.join(texts)}, {decay}, {flags})"

    def decay_text(self, mask: Node) -> str:
        raise NotImplementedError

    def _einsum(self, texts: list[tuple[str, tuple[str, ...]]], out: tuple[str, ...]) -> str:
        (left, a), (right, c) = texts
        b = next(iter((set(a) & set(c)) - set(out)))
        if len(a) == len(c) == 2 and len(out) == 2 and len(set(a) & set(c)) == 1:
            if out[0] not in a:
                left, a, right, c = right, c, left, a
            left = self._atom(left) + ("" if a == (out[0], b) else ".mT")
            right = self._atom(right) + ("" if c == (b, out[1]) else ".mT")
            return f"{left} @ {right}"
        letters = {x: "abcdefgh"[n] for n, x in enumerate(sorted(set(a) | set(c)))}
        spec = ",".join("..." + "".join(letters[x] for x in axes) for axes in (a, c))
        return f'torch.einsum("{spec}->...{"".join(letters[x] for x in out)}", {left}, {right})'


def taken_whole(text: str) -> str:
    """The text of an operand, of which an attribute is taken: in brackets where it has operators outside of any."""
    depth = 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if depth == 0 and c == " ":
            return f"({text})"
    return f"({text})" if text.startswith("-") else text


def is_sorted_or_transposed(order: tuple[str, ...]) -> bool:
    return len(order) <= 2 or tuple(sorted(order)) == tuple(order)


def swapped(text: str, order: tuple[str, ...]) -> str:
    """A tensor stored in `order`, with its axes sorted."""
    if tuple(sorted(order)) == tuple(order):
        return text
    text = taken_whole(text)
    if len(order) == 2:
        return f"{text}.mT"
    places = tuple(order.index(a) - len(order) for a in sorted(order))
    return f"{text}.movedim({places}, {tuple(range(-len(order), 0))})"
