"""Names: a letter with its font and accents, several letters where a font holds them together, differentials, and what the
author's words stand for."""

from __future__ import annotations

from chunkform.spec.language.formula import Formula, formula, substitute

from .lexer import Token, closing
from .row import Fault, spelled
from .scripts import Scripts
from .words import ACCENTS, FONTS, FUNCTIONS, GREEK, NAMING, RELATIONS, SPELLED, SWITCHES

COMPARED = {"<", "<=", ">", ">=", "=", "!="}


def with_accent(name: str, accent: str) -> str:
    """A name with an accent, in front of the marks that say how its indices are written."""
    stem = name.removesuffix("^").removesuffix("[]")
    return stem + accent + name[len(stem) :]


class Names(Scripts):
    """Reads names."""

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
            by = self.differential(x, True) if x.text in self.notation.gradients and self.token is not None else None
            return self.named(SPELLED.get(x.text, x.text), x) if by is None else by
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
            heart = inner.args[0] if inner.op == "transpose" else inner
            if heart.op == "at":
                accented = Formula("at", heart.args, (with_accent(heart.attrs[0], ACCENTS[x.text]),))
                return self.scripts(accented.T if inner.op == "transpose" else accented)
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
        if name in ("1", "1bb", "Ibb", "delta") and (said := self.indicated()) is not None:
            return said
        if name in ("0", "1", "1bb"):
            return self.scripts(formula(0) if name == "0" else Formula("ones", (), ("?",)))
        if name in ("R-set",):
            raise Fault("a set can't be a factor", at)
        if name == "d" and "d" not in self.bound and self.token is not None:
            whole = self.differential(at, held)
            if whole is not None:
                return whole
        return self.scripts(Formula("at", (), (name,)), name=name, at=at)

    def indicated(self) -> Formula | None:
        """1[i >= j] or 1_{i >= j}: 1 where a condition on indices is so, else 0; None where no condition follows."""
        start, below = self.i, self.is_mark("_")
        self.i += below
        if not (self.is_mark("{", "[", "(") or self.is_command("lbrace")):
            self.i = start
            return None
        end = closing(self.tokens, self.i) if self.is_mark("{") else self.closing_at(self.i)
        said = self.tokens[self.i + 1 : end]
        while said and said[0].text in ("lbrace", "[", "(", "{") and len(said) > 2:
            said = said[1:-1]
        if not any(t.text in RELATIONS and RELATIONS[t.text] in COMPARED for t in said):
            self.i = start
            return None
        self.i = end + 1
        return Formula("cases", (self.condition(said, said[0]), formula(1), Formula("otherwise"), formula(0)))

    def differential(self, at: Token, upright: bool) -> Formula | None:
        """`d q_t`, the gradient by q_t: what follows a d that touches it, or that is set upright or bold."""
        x = self.token
        assert x is not None
        starts = x.kind == "letter" or (
            x.kind == "command" and (x.text in GREEK | set(FONTS) | set(ACCENTS) or x.text in ("log", "ln"))
        )
        upright = upright or at.kind == "command"
        if not starts or not (x.glued or upright or self.is_indexed_name(x.text in ("log", "ln"))):
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

    def is_indexed_name(self, behind: bool = False) -> bool:
        """Whether a name of the document with an index follows, or stands behind what follows."""
        start = self.i + behind
        end = next((k for k in range(start, len(self.tokens)) if self.tokens[k].text == "_"), start)
        return (spelled(self.tokens[start:end]) or "") in self.notation.names

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
