"""A copy of a document's source with each verdict beside its formula: comments in Markdown, margin notes in LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from chunkform.codegen.claims.verdict import Verdict

from .build import Paper

PREAMBLE = (
    "% verdicts of chunkform: redefine these commands to show them as you like\n"
    "\\providecommand{\\verified}{\\text{\\small\\ $\\surd$}}\n"
    "\\providecommand{\\refuted}{\\text{\\small\\ [fails]}}\n"
    "\\providecommand{\\conditional}{\\text{\\small\\ [depends]}}\n"
    "\\providecommand{\\unjudged}{}\n"
)
COMMANDS = {"holds": "\\verified{}", "fails": "\\refuted{}", "depends": "\\conditional{}", "error": "\\unjudged{}"}


def annotated(paper: Paper, verdicts: Sequence[Verdict]) -> str:
    """The source with verdicts; formulas stay as they are."""
    text = paper.document.source.text
    by_claim = {id(v.claim): v for v in verdicts}
    tex = "\\begin{document}" in text
    notes: list[tuple[int, str]] = []
    for r in paper.document.rows:
        mine = [by_claim[id(c)] for c in r.claims if id(c) in by_claim]
        if not mine:
            continue
        worst = max(mine, key=lambda v: ("holds", "depends", "error", "fails").index(v.verdict))
        at = behind(text, r.source.end)
        repair = f": {worst.repaired_latex or worst.repaired}" if worst.repairs else ""
        if tex:
            said = f" % {worst.verdict}{repair}\n" if repair else ""
            notes.append((at, COMMANDS[worst.verdict] + said.replace("\n", "", 0)))
        else:
            notes.append((at, f" % {worst.verdict}{repair}\n"))
    for at, note in sorted(notes, reverse=True):
        ends_line = text[at : at + 1] == "\n"
        text = text[:at] + (note.rstrip("\n") if ends_line else note) + text[at:]
    if tex:
        text = text.replace("\\begin{document}", PREAMBLE + "\\begin{document}", 1)
    return text


def behind(text: str, at: int) -> int:
    """Where a note may stand: behind the row's own last brace."""
    while at < len(text) and text[at] in "}])":
        at += 1
    return at
