"""What stands below, above and behind a symbol: indices, labels, transposes, powers, primes, slices, arguments."""

from __future__ import annotations

from chunkform.spec.language.formula import Formula, formula

from .cursor import Cursor
from .lexer import Token
from .pieces import raised
from .row import Fault, is_dots, lettered, spelled, split
from .words import FONTS, FUNCTIONS, GREEK, INDICES, NAMING, SPELLED, TRANSPOSES


def without_transpose(content: list[Token]) -> tuple[list[Token], bool]:
    """A superscript without the transpose behind an index, as in k_{[t]}^{i \\top}."""
    rest = content[:-1] if content and content[-1].text in TRANSPOSES else content
    if [t.text for t in content[-4:] if t.text not in FONTS] == ["{", "T", "}"]:
        rest = content[:-4]
    rest = rest[:-1] if rest and rest[-1].text == "," else rest
    letters = all(t.kind in ("letter", "number") or t.text in "+-,()[]" for t in rest)
    turned = len(rest) < len(content) and bool(rest) and letters and rest[0].text != "-"
    return (rest, True) if turned else (content, False)


class Scripts(Cursor):
    """Reads scripts."""

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
                content, turned = without_transpose(content) if name else (content, False)
                mark = self.exponent(name, content, bool(below), grouped, bracketed or self.has_chunk_below())
                power += [("transpose",)] * turned
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
        if name and self.is_mark("^", "_"):  # behind what a function or a map was applied to
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
        if full in self.notation.sizes and full not in self.bound and not below and not above:
            return Formula("size", (), (full,))
        if not below and not above and (full in self.bound or full in self.notation.indices):
            return Formula("index", (), (full,))
        if not below and not above and "?sizes" in self.bound:
            return Formula("size", (), (full,))
        if full in self.notation.functions and below and all(b.op == "number" for b in below):
            full, below = full + "".join(str(b) for b in below), []
        if bracketed:
            full += "[]"
        if above and (below or f"{full}^" not in self.notation.above):
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
        parts = [p for piece in split(content, ";") for p in split(piece, ",") if p]
        values = tuple(Formula("dots") if is_dots(p) else self.whole(p) for p in parts)
        return Formula("apply", (*before, *values), (name, len(before)))

    def label_of(self, name: str, content: list[Token]) -> str | None:
        """A subscript that is a part of the name: a word, a capital that is no size, a Greek letter."""
        text = "".join(t.text for t in content if t.text not in "{}")
        sized = "?sizes" in self.bound or f"{name}_{text}" in self.notation.sizes
        if name and sized and text.isalnum():  # n_x, of R^{n_x}
            return "_" + text
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
            letter = SPELLED.get(first.text, first.text)
            return None if letter in self.bound else "_" + letter
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
        first = split(content, ",")[0]
        if first and not wrapped and first[0].text == "[" and self.inside(first).closing_at(0) == len(first) - 1:
            inside, bracket, wrapped = self.indices(first)[0], True, True  # b_{[i], j}
            found += inside
            content = content[len(first) + 1 :]
        ends = split(content, ":")  # P_{j:t}, from j to t
        for part in ends if len(ends) == 2 and all(ends) else split(content, ","):
            letters = lettered(part)
            if len(part) > 1 and letters:
                found += [self.index(t) for t in letters]  # M_{ij}
            elif self.is_letter_and_zero(part):
                found += [self.index(part[0].text), formula(0)]  # F_{t0}
            elif part:
                found.append(self.inside(part, self.bound).index_formula())
        return found, wrapped and bracket

    def is_letter_and_zero(self, part: list[Token]) -> bool:
        """Whether an index is a letter and 0 that stand for two, as in F_{t0}; k1 and k2 are letters of sums."""
        glued = [(t.kind, t.text) for t in part[1:]] == [("number", "0")] and part[1].glued
        return glued and part[0].text in INDICES and part[0].text + "0" not in self.bound

    def index(self, name: str) -> Formula:
        sized = name in self.notation.sizes and name not in self.bound
        return Formula("size" if sized else "index", (), (name,))

    def index_formula(self) -> Formula:
        """An index such as t - 1 or (i - 1) c + j, all of the tokens."""
        found = self.expression()
        if self.token is not None:
            raise Fault(f"{self.token.shown} can't stand in an index", self.token)

        def visit(y: Formula) -> Formula:
            if y.op == "at" and not y.args:
                return self.index(y.attrs[0])
            return Formula(y.op, tuple(visit(a) for a in y.args), y.attrs)

        return visit(found)

    def has_chunk_below(self) -> bool:
        """Whether a subscript in square brackets follows, as in gamma^r_{[t]}."""
        texts = [t.text for t in self.tokens[self.i : self.i + 3]]
        return texts[:2] == ["_", "["] or texts == ["_", "{", "["]

    def exponent(self, name: str, content: list[Token], below: bool, grouped: bool, chunk: bool = False) -> tuple:
        """What a superscript says: ("transpose",), ("inverse",), ("index", [..]), ("label", text), or ("power", formula).
        `chunk`: it stands over the step of a chunk, as in k_{[t]}^r."""
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
        if len(texts) == 1 and texts[0] in ("ast", "star", "*", "dagger", "circ", "+", "-", "times", "otimes"):
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
        if (
            name
            and len(texts) == 1
            and content[0].kind == "command"
            and FONTS.get(content[0].text) in ("cal", "bb", "frak")
        ):
            return ("label", "_" + texts[0])
        if chunk and name and content and content[0].kind == "letter" and all(t.kind != "command" for t in content):
            return ("index", self.indices(content)[0])
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
