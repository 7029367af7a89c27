"""`chunkform.check`: the numbers of an op beside its definition in float64."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from chunkform.spec.language import Declaration

from ..checking.calls import Report
from ..commands.check import Checked, calls_text, causes_text, check_all, check_table
from ..commands.compile import one_of
from ..ir.collector import seldom_collected
from .shown import COLOURS, badge_html, json_of, latex_text, table_html, text_of


@dataclass(frozen=True)
class Check:
    """The worst relative error of each quantity of an op, by dtype; a sequence of `Checked`."""

    name: str
    rows: tuple[Checked, ...]
    reports: tuple[Report, ...] = ()

    def __iter__(self) -> Iterator[Checked]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ok(self) -> bool:
        """Are all errors within their bounds?"""
        return all(r.ok for r in self.rows)

    @property
    def bad(self) -> tuple[Checked, ...]:
        """The errors that are above their bounds; each has Python that makes the smallest such call again."""
        return tuple(r for r in self.rows if not r.ok)

    @property
    def worst(self) -> Checked:
        """The error that is nearest to its bound, or furthest above it."""
        return max(self.rows, key=lambda r: r.badness)

    def __str__(self) -> str:
        told = [line for x in self.reports for line in (calls_text(x), *causes_text(x))]
        python = [f"\n{x}" for x in dict.fromkeys(r.python for r in self.bad if r.python)]
        return "\n".join([text_of(lambda console: console.print(check_table(self.rows))), *told, *python])

    def __repr__(self) -> str:
        said = "all within their bounds" if self.ok else f"{len(self.bad)} above their bounds"
        return f"<Check of {self.name}: {len(self)} errors, {said}>"

    def to_latex(self) -> str:
        """A table, to be put into a document."""
        lines = [r"\begin{tabular}{llrrl}", r"quantity & dtype & error & allowed & \\ \hline"]
        for r in self.rows:
            said = "ok" if r.ok else "too large"
            cells = (latex_text(r.quantity), r.dtype, f"{r.error:.1e}", f"{r.allowed:.1e}", said)
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\end{tabular}"]) + "\n"

    def to_json(self) -> str:
        """The errors as JSON, as `chunkform check --json` writes them."""
        return json_of([r.json() for r in self.rows])

    def _repr_html_(self) -> str:
        rows = []
        for r in self.rows:
            said = badge_html("ok", COLOURS["holds"]) if r.ok else badge_html("too large", COLOURS["fails"])
            why = f"<pre>{escape(r.raised or r.cause)}</pre>" if r.raised or r.cause else ""
            rows.append([escape(r.quantity), r.dtype, f"{r.error:.1e}", f"{r.allowed:.1e}", f"{said}{why}"])
        told = "".join(f"<p>{escape(calls_text(x))}</p>" for x in self.reports)
        return f"<p>{escape(repr(self)[1:-1])}</p>{table_html(('of', 'dtype', 'error', 'allowed', ''), rows)}{told}"


def check(
    spec: Declaration | str | os.PathLike[str],
    quick: bool = False,
    seconds: float | None = None,
    device: str | None = None,
) -> Check:
    """Compare an op with its definition in float64: outputs, last states and every gradient.

    Args:
        spec: a `Recurrence` (or another kind of spec), a spec file, or a name of the catalogue.
        quick: calls of one shape only; else each pair of choices of how an op is called occurs.
        seconds: the longest that it may take; 60, and 600 on a GPU, where None.
        device: cpu or cuda; cuda where there is one, where None.
    """
    r = one_of(spec, "check").validate()
    with seldom_collected():
        rows, reports = check_all([r], device=device, quick=quick, seconds=seconds)
    return Check(r.name, tuple(rows), tuple(reports))
