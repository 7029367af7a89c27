"""Reads rows of LaTeX mathematics as formulas: a precedence-climbing parser.

From loose to tight: relations; sums; products of entries (`\\odot`); products, written side by side or with `/`; big sums and
functions, which take the product that follows; scripts. What isn't known before all of a document was read stays open: `apply` is
a function of the document, `partial` a derivative, `eye ?` an identity whose size its surroundings tell (`resolve.py`).

Each part has a file: this one has rows, sums and products; `groups.py` brackets, matrices and cases; `commands.py` fractions
and what else takes arguments in braces; `operators.py` functions and big operators; `names.py` symbols; `scripts.py` what stands
below and above them; `cursor.py` the tokens."""

from __future__ import annotations

from fractions import Fraction

from chunkform.spec.language.formula import Formula, add, formula, hadamard, negative, product, substitute, walk

from .directions import directed
from .groups import Groups
from .lexer import Token, argument_at
from .pieces import of_all_pairs, quotient, times
from .row import Fault, Item, Notation, Row, balanced, depth_of, split
from .runs import run_of
from .words import CLOSING, FUNCTIONS, OPENING, RELATIONS, WORDS

PLAIN = Notation()


def read_row(tokens: list[Token], notation: Notation = PLAIN) -> Row:
    """The row that tokens spell.

    Raises:
        Fault: it isn't a formula of this language.
    """
    row = Row()
    balanced_tokens = balanced(tokens, row.slips)
    try:
        Parser(balanced_tokens, notation, row).row()
    except RecursionError:
        raise Fault("it is nested too deeply") from None
    return directed(with_counted_powers(row))


def with_counted_powers(row: Row) -> Row:
    """The row with the letters of exponents as indices where they count something else in it, as in gamma^{i-j} k_j."""
    nodes = [y for item in row.items for x in item.sides for y in walk(x)]
    if not any(y.op == "power" and y.args[1].op != "number" for y in nodes):
        return row
    letters = {y.attrs[0] for y in nodes if y.op == "index"}
    counted = {Formula("at", (), (x,)): Formula("index", (), (x,)) for x in letters if len(x) == 1 and x.islower()}

    def visit(x: Formula) -> Formula:
        if x.op == "power":
            return Formula("power", (visit(x.args[0]), substitute(x.args[1], counted)))
        return Formula(x.op, tuple(visit(a) for a in x.args), x.attrs) if x.args else x

    for item in row.items:
        item.sides = [visit(x) for x in item.sides]
    return row


