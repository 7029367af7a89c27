"""Commands that take arguments in braces: fractions and derivatives, roots, braces above and below, boxes."""

from __future__ import annotations

from chunkform.spec.language.formula import Formula, walk

from .lexer import Token, argument_at
from .operators import Operators
from .pieces import quotient, times
from .row import Fault, split
from .words import FONTS, LOSSES

LOSS = Formula("at", (), ("L",))
LOSS_NAMES = {(name,) for name in LOSSES}


class Commands(Operators):
    """Reads commands, each by the method of its name."""

    def on_frac(self) -> Formula:
        self.i += 1
        above, below = self.argument(), self.argument()
        if [t.text for t in above] in (["partial"], ["d"]) and below[:1] and below[0].text == above[0].text:
            by = self.whole(below[1:])
            return Formula("partial", (self.argument_product("a derivative"), by))
        differentials = self.differential_of(above, below), self.differential_of(below, above)
        if all(x is not None for x in differentials):
            of, by = (self.whole(x or []) for x in differentials)
            return self.scripts(Formula("partial", (of, by)), grouped=True)
        return self.scripts(quotient(self.whole(above), self.whole(below)), grouped=True)

    on_dfrac = on_tfrac = on_cfrac = on_nicefrac = on_sfrac = on_frac

    def differential_of(self, tokens: list[Token], other: list[Token]) -> list[Token] | None:
        """What follows the d of a numerator or denominator that is a differential. Where d is a size as well, it is one if both
        have a d in front."""
        rest = after_d(tokens)
        if rest is None or (tokens[0].text == "d" and "d" in self.notation.sizes and after_d(other) is None):
            return None
        return rest

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
        start_of = self.i
        of = self.factor() if self.starts_factor() else LOSS
        if "nabla" in self.notation.gradients and not any(y.attrs[:1] in LOSS_NAMES for y in walk(of)):
            self.i, of = start_of, LOSS
        if of.op == "transpose" and of.args[0].op == "at" and of.args[0].attrs[0] in LOSSES:  # a loss is a number
            of, transposed = of.args[0], not transposed
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
        content = self.argument()
        found = self.big_under([], content)
        return self.scripts(self.whole(content)) if found is None else found

    on_mathop = on_mathbin = on_mathrel = on_fbox = on_hbox = on_smash = on_boxed

    def on_overset(self) -> Formula:
        self.i += 1
        above, content = self.argument(), self.argument()
        found = self.big_under(above, content)
        return self.scripts(self.whole(content)) if found is None else found

    on_underset = on_stackrel = on_overset

    def on_overleftarrow(self) -> Formula:
        """An arrow over a product, which says in which order it is taken; else an accent."""
        start = self.i
        arrow = self.tokens[start]
        self.i += 1
        content = self.argument()
        found = self.big_under([arrow], content)
        if found is None:
            self.i = start
            return self.symbol()
        return found

    on_overrightarrow = on_overleftarrow

    def on_infty(self) -> Formula:
        self.i += 1
        return Formula("infinity")


def after_d(tokens: list[Token]) -> list[Token] | None:
    """What stands behind a d, set in whatever font; nothing where there is no d, or where nothing follows."""
    if not tokens:
        return None
    content, at = ([tokens[0]], 1) if tokens[0].text not in FONTS else argument_at(tokens, 1)
    return tokens[at:] if [t.text for t in content] == ["d"] and len(tokens) > at else None
