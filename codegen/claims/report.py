"""Verdicts as Markdown, for the documentation: `chunkform.codegen.paper.report` writes the pages."""

from __future__ import annotations

from collections.abc import Sequence

from .derived_claims import Derived
from .html_page import condition, defined
from .verdict import Verdict


def formula_lines(v: Verdict, title: str = "") -> list[str]:
    """A formula with its verdict, and the evidence."""
    c = v.claim
    lines = [f"### {title or c.id}: {v.verdict}", "", f"$${c.latex}$$", ""]
    if c.note:
        lines += [f"({c.note})", ""]
    return lines + [f"- {x}" for x in facts(v)] + [""]


def facts(v: Verdict) -> list[str]:
    """The evidence for a verdict: a counterexample, a repair, conditions, how it was decided."""
    found = []
    if v.error is not None:
        found.append(v.error.text())
    if v.counterexample is not None:
        found.append(f"counterexample: `{v.counterexample.text()}`")
    if v.repairs:
        under = f" ({v.repair_reading})" if v.repair_reading else ""
        found.append(
            f"nearest true formula{under}: `{v.repaired}`, by {'; '.join(f'`{e}`' for e in v.repairs[0].edits)}"
        )
    elif v.defined:
        found.append(f"by definition: `{v.defined}`")
    elif v.verdict == "fails" and v.searched:
        ended = v.search is not None and not v.search.complete
        found.append(f"no true formula was found {'before the search ended' if ended else 'within two edits'}")
    found += dict.fromkeys(condition(x) for x in v.conditions)
    found.append(v.how)
    if v.proof:
        found.append(f"by SymPy at {v.proof.split(':')[0]}, with every entry a symbol")
    return found


def derived_lines(derived: Sequence[Derived]) -> list[str]:
    """What is derived and proved where a document leaves it out."""
    lines = ["## Derived, where the document leaves it out or has it otherwise", ""]
    told: set[str] = set()
    for x in derived:
        left, right = x.claim.statement.sides  # type: ignore[attr-defined]
        proof = "proved" if x.verdict == "holds" else "not proved"
        lines += [f"- {x.what} ({proof}): `{left} = {right}`"]
        lines += [f"  - where `{y}`" for y in defined(x.claim) if y not in told]
        told.update(defined(x.claim))
    return [*lines, ""]
