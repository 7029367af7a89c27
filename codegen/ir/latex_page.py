"""A page of LaTeX: what a notation prints for it has letters as macros, and can be broken where it is long.

A `Page` stands in the place of a notation's `tex=True`. A letter is a macro, `\\cfS` for the state S, which an author defines
anew to have another letter everywhere; each page begins with the macros that it uses.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from .latex_width import width

LONG = 40  # letters of a part that is too long to stay in one piece

RESERVED = ("cfd", "cfbreak", "cfformula")
PREAMBLE = r"""% Needs \usepackage{amsmath}. Define a macro before this text, and it is used in the place of the one below.
\providecommand{\cfd}{\mathrm{d}} % of a gradient
\providecommand{\cfbreak}{\penalty 600\relax} % between factors: a line may end here
\providecommand{\cfformula}[1]{{\par\smallskip\leftskip 2em\parindent -1em\rightskip 0pt plus 1fil
  \binoppenalty 200\relpenalty 400\hbadness 10000\indent$\displaystyle #1$\par}}"""


class Page:
    """The macros of a page; true, as `tex=True` is."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}  # macro -> its definition

    def letter(self, base: str, shown: str, whole: bool) -> str:
        """The macro of a letter that is `shown` so; `whole`: of a vector or matrix. A letter that stands for both has two."""
        name = "cf" + "".join(map(_spelled, base))
        if name in RESERVED or self.letters.setdefault(name, shown) != shown:
            name += "bold" if whole else "plain"
        while self.letters.setdefault(name, shown) != shown:
            name += "x"
        return rf"\{name}"

    def taken_back(self, base: str) -> str:
        """The macro of a name that stands for something else, which needs no definition; it can't occur where there is none."""
        name = "cf" + "".join(map(_spelled, base))
        return rf"\{name}" if self.letters.pop(name, None) else "\0"

    def spelled(self, text: str) -> str:
        """The text without macros, for what knows none."""
        known = {**self.letters, "cfd": r"\mathrm{d}", "cfbreak": ""}
        return re.sub(r"\\(cf[a-zA-Z]+)", lambda m: known[m[1]], text)

    def preamble(self) -> str:
        defined = (rf"\providecommand{{\{n}}}{{{x}}}" for n, x in sorted(self.letters.items()))
        return "\n".join([PREAMBLE, *defined])


def broken(text: str) -> str:
    """A formula that may be broken between factors only in those terms that are long; others read better in the source."""
    terms = re.split(r"( [-+] | = )", text)
    return "".join(x if is_long(x) else x.replace(r"\cfbreak ", "") for x in terms)


def formulas(texts: Iterable[str]) -> list[str]:
    """Displayed formulas, one below the other, with a comma after each and a full stop after the last."""
    lines = list(texts)
    return [rf"\cfformula{{{broken(x)}{'.' if n + 1 == len(lines) else ','}}}" for n, x in enumerate(lines)]


def escaped(words: str) -> str:
    """Words as they are, in LaTeX's text."""
    special = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": "$<$", ">": "$>$"}
    return "".join(special.get(c, rf"\{c}" if c in "_&%$#{}" else c) for c in words)


def unescaped(words: str) -> str:
    """LaTeX's text as words; its mathematics between dollar signs stays."""
    parts = words.split("$")
    return "$".join(x if i % 2 else re.sub(r"\\([_&%#{}])", r"\1", x) for i, x in enumerate(parts))


def is_long(text: str) -> bool:
    return width(text) > LONG


def _spelled(character: str) -> str:
    """A character of a name in letters, which is all that a macro's name may have."""
    if character.isascii() and character.isalpha():
        return character
    name = unicodedata.name(character, f"U{ord(character):x}").split()[-1]
    return "".join(c for c in name.lower() if c.isascii() and c.isalpha())
