"""Reads rows of LaTeX mathematics as formulas: a precedence-climbing parser.

From loose to tight: relations; sums; products of entries (`\\odot`); products, written side by side or with `/`; big sums and
functions, which take the product that follows; scripts. What isn't known before all of a document was read stays open: `apply` is
a function of the document, `partial` a derivative, `eye ?` an identity whose size its surroundings tell (`meaning.py`)."""

from __future__ import annotations

from fractions import Fraction

from chunkform.spec.language.formula import (
    Formula,
    add,
    formula,
    hadamard,
    negative,
    product,
    substitute,
    walk,
)

from .lexer import Token, argument_at, closing
from .pieces import comparisons, function, minus_one, of_all_pairs, quotient, raised, times
from .row import (
    DEEPEST,
    UNKNOWN,
    Fault,
    Item,
    Notation,
    Row,
    balanced,
    depth_of,
    is_dots,
    lettered,
    spelled,
    split,
    split_rows,
    upright,
)
from .words import (
    ACCENTS,
    CASES,
    CLOSING,
    FONTS,
    FUNCTIONS,
    GREEK,
    INDICES,
    MATRICES,
    NAMING,
    OPENING,
    RELATIONS,
    SPELLED,
    SWITCHES,
    TRANSPOSES,
    WORDS,
)

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
    return row


