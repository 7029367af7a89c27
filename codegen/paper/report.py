"""The verdicts on five documents, for the documentation. Each page has the rows of one, read from its own LaTeX, and behind them
what is stated by hand of what can't be read. `python -m chunkform.codegen.paper.report` writes them anew."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from chunkform.codegen.claims.command import claims_of, judged
from chunkform.codegen.claims.derived_claims import Derived, left_out
from chunkform.codegen.claims.report import derived_lines, facts, formula_lines
from chunkform.codegen.claims.verdict import Verdict, summary

from .build import read_paper
from .counts import counts, equation_text, kind_text
from .document import ReadRow
from .paper import Paper
from .readings import adopted
from .wrong_definitions import WOULD

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ROOT / "tests" / "codegen" / "paper" / "five"
FOLDER = ROOT / "docs" / "verdicts"
COMMAND = "python -m chunkform.codegen.paper.report"
KINDS = ("judged", "definition", "recurrence", "fact", "condition", "not judged", "unread")
WORST = ("holds", "depends", "fails", "error")
# Why a formula has another verdict when it is stated by hand, by what its id starts with.
EXPLAINED = {
    "001.sub-1": "by hand the definition in it may be repaired, which makes the row true; read, it is what it says, and fails",
    "001.unroll-tilde": "by hand the vectors are read as they are repaired in the row above as well; read from the document, a "
    "formula is judged with its definitions as they are displayed",
    "001.neu-y": "by hand the row stands for what the iteration makes of it, and depends on whether y_k is a row; as it is "
    "displayed, it speaks of y and X_k alone, and holds",
    **dict.fromkeys(
        ("002.fwd-O", "002.dq-dQbar", "002.dq-line"),
        "by hand both readings of S_i are reported; read, the state before chunk i is what the document means, as nothing "
        "else makes as many of its formulas true",
    ),
    "002.dk-line2": "by hand a line of a chain is compared with the line before it; read, with what the chain starts with",
    "002.dv-dV": "by hand both readings of the values' bar are reported; read, it is what the document displays of it",
    "002": "by hand it is stated what the definition in it is for, so that the formula depends on whether the definition "
    "is repaired; read, the definition is what it says, and the formula with it fails",
    "003.ked-E": "by hand W may be an entry or a matrix; read with the header, it is a number",
    "003.k-": "by hand the shapes of Q and K are open, of which one makes the product impossible; read, they are what the "
    "document says of them elsewhere",
}


def documents() -> list[Paper]:
    return [read_paper(p) for p in sorted(DOCUMENTS.glob("*.txt"))]


def pages(stated: Sequence[Verdict], derived: Sequence[Derived]) -> dict[str, str]:
    """File name -> text, given the verdicts on what is stated by hand."""
    found = {}
    lines = []
    for paper in documents():
        key = Path(paper.path).stem
        _, verdicts = adopted(paper, judged)
        mine = [v for v in stated if v.claim.id.startswith(f"{key}.")]
        found[f"{key}.md"] = page(paper, verdicts, mine, [x for x in derived if x.document == key])
        tally = Counter(v.verdict for v in verdicts)
        fixed = sum(bool(v.repairs) for v in verdicts if v.verdict == "fails")
        more = len(only_by_hand(paper, verdicts, mine))
        lines.append(
            f"| [{paper.document.source.title}]({key}.md) | {tally['holds']} | {tally['fails']} | {tally['depends']} | {fixed} "
            f"| {more} |"
        )
    found["README.md"] = "\n".join([*index(), *lines]) + "\n"
    return found


def index() -> list[str]:
    """The first page, up to its table of verdicts, of which nothing needs to be judged."""
    return [
        "# The five documents' formulas, judged",
        "",
        f"<!-- written by `{COMMAND}`; do not edit -->",
        "",
        "The displayed rows of five documents, [read from their own LaTeX](../papers.md) with one header a document "
        "(`tests/codegen/paper/five`), and judged as [claims](../claims.md) are. A definition says what a symbol is, and can't "
        "be false; the formulas that use it are judged.",
        "",
        *table_of_rows(),
        "",
        "Behind the rows, each page has what is stated in Python (`spec/claims`) of what the displays alone don't say: "
        "sentences, what a definition is for, programs of several rounds, approximations.",
        "",
        "| document | holds | fails | depends | of those that fail, repaired | more, stated by hand |",
        "|---|---|---|---|---|---|",
    ]


def table_of_rows() -> list[str]:
    """How many rows of each document are read, and became what; and why others aren't judged."""
    papers = documents()
    lines = [f"| document | rows | read | {' | '.join(map(kind_text, KINDS))} |", f"|{'---|' * (3 + len(KINDS))}"]
    totals: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for p in papers:
        found = counts(p)
        totals += found
        lines.append(row_of(p.document.source.title, found))
        reasons.update(reason_kind(r) for r in p.document.rows if not r.claims and r.kind in ("unread", "not judged"))
    lines += [row_of("all", totals), "", "| why a row isn't judged | rows |", "|---|---|"]
    return lines + [f"| {why} | {n} |" for why, n in sorted(reasons.items(), key=lambda x: (-x[1], x[0]))]


