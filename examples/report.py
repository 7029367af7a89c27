"""The demo's page: one file that needs no network."""

from __future__ import annotations

import html
import io
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import matplotlib
import torch

matplotlib.use("svg")
import matplotlib.pyplot as plt
from char_lm import Progress, Text

from chunkform import __version__
from chunkform.codegen.claims.html_page import shown_counterexample
from chunkform.codegen.claims.verdict import Verdict
from chunkform.codegen.ir.math_svg import math_svg
from chunkform.codegen.recurrence.check import Row
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.explain import explanation
from chunkform.codegen.recurrence.notation.derivation import derivation
from chunkform.codegen.recurrence.notation.formulas import Section
from chunkform.spec.language.notation import latex, text

INK, ACCENT, FAINT, BAD = "#2b2f36", "#2f6f6a", "#c9c4b8", "#a8443a"


@dataclass
class Report:
    """What the demo found."""

    c: Compiled
    spec: Path
    verdicts: list[Verdict]
    kernels: Path
    rows: list[Row]
    text: Text
    device: str
    training: list[Progress] = field(default_factory=list)
    sample: str = ""

    @property
    def loss(self) -> float:
        """The last held-out loss, nats per character."""
        return next(p.held_out for p in reversed(self.training) if p.held_out is not None)

    @property
    def learned(self) -> bool:
        return self.loss < self.text.unigram - 0.5

    @property
    def succeeded(self) -> bool:
        found_false = any(v.verdict == "fails" for v in self.verdicts)
        return self.learned and found_false and all(r.ok for r in self.rows)


def write_page(report: Report, path: Path) -> Path:
    """Write the page; returns its path."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, autoescape=True
    )
    safe = jinja2.utils.markupsafe.Markup
    sections = {s.title: safe(_section(s)) for s in derivation(report.c)}
    page = environment.get_template("page.html.jinja").render(
        name=report.c.name,
        doc=next(iter((report.c.spec.doc or "").splitlines()), ""),
        family=report.c.family,
        spec_source=safe(_highlighted(report.spec.read_text())),
        step=sections["The recurrence"],
        adjoint=sections["Its adjoint"],
        others=[(t, s) for t, s in sections.items() if t not in ("The recurrence", "Its adjoint")],
        gates=report.c.gates,
        explained=explanation(report.c),
        claims=[_claim(v) for v in report.verdicts],
        errors=safe(errors_plot(report.rows)),
        losses=safe(loss_plot(report)),
        worst=safe(_power(max(r.error for r in report.rows))),
        bound=safe(_power(max(r.bound for r in report.rows))),
        power=lambda x: safe(_power(x)),
        report=report,
        kernel_lines=len(report.kernels.read_text().splitlines()),
        last=report.training[-1],
        sample=report.sample,
        versions=f"chunkform {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    )
    path.write_text(page, encoding="utf-8")
    return path


# --- mathematics ------------------------------------------------------------------------------------------------------


def _section(section: Section) -> str:
    parts = []
    for f in section.formulas:
        if f.text:
            pieces = f.latex.split("$")
            shown = "".join(math_svg(p) if i % 2 else html.escape(p) for i, p in enumerate(pieces))
            parts.append(f'<p class="note">{shown}</p>')
        else:
            parts.append(f'<div class="formula">{math_svg(f.latex, f.plain)}</div>')
    return "\n".join(parts)


def _claim(v: Verdict) -> dict[str, object]:
    """A claim for the page: its formula, the verdict, and what would be right."""
    safe = jinja2.utils.markupsafe.Markup
    sides = getattr(v.claim.statement, "sides", ())
    shown = " = ".join(latex(s) for s in sides)
    return {
        "id": v.claim.id,
        "verdict": v.verdict,
        "formula": safe(math_svg(shown, " = ".join(text(s) for s in sides))),
        "counterexample": safe(shown_counterexample(v)) if v.counterexample is not None else "",
        "repair": safe(math_svg(v.repaired_latex, v.repaired)) if v.repaired_latex else "",
        "edits": "; ".join(v.repairs[0].edits) if v.repairs else "",
    }


def _power(x: float) -> str:
    """7 x 10^-7 as HTML."""
    if x == 0:
        return "0"
    digit, exponent = f"{x:.0e}".split("e")
    factor = "" if digit == "1" else f"{digit}\N{MULTIPLICATION SIGN}"
    return f"{factor}10<sup>{int(exponent)}</sup>".replace("-", "\N{MINUS SIGN}")


# --- code -------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r'(?P<string>"""[\s\S]*?"""|"[^"\n]*")|(?P<comment>#[^\n]*)|(?P<word>\b(?:from|import|def|for|in)\b)'
)


def _highlighted(source: str) -> str:
    """Python source as HTML, strings and comments set apart."""
    out, end = [], 0
    for m in _TOKEN.finditer(source):
        out += [html.escape(source[end : m.start()]), f'<span class="{m.lastgroup}">{html.escape(m[0])}</span>']
        end = m.end()
    return "".join([*out, html.escape(source[end:])])


# --- plots ------------------------------------------------------------------------------------------------------------


def _svg(figure: plt.Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _axes(width: float, height: float) -> tuple[plt.Figure, plt.Axes]:
    plt.rcParams.update({"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "demo"})
    figure, axes = plt.subplots(figsize=(width, height))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(which="both", colors=INK, color=FAINT, length=3)
    return figure, axes


def errors_plot(rows: list[Row]) -> str:
    """Relative errors of every quantity at each seed, against their bound."""
    quantities = list(dict.fromkeys(r.quantity for r in rows))
    figure, axes = _axes(7, 0.28 * len(quantities) + 0.9)
    for i, quantity in enumerate(quantities):
        errors = [max(r.error, 1e-9) for r in rows if r.quantity == quantity]
        axes.plot([min(errors), max(errors)], [i, i], color=FAINT, lw=1.5, zorder=1)
        axes.scatter(errors, [i] * len(errors), s=22, color=ACCENT, zorder=2, lw=0)
    bound = rows[0].bound
    axes.axvline(bound, color=BAD, lw=1, ls=(0, (4, 3)))
    axes.text(bound * 0.9, -0.75, "bound", color=BAD, ha="right", va="center", fontsize=8.5)
    axes.set_xscale("log")
    axes.set_xlim(1e-8, bound * 2)
    axes.set_ylim(len(quantities) - 0.5, -1.1)
    axes.set_yticks(range(len(quantities)), quantities)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("relative error against the float64 oracle", color=INK)
    return _svg(figure)


def loss_plot(report: Report) -> str:
    """Training and held-out loss, and what is possible without memory."""
    figure, axes = _axes(7, 3.1)
    steps = [p.step for p in report.training]
    axes.plot(steps, [p.training for p in report.training], color=FAINT, lw=1, label="training batch")
    held = [p for p in report.training if p.held_out is not None]
    axes.plot(
        [p.step for p in held], [p.held_out for p in held], color=ACCENT, lw=2, marker="o", ms=3.5, label="held out"
    )
    axes.axhline(report.text.unigram, color=BAD, lw=1, ls=(0, (4, 3)))
    axes.text(steps[-1], report.text.unigram + 0.05, "without memory", color=BAD, ha="right", va="bottom", fontsize=8.5)
    axes.set_xlim(0, steps[-1] * 1.01)
    axes.set_ylim(0, max(p.training for p in report.training) * 1.03)
    axes.set_xlabel("training step", color=INK)
    axes.set_ylabel("nats a character", color=INK)
    axes.legend(frameon=False, loc="lower left", labelcolor=INK, ncols=2)
    return _svg(figure)
