"""Nodes as people write them: matrix notation, in plain text or LaTeX, in the notation of the documents.

A node over two axes is shown as a matrix, over one as a column. Products of vectors and matrices that are contracted become
matrix products, an entry-by-entry product a Hadamard product or `diag(...)`. What matrix notation can't say (three axes that
meet in one sum) is written with indices.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy

from .expr import (
    COL,
    ROW,
    Node,
    const,
    dim_of,
    factors_of,
    fn,
    leaf_names,
    mul,
    power,
    rename,
    split_constant,
    walk,
)
from .functions import FINITE_EXP, MAGNITUDE, OVER_EXP, RECIPROCAL, SAME
from .latex_page import Page, is_long
from .symbols import STATE_KINDS, Symbols
from .written import (
    decimal,
    index_name,
    power_of_two,
    raised,
    scaled,
    smallest_of,
    unshifted,
    with_powers_of_two,
)

Names = Mapping[Node, "str | Node"]
SHOWN: dict[str, Callable[[Node], Node]] = {  # functions that only the compiler writes, as what they are
    RECIPROCAL: lambda x: power(x, -1),
    FINITE_EXP: lambda x: fn("exp", x),
    OVER_EXP: lambda x: mul(fn("softplus", x), fn("exp", fn("relu", mul(-1, x)))),
}

SUM, HADAMARD, PRODUCT, ATOM = range(4)  # how tightly a piece of notation holds together


def plain(node: Node, names: Names | None = None, step: bool = True, **about: object) -> str:
    """A node as one line of text. `names` gives nodes a symbol; for the rest see `Notation`."""
    return Notation(False, names or {}, step, **about).text(node)  # type: ignore[arg-type]


def latex(node: Node, names: Names | None = None, step: bool = True, **about: object) -> str:
    """A node as LaTeX in the notation of the documents: bold vectors and matrices, `_t` for the step."""
    return Notation(True, names or {}, step, **about).text(node)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Piece:
    """Some text, and how tightly it holds together."""

    text: str
    level: int = ATOM


class Notation:
    """Prints nodes.

    tex: LaTeX in the place of plain text; a page: LaTeX with macros, which can be broken into lines; step: write the step as
    an index; order: declared names, in the order in which factors and terms are to stand; shift: by how many steps later
    everything is to be read; at: a number in the place of t; letter: another letter for t; subscripts: write numbers at the
    ends of names as such.
    """

    def __init__(
        self,
        tex: bool | Page,
        names: Names | None = None,
        step: bool = True,
        order: Iterable[str] = (),
        shift: int = 0,
        at: int | None = None,
        letter: str = "t",
        subscripts: bool = True,
    ) -> None:
        self.tex = tex
        self.symbols = Symbols(tex, step, {n: i for i, n in enumerate(order)}, shift, at, letter, subscripts)
        self.symbol = self.symbols.symbol
        self.order = tuple(order)
        self.names: dict[Node, str | Node] = dict(names or {})
        self.top = r"^\top" if tex else "^T"
        self.times = r" \odot " if tex else " . "
        self.one = r"\mathbf{1}" if tex else "1"
        self.page = isinstance(tex, Page)
        self.space = r" \cfbreak " if self.page else " "  # between factors
        self._add_renamed_names()
        self.shown: dict[tuple[Node, str | None, str | None], Piece] = {}

    def _add_renamed_names(self) -> None:
        """What is named is known by its name with its axes exchanged, or primed, too."""
        for x, name in list(self.names.items()):
            if not isinstance(name, Node) or not 1 <= len(x.axes) <= 2:
                continue
            spare = [[dim_of(a) + "'" * n for n in range(3)] for a in x.axes]
            for axes in itertools.product(*spare):
                if len(set(axes)) == len(axes) and axes != x.axes:
                    mapping = dict(zip(x.axes, axes, strict=True))
                    self.names.setdefault(rename(x, mapping), rename(name, mapping))

    def text(self, x: Node, axes: tuple[str, ...] | None = None) -> str:
        """x as a matrix, a column or a scalar; `axes` says which of its axes run down and across."""
        return self.piece(x, axes).text

    def piece(self, x: Node, axes: tuple[str, ...] | None = None) -> Piece:
        if len(x.axes) > 2:
            return self.indexed(x)
        row, col = self.orient(x) if axes is None or len(axes) < len(x.axes) else (*axes, None, None)[:2]
        return self.show(x, row, col)

    def orient(self, x: Node) -> tuple[str | None, str | None]:
        """The axes of x that run down and across."""
        if len(x.axes) < 2:
            return (*x.axes, None, None)[:2]  # type: ignore[return-value]
        a, b = x.axes
        if ROW in x.axes:
            return ROW, b if a == ROW else a
        for y in walk(x):
            if y.op == "leaf" and set(y.attrs[2]) == {a, b}:
                return y.attrs[2][0], y.attrs[2][1]
        return a, b

    # --- one node, its rows along `row` and its columns along `col` (None: one) ---------------------------------------

    def show(self, x: Node, row: str | None, col: str | None) -> Piece:
        """As often as a part is shared, so often it is asked for, and written once."""
        found = self.shown.get((x, row, col))
        if found is None:
            found = self.shown[x, row, col] = self.written(x, row, col)
        return found

    def written(self, x: Node, row: str | None, col: str | None) -> Piece:
        known = self.names.get(x)
        if isinstance(known, str):
            return self.turned(self.symbol(known, "let", len(x.axes)), x.axes, row, col)
        return self.operation(x, row, col) if known is None or known is x else self.show(known, row, col)

    def operation(self, x: Node, row: str | None, col: str | None) -> Piece:
        match x.op:
            case "leaf":
                kind, symbol, order = x.attrs
                return self.turned(self.symbol(symbol, kind, len(order)), order, row, col)
            case "const":
                return self.const(x.attrs[0])
            case "number":
                said = sympy.latex(sympy.sympify(x.attrs[0])) if self.tex else x.attrs[0]
                return Piece(with_powers_of_two(said, bool(self.tex)), PRODUCT)
            case "size":
                return Piece("C" if x.attrs[0] in (ROW, COL) else x.attrs[0])
            case "eye":
                return Piece(r"\mathbf{I}" if self.tex else "I")
            case "add":
                plain = unshifted(x)
                return self.sum_of_terms(x, row, col) if plain is x else self.show(plain, row, col)
            case "pow":
                return self.power(x, row, col)
            case "fn":
                return self.function(x, row, col)
            case "mul" | "max":
                return self.extreme_or_product(x, row, col)
            case "sum":
                return self.contraction(x, row, col)
        return self.of_axes(x, row, col)

    def of_axes(self, x: Node, row: str | None, col: str | None) -> Piece:
        """What is said of the axes of a value: it is spread over more, taken the largest over one, or inverted."""
        inner = x.args[0] if x.args else x
        match x.op:
            case "expand":
                return self.show(inner, row if row in inner.axes else None, col if col in inner.axes else None)
            case "peak":
                body = self.show(inner, x.attrs[0], None).text
                return Piece(rf"\max{self.fenced('(', body, ')')}" if self.tex else f"max({body})")
            case "inverse":
                below = self.show(inner, *inner.attrs[2]).text
                text = rf"(\mathbf{{I}} - {below})^{{-1}}" if self.tex else f"(I - {below})^-1"
                return Piece(text if (row, col) == tuple(x.axes) else f"({text}){self.top}")
        return self.indexed(x)

    def raised(self, text: str, exponent: str) -> str:
        return raised(text, exponent) if self.tex else text + exponent

    def turned(self, symbol: str, order: tuple[str, ...], row: str | None, col: str | None) -> Piece:
        """A symbol, transposed where its axes run the other way."""
        flipped = (len(order) == 2 and order == (col, row)) or (len(order) == 1 and order[0] == col)
        return Piece(self.raised(symbol, self.top) if flipped else symbol)

    def transposed(self, x: Node, axis: str | None) -> str:
        """The column x over `axis`, as a row."""
        if x.op == "sum" and x not in self.names and self.is_chain(x):
            return self.show(x, None, axis).text
        return self.raised(self.bracket(self.show(x, axis, None), ATOM), self.top)

    def const(self, c: Fraction) -> Piece:
        if (power := power_of_two(c, bool(self.tex))) is not None:
            return Piece(power, SUM if c < 0 else PRODUCT)
        if c.denominator == 1:
            return Piece(str(c.numerator), SUM if c < 0 else ATOM)
        if (shown := decimal(c, bool(self.tex))) is not None:
            return Piece(shown, SUM if c < 0 else PRODUCT if " " in shown else ATOM)
        if not self.tex:
            return Piece(f"{c.numerator}/{c.denominator}", SUM if c < 0 else PRODUCT)
        sign = "-" if c < 0 else ""
        return Piece(rf"{sign}\frac{{{abs(c.numerator)}}}{{{c.denominator}}}", SUM if c < 0 else ATOM)

    # --- sums of terms ------------------------------------------------------------------------------------------------

    def sum_of_terms(self, x: Node, row: str | None, col: str | None) -> Piece:
        parts = self.folded(x)
        if len(parts) == 1:
            return self.show(parts[0], row, col)
        out = ""
        for a in sorted(parts, key=self.term_rank):
            shown = self.show(a, row if row in a.axes else None, col if col in a.axes else None).text
            if not out:
                out = shown
            elif shown.startswith("-"):
                out += " - " + shown[1:].lstrip()
            else:
                out += " + " + shown
        return Piece(out, SUM)

    def folded(self, x: Node) -> list[Node]:
        """The terms of x, with the terms of a named sum replaced by its name."""
        terms = {core: c for c, core in map(split_constant, x.args)}
        for n in self.names:
            if n.op != "add" or n is x or not set(n.axes) <= set(x.axes):
                continue
            own = {core: c for c, core in map(split_constant, n.args)}
            ratios = {terms[core] / c if core in terms else None for core, c in own.items()}
            if len(ratios) == 1 and (ratio := ratios.pop()) is not None:
                terms = {core: c for core, c in terms.items() if core not in own}
                return [*(mul(c, core) for core, c in terms.items()), *scaled(ratio, n)]
        return list(x.args)

    def term_rank(self, a: Node) -> tuple:
        """Positive terms first; of these numbers, then the state's own decay, then in the order of declaration."""
        coefficient, core = split_constant(a)
        has_state = any(
            f.op == "leaf" and f.attrs[0] in STATE_KINDS and len(f.axes) == len(core.axes)
            for f in (self._name_leaf(f) for f in factors_of(core))
        )
        has_state_adjoint = any(f.op == "sum" and f.args[0].op == "sum" for f in factors_of(core))
        reads = any(kind in STATE_KINDS for kind, _ in leaf_names(core))
        return coefficient < 0, bool(core.axes), not (has_state or has_state_adjoint), not reads, self.rank(core), a.key

    def _name_leaf(self, x: Node) -> Node:
        known = self.names.get(x)
        return known if isinstance(known, Node) else x

    def rank(self, x: Node) -> tuple:
        """Where x stands among its likes: by the declared names in it."""
        x = self._name_leaf(x)
        found = {name for _, name in leaf_names(x)}
        places = sorted((self.symbols.place(n), len(n)) for n in found)
        return (tuple(places) or ((-1, 0),), x.key)

    # --- products -----------------------------------------------------------------------------------------------------

    def product(self, x: Node, row: str | None, col: str | None) -> Piece:
        coefficient, core = split_constant(x)
        scalars: list[Node] = []
        rows: list[Node] = []
        cols: list[Node] = []
        both: list[Node] = []
        for f in self.folded_factors(core):
            if len(f.axes) > 2 or not set(f.axes) <= {row, col}:
                return self.indexed(x)
            group = both if len(f.axes) == 2 else scalars if not f.axes else rows if f.axes == (row,) else cols
            group.append(f)
        parts: list[Piece] = []
        if both:
            matrices = [f for f in both if f.op != "eye"]
            identity = len(matrices) < len(both)
            if identity and not matrices and (rows or cols):
                axis = row if rows else col
                parts.append(self.diag([*rows, *(rename(c, {col: row}) for c in cols if col and row)], axis and row))
            else:
                parts += [self.diag(rows, row)] if rows else []
                shown = [self.show(f, row, col) for f in sorted(both, key=self.rank)]
                parts.append(self.entrywise(shown))
                parts += [self.diag(cols, col)] if cols else []
        elif rows and cols:
            parts.append(Piece(self.bracket(self.vector(rows, row), PRODUCT)))
            turned = self.transposed(cols[0], col) if len(cols) == 1 else f"({self.vector(cols, col).text}){self.top}"
            parts.append(Piece(turned, PRODUCT if "^" not in turned[-6:] else ATOM))
        elif rows:
            parts.append(self.vector(rows, row))
        elif cols:
            turned = self.transposed(cols[0], col) if len(cols) == 1 else f"({self.vector(cols, col).text}){self.top}"
            parts.append(Piece(turned))
        return self.with_scalars(coefficient, scalars, parts)

    def folded_factors(self, x: Node) -> tuple[Node, ...]:
        """The factors of x, with those of a named product replaced by its name."""
        factors = list(factors_of(x))
        for n in self.names:
            if n.op == "mul" and n is not x and all(f in factors for f in n.args):
                for f in n.args:
                    factors.remove(f)
                factors.append(n)
        return tuple(factors)

    def with_scalars(self, coefficient: Fraction, scalars: list[Node], parts: list[Piece]) -> Piece:
        """A number and scalars, in front of what they scale; inverses below a fraction line."""
        below = [f for f in scalars if f.op == "pow" and f.attrs[0] < 0]
        above = sorted((f for f in scalars if f not in below), key=self.scalar_rank)
        sign, size = "-" if coefficient < 0 else "", abs(coefficient)
        front: list[Piece] = []
        if not below:
            if size != 1:
                front.append(self.const(size))
            front += self.scalars(above, bool(parts))
        else:
            top = [self.const(Fraction(size.numerator))] if size.numerator != 1 else []
            bottom = [self.const(Fraction(size.denominator))] if size.denominator != 1 else []
            top += self.scalars(above, False) if self.tex or not parts else []
            bottom += [
                self.show(power(f.args[0], -f.attrs[0]), None, None) for f in sorted(below, key=self.scalar_rank)
            ]
            upper = self.juxtaposed(top) if top else Piece("1")
            lower = self.juxtaposed(bottom)
            if self.page and (is_long(upper.text) or is_long(lower.text)):
                front.append(Piece(f"{self.bracket(upper, PRODUCT)} / {self.bracket(lower, ATOM)}", PRODUCT))
            elif self.tex:
                front.append(Piece(rf"\frac{{{upper.text}}}{{{lower.text}}}"))
            else:
                text = f"{self.bracket(upper, PRODUCT)} / {self.bracket(lower, ATOM)}"
                if parts:  # a vector over a scalar reads best with the scalar behind
                    body = self.juxtaposed([*self.scalars(above, True), *parts])
                    text = f"{self.bracket(body, PRODUCT)} / {self.bracket(lower, ATOM)}"
                    if top:
                        text = f"{self.juxtaposed(top).text} {text}"
                return Piece(sign + text, SUM if sign else PRODUCT)
        everything = [*front, *parts]
        piece = self.juxtaposed(everything) if everything else Piece("1")
        return Piece(sign + piece.text, SUM) if sign else piece

    def scalars(self, factors: list[Node], followed: bool) -> list[Piece]:
        """Scalar factors; an inner product is put in brackets where something follows it."""
        pieces = [self.show(f, None, None) for f in factors]
        last = len(pieces) - 1
        return [Piece(self.bracket(p, ATOM)) if followed or i < last else p for i, p in enumerate(pieces)]

    def juxtaposed(self, parts: list[Piece]) -> Piece:
        if len(parts) == 1:
            return parts[0]
        return Piece(self.space.join(self.bracket(p, PRODUCT) for p in parts), PRODUCT)

    def scalar_rank(self, f: Node) -> tuple:
        op = self._name_leaf(f).op
        return op == "sum", op == "add", op == "fn", self.rank(f)

    def diag(self, factors: list[Node], axis: str | None) -> Piece:
        return Piece((r"\mathrm{diag}" if self.tex else "diag") + f"({self.vector(factors, axis).text})")

    def vector(self, factors: list[Node], axis: str | None) -> Piece:
        return self.entrywise([self.show(f, axis, None) for f in sorted(factors, key=self.vector_rank)])

    def vector_rank(self, f: Node) -> tuple:
        return f.op == "sum", self.rank(f)

    def entrywise(self, pieces: list[Piece]) -> Piece:
        if len(pieces) == 1:
            return pieces[0]
        return Piece(self.times.join(self.bracket(p, ATOM) for p in pieces), HADAMARD)

    def bracket(self, piece: Piece, least: int) -> str:
        """The piece's text, in brackets unless it holds together at least so tightly."""
        if piece.level >= least:
            return piece.text
        if self.tex and re.search(r"\\frac|\\sum|\\sqrt|\\left|\\Bigl|\\prod", piece.text):
            return self.fenced("(", piece.text, ")")
        return f"({piece.text})"

    def fenced(self, left: str, text: str, right: str) -> str:
        """LaTeX between tall fences; TeX breaks no line between `\\left` and `\\right`, so that long text has others."""
        if self.page and is_long(text):
            return rf"\Bigl{left}{text}\Bigr{right}"
        return rf"\left{left}{text}\right{right}"

    # --- powers and functions -----------------------------------------------------------------------------------------

    def power(self, x: Node, row: str | None, col: str | None) -> Piece:
        (base,), n = x.args, x.attrs[0]
        if n < 0 and not x.axes:
            return self.with_scalars(Fraction(1), [x], [])
        if abs(n) == Fraction(1, 2):
            inner = self.show(base, row, col).text
            if self.page and is_long(inner):
                return Piece(f"{self.bracket(Piece(inner, SUM), ATOM)}^{{{n}}}")
            root = rf"\sqrt{{{inner}}}" if self.tex else f"sqrt({inner})"
            return Piece(root) if n > 0 else Piece((rf"\frac{{1}}{{{root}}}") if self.tex else f"1 / {root}", PRODUCT)
        shown = self.bracket(self.show(base, row, col), ATOM)
        exponent = str(n) if n.denominator == 1 and n > 0 else f"({n})"
        return Piece(self.raised(shown, f"^{{{n}}}") if self.tex else f"{shown}^{exponent}")

    def function(self, x: Node, row: str | None, col: str | None) -> Piece:
        if x.attrs[0] in SHOWN:
            return self.show(SHOWN[x.attrs[0]](x.args[0]), row, col)
        if x.attrs[0] in SAME:
            return self.show(x.args[0], row, col)
        name, inner = x.attrs[0], self.show(x.args[0], row, col).text
        if name in ("abs", MAGNITUDE):
            return Piece(self.fenced("|", inner, "|") if self.tex else f"|{inner}|")
        if not self.tex:
            return Piece(f"{name}({inner})")
        head = {"sigmoid": r"\sigma", "exp": r"\exp", "log": r"\log", "tanh": r"\tanh", "sin": r"\sin", "cos": r"\cos"}
        return Piece(
            head.get(name, rf"\mathrm{{{name}}}")
            + (f"({inner})" if "frac" not in inner else self.fenced("(", inner, ")"))
        )

    def extreme_or_product(self, x: Node, row: str | None, col: str | None) -> Piece:
        if x.op == "max":
            return self.extreme("max", x.args, row, col)
        smallest = smallest_of(x)
        return self.product(x, row, col) if smallest is None else self.extreme("min", smallest, row, col)

    def extreme(self, name: str, terms: tuple[Node, ...], row: str | None, col: str | None) -> Piece:
        shown = ", ".join(
            self.show(a, row if row in a.axes else None, col if col in a.axes else None).text
            for a in sorted(terms, key=self.term_rank)
        )
        return Piece(rf"\{name}{self.fenced('(', shown, ')')}" if self.tex else f"{name.title()}({shown})")

    # --- contractions -------------------------------------------------------------------------------------------------

    def is_chain(self, x: Node) -> bool:
        """Is a sum over one axis a plain product of matrices and vectors?"""
        (b,), body = x.attrs, x.args[0]
        return all(len(f.axes) <= 2 and b in f.axes for f in factors_of(body))

    def is_matrix(self, x: Node) -> bool:
        """Does x contract something, and can matrix notation say it?"""
        parts = list(walk(x))
        return (
            len(x.axes) <= 2
            and any(y.op == "sum" for y in parts)
            and all(len(y.axes) <= 2 and (y.op != "sum" or self.is_chain(y)) for y in parts if y.op != "mul")
        )

    def contraction(self, x: Node, row: str | None, col: str | None) -> Piece:
        (b,), body = x.attrs, x.args[0]
        if body.op == "sum" and (pair := self.state_adjoint(x)) is not None:
            return pair
        coefficient, core = split_constant(body)
        left: list[Node] = []
        middle: list[Node] = []
        right: list[Node] = []
        for f in self.folded_factors(core):
            others = set(f.axes) - {b}
            if b not in f.axes or len(others) > 1 or not others <= {row, col} - {None}:
                return self.indexed(x)
            group = middle if not others else left if others == {row} else right
            group.append(f)
        parts: list[Piece] = []
        if left:
            parts.append(self.matrices(left, row, b))
        if middle and left and right:
            parts.append(self.diag(middle, b))
        elif middle and left:
            parts.append(self.vector(middle, b))
        elif middle and right:
            parts.append(Piece(self.as_row(middle, b)))
        elif middle:
            parts += self.inner_product(middle, b)
        elif not (left and right):
            parts.insert(1 if left else 0, Piece(self.one if left else self.one + self.top))
        if right:
            parts.append(self.matrices(right, b, col))
        shown = self.space.join(self.bracket(p, PRODUCT) for p in parts)
        return (
            Piece(shown, PRODUCT) if coefficient == 1 else self.with_scalars(coefficient, [], [Piece(shown, PRODUCT)])
        )

    def matrices(self, factors: list[Node], row: str | None, col: str | None) -> Piece:
        """The entry-by-entry product of matrices; transposed as a whole where all of them are."""
        factors = sorted(factors, key=self.rank)
        if len(factors) > 1 and all(self.orient(self._name_leaf(f)) == (col, row) for f in factors):
            return Piece(f"({self.entrywise([self.show(f, col, row) for f in factors]).text}){self.top}")
        return self.entrywise([self.show(f, row, col) for f in factors])

    def as_row(self, factors: list[Node], axis: str) -> str:
        if len(factors) == 1:
            return self.transposed(factors[0], axis)
        return f"({self.vector(factors, axis).text}){self.top}"

    def inner_product(self, factors: list[Node], b: str) -> list[Piece]:
        """A scalar made of vectors over one axis: a^T b."""
        expanded = [g for f in factors for g in ([f.args[0]] * 2 if f.op == "pow" and f.attrs[0] == 2 else [f])]
        first, *rest = sorted(expanded, key=lambda f: (f.op == "sum", self.rank(f)))
        if not rest:
            first, rest = const(1), [first]
            return [Piece(self.one + self.top), self.vector(rest, b)]
        return [Piece(self.as_row([first], b)), self.vector(rest, b)]

    def state_adjoint(self, x: Node) -> Piece | None:
        """<A, B>, the sum of products of entries."""
        inner = x.args[0]
        factors = factors_of(inner.args[0])
        axes = {x.attrs[0], inner.attrs[0]}
        if len(factors) != 2 or any(set(f.axes) != axes for f in factors):
            return None
        factors = tuple(sorted(factors, key=self.rank))
        row, col = self.orient(self._name_leaf(factors[0]))
        a, b = (self.show(f, row, col).text for f in factors)
        return Piece(self.fenced(r"\langle ", f"{a}, {b} ", r"\rangle") if self.tex else f"<{a}, {b}>")

    # --- indices, where matrices don't do -----------------------------------------------------------------------------

    def indexed(self, x: Node, nested: bool = False) -> Piece:
        """x with its axes written as indices; `nested`: x is a sum that indices are wanted for."""
        x = unshifted(x)
        if not nested and self.is_matrix(x):
            row, col = self.orient(x)
            index = ",".join(index_name(a) for a in (row, col) if a is not None)
            text = f"[{self.show(x, row, col).text}]"
            return Piece(text + (f"_{{{index}}}" if self.tex or len(index) > 1 else f"_{index}" if index else ""))
        bound = []
        while x.op == "sum":
            bound.append(x.attrs[0])
            x = x.args[0]
        if x.op == "add":
            body = " + ".join(self.indexed(a).text for a in x.args).replace("+ -", "- ")
            body = f"({body})" if bound else body
        elif x.op == "mul":
            coefficient, core = split_constant(x)
            factors = sorted(factors_of(core), key=self.rank)
            text = ((r"\, " + self.space.lstrip()) if self.tex else " ").join(
                self.bracket(self.indexed(f), PRODUCT) for f in factors
            )
            body = (
                f"{'' if coefficient == 1 else '-' if coefficient == -1 else self.const(coefficient).text + ' '}{text}"
            )
        elif x.op == "pow":
            n = x.attrs[0]
            exponent = f"{{{n}}}" if self.tex else str(n) if n.denominator == 1 and n > 0 else f"({n})"
            body = self.raised(self.bracket(self.indexed(x.args[0]), ATOM), f"^{exponent}")
        elif x.op == "max":
            terms = ", ".join(self.indexed(a).text for a in sorted(x.args, key=self.term_rank))
            body = rf"\max({terms})" if self.tex else f"Max({terms})"
        elif x.op == "fn" and x.attrs[0] in SHOWN:
            return self.indexed(SHOWN[x.attrs[0]](x.args[0]))
        elif x.op == "fn" and x.attrs[0] in SAME:
            return self.indexed(x.args[0])
        elif x.op == "fn":
            body = f"{x.attrs[0]}({self.indexed(x.args[0]).text})"
        elif x.op == "const":
            return self.const(x.attrs[0])
        elif x.op == "expand":
            return self.indexed(x.args[0])
        elif x.op == "inverse":  # of a system that each channel has its own of
            symbol = x.args[0]
            name = self.symbol(symbol.attrs[1], symbol.attrs[0], len(symbol.axes))
            top = "^{-1}" if self.tex else "^-1"
            body = f"[(I - {name}){top}]_{{{','.join(map(index_name, symbol.attrs[2]))}}}"
        else:
            body = self.indexed_symbol(x)
        if not bound:
            return Piece(body, SUM if x.op == "add" else PRODUCT if x.op == "mul" else ATOM)
        under = ",".join(index_name(b) for b in bound)
        return Piece(rf"\sum_{{{under}}} {body}" if self.tex else f"sum_{{{under}}} {body}", PRODUCT)

    def indexed_symbol(self, x: Node) -> str:
        known = self.names.get(x)
        y = known if isinstance(known, Node) else x
        if isinstance(known, str):
            name, kind, axes = known, "let", x.axes
        elif y.op == "leaf":
            kind, name, axes = y.attrs
        elif y.op == "eye":
            name, kind, axes = "I", "chunk", y.axes
        else:
            name, kind, axes = y.op, "chunk", y.axes
        shown = self.symbol(name, kind, len(axes))
        index = ",".join(index_name(a) for a in axes)
        if not axes:
            return shown
        if "_" not in shown:
            return f"{shown}_{{{index}}}" if self.tex or len(index) > 1 else f"{shown}_{index}"
        return f"[{shown}]_{{{index}}}" if self.tex or len(index) > 1 else f"[{shown}]_{index}"