def reason_kind(r: ReadRow) -> str:
    """The reason why a row isn't judged, without the names in it."""
    kinds = (
        ("isn't known", "a symbol or a function in it isn't known: the text says in words what it is"),
        ("nothing says how", "a derivative of what nothing says how it depends on"),
        ("states nothing", "it has no relation"),
        ("approximation", "an approximation"),
        ("is a matrix as it is displayed", "a derivative of what is a matrix as it is displayed"),
    )
    return next((said for part, said in kinds if part in r.reason), r.reason)


def row_of(title: str, found: Counter[str]) -> str:
    total = sum(found.values())
    return f"| {title} | {total} | {total - found['unread']} | {' | '.join(str(found[k]) for k in KINDS)} |"


def page(paper: Paper, verdicts: Sequence[Verdict], stated: Sequence[Verdict], derived: Sequence[Derived]) -> str:
    """A document's rows in its order, what is stated by hand beside them, and what is derived."""
    by_claim = {id(v.claim): v for v in verdicts}
    said = f"{len(verdicts)} claims" if not verdicts else summary(list(verdicts))
    lines = [
        f"# {paper.document.source.title}",
        "",
        f"<!-- written by `{COMMAND}`; do not edit -->",
        "",
        f"{said}.",
        "",
    ]
    section = None
    for r in paper.document.rows:
        if r.source.section != section:
            section = r.source.section
            lines += [f"## {section}", ""] if section else []
        mine = [by_claim[id(c)] for c in r.claims]
        lines += row_lines(r, mine)
    left = only_by_hand(paper, verdicts, stated)
    if left:
        lines += [
            "## Stated by hand",
            "",
            "What the displays alone don't say, or say of a symbol that only the text explains.",
            "",
        ]
        for v in left:
            lines += formula_lines(v)
    other = differing(paper, verdicts, stated)
    if other:
        lines += [
            "## Where the statement by hand has another verdict",
            "",
            "| row | read | by hand | why |",
            "|---|---|---|---|",
        ]
        for r, read, v in other:
            lines.append(f"| {r.line} | {read} | {v.verdict} (`{v.claim.id}`) | {explained(v.claim.id)} |")
        lines.append("")
    if derived:
        lines += derived_lines(derived)
    return "\n".join(lines).rstrip() + "\n"


