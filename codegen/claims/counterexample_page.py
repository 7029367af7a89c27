"""A counterexample as mathematics: the numbers given, and both sides with their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

from chunkform.spec.language.claims import Claim
from chunkform.spec.language.notation import latex, symbol
from chunkform.spec.language.statements import Equal

from .mathml import mathml
from .verdict import PLAIN, Counterexample

_AT = re.compile(r"(\w+)\(([^()]*)\)")


def typeset(x: Counterexample, c: Claim, shown: Mapping[str, str]) -> str:
    """HTML of a counterexample. `shown` has the LaTeX of names; what has none, such as a fault of shapes, stays as it is."""
    if not x.sides:
        return f"<p>Why: <code>{escape(x.message)}</code></p>"
    sides = {str(s): latex(s, shown) for s in c.statement.sides} if isinstance(c.statement, Equal) else {}
    given = [f"{name(n, shown)} = {value(v)}" for n, v in x.given if re.search("[1-9]", v)]
    lines = [", ".join(f"{n} = {v}" for n, v in x.sizes)]
    lines += given + ([r"\text{all else } 0"] if len(given) < len(x.given) else [])
    before = "" if x.message == PLAIN else f"{escape(x.message)}, "
    where = "".join(f" At {inline(f'{n} = {v}')}:" for n, v in x.at)
    both = " but ".join(inline(f"{sides[f]} = {value(v)}") if f in sides else _code(f"{f} = {v}") for f, v in x.sides)
    return f"<p>Counterexample: {before}{', '.join(map(inline, lines))}.{where} {both}.</p>"


def inline(tex: str) -> str:
    return mathml(tex, block=False)


def name(text: str, shown: Mapping[str, str]) -> str:
    """`dS(2)` as LaTeX."""
    found = _AT.fullmatch(text)
    if found is None:
        return shown.get(text) or symbol(text)
    return f"{shown.get(found[1]) or symbol(found[1])}_{{{found[2]}}}"


def value(text: str) -> str:
    """A number, a vector or a matrix, as verdicts write them, in LaTeX: `1/2`, `(1, 0)^T`, `[1 2; 3 4]`."""
    text = re.sub(r"(\d+)/(\d+)", r"\\frac{\1}{\2}", text.replace("^T", r"^\top"))
    if text.startswith("["):
        rows = r" \\ ".join(" & ".join(row.split()) for row in text[1:-1].split(";"))
        return rf"\begin{{pmatrix}}{rows}\end{{pmatrix}}"
    return text


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
