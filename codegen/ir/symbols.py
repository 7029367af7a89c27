"""The symbols of named quantities: `S_{t-1}`, `dlog lam_t`, `\\mathbf{do}_{t}`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .latex_page import Page
from .letters import ascii_name

# Kinds of leaves that only print knows: `next` a state after its step, `middle` between its early writes and its decay;
# `gradient` a whole gradient, `carried` the part of it from later steps, either `before` a step; `last` at the last step.
GRADIENT_KINDS = (
    "cotangent",
    "gradient",
    "gradient before",
    "gradient middle",
    "carried",
    "carried before",
    "whole gradient",
    "gradient last",
    "carried last",
)
TIMELESS_KINDS = ("constant", "parameter", "decay parameter", "chunk", "state in", "whole gradient")
OFFSETS = {"state": -1, "trajectory": -1, "gradient before": -1, "carried before": -1}
STATE_KINDS = frozenset(OFFSETS) | {
    "state in",
    "next",
    "middle",
    "gradient",
    "carried",
    "last",
    "gradient last",
    "carried last",
}
GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega".split()
)
CAPITALS = dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧ", "ABEZHIKMNOPTX", strict=True))  # capitals that LaTeX has as Latin letters


@dataclass(frozen=True)
class Symbols:
    """How names are written. For the fields see `show.Notation`."""

    tex: bool | Page
    step: bool = True
    order: dict[str, int] = field(default_factory=dict)
    shift: int = 0
    at: int | None = None
    letter: str = "t"
    subscripts: bool = True  # are numbers at the ends of names subscripts?
    gradients_of: frozenset[str] = frozenset()  # names that have gradients, beside those in `order`

    def place(self, name: str) -> int:
        """Where a name was declared; a matrix of steps or a gradient stands where its quantity does."""
        for n in (name, name.lower(), name[1:], name[1:].lower()):
            if n in self.order:
                return self.order[n]
        return len(self.order)

    def symbol(self, name: str, kind: str, axes: int) -> str:
        """A name with its step; bold, in LaTeX, where it has axes."""
        base, _, sub = name.partition("_")
        log = kind in ("log", *GRADIENT_KINDS) and base == "dlog"
        if log:
            base, _, sub = sub.partition("_")
        tangent = not log and self.is_tangent(base, kind)
        if tangent:
            base = base[1:]
        if not self.subscripts:
            base, sub = (base + sub, "") if sub.isdigit() else (base, sub)
        elif match := re.fullmatch(r"([^\W\d_]+)(\d+)", base):
            base, sub = match[1], ",".join(s for s in (match[2], sub) if s)
        if self.tex:
            shown = self.letters(base, axes)
            d = r"\cfd " if isinstance(self.tex, Page) else r"\mathrm{d}"
            shown = rf"{d}\log {shown}" if log else d + shown if tangent else shown
        else:
            shown = f"dlog {base}" if log else f"d{base}" if tangent else base
        sub = ",".join(s for s in (sub, self.when(kind)) if s)
        if sub:
            shown += f"_{{{sub}}}" if self.tex or len(sub) > 1 else f"_{sub}"
        if kind.endswith("middle"):
            shown += "'"
        if kind.startswith("carried"):
            shown += "^{+}" if self.tex else "^+"
        return shown

    def is_tangent(self, base: str, kind: str) -> bool:
        whose = base[1:].lower() if kind == "chunk" and base[1:].isupper() else base[1:]  # O has the rows o_t
        known = kind in GRADIENT_KINDS or {whose, base[1:]} & {*self.order, *self.gradients_of}
        return base.startswith("d") and len(base) > 1 and bool(known)

    def letters(self, base: str, axes: int) -> str:
        """A name in LaTeX, bold where it has axes; a macro on a page of its own."""
        if base.endswith("'"):
            primes = len(base) - len(base.rstrip("'"))
            return self.letters(base.rstrip("'"), axes) + "'" * primes
        base = "lambda" if base == "lam" else base
        macro = base if base.isascii() else ascii_name(base)
        base = macro if macro in GREEK else "".join(CAPITALS.get(c, c) for c in base)
        if not base.isascii():  # which LaTeX has no letters for; an author may give the macro others
            base = macro.replace("_", "")
        if base in GREEK:
            shown = rf"\boldsymbol{{\{base}}}" if axes else rf"\{base}"
        elif axes:
            shown = rf"\mathbf{{{base}}}"
        else:
            shown = base if len(base) == 1 else rf"\mathrm{{{base}}}"
        return self.tex.letter(macro, shown, axes > 0) if isinstance(self.tex, Page) else shown

    def when(self, kind: str) -> str:
        if not self.step or kind in TIMELESS_KINDS:
            return ""
        offset = self.shift + OFFSETS.get(kind, 0)
        if kind.endswith("last"):
            return "n"
        if self.at is not None:
            return str(self.at + offset)
        return f"{self.letter}{offset:+d}" if offset else self.letter
