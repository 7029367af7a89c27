"""`chunkform explain` of an attention: its split, features and gradients, for people and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..ir.expr import ZERO
from ..ir.latex_page import Page
from ..ir.latex_page import formulas as formulas_of
from ..recurrence.explain import formula_text
from ..recurrence.notation.formulas import Section, fixed
from .compiled import CompiledAttention
from .derivation import formulas, sections, text


def explanation(c: CompiledAttention, width: int = 64, chunk: int = 64) -> dict[str, Any]:
    """What the compiler knows, as plain data."""
    s = c.split
    return {
        "name": c.name,
        "kind": "attention",
        "doc": c.spec.doc,
        "source": c.spec.source,
        "normaliser": c.spec.normaliser,
        "definition": formulas(c),
        "split": {
            "tile": text(s.tile),
            "row": None if s.row is ZERO else text(s.row),
            "scores": {
                n: [{"query": text(p.query), "key": text(p.key)} for p in blocks] for n, blocks in s.scores.items()
            },
            "columns": {n: text(x) for n, x in s.columns.items()},
            "rows": {n: text(x) for n, x in s.rows.items()},
            "scalars": {n: text(x) for n, x in s.scalars.items()},
            "values": {n: text(x) for n, (x, _) in s.values.items()},
        },
        "derivation": [{"title": title, "formulas": lines} for title, lines in sections(c)],
        "gates": [{"name": g.name, "what": g.what, "points": g.points, "error_bound": g.error_bound} for g in c.gates],
    }


def derivation(c: CompiledAttention) -> tuple[Section, ...]:
    """The sections, each formula as text and as LaTeX."""
    page = Page()
    found = []
    for (title, lines), (_, typeset) in zip(sections(c), sections(c, page), strict=True):
        plain = [x for line in lines for x in line.split(",   ")]
        pairs = zip(plain, map(page.spelled, typeset), strict=True)
        found.append(Section(title, tuple(fixed(x, y, text="=" not in x) for x, y in pairs)))
    return tuple(found)


def show(c: CompiledAttention, console: Console, width: int = 64, chunk: int = 64) -> None:
    """Print an explanation."""
    console.print(Text.assemble((c.name, "bold"), "  ", ("attention", "green")))
    if c.spec.doc:
        console.print(Text(c.spec.doc, style="italic"))
    for title, lines in sections(c):
        console.print()
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(formula_text(line, console.width))
    gates = Table(header_style="dim", box=None, padding=(0, 3, 0, 0))
    for name in ("after", "what was found equal", "points", "chance of an error"):
        gates.add_column(name)
    for g in c.gates:
        gates.add_row(g.name, g.what, str(g.points), f"{g.error_bound:.0e}")
    console.print()
    console.print(Text("Gates that it passed", style="bold"))
    console.print(gates)


def latex_document(c: CompiledAttention) -> str:
    """The derivation as LaTeX: macros, then formulas under headings."""
    page = Page()
    body = []
    for title, lines in sections(c, page):
        body.append(rf"\subsection*{{{title}}}")
        body += formulas_of(x for x in lines if "=" in x)
        body += [x for x in lines if "=" not in x]
    return "\n".join([page.preamble(), *body]) + "\n"
