"""How results look: as text as wide as a page, and as HTML that needs no script and no network."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from html import escape

from rich.console import Console

from ..claims.mathml import mathml

WIDTH = 120  # columns of text
COLOURS = {"holds": "#2a8a3e", "fails": "#c02f2f", "depends": "#a86f00", "error": "#8a2be2"}


def text_of(print_to: Callable[[Console], object]) -> str:
    """What is printed to a console, as plain text."""
    out = io.StringIO()
    print_to(Console(file=out, width=WIDTH, no_color=True, highlight=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def json_of(data: object) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False)


def formula_html(latex: str, plain: str) -> str:
    """A displayed formula; as text, where it can't be typeset."""
    try:
        shown = mathml(latex, block=False).replace("<math>", '<math displaystyle="true">', 1)
        return f"<div style='margin:.4em 0 .4em 2em'>{shown}</div>"
    except Exception:
        return f"<pre>{escape(plain)}</pre>"


def sentence_html(latex: str, plain: str) -> str:
    """Words with mathematics between dollar signs."""
    parts = latex.split("$")
    if len(parts) % 2 == 0:
        return escape(plain)
    try:
        return "".join(mathml(x, block=False) if i % 2 else escape(x) for i, x in enumerate(parts))
    except Exception:
        return escape(plain)


def table_html(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th style='text-align:left'>{escape(x)}</th>" for x in columns)
    body = "".join(f"<tr>{''.join(f'<td style={_CELL}>{x}</td>' for x in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


_CELL = "'text-align:left;vertical-align:top'"


def badge_html(word: str, colour: str) -> str:
    style = f"background:{colour};color:#fff;border-radius:.6em;padding:0 .5em"
    return f"<span style='{style}'>{escape(word)}</span>"


def latex_text(text: str) -> str:
    """Words as LaTeX sets them."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(x, f"\\{x}" if x in "&%$#_{}" else x) for x in text)