class Parser:
    """Reads one row. `bound` are the indices of the sums around."""

    def __init__(
        self, tokens: list[Token], notation: Notation, row: Row, bound: frozenset[str] = frozenset(), depth: int = 0
    ) -> None:
        self.tokens, self.i, self.notation, self.out = tokens, 0, notation, row
        self.bound, self.depth = bound, depth
        if depth > DEEPEST:
            raise Fault("it is nested too deeply", tokens[0] if tokens else None)

    # --- tokens

    @property
    def token(self) -> Token | None:
        return self.tokens[self.i] if self.i < len(self.tokens) else None

    @property
    def text(self) -> str:
        return self.tokens[self.i].text if self.i < len(self.tokens) else ""

    def is_command(self, *names: str) -> bool:
        x = self.token
        return x is not None and x.kind == "command" and x.text in names

    def is_mark(self, *marks: str) -> bool:
        x = self.token
        return x is not None and x.kind == "mark" and x.text in marks

    def argument(self) -> list[Token]:
        if self.token is None:
            raise Fault("it ends where something should follow", self.tokens[-1] if self.tokens else None)
        found, self.i = argument_at(self.tokens, self.i)
        return found

    def inside(self, tokens: list[Token], bound: frozenset[str] | None = None) -> Parser:
        return Parser(tokens, self.notation, self.out, self.bound if bound is None else bound, self.depth + 1)

    def whole(self, tokens: list[Token], bound: frozenset[str] | None = None) -> Formula:
        """The formula that tokens spell, all of them."""
        parser = self.inside(tokens, bound)
        found = parser.side()
        if parser.token is not None:
            raise Fault(f"{parser.token.shown} can't stand here", parser.token)
        return found

    # --- rows

    def row(self) -> None:
        words: list[str] = []
        first = True
        while self.token is not None:
            if self.is_mark(",", ";", ".", "&", ":") and not self.colon_equals():
                self.i += 1
                continue
            if self.is_command(
                "quad", "qquad", "\\", "newline", "forall", "text-end", "because", "therefore", "dots", "ldots"
            ):
                if self.is_command("dots", "ldots"):
                    self.out.items.append(Item([Formula("dots")], []))
                self.i += 1
                continue
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
                return Formula("interval", tuple(self.whole(p) for p in parts), (low_open, closer))
        self.i = start
        return None

    def sizes(self, tokens: list[Token]) -> list[Formula]:
        parts = [p for piece in split(tokens, "times") for p in split(piece, ",")]
        return [self.whole(p, self.bound | {"?sizes"}) for p in parts if p]

    def closing_at(self, i: int) -> int:
        """The position of the bracket that closes the one at i."""
        depth = 0
        for k in range(i, len(self.tokens)):
            x = self.tokens[k]
            if x.kind in ("mark", "command"):
                depth += (x.text in OPENING) - (x.text in CLOSING)
                if depth == 0:
                    return k
        return len(self.tokens)

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
        while self.is_command("odot", "circ", "ast", "star", "bullet") or self.is_mark("*"):
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
            elif self.starts_factor():
                found = times(found, self.factor())
            else:
                return negative(found) if sign < 0 else found

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
        return x.text not in ("quad", "qquad", "odot", "circ", "ast", "over", "forall", "text-end", "not", "pm", "mp", "minus",
                              "overset", "stackrel", "ldots", "dots", "newline", "star", "bullet", "mid", "vert-end")  # fmt: skip

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

    # --- names

    def symbol(self) -> Formula:
        """A letter with its font and accents, and its indices; several letters where a font holds them together."""
        x = self.token
        assert x is not None
        if x.kind == "letter":
            self.i += 1
            name = x.text
            following = self.token
            if following is not None and following.kind == "number" and following.glued and following.text.isdigit():
                self.i += 1
                name += following.text
            return self.named(name, x)
        if x.kind == "command" and x.text in GREEK:
            self.i += 1
            return self.named(SPELLED.get(x.text, x.text), x)
        if x.kind == "command" and (x.text in FONTS or x.text in ACCENTS):
            self.i += 1
            if x.text in SWITCHES and x.text not in NAMING:
                return self.symbol() if self.token is not None else formula(0)
            content = self.argument()
            held = spelled([x, Token("mark", "{", x.at), *content, Token("mark", "}", x.at)])
            if held is not None and not self.is_product_of_names(held, content):
                if FONTS.get(x.text) == "bold":
                    self.out.bold.add(held)
                return self.named(held, x, x.text in NAMING or (len(content) > 1 and x.text in FONTS))
            inner = self.whole(content)
            if x.text in FONTS:
                return self.scripts(inner)
            if inner.op == "at":
                return self.scripts(Formula("at", inner.args, (inner.attrs[0] + ACCENTS[x.text],)))
            raise Fault(f"{x.shown} stands over more than a name", x)
        raise Fault(f"{x.shown} isn't known here", x)

    def is_product_of_names(self, name: str, content: list[Token]) -> bool:
        """Whether \\mathbf{QK} is a product: where Q and K are names of the document, and QK isn't."""
        letters = [t.text for t in content if t.kind == "letter"]
        if len(letters) != len(content) or len(letters) < 2 or name in self.notation.names:
            return False
        return all(a in self.notation.names for a in letters) and not name.startswith("d")

    def named(self, name: str, at: Token, held: bool = False) -> Formula:
        """A name, with the scripts that follow it. `held`: a font holds its letters together."""
        if held and name in FUNCTIONS and name not in self.notation.names:
            return self.applied(FUNCTIONS[name])
        if name in ("0", "1"):
            return self.scripts(Formula("ones", (), ("?",)) if name == "1" else formula(0))
        if name in ("R-set",):
            raise Fault("a set can't be a factor", at)
        if name == "d" and "d" not in self.bound and self.token is not None:
            whole = self.differential(at, held)
            if whole is not None:
                return whole
        return self.scripts(Formula("at", (), (name,)), name=name, at=at)

    def differential(self, at: Token, upright: bool) -> Formula | None:
        """`d q_t`, the gradient by q_t: what follows a d that touches it, or that is set upright or bold."""
        x = self.token
        assert x is not None
        starts = x.kind == "letter" or (
            x.kind == "command" and (x.text in GREEK | set(FONTS) | set(ACCENTS) or x.text in ("log", "ln"))
        )
        upright = upright or at.kind == "command"
        if not starts or not (x.glued or upright or self.is_indexed_name()):
            return None
        if x.kind == "letter" and x.text in self.notation.sizes and not upright:
            return None
        log = x.text in ("log", "ln")
        if log:
            self.i += 1
        start = self.i
        inner = self.symbol() if self.token is not None else None
        if inner is None:
            return None
        heart = inner
        while heart.op in ("transpose", "power", "inverse", "row") and heart.args:
            heart = heart.args[0]
        if heart.op != "at":
            self.i = start - log
            return None
        renamed = Formula("at", heart.args, ("dlog_" * log + "d" * (not log) + heart.attrs[0],))
        return substitute(inner, {heart: renamed})

    def is_indexed_name(self) -> bool:
        """Whether a name of the document with an index follows."""
        end = next((k for k in range(self.i, len(self.tokens)) if self.tokens[k].text == "_"), self.i)
        return (spelled(self.tokens[self.i : end]) or "") in self.notation.names

    def scripts(self, x: Formula, name: str = "", at: Token | None = None, grouped: bool = False) -> Formula:
        """x with what stands below, above and behind it: indices, transposes, powers, primes, slices, arguments."""
        below: list[Formula] = []
        label = ""
        above: list[Formula] = []
        power: list[tuple] = []
        bracketed = False
        while self.token is not None:
            if self.is_mark("_"):
                self.i += 1
                content = self.argument()
                told = self.label_of(name, content)
                if told is not None:
                    label += told
                else:
                    found, wrapped = self.indices(content)
                    below += found
                    bracketed = bracketed or wrapped
            elif self.is_mark("^"):
                self.i += 1
                content = self.argument()
                mark = self.exponent(name, content, bool(below), grouped)
                if mark[0] == "index":
                    above += mark[1]
                elif mark[0] == "label":
                    label += mark[1]
                else:
                    power.append(mark)
            elif self.is_mark("'") or self.is_command("prime"):
                self.i += 1
                label += "'"
            elif self.is_mark("!") and self.token.glued:
                raise Fault("a factorial isn't of this language", self.token)
            else:
                break
        if name:
            x = self.built(name, label, below, above, bracketed, at)
        elif below:
            x = Formula("entry", (x, *below))
        for kind, *rest in power:
            x = raised(x, kind, *rest)
        if x.op == "apply" and self.is_mark("^", "_"):
            return self.scripts(x)
        return self.behind(x)

    def built(
        self, name: str, label: str, below: list[Formula], above: list[Formula], bracketed: bool, at: Token | None
    ) -> Formula:
        full = name + label
        if name == "I" and not above and "I" not in self.notation.names and (not below or len(below) == 1):
            size = "?" if not below else str(below[0])
            return Formula("eye", (), (size,))
        if full in self.notation.functions and self.is_mark("(") and not below and not above:
            return self.call(full)
        if full in self.notation.maps and self.is_mark("(") and not below and not above:
            mapped = self.mapped(full)
            if mapped is not None:
                return mapped
        if full in self.notation.sizes and not below and not above:
            return Formula("size", (), (full,))
        if not below and not above and (full in self.bound or full in self.notation.indices):
            return Formula("index", (), (full,))
        if not below and not above and "?sizes" in self.bound:
            return Formula("size", (), (full,))
        if full in self.notation.functions and below and all(b.op == "number" for b in below):
            full, below = full + "".join(str(b) for b in below), []
        if bracketed:
            full += "[]"
        if above:
            full += "^"
        if (
            (full in self.notation.functions or (full in FUNCTIONS and full in self.notation.functions))
            and self.is_mark("(")
            and not below
        ):
            return self.call(full)
        if (
            self.is_mark("(")
            and not below
            and not above
            and len(split(self.tokens[self.i + 1 : self.closing_at(self.i)], ",")) > 1
        ):
            return self.call(full)
        x = Formula("at", (*below, *above), (full,))
        if full in self.notation.functions and self.is_mark("("):
            return self.call(full, (*below, *above))
        return x

    def mapped(self, name: str) -> Formula | None:
        """phi(k_t), of a map that nothing more is said of: a quantity of its own at step t; sigma(x) is the logistic function."""
        end = self.closing_at(self.i)
        argument = self.whole(self.tokens[self.i + 1 : end])
        if name == "sigma":
            self.i = end + 1
            return Formula("function", (argument,), ("sigmoid",))
        if argument.op != "at":
            return None
        self.i = end + 1
        return Formula("at", argument.args, (f"{name}_{argument.attrs[0]}",))

    def call(self, name: str, before: tuple[Formula, ...] = ()) -> Formula:
        end = self.closing_at(self.i)
        content = self.tokens[self.i + 1 : end]
        self.i = end + 1
        parts = [p for p in split(content, ",") if p]
        values = tuple(Formula("dots") if is_dots(p) else self.whole(p) for p in parts)
        return Formula("apply", (*before, *values), (name, len(before)))

    def label_of(self, name: str, content: list[Token]) -> str | None:
        """A subscript that is a part of the name: a word, a capital that is no size, a Greek letter."""
        text = "".join(t.text for t in content if t.text not in "{}")
        if name in self.notation.labels and all(t.kind in ("letter", "number", "mark") for t in content):
            return text if text.isdigit() else "_" + text
        first = content[0] if content else None
        if first is None:
            return ""
        if first.kind == "command" and first.text in NAMING:
            word = spelled(content)
            return None if word is None else "_" + word
        if first.kind == "command" and first.text in ("infty", "star", "ast"):
            return "_" + first.text
        if len(content) == 1 and first.kind == "letter" and first.text.isupper():
            known = first.text in self.notation.sizes or first.text in self.notation.indices or first.text in self.bound
            return None if known or name == "I" or not name else "_" + first.text
        if len(content) == 1 and first.kind == "command" and first.text in GREEK and first.text not in ("tau", "ell"):
            return "_" + SPELLED.get(first.text, first.text)
        letters = self.bound | self.notation.indices | self.notation.sizes | INDICES
        if (
            len(content) > 1
            and all(t.kind == "letter" for t in content)
            and (text in ("in", "out") or not all(t.text in letters for t in content))
        ):
            return "_" + text
        return None

    def indices(self, content: list[Token]) -> tuple[list[Formula], bool]:
        """The indices that stand below or above a name, and whether they stand in brackets."""
        wrapped = (
            bool(content) and content[0].text in ("[", "(") and self.inside(content).closing_at(0) == len(content) - 1
        )
        if wrapped:
            bracket = content[0].text == "["
            content = content[1:-1]
        found: list[Formula] = []
        for part in split(content, ","):
            letters = lettered(part)
            if len(part) > 1 and letters:
                found += [self.index(t) for t in letters]  # M_{ij}
            elif part:
                found.append(self.inside(part, self.bound).index_formula())
        return found, wrapped and bracket

    def index(self, name: str) -> Formula:
        return Formula("size" if name in self.notation.sizes else "index", (), (name,))

    def index_formula(self) -> Formula:
        """An index such as t - 1 or (i - 1) c + j, all of the tokens."""
        found = self.expression()
        if self.token is not None:
            raise Fault(f"{self.token.shown} can't stand in an index", self.token)

        def visit(y: Formula) -> Formula:
            if y.op == "at" and not y.args:
                return Formula("size" if y.attrs[0] in self.notation.sizes else "index", (), y.attrs)
            return Formula(y.op, tuple(visit(a) for a in y.args), y.attrs)

        return visit(found)

    def exponent(self, name: str, content: list[Token], below: bool, grouped: bool) -> tuple:
        """What a superscript says: ("transpose",), ("inverse",), ("index", [..]), ("label", text), or ("power", formula)."""
        texts = [t.text for t in content if t.text not in ("{", "}") and t.text not in FONTS]
        if len(texts) == 1 and texts[0] in TRANSPOSES:
            return ("transpose",)
        if texts == ["T"] and ("T" not in self.notation.sizes or name.isupper() or content[0].text in FONTS):
            return ("transpose",)
        if texts == ["t"] and "t" not in self.notation.indices and content[0].text in FONTS:
            return ("transpose",)
        if texts in (["-", "1"], ["minus", "1"]):
            return ("inverse",)
        if len(texts) == 2 and texts[0] in "-" and (texts[1] in TRANSPOSES or texts[1] == "T"):
            return ("inverse transpose",)
        if texts in (["1", "/", "2"],) or [t.text for t in content] in (
            ["frac", "1", "2"],
            ["frac", "{", "1", "}", "{", "2", "}"],
        ):
            return ("sqrt",)
        if texts and all(x in ("prime", "'") for x in texts):
            return ("label", "'" * len(texts))
        if len(texts) == 1 and texts[0] in ("ast", "star", "*", "dagger", "circ", "+", "-"):
            return ("label", "_" + {"*": "star", "ast": "star", "+": "plus", "-": "minus"}.get(texts[0], texts[0]))
        if content and name and content[0].text in ("(", "[") and content[-1].text in (")", "]"):
            return ("index", self.indices(content)[0])
        if (
            name
            and content
            and content[0].kind == "command"
            and content[0].text in NAMING
            and texts
            and len("".join(texts)) > 1
        ):
            return ("label", "_" + "".join(texts))
        if name and (name in self.notation.upper or name + "[]" in self.notation.upper):
            return ("index", self.indices(content)[0])
        return ("power", self.whole(content, self.bound | {"?power"}) if content else formula(1))

    def behind(self, x: Formula) -> Formula:
        """x[:, None] and x[i, :]."""
        while self.is_mark("["):
            end = self.closing_at(self.i)
            parts = [
                [t for t in p if t.text not in ("{", "}", *FONTS)] for p in split(self.tokens[self.i + 1 : end], ",")
            ]
            said = ["".join(t.text for t in p) for p in parts]
            if said == [":", "None"] or said == ["None", ":"]:
                x = Formula("slice", (x,), ("column" if said[0] == ":" else "row",))
            elif len(said) == 2 and ":" in said:
                k = said.index(":")
                picked = self.inside(parts[1 - k]).index_formula()
                x = Formula("row", (x, picked)) if k == 1 else Formula("row", (x.T, picked)).T
            else:
                return x
            self.i = end + 1
            if self.is_mark("^", "_"):
                return self.scripts(x)
        return x

    # --- functions and big operators

    def applied(self, name: str) -> Formula:
        """A function with its argument: what stands in brackets, or the product that follows."""
        below: list[Formula] = []
        squared: list[Formula] = []
        transposed = inverted = False
        while self.is_mark("_", "^"):
            lower = self.is_mark("_")
            self.i += 1
            content = self.argument()
            if lower:
                below.append(self.whole(content, self.bound | {"?sizes"} if not name.startswith("arg") else None))
            else:
                mark = self.exponent("", content, False, True)
                transposed |= mark == ("transpose",)
                inverted |= mark == ("inverse",)
                if mark[0] == "power":
                    squared.append(mark[1])
                elif not (transposed or inverted):
                    raise Fault(f"{name} with such a superscript isn't known", self.token)
        if self.is_mark("(", "[") or self.is_command("lbrace", "lbrack"):
            end = self.closing_at(self.i)
            content = self.tokens[self.i + 1 : end]
            self.i = end + 1
            arguments = [self.whole(p) for p in split(content, ",") if p]
            if not arguments:
                raise Fault(f"{name} of nothing", self.tokens[self.i - 1])
        else:
            arguments = [self.argument_product(name)]
        x = function(name, arguments, below, self)
        if transposed:
            x = x.T
        if inverted:
            x = Formula("inverse", (x,))
        for power in squared:
            x = Formula("power", (x, power))
        return self.scripts(x) if self.is_mark("^", "_") else self.behind(x)

    def argument_product(self, name: str) -> Formula:
        """The factors after a function without brackets, up to the next function."""
        if not self.starts_factor():
            raise Fault(f"{name} has no argument", self.token or (self.tokens[-1] if self.tokens else None))
        found = self.factor()
        while self.starts_factor() or self.is_mark("/") or self.is_command("cdot", "times"):
            if self.is_mark("/"):
                self.i += 1
                found = quotient(found, self.factor())
                continue
            if self.is_command("cdot", "times"):
                self.i += 1
            elif (
                self.token is not None
                and self.token.kind == "command"
                and (self.token.text in FUNCTIONS or self.token.text in ("partial", "mathrm", "operatorname", "text"))
            ):
                break
            found = times(found, self.factor())
        return found

    def on_sum(self) -> Formula:
        return self.big("sum")

    def on_prod(self) -> Formula:
        return self.big("product over")

    def big(self, op: str) -> Formula:
        """A sum or a product over an index."""
        start = self.token
        self.i += 1
        low: list[Token] = []
        high: list[Token] = []
        while self.is_mark("_", "^"):
            below = self.is_mark("_")
            self.i += 1
            if below:
                low = self.argument()
            else:
                high = self.argument()
        ranges = self.ranges(low, high, start) if low else []
        inner = self.bound | {i for i, _, _ in ranges}
        saved, self.bound = self.bound, inner
        try:
            body = self.term()
        finally:
            self.bound = saved
        if not low:  # over whatever counts in it and not on the left
            known = self.bound | {y.attrs[0] for side in self.out.left for y in walk(side) if y.op == "index"}
            free = [y.attrs[0] for y in walk(body) if y.op == "index" and y.attrs[0] not in known]
            ranges = [(i, UNKNOWN, UNKNOWN) for i in dict.fromkeys(free)]
            if not ranges:
                raise Fault(f"{start.shown if start else 'it'} has no index", start)
        for name, first, last in reversed(ranges):
            body = Formula(op, (first, last, body), (name,))
        return body

    def ranges(self, low: list[Token], high: list[Token], start: Token | None) -> list[tuple[str, Formula, Formula]]:
        """The indices of a big operator with their bounds; unknown ones are told by what they count."""
        top = self.whole(high, self.bound | {"?sizes"}) if high else UNKNOWN
        texts = [t.text for t in low]
        if "substack" in texts:
            raise Fault("\\substack isn't read", low[0])
        relations = [k for k, t in enumerate(low) if t.text in RELATIONS and depth_of(low[:k]) == 0]
        if not relations:
            names = [p for p in split(low, ",") if p]
            return [(self.index_name(p), UNKNOWN if high == [] else formula(1), top) for p in names]
        first = relations[0]
        said = RELATIONS[low[first].text]
        if len(relations) == 1:
            left, right = low[:first], low[first + 1 :]
            if said == "=":
                return [(self.index_name(left), self.whole(right, self.bound | {"?sizes"}), top)]
            if said in ("<", "<="):
                bound = self.inside(right).index_formula()
                return [(self.index_name(left), UNKNOWN, bound if said == "<=" else minus_one(bound))]
            if said in (">", ">="):
                bound = self.inside(right).index_formula()
                return [(self.index_name(left), bound if said == ">=" else add(bound, formula(1)), UNKNOWN)]
            raise Fault("such a range isn't known", low[first])
        if len(relations) == 2:
            second = relations[1]
            less = said, RELATIONS[low[second].text]
            name = self.index_name(low[first + 1 : second])
            a, b = self.inside(low[:first]).index_formula(), self.inside(low[second + 1 :]).index_formula()
            if all(r in ("<", "<=") for r in less):
                return [(name, a if less[0] == "<=" else add(a, formula(1)), b if less[1] == "<=" else minus_one(b))]
        raise Fault("such a range isn't known", low[first])

    def index_name(self, tokens: list[Token]) -> str:
        letters = [t for t in tokens if t.text not in ("{", "}")]
        name = spelled(letters)
        if name is None and len(lettered(letters)) == 1:
            name = lettered(letters)[0]
        if name is None and letters and letters[0].kind == "letter" and all(t.kind == "number" for t in letters[1:]):
            name = "".join(t.text for t in letters)
        if name is None:
            raise Fault("an index is a letter", tokens[0] if tokens else None)
        return name

    def on_int(self) -> Formula:
        """An integral over all of a vector."""
        start = self.token
        self.i += 1
        while self.is_mark("_", "^"):
            self.i += 1
            self.argument()
        depth, end = 0, None
        for k in range(self.i, len(self.tokens)):
            t = self.tokens[k]
            depth += (t.text in OPENING) - (t.text in CLOSING)
            if depth == 0 and (t.text in RELATIONS or t.text == ","):
                break
            if (
                depth == 0
                and (t.text in ("partial", "d") or (t.kind == "command" and t.text == "mathrm"))
                and k > self.i
            ):
                end = k
        if end is None:
            raise Fault("an integral without what it is over", start)
        content = [t for t in self.tokens[self.i : end] if t.text != "."]
        self.i = end + 1
        if self.tokens[end].text == "mathrm":
            self.argument()
        return Formula("integral", (self.whole(content), self.factor()))

    def on_frac(self) -> Formula:
        self.i += 1
        above, below = self.argument(), self.argument()
        if [t.text for t in above] in (["partial"], ["d"]) and below[:1] and below[0].text == above[0].text:
            by = self.whole(below[1:])
            return Formula("partial", (self.argument_product("a derivative"), by))
        differentials = self.differential_of(above), self.differential_of(below)
        if all(x is not None for x in differentials):
            of, by = (self.whole(x or []) for x in differentials)
            return self.scripts(Formula("partial", (of, by)), grouped=True)
        return self.scripts(quotient(self.whole(above), self.whole(below)), grouped=True)

    on_dfrac = on_tfrac = on_cfrac = on_nicefrac = on_sfrac = on_frac

    def differential_of(self, tokens: list[Token]) -> list[Token] | None:
        """What follows the d of a numerator or denominator that is a differential."""
        texts = [t.text for t in tokens[:4]]
        if texts[:1] == ["d"] and len(tokens) > 1 and "d" not in self.notation.sizes:
            return tokens[1:]
        return tokens[4:] if texts in (["mathrm", "{", "d", "}"], ["text", "{", "d", "}"]) and len(tokens) > 4 else None

    def on_partial(self) -> Formula:
        """`\\partial x`, of which only quotients mean something."""
        start = self.token
        self.i += 1
        if not self.starts_factor():
            raise Fault("\\partial of nothing", start)
        inner = self.factor()
        while self.starts_factor() and not self.is_command("partial", "frac"):
            inner = times(inner, self.factor())
        return Formula("differential", (inner,))

    def on_dv(self) -> Formula:
        self.i += 1
        of, by = self.argument(), self.argument()
        if self.is_mark("_", "^"):
            return self.scripts(Formula("partial", (self.whole(of), self.whole(by))), grouped=True)
        return Formula("partial", (self.whole(of), self.whole(by)))

    on_pdv = on_derivative = on_pderiv = on_dv

    def on_nabla(self) -> Formula:
        start = self.token
        self.i += 1
        if not self.is_mark("_"):
            raise Fault("\\nabla without what it is by", start)
        self.i += 1
        by = self.whole(self.argument())
        transposed = False
        if self.is_mark("^"):
            self.i += 1
            transposed = self.exponent("", self.argument(), False, True) == ("transpose",)
        of = self.factor() if self.starts_factor() else Formula("at", (), ("L",))
        found = Formula("partial", (of, by))
        return found.T if transposed else found

    def on_sqrt(self) -> Formula:
        self.i += 1
        if self.is_mark("["):
            raise Fault("only square roots are read", self.token)
        return self.scripts(Formula("sqrt", (self.whole(self.argument()),)))

    def on_ev(self) -> Formula:
        """physics: an expectation, used for inner products."""
        self.i += 1
        parts = split(self.argument(), ",")
        return Formula("inner", tuple(self.whole(p) for p in parts)) if len(parts) == 2 else self.whole(parts[0])

    on_braket = on_ip = on_ev

    def on_qty(self) -> Formula:
        self.i += 1
        if self.is_mark("(", "["):
            return self.brackets()
        return self.scripts(self.whole(self.argument()), grouped=True)

    def on_underbrace(self) -> Formula:
        self.i += 1
        found = self.whole(self.argument())
        while self.is_mark("_", "^"):
            self.i += 1
            self.argument()
        return found

    on_overbrace = on_underbrace

    def on_boxed(self) -> Formula:
        self.i += 1
        return self.scripts(self.whole(self.argument()))

    on_mathop = on_mathbin = on_mathrel = on_fbox = on_hbox = on_smash = on_boxed

    def on_overset(self) -> Formula:
        self.i += 1
        self.argument()
        return self.scripts(self.whole(self.argument()))

    on_underset = on_overset

    def on_infty(self) -> Formula:
        self.i += 1
        return Formula("infinity")

    def on_operatorname(self) -> Formula:
        """A function's name, or a word."""
        start = self.token
        assert start is not None
        self.i += 1
        content = self.argument()
        name = spelled([start, Token("mark", "{", start.at), *content, Token("mark", "}", start.at)])
        if name is None:
            return self.scripts(self.whole(content))
        if name in ("T", "top") and self.i > 1 and self.tokens[self.i - 2].text == "^":
            return Formula("at", (), (name,))
        if name in FUNCTIONS and name not in self.notation.names:
            return self.applied(FUNCTIONS[name])
        if self.is_mark("(") and len(name) > 1 and name not in self.notation.names:
            return self.scripts(self.call(name))
        return self.named(name, start, True)

    on_mathrm = on_text = on_mathsf = on_texttt = on_mathtt = on_textrm = on_mathit = on_textsf = on_operatorname

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
        inner = Parser(said, self.notation, row, self.bound, self.depth + 1)
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
