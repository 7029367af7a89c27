"""`chunkform.explain`: what the compiler derives of a spec, and what that costs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

from chunkform.spec.language import Declaration

from ..commands.compile import one_of
from ..commands.kinds import CompiledSpec, kind_of
from ..recurrence.notation.formulas import Formula, Section
from .shown import formula_html, json_of, sentence_html, table_html, text_of


@dataclass(frozen=True)
class Derivation:
    """Formulas that follow from a spec: its step, the adjoint, the form over chunks. A sequence of sections, also by title."""

    name: str
    sections: tuple[Section, ...]
    latex: str = field(repr=False)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.sections))

    def __repr__(self) -> str:
        return f"<Derivation of {self.name}: {', '.join(s.title for s in self.sections)}>"

    def __iter__(self) -> Iterator[Section]:
        return iter(self.sections)

    def __len__(self) -> int:
        return len(self.sections)

    def __getitem__(self, which: int | str) -> Section:
        """The section at a place, or of a title."""
        if isinstance(which, int):
            return self.sections[which]
        found = next((s for s in self.sections if s.title == which), None)
        if found is None:
            raise KeyError(
                f"the derivation of {self.name} has {', '.join(s.title for s in self.sections)}; got {which!r}"
            )
        return found

    def to_latex(self) -> str:
        """The derivation as LaTeX, to be put into a document."""
        return self.latex

    @property
    def data(self) -> list[dict[str, Any]]:
        """The derivation as plain data."""
        return [{"title": s.title, "formulas": [_formula_data(f) for f in s.formulas]} for s in self.sections]

    def to_json(self) -> str:
        """The same as JSON: sections of formulas, each as text and as LaTeX."""
        return json_of(self.data)

    def _repr_html_(self) -> str:
        parts = []
        for s in self.sections:
            parts.append(f"<h4>{escape(s.title)}</h4>")
            for f in s.formulas:
                parts.append(f"<p>{sentence_html(f.latex, f.plain)}</p>" if f.text else formula_html(f.latex, f.plain))
        return "\n".join(parts)


@dataclass(frozen=True)
class Explanation:
    """What the compiler knows of a spec. `data` is all of it as plain data, as the documentation's page on JSON describes it.

    family: chunk-parallel, strata, scan, segment-parallel, sequential, attention or program. reason: why it isn't
    chunk-parallel, or None.
    """

    spec: Declaration
    family: str
    reason: str | None
    derivation: Derivation
    data: dict[str, Any] = field(repr=False)
    compiled: CompiledSpec = field(repr=False)
    counted_for: tuple[int, int] = field(default=(64, 64), repr=False)  # the size of every dim, and steps of a chunk

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def gates(self) -> list[dict[str, Any]]:
        """The checks that were passed, one after each pass: name, what, points, error_bound."""
        found: list[dict[str, Any]] = self.data["gates"]
        return found

    @cached_property
    def _text(self) -> str:
        return text_of(lambda console: kind_of(self.spec).show(self.compiled, console, *self.counted_for))

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<Explanation of {self.name}: {self.family}>"

    def to_latex(self) -> str:
        """The derivation as LaTeX, to be put into a document."""
        return self.derivation.to_latex()

    def to_json(self) -> str:
        """Everything as JSON, as `chunkform explain --json` writes it."""
        return json_of(self.data)

    def _repr_html_(self) -> str:
        doc = next(iter((self.spec.doc or "").strip().splitlines()), "")
        parts = [f"<h3>{escape(self.name)}: {escape(self.family)}</h3>", f"<p><i>{escape(doc)}</i></p>" if doc else ""]
        if self.reason:
            parts.append(f"<p>Not chunk-parallel: {escape(self.reason)}.</p>")
        parts.append(self.derivation._repr_html_())
        if "launches" in self.data:
            per = ("launches", "bytes_per_token", "lower_bound_bytes_per_token", "flops_per_token")
            rows = [[p, *(f"{self.data[p][x]:,}" for x in per)] for p in ("forward", "backward")]
            parts.append("<h4>Cost per token and head</h4>")
            parts.append(table_html(("pass", "launches", "bytes", "lower bound", "FLOPs"), rows))
        gates = [[escape(g["name"]), escape(g["what"]), f"{g['error_bound']:.0e}"] for g in self.gates]
        parts.append("<h4>Gates that it passed</h4>")
        parts.append(table_html(("after", "what was found equal", "chance of an error"), gates))
        return "\n".join(x for x in parts if x)


def explain(spec: Declaration | str | os.PathLike[str], width: int = 64, chunk: int = 64) -> Explanation:
    """What the compiler derives of a spec: its adjoint, its read-write form, its form over chunks, and what they cost.

    Args:
        spec: a `Recurrence` (or another kind of spec), a spec file, or a name of the catalogue.
        width: the size of every dim that costs are counted for.
        chunk: the steps of a chunk that costs are counted for.

    Raises:
        chunkform.errors.SpecError: the spec has no meaning; the message has its line.
    """
    r = one_of(spec, "explain").validate()
    kind = kind_of(r)
    c = kind.compile_spec(r)
    data = kind.explanation(c, width, chunk)
    found = Derivation(r.name, tuple(kind.derivation(c)), kind.latex_document(c))
    return Explanation(r, c.family, data.get("reason"), found, data, c, (width, chunk))


def _formula_data(f: Formula) -> dict[str, Any]:
    return {"plain": f.plain, "latex": f.latex, "is_sentence": f.text}
