"""The report's text form: docs/verdicts, one file for each document. `python -m chunkform.codegen.claims.report`
writes it anew."""

from __future__ import annotations

from pathlib import Path

from chunkform.spec.claims import documents

from .derived_claims import Derived, left_out
from .html_page import condition, defined
from .verdict import Verdict

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "verdicts"
COMMAND = "python -m chunkform.codegen.claims.report"


def texts(verdicts: list[Verdict], derived: list[Derived]) -> dict[str, str]:
    """File name -> text."""
    from .verdict import summary

    found = {}
    for d in documents():
        mine = [v for v in verdicts if v.claim.document == d.title]
        lines = [f"# {d.title}", "", f"<!-- written by `{COMMAND}`; do not edit -->", "", f"{summary(mine)}.", ""]
        section = None
        for v in mine:
            if v.claim.section != section:
                section = v.claim.section
                lines += [f"## {section}", ""]
            lines += formula_lines(v)
        own = [x for x in derived if x.document == d.key]
        if own:
            lines += ["## Derived, where the document leaves it out or has it otherwise", ""]
            told: set[str] = set()
            for x in own:
                left, right = x.claim.statement.sides  # type: ignore[attr-defined]
                proof = "proved" if x.verdict == "holds" else "not proved"
                lines += [f"- {x.what} ({proof}): `{left} = {right}`"]
                lines += [f"  - where `{y}`" for y in defined(x.claim) if y not in told]
                told.update(defined(x.claim))
            lines.append("")
        found[f"{d.key}.md"] = "\n".join(lines).rstrip() + "\n"
    found["README.md"] = index(verdicts)
    return found


def index(verdicts: list[Verdict]) -> str:
    """The counts by document, with links."""
    lines = [
        "# The five documents' formulas, judged",
        "",
        f"<!-- written by `{COMMAND}`; do not edit -->",
        "",
        "How a formula is stated and judged: [claims](../claims.md). `chunkform verify --html PATH` shows the same, typeset.",
        "",
        "| document | holds | fails | depends | of those that fail, repaired |",
        "|---|---|---|---|---|",
    ]
    for d in documents():
        mine = [v for v in verdicts if v.claim.document == d.title]
        counts = " | ".join(str(sum(v.verdict == x for v in mine)) for x in ("holds", "fails", "depends"))
        fixed = sum(bool(v.repairs) for v in mine if v.verdict == "fails")
        lines.append(f"| [{d.title}]({d.key}.md) | {counts} | {fixed} |")
    return "\n".join(lines) + "\n"


def formula_lines(v: Verdict) -> list[str]:
    c = v.claim
    lines = [f"### {c.id}: {v.verdict}", "", f"$${c.latex}$$", ""]
    if c.note:
        lines += [f"({c.note})", ""]
    facts = []
    if v.counterexample is not None:
        facts.append(f"counterexample: `{v.counterexample.text()}`")
    if v.repairs:
        under = f" ({v.repair_reading})" if v.repair_reading else ""
        facts.append(
            f"nearest true formula{under}: `{v.repaired}`, by {'; '.join(f'`{e}`' for e in v.repairs[0].edits)}"
        )
    elif v.verdict == "fails" and v.searched:
        facts.append("no true formula was found within two edits")
    facts += [condition(x) for x in v.conditions]
    facts.append(v.how)
    if v.proof:
        facts.append(f"by SymPy at {v.proof.split(':')[0]}, with every entry a symbol")
    return lines + [f"- {x}" for x in facts] + [""]


def write(folder: Path = FOLDER) -> list[Path]:
    """Judge everything, and write the files."""
    from .command import claims_of, judged

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in texts(judged(claims_of(())), left_out()).items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


if __name__ == "__main__":
    for path in write():
        print(path.relative_to(FOLDER.parents[1]))