def row_lines(r: ReadRow, verdicts: Sequence[Verdict]) -> list[str]:
    """One row: its formula as displayed, and for each claim that it makes the verdict and the evidence."""
    shown = clean(r.source.text)
    if not verdicts:
        told = r.kind in ("unread", "not judged") or WOULD in r.reason
        why = f": {r.reason}" if r.reason and told else ""
        beside = [f"- not judged: `{equation_text(e)}`: {said}" for e, said in r.beside]
        return [
            f"### Line {r.line}, {kind_text(r.kind)}{why}",
            "",
            f"$${shown}$$",
            "",
            *beside,
            *([""] if beside else []),
        ]
    lines = [f"### Line {r.line}: {', '.join(v.verdict for v in verdicts)}", "", f"$${shown}$$", ""]
    for v in verdicts:
        sides = getattr(v.claim.statement, "sides", None)
        if sides:
            lines.append(f"- read as `{' = '.join(map(str, sides))}`")
        lines += [f"- {x}" for x in facts(v)]
    lines += [f"- not judged: `{equation_text(e)}`: {why}" for e, why in r.beside]
    return [*lines, ""]


def clean(tex: str) -> str:
    """A row's LaTeX that stands alone: without alignment, row ends and what opens or closes environments around it."""
    cut = re.sub(r"\\(begin|end)\{(aligned|align|split|gathered|equation)\*?\}", "", tex)
    cut = re.sub(r"(?<!\\)&", " ", cut) if "\\begin{" not in cut else cut
    cut = re.sub(r"(\\\\|\\qquad|\\quad|\s)+$", "", cut.strip()).rstrip()
    unclosed = cut.count("{") - cut.count("}")
    return re.sub(r"\s+", " ", cut + "}" * max(0, unclosed))


# --- beside what is stated by hand ----------------------------------------------------------------------------------


def letters_of(tex: str) -> str:
    """What LaTeX says, without how it is set."""
    bare = re.sub(
        r"\\(left|right|quad|qquad|displaystyle|limits|mathbf|mathrm|text|ldots|dots|cdots|big|Big)(?![A-Za-z])",
        "",
        clean(tex),
    )
    return re.sub(r"[\s{},.&;]|\\[ ,;!]", "", bare).replace("\\triangleq", "=").replace("\\intercal", "\\top")


def rows_about(paper: Paper, latex: str) -> list[ReadRow]:
    """The rows that a formula stated by hand is about: those that are in it, or that it is in."""
    whole = letters_of(latex)
    found = []
    for r in paper.document.rows:
        own = letters_of(r.source.text)
        bare = own.lstrip("=")
        if len(bare) > 9 and (bare in whole or (len(whole) > 9 and whole in own)):
            found.append(r)
    return found


def pairs(
    paper: Paper, verdicts: Sequence[Verdict], stated: Sequence[Verdict]
) -> list[tuple[Verdict, list[tuple[ReadRow, str]]]]:
    """What is stated by hand, with the rows that are judged of it and their worst verdicts."""
    by_claim = {id(v.claim): v.verdict for v in verdicts}
    out = []
    for v in stated:
        rows = [r for r in rows_about(paper, v.claim.latex) if r.claims]
        out.append((v, [(r, max((by_claim[id(c)] for c in r.claims), key=WORST.index)) for r in rows]))
    return out


def only_by_hand(paper: Paper, verdicts: Sequence[Verdict], stated: Sequence[Verdict]) -> list[Verdict]:
    return [v for v, rows in pairs(paper, verdicts, stated) if not rows]


def differing(
    paper: Paper, verdicts: Sequence[Verdict], stated: Sequence[Verdict]
) -> list[tuple[ReadRow, str, Verdict]]:
    """Rows whose verdicts are others than what is stated by hand of them has."""
    out = []
    for v, rows in pairs(paper, verdicts, stated):
        if rows and v.verdict not in {read for _, read in rows}:
            out.append((rows[0][0], rows[0][1], v))
    return out


def explained(name: str) -> str:
    return next((why for start, why in EXPLAINED.items() if name.startswith(start)), "")


def write(folder: Path = FOLDER) -> list[Path]:
    """Judge everything, and write the files."""
    written = []
    for name, text in pages(judged(claims_of(())), left_out()).items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


if __name__ == "__main__":
    for path in write():
        print(path.relative_to(ROOT))
