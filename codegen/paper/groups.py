"""What stands in brackets, bars and environments: groups, pairs, inner products, norms, matrices, cases."""

from __future__ import annotations

from chunkform.spec.language.formula import Formula, formula

from .commands import Commands
from .lexer import Token, closing
from .pieces import comparisons, quotient
from .row import Fault, Row, depth_of, is_dots, spelled, split, split_rows, upright
from .words import CASES, CLOSING, MATRICES, OPENING


class Groups(Commands):
    """Reads groups."""

    def braces(self) -> Formula:
        """A group of TeX's: a name with its font, a fraction with \\over, or anything."""
        end = closing(self.tokens, self.i)
        content = self.tokens[self.i + 1 : end]
        start, self.i = self.i, end + 1
        for k, t in enumerate(content):
            if t.kind == "command" and t.text == "over" and depth_of(content[:k]) == 0:
                return self.scripts(quotient(self.whole(content[:k]), self.whole(content[k + 1 :])))
        if not content:
            return self.scripts(Formula("empty")) if self.is_mark("_", "^") else self.after_empty(start)
        name = spelled(content)
        if name is not None:
            return self.named(name, self.tokens[start], upright(content))
        return self.scripts(self.whole(content))

    def after_empty(self, start: int) -> Formula:
        """What follows {}, which stands for nothing."""
        if self.at_sign():
            return formula(0)
        return self.factor()

    def brackets(self) -> Formula:
        """What stands in brackets: a formula, a pair, or blocks side by side."""
        opener = self.token
        assert opener is not None
        end = self.closing_at(self.i)
        content = self.tokens[self.i + 1 : end]
        if not content:
            raise Fault(f"{opener.shown} holds nothing", opener)
        self.i = end + 1
        if opener.text == "langle":
            parts = split(content, ",")
            if len(parts) != 2:
                parts = split(content, "|")
            if len(parts) != 2:
                raise Fault("an inner product takes two factors", opener)
            return self.scripts(Formula("inner", tuple(self.whole(p) for p in parts)))
        parts = split(content, ",") if opener.text != "lbrace" or len(split(content, ",")) > 1 else [content]
        if len(parts) > 1:
            values = tuple(self.whole(p) if not is_dots(p) else Formula("dots") for p in parts if p)
            return self.scripts(Formula("tuple", values, (opener.text,)))
        rows = split(content, ";")
        if len(rows) > 1:
            return self.scripts(Formula("tuple", tuple(self.whole(p) for p in rows if p), (opener.text, ";")))
        return self.scripts(self.whole(content), grouped=True)

    def bars(self) -> Formula:
        """|x| and ||x||."""
        opener = self.token
        assert opener is not None
        self.i += 1
        double = opener.text in ("Vert", "lVert")
        if opener.text == "|" and self.is_mark("|"):
            double = True
            self.i += 1
        shut = {"Vert": "Vert", "lVert": "rVert", "lvert": "rvert", "vert": "vert", "|": "|"}[opener.text]
        depth, k = 0, self.i
        while k < len(self.tokens) and not (depth == 0 and self.tokens[k].text == shut):
            depth += (self.tokens[k].text in OPENING) - (self.tokens[k].text in CLOSING)
            k += 1
        if k == len(self.tokens):
            raise Fault(f"{opener.shown} is never closed", opener)
        content = self.tokens[self.i : k]
        self.i = k + 1
        if double and opener.text == "|" and self.is_mark("|"):
            self.i += 1
        inner = self.whole(content)
        if double:
            while self.is_mark("_"):
                self.i += 1
                self.argument()
            return self.scripts(Formula("norm", (inner,)))
        return self.scripts(Formula("function", (inner,), ("abs",)))

    def on_begin(self) -> Formula:
        """A matrix, or cases."""
        start = self.token
        self.i += 1
        name = "".join(t.text for t in self.argument()).rstrip("*")
        depth, k = 1, self.i
        while k < len(self.tokens) and depth:
            t = self.tokens[k]
            depth += (t.kind == "command") * ((t.text == "begin") - (t.text == "end"))
            k += 1
        content = self.tokens[self.i : k - 1]
        self.i = k
        if self.is_mark("{"):
            self.argument()
        if name == "array" and content[:1] and content[0].text == "{":
            content = content[closing(content, 0) + 1 :]
        cells = [split(r, "&") for r in split_rows(content) if r]
        if name in CASES:
            return self.cases(cells, start)
        if name in MATRICES:
            return self.scripts(self.matrix(cells, start), grouped=True)
        raise Fault(f"\\begin{{{name}}} isn't read inside a formula", start)

    def cases(self, cells: list[list[list[Token]]], start: Token | None) -> Formula:
        args: list[Formula] = []
        for cell in cells:
            value = [t for t in cell[0]]
            while value and value[-1].text == ",":
                value.pop()
            said = [t for part in cell[1:] for t in part]
            if len(cell) == 1:
                pieces = split(value, ",")
                value, said = pieces[0], [t for p in pieces[1:] for t in p]
            inner = self.inside(value)
            found = inner.expression()
            while (relation := inner.relation()) is not None:  # a definition in a case: its first side stands
                inner.side(relation)
            args += [self.condition(said, start), found]
        if not args:
            raise Fault("cases without a case", start)
        return Formula("cases", tuple(args))

    def condition(self, said: list[Token], start: Token | None) -> Formula:
        words = "".join(t.text for t in said)
        if not said or "otherwise" in words or "else" in words:
            return Formula("otherwise")
        row = Row()
        inner = type(self)(said, self.notation, row, self.bound, self.depth + 1)
        inner.row()
        found = [c for item in row.items for c in comparisons(item)]
        if len(found) != 1:
            raise Fault("a case takes one condition on two indices", said[0])
        return found[0]

    def matrix(self, cells: list[list[list[Token]]], start: Token | None) -> Formula:
        """A matrix: of numbers, of blocks, or of all rows of a kind, with dots."""
        if not cells:
            raise Fault("a matrix without entries", start)
        width = max(len(r) for r in cells)
        dotted = [
            any(t.text in ("vdots", "ddots", "ldots", "cdots", "dots") for part in r for t in part) for r in cells
        ]
        if any(dotted):
            if width == 1 and not dotted[0]:
                return Formula("rows of", (self.whole(cells[0][0]), self.whole(cells[-1][0])))
            if len(cells) == 1 and width > 2:
                return Formula("columns of", (self.whole(cells[0][0]), self.whole(cells[0][-1])))
            raise Fault("a matrix with dots is read where it is a column of rows, or a row of columns", start)
        entries = [[self.whole(c) if c else formula(0) for c in r] for r in cells]
        if any(len(r) != width for r in entries):
            raise Fault("the rows of a matrix have different lengths", start)
        flat = [x for r in entries for x in r]
        if all(x.op == "number" and x.attrs[0].denominator == 1 for x in flat):
            return Formula("constant", (), ("?", "?", tuple(tuple(int(x.attrs[0]) for x in r) for r in entries)))
        return Formula("blocks", tuple(flat), (width,))