class Parser(Groups):
    """Reads one row."""

    shaped: Formula | None = None  # the sizes of an interval that was read

    # --- rows

    def row(self) -> None:
        words: list[str] = []
        first = True
        while self.token is not None:
            if self.is_mark(",", ";", ".", "&", ":") and not self.colon_equals():
                self.i += 1
                continue
            if self.is_command(
                "quad", "qquad", "\\", "newline", "forall", "text-end", "because", "therefore", "dots", "ldots", "cdots"
            ):
                if self.is_command("dots", "ldots", "cdots"):
                    self.out.items.append(Item([Formula("dots")], []))
                self.i += 1
                continue
            self.open_brackets_of_a_condition()
            prose = self.prose()
            if prose is not None:
                words.append(prose)
                continue
            relation = self.relation()
            if relation and first:
                self.out.goes_on = relation
                sides = [self.side(relation)]
            elif relation:
                raise Fault("a relation has nothing on its left", self.tokens[self.i - 1])
            else:
                sides = [self.side()]
                self.out.left = sides[:1]
            relations: list[str] = []
            while (relation := self.relation()) is not None:
                if self.token is None or self.is_mark(",", "."):
                    raise Fault("a relation has nothing on its right", self.tokens[self.i - 1])
                relations.append(relation)
                sides.append(self.side(relation))
            if self.shaped is not None and len(sides) > 1:
                self.out.items.append(Item([sides[-2], self.shaped], ["in"]))
                self.shaped = None
            self.out.items.append(Item(sides, relations, " ".join(words)))
            words, first = [], False
            if not (
                self.token is None
                or self.is_mark(",", ";", ".", "&", ":")
                or self.is_command("quad", "qquad", "forall", "dots", "ldots", "newline")
                or self.starts_prose()
            ):
                raise Fault(f"{self.token.shown} can't stand here", self.token)
        self.out.words = " ".join(words)

    def colon_equals(self) -> bool:
        return self.text == ":" and self.i + 1 < len(self.tokens) and self.tokens[self.i + 1].text == "="

    def starts_prose(self) -> bool:
        x = self.token
        if (
            x is None
            or x.kind != "command"
            or x.text not in ("text", "textit", "textrm", "mbox", "mathrm", "textbf", "operatorname")
        ):
            return False
        content, after = argument_at(self.tokens, self.i + 1)
        said = "".join(
            t.text + ("" if k + 1 < len(content) and content[k + 1].glued else " ") for k, t in enumerate(content)
        ).strip()
        if x.text in ("mathrm", "operatorname") and said not in WORDS:
            return False
        plain = all(t.kind in ("letter", "number") or t.text in ("_", "-") for t in content)
        follows = self.tokens[after].text if after < len(self.tokens) else ""
        if plain and " " not in said and said.isascii() and said not in WORDS:
            return not (said in FUNCTIONS or follows in ("_", "^", "(", "[") or RELATIONS.get(follows) or len(said) < 3)
        return bool(content)

    def prose(self) -> str | None:
        """A piece of text among the mathematics."""
        if not self.starts_prose():
            return None
        content, self.i = argument_at(self.tokens, self.i + 1)
        return "".join(("" if t.glued else " ") + t.shown for t in content).strip()

    def relation(self) -> str | None:
        x = self.token
        if x is None:
            return None
        if self.colon_equals():
            self.i += 2
            return ":="
        if x.kind == "command" and x.text in ("overset", "stackrel", "underset"):
            _, after = argument_at(self.tokens, self.i + 1)
            content, after = argument_at(self.tokens, after)
            if len(content) == 1 and content[0].text in RELATIONS:
                said = RELATIONS[content[0].text]
                above = "".join(t.text for t in argument_at(self.tokens, self.i + 1)[0])
                self.i = after
                return ":=" if said == "=" and ("def" in above or "triangle" in above) else said
            return None
        if x.kind == "command" and x.text == "not" and self.i + 1 < len(self.tokens):
            said = RELATIONS.get(self.tokens[self.i + 1].text, "")
            self.i += 2
            return {"=": "!=", "in": "not in"}.get(said, "!=")
        if x.kind in ("command", "mark") and x.text in RELATIONS:
            self.i += 1
            if x.text == "=" and self.is_mark(":") and self.token is not None and self.token.glued:
                self.i += 1
            return RELATIONS[x.text]
        return None

    def side(self, relation: str = "") -> Formula:
        """What stands on one side of a relation."""
        if relation in ("in", "not in"):
            found = self.domain()
            if found is not None:
                return found
        return self.expression()

    def open_brackets_of_a_condition(self) -> None:
        """Leave out the brackets around a condition behind a formula, as in `(r < t)`."""
        if not self.out.items or not self.is_mark("("):
            return
        end = self.closing_at(self.i)
        inner, after = self.tokens[self.i + 1 : end], self.tokens[end + 1 : end + 2]
        compares = any(t.text in RELATIONS and depth_of(inner[:k]) == 0 for k, t in enumerate(inner))
        if compares and (not after or after[0].text in (",", ";", ".", "quad", "qquad")):
            del self.tokens[end : end + 1]
            self.i += 1

    def domain(self) -> Formula | None:
        """A set after \\in: the reals with their sizes, or an interval."""
        start = self.i
        if self.is_command("R-set") or (self.is_command("mathbb", "mathbf", "mathrm") or self.text == "R"):
            if self.is_command("mathbb", "mathbf", "mathrm"):
                self.i += 1
                content = self.argument()
            else:
                content = [self.tokens[self.i]]
                self.i += 1
            if [t.text for t in content] in (["R"], ["R-set"]):
                sizes: list[Formula] = []
                if self.is_mark("^"):
                    self.i += 1
                    sizes = self.sizes(self.argument())
                return Formula("reals", tuple(sizes))
            if [t.text for t in content] in (["N"], ["Z"]):
                return Formula("integers")
        self.i = start
        if self.is_mark("(", "["):
            low_open = self.text
            end = self.closing_at(self.i)
            inner = self.tokens[self.i + 1 : end]
            parts = split(inner, ",")
            if len(parts) == 2 and all(parts):
                closer = self.tokens[end].text if end < len(self.tokens) else "]"
                self.i = end + 1
                if self.is_mark("^"):  # (0, 1)^d: how large the vector is, beside what is in it
                    self.i += 1
                    self.shaped = Formula("reals", tuple(self.sizes(self.argument())))
                return Formula("interval", tuple(self.whole(p) for p in parts), (low_open, closer))
        self.i = start
        return None

    def sizes(self, tokens: list[Token]) -> list[Formula]:
        parts = [p for piece in split(tokens, "times") for p in split(piece, ",")]
        return [self.whole(p, self.bound | {"?sizes"}) for p in parts if p]

    # --- sums and products

    def expression(self) -> Formula:
        """A sum of terms."""
        terms: list[Formula] = []
        sign = self.sign()
        while True:
            x = self.term()
            terms.append(negative(x) if sign < 0 else x)
            if not self.at_sign():
                break
            sign = self.sign()
        if len(terms) == 2:
            pairs = of_all_pairs(*terms)
            if pairs is not None:
                return pairs
        return add(*terms)

    def at_sign(self) -> bool:
        return self.is_mark("+", "-") or self.is_command("minus", "pm", "mp")

    def sign(self) -> int:
        found = 1
        while self.at_sign():
            if self.is_command("pm", "mp"):
                raise Fault(f"\\{self.text} says two things at once", self.token)
            found *= -1 if self.text in ("-", "minus") else 1
            self.i += 1
        return found

    def term(self) -> Formula:
        """Products of entries of products."""
        parts = [self.product()]
        while self.is_command("odot", "circ", "ast", "star", "bullet", "oslash") or self.is_mark("*"):
            if self.is_command("oslash"):
                self.i += 1
                parts.append(quotient(parts.pop(), self.product()))
                continue
            if self.is_mark("*"):  # the product of programs
                self.i += 1
                parts.append(product(parts.pop(), self.product()))
                continue
            self.i += 1
            parts.append(self.product())
        return hadamard(*parts) if len(parts) > 1 else parts[0]

    def product(self, least: bool = False) -> Formula:
        """Factors side by side, and quotients. A sign may stand before the first."""
        sign = self.sign()
        found = self.factor()
        while True:
            if self.is_mark("/") or self.is_command("div", "slash"):
                self.i += 1
                found = quotient(found, self.factor())
            elif self.is_command("otimes"):
                self.i += 1
                found = product(found, Formula("transpose", (self.factor(),)))
            elif self.is_command("cdot", "times", "cdotp", "centerdot"):
                self.i += 1
                sign_of = self.sign()
                found = times(found, self.factor())
                sign *= sign_of
            elif self.is_command("cdots", "dots", "ldots") and self.goes_on_behind():
                self.i += 1
                found = run_of(found, self.factor(), self.out.limits)
            elif self.starts_factor():
                found = times(found, self.factor())
            else:
                return negative(found) if sign < 0 else found

    def goes_on_behind(self) -> bool:
        """Whether a factor follows the token here."""
        self.i += 1
        found = self.starts_factor()
        self.i -= 1
        return found

    def starts_factor(self) -> bool:
        x = self.token
        if x is None:
            return False
        if x.kind in ("letter", "number"):
            return True
        if x.kind == "mark":
            return x.text in "([{|"
        if x.kind != "command" or x.text in RELATIONS or x.text in CLOSING:
            return False
        if self.starts_prose():
            return False
        return x.text not in ("quad", "qquad", "odot", "oslash", "circ", "ast", "over", "forall", "text-end", "not", "pm", "mp",
                              "minus", "overset", "stackrel", "ldots", "dots", "newline", "star", "bullet", "mid",
                              "vert-end")  # fmt: skip

    # --- factors

    def factor(self) -> Formula:
        x = self.token
        if x is None:
            raise Fault("it ends where something should follow", self.tokens[-1] if self.tokens else None)
        if x.kind == "number":
            self.i += 1
            return self.scripts(formula(Fraction(x.text)))
        if x.kind == "mark":
            if x.text == "{":
                return self.braces()
            if x.text in "([":
                return self.brackets()
            if x.text == "|":
                return self.bars()
            raise Fault(f"{x.shown} can't stand here", x)
        if x.kind == "command":
            special = getattr(self, f"on_{x.text}", None) if x.text.isalpha() else None
            if special is not None:
                return special()
            if x.text in OPENING:
                return self.brackets()
            if x.text in ("Vert", "lVert", "lvert", "vert"):
                return self.bars()
            if x.text in FUNCTIONS:
                self.i += 1
                return self.applied(FUNCTIONS[x.text])
        return self.symbol()
