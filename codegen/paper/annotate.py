"""A copy of a document's source with each verdict beside its formula: comments in Markdown, margin notes in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chunkform.codegen.claims.verdict import Verdict

from .paper import Paper
from .words import ROWS

PREAMBLE = (
    "% verdicts of chunkform: redefine these commands to show them as you like\n"
    "\\providecommand{\\verified}{\\text{\\small\\ $\\surd$}}\n"
    "\\providecommand{\\refuted}{\\text{\\small\\ [fails]}}\n"
    "\\providecommand{\\conditional}{\\text{\\small\\ [depends]}}\n"
    "\\providecommand{\\unjudged}{}\n"
)
COMMANDS = {"holds": "\\verified{}", "fails": "\\refuted{}", "depends": "\\conditional{}", "error": "\\unjudged{}"}


WORST = ("holds", "depends", "error", "fails")


def annotated(paper: Paper, verdicts: Sequence[Verdict]) -> str:
    """The source with verdicts; formulas stay as they are. A row's mark is that of the worst of its formulas."""
    text = paper.document.source.text
    by_claim = {id(v.claim): v for v in verdicts}
    tex = "\\begin{document}" in text
    notes: list[tuple[int, str]] = []
    for r in paper.document.rows:
        mine = [by_claim[id(c)] for c in r.claims if id(c) in by_claim]
        if not mine:
            continue
        worst = max(mine, key=lambda v: WORST.index(v.verdict))
        said = max([worst.verdict, *["error" for _ in r.left_out]], key=WORST.index)
        repair = f": {worst.repaired_latex or worst.repaired}" if worst.repairs else ""
        shown = ("not judged" if said == "error" else said) + repair
        at = end_of_row(text, r.source.end)
        if tex:
            notes.append((at, COMMANDS[said] + (f" % {shown}\n" if repair else "")))
        else:
            notes.append((at, f" % {shown}\n"))
    for at, note in sorted(notes, reverse=True):
        rest = text[at:].partition("\n")[0]
        ends_line = not rest.strip() and "\n" in text[at:]
        text = text[:at] + (note.rstrip("\n") if ends_line else note) + text[at:]
    if tex:
        text = text.replace("\\begin{document}", PREAMBLE + "\\begin{document}", 1)
    return text


_PIECES = re.compile(
    r"(?P<comment>(?<!\\)%[^\n]*)|(?P<blank>\n[ \t]*\n)|(?P<space>\s+)|\\(?P<side>begin|end)\s*\{(?P<env>[^{}]*)\}"
    r"|(?P<close>\$\$|\\\]|```|~~~)|(?P<row>\\\\|\\newline\b)|\\[A-Za-z]+|\\.|.",
    re.S,
)


def end_of_row(text: str, at: int) -> int:
    """Where a note may stand: behind a row's last token and what belongs to it, before the row's or the display's end."""
    at -= 1  # the last token starts before it; a command's name goes on
    found = at
    depth = braces = 0
    while (m := _PIECES.match(text, at)) is not None:
        if m["close"] or m["blank"] or (m["row"] and depth <= 0 and braces <= 0):
            break
        if m["side"] and m["env"].rstrip("*") in ROWS and depth <= 0:
            break
        if m["side"]:
            depth += 1 if m["side"] == "begin" else -1
        braces += (m.group(0) == "{") - (m.group(0) == "}")
        at = m.end()
        if not (m["comment"] or m["space"]):
            found = at
    return found
