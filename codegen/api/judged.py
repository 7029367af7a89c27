"""`chunkform.verify`: verdicts on claims."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from html import escape

from chunkform.errors import LoadError, page_of
from chunkform.spec.language import Declaration

from ..claims.alone import SECONDS
from ..claims.command import as_json, claims_of, judged, reason, summary, table
from ..claims.html_page import claim_latex, stated
from ..claims.verdict import Verdict
from ..ir.collector import seldom_collected
from .shown import COLOURS, badge_html, formula_html, latex_text, table_html, text_of


@dataclass(frozen=True, repr=False)
class Judged(Verdict):
    """A verdict that shows itself: as a few lines, and typeset."""

    def __str__(self) -> str:
        return "\n".join(x for x in (f"{self.claim.id} {self.verdict}", reason(self)) if x)

    def __repr__(self) -> str:
        return f"<Verdict on {self.claim.id}: {self.verdict}>"

    def _repr_html_(self) -> str:
        return Verdicts((self,)).table()


@dataclass(frozen=True)
class Verdicts:
    """Verdicts on claims, in the order of the claims, and by the claims' names. The documentation's page on claims says what
    they mean."""

    verdicts: tuple[Judged, ...]

    def __iter__(self) -> Iterator[Judged]:
        return iter(self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    def __getitem__(self, which: int | str) -> Judged:
        """The verdict at a place, or on the claim of this name."""
        if isinstance(which, int):
            return self.verdicts[which]
        found = next((v for v in self.verdicts if v.claim.id == which), None)
        if found is None:
            raise KeyError(f"no claim is named {which!r}; there are {', '.join(v.claim.id for v in self.verdicts)}")
        return found

    @property
    def ok(self) -> bool:
        """Was every claim judged, and does none fail?"""
        return all(v.verdict in ("holds", "depends") for v in self.verdicts)

    @property
    def summary(self) -> str:
        """Counts of verdicts, in one line."""
        return summary(list(self.verdicts))

    def __str__(self) -> str:
        def show(console: object) -> None:
            console.print(table(list(self.verdicts)))  # type: ignore[attr-defined]
            console.print(self.summary)  # type: ignore[attr-defined]

        return text_of(show)

    def __repr__(self) -> str:
        return f"<Verdicts: {self.summary}>"

    def to_latex(self) -> str:
        """A list of the formulas, each with its verdict, to be put into a document."""
        lines = [r"\begin{description}"]
        for v in self.verdicts:
            lines.append(rf"\item[{latex_text(v.claim.id)}] {latex_text(v.verdict)}: ${_latex(v)}$")
            if v.repairs:
                lines.append(rf"\\ nearest true formula: ${v.repaired_latex}$")
        return "\n".join([*lines, r"\end{description}"]) + "\n"

    def to_json(self) -> str:
        """The verdicts as JSON, as `chunkform verify --json` writes them."""
        return as_json(list(self.verdicts))

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary)}</p>{self.table()}"

    def table(self) -> str:
        """As HTML: each claim typeset, with its verdict, why, and what would be right."""
        rows = []
        for v in self.verdicts:
            badge = badge_html(v.verdict, COLOURS[v.verdict])
            why = f"<pre>{escape(reason(v))}</pre>" if reason(v) else ""
            repair = formula_html(v.repaired_latex, v.repaired) if v.repairs else ""
            shown = formula_html(_latex(v), stated(v.claim)) if v.error is None else ""
            rows.append([escape(v.claim.id), badge, shown, f"{why}{repair}"])
        about = ("claim", "verdict", "as stated", "why, and what would be right")
        return table_html(about, rows)


def _latex(v: Verdict) -> str:
    return v.claim.latex or claim_latex(v.claim)


def verify(spec: Declaration | str | os.PathLike[str], seconds: float | None = None) -> Verdicts:
    """Judge the claims of a spec: each holds, fails (with a counterexample and the nearest true formula), or depends.

    Args:
        spec: a spec that has claims (`r.claim`), a file of claims, or a name of the catalogue.
        seconds: the longest that one claim may take of the processor's time.

    Raises:
        chunkform.errors.LoadError: there is no such spec, or it states no claims.
    """
    claims = list(spec.validate().claims) if isinstance(spec, Declaration) else claims_of([os.fspath(spec)])
    if not claims:
        raise LoadError(
            f"{getattr(spec, 'name', spec)} states no claims: state one with r.claim(...), see {page_of('claims')}"
        )
    with seldom_collected():
        found = judged(claims, seconds=SECONDS if seconds is None else seconds)
    return Verdicts(tuple(Judged(**{f.name: getattr(v, f.name) for f in fields(v)}) for v in found))
