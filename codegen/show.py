"""Nodes as people write them: matrix notation, in plain text or LaTeX."""

from __future__ import annotations

from fractions import Fraction

import sympy

from .ir import COL, ROW, Node, factors_of

Names = dict[Node, str]


def plain(node: Node, names: Names | None = None, step: bool = True) -> str:
    """A node as one line of text."""
    return _Printer(False, names or {}, step).top(node)


def latex(node: Node, names: Names | None = None, step: bool = True) -> str:
    """A node as LaTeX in the notation of the documents."""
    return _Printer(True, names or {}, step).top(node)


class _Printer:
    def __init__(self, tex: bool, names: Names, step: bool) -> None:
        self.tex, self.names, self.step = tex, names, step
        self.t = "^\\top" if tex else "^T"
        self.times = " \\odot " if tex else " . "

    def top(self, x: Node) -> str:
        free = [a for a in x.axes]
        rows = [a for a in free if a == ROW] or free[:1]
        rest = [a for a in free if a not in rows]
        return self.show(x, rows[0] if rows else None, rest[0] if rest else None)

    # `show` renders x as a matrix whose rows run over `row` and columns over `col` (None: one)
    def show(self, x: Node, row: str | None, col: str | None) -> str:
        if x in self.names:
            return self.symbol(self.names[x], "let", x.axes, row, col)
        match x.op:
            case "leaf":
                kind, name, order = x.attrs
                return self.symbol(name, kind, order, row, col)
            case "const":
                return self.const(x.attrs[0])
            case "number":
                return sympy.latex(sympy.sympify(x.attrs[0])) if self.tex else x.attrs[0]
            case "size":
                return x.attrs[0]
            case "eye":
                return "\\mathbf{I}" if self.tex else "I"
            case "expand":
                return self.show(x.args[0], row if row in x.args[0].axes else None, col if col in x.args[0].axes else None)
            case "add":
                return self.add(x, row, col)
            case "pow":
                return self.pow(x, row, col)
            case "fn":
                name = {"sigmoid": "\\sigma"}.get(x.attrs[0], f"\\{x.attrs[0]}") if self.tex else x.attrs[0]
                return f"{name}({self.show(x.args[0], row, col)})"
            case "mul":
                return self.mul(x.args, row, col)
            case "sum":
                return self.sum(x, row, col)
        inner = ", ".join(self.top(a) for a in x.args)
        attrs = "" if not x.attrs else "[" + ",".join(str(a) for a in x.attrs if a != "") + "]"
        name = f"\\mathrm{{{x.op}}}" if self.tex else x.op
        return f"{name}{attrs}({inner})"

    def symbol(self, name: str, kind: str, order: tuple[str, ...], row: str | None, col: str | None) -> str:
        base = "lambda" if name == "lam" else name
        if self.tex:
            head, _, sub = base.partition("_")
            symbol = sympy.latex(sympy.Symbol(head)) if not (head.startswith("d") and len(head) > 1) else self.tangent(head)
            if order:
                symbol = f"\\mathbf{{{symbol}}}"
        else:
            symbol, sub = name, ""
        when = ""
        if self.step and kind not in ("constant", "parameter", "decay parameter"):
            when = {"state": "t-1", "trajectory": "t-1", "state+": "t", "state-": "t"}.get(kind, "t")
        sub = ",".join(s for s in (sub, when) if s)
        if sub:
            symbol += f"_{{{sub}}}" if self.tex or len(sub) > 1 else f"_{sub}"
        flipped = (len(order) == 2 and order == (col, row)) or (len(order) == 1 and order[0] == col)
        if flipped:
            return f"{symbol}{self.t}"
        return symbol

    def tangent(self, name: str) -> str:
        rest = "lambda" if name[1:] == "lam" else name[1:]
        return f"d{sympy.latex(sympy.Symbol(rest))}"

    def const(self, c: Fraction) -> str:
        if c.denominator == 1:
            return str(c.numerator)
        return f"\\frac{{{c.numerator}}}{{{c.denominator}}}" if self.tex else f"{c.numerator}/{c.denominator}"

    def add(self, x: Node, row: str | None, col: str | None) -> str:
        out = ""
        parts = sorted(x.args, key=lambda a: (len(a.axes) < len(x.axes), a.op == "const" and len(x.args) > 2))
        for a in parts:
            shown = self.show(a, row, col)
            if not out:
                out = shown
            elif shown.startswith("-"):
                out += " - " + shown[1:].lstrip()
            else:
                out += " + " + shown
        return out

    def pow(self, x: Node, row: str | None, col: str | None) -> str:
        (base,), n = x.args, x.attrs[0]
        inner = self.atom(base, row, col)
        if n == Fraction(1, 2):
            return f"\\sqrt{{{self.show(base, row, col)}}}" if self.tex else f"sqrt({self.show(base, row, col)})"
        if n == -1:
            return f"\\frac{{1}}{{{self.show(base, row, col)}}}" if self.tex else f"1/{inner}"
        return f"{inner}^{{{n}}}" if self.tex else f"{inner}^{n if n.denominator == 1 and n > 0 else f'({n})'}"

    def atom(self, x: Node, row: str | None, col: str | None) -> str:
        """x with brackets where a factor needs them."""
        shown = self.show(x, row, col)
        if x in self.names:
            return shown
        if x.op == "add" or (x.op == "const" and x.attrs[0] < 0):
            return f"\\left({shown}\\right)" if self.tex else f"({shown})"
        return shown

    def mul(self, factors: tuple[Node, ...], row: str | None, col: str | None) -> str:
        def over(a: Node) -> tuple[bool, bool]:
            return row in a.axes if row else False, col in a.axes if col else False

        sign, scalars, rows, cols, both = "", [], [], [], []
        for f in factors:
            if f.op == "const" and f.attrs[0] == -1:
                sign = "-"
            elif not f.axes:
                scalars.append(self.atom(f, None, None))
            elif over(f) == (True, True):
                both.append(f)
            elif over(f)[0]:
                rows.append(f)
            else:
                cols.append(f)
        parts = [*scalars]
        matrix = self.times.join(self.wrap(f, row, col, len(both) > 1) for f in both)
        if rows and cols and not both:
            parts += [self.vector(rows, row), self.vector(cols, col) + self.t]
        elif both:
            diag = "\\mathrm{diag}" if self.tex else "diag"
            parts += [f"{diag}({self.vector(rows, row)})"] if rows else []
            parts += [matrix]
            parts += [f"{diag}({self.vector(cols, col)})"] if cols else []
        elif rows:
            parts.append(self.vector(rows, row))
        elif cols:
            parts.append(self.vector(cols, col) + self.t)
        return sign + " ".join(parts)

    def wrap(self, f: Node, row: str | None, col: str | None, always: bool = False) -> str:
        shown = self.atom(f, row, col)
        return f"({shown})" if always and f.op in ("mul", "sum") else shown

    def vector(self, factors: list[Node], axis: str | None) -> str:
        joined = self.times.join(self.atom(f, axis, None) for f in factors)
        if len(factors) == 1:
            f = factors[0]
            return f"[{joined}]" if f.op == "sum" and f not in self.names else joined
        return f"({joined})"

    def sum(self, x: Node, row: str | None, col: str | None) -> str:
        (b,), body = x.attrs, x.args[0]
        left, middle, right, other = [], [], [], []
        for f in factors_of(body):
            has_row, has_col = bool(row) and row in f.axes, bool(col) and col in f.axes
            if b not in f.axes or (has_row and has_col):
                other.append(f)
            elif has_row:
                left.append(f)
            elif has_col:
                right.append(f)
            else:
                middle.append(f)
        if other or len(left) > 1 or len(right) > 1:
            inner = self.times.join(self.top(f) for f in factors_of(body))
            return f"\\sum_{{{b}}} {inner}" if self.tex else f"sum_{b}({inner})"
        parts = []
        if left:
            parts.append(self.wrap(left[0], row, b))
        if middle and left and right:
            parts.append(("\\mathrm{diag}" if self.tex else "diag") + f"({self.vector(middle, b)})")
        elif middle and left:
            parts.append(self.vector(middle, b))
        elif middle and right:
            parts.append(self.vector(middle, b) + self.t)
        elif len(middle) == 1:
            f = middle[0]
            one = "\\mathbf{1}" if self.tex else "1"
            if f.op == "pow" and f.attrs[0] == 2:
                v = self.atom(f.args[0], b, None)
                return f"{v}{self.t} {v}"
            parts.append(f"{one}{self.t} {self.vector(middle, b)}")
        elif middle:
            parts += [self.vector(middle[:1], b) + self.t, self.vector(middle[1:], b)]
        if right:
            parts.append(self.wrap(right[0], b, col))
        return " ".join(parts)
