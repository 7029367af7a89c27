"""Documents: where their displayed formulas stand, row by row, and what the text around says in formulas.

Reads LaTeX and Markdown alike. Code, comments and what is quoted are passed over; nothing is executed, and no other file is
opened."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from .algorithms import Assignment, assignments
from .lexer import Macro, Token, argument_at, closing, expanded, macros_of, tokens_of
from .prose import conditions_before
from .row import depth_of
from .words import CASES, MATRICES, RELATIONS, ROWS, WITH_COLUMNS

LARGEST = 4_000_000  # characters of a document


@dataclass(frozen=True)
class Slip:
    """A slip of the author's: what is malformed, and where. It stops nothing."""

    message: str
    line: int
    column: int


@dataclass
class SourceRow:
    """One row of a display: its tokens, its text as it stands, where it starts and ends, and the section around it."""

    tokens: list[Token]
    text: str
    line: int
    column: int
    end: int  # offset behind the row
    display: int
    section: str
    broken: str = ""  # why the row can't be read at all
    program: Assignment | None = None  # of an algorithm
    premises: list[list[Token]] = field(default_factory=list)  # of the sentence in front of the display
    sentence: str = ""  # its words so far, where it says when the display holds


@dataclass
class Source:
    """A document: its rows, the formulas in its text, its title, and the author's slips so far."""

    path: str
    text: str
    title: str
    rows: list[SourceRow] = field(default_factory=list)
    inline: list[list[Token]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)  # where each of these stands
    slips: list[Slip] = field(default_factory=list)
    macros: dict[str, Macro] = field(default_factory=dict)
    lines: list[int] = field(default_factory=list)
    visible: str = ""  # the text without code and comments

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1."""
        line = bisect_right(self.lines, at)
        return line, at - self.lines[line - 1] + 1

    def slip(self, message: str, at: int) -> None:
        found = Slip(message, *self.place(at))
        if found not in self.slips:
            self.slips.append(found)


def read_source(text: str, path: str = "document") -> Source:
    """The document's displays, as rows of tokens."""
    lines = [0, *(m.end() for m in re.finditer("\n", text))]
    tex = path.endswith((".tex", ".ltx")) or "\\begin{document}" in text
    visible = without_code(text, tex)
    source = Source(path, text, title_of(visible, path), macros=macros_of(visible), lines=lines, visible=visible)
    sections = list(sections_of(visible))
    begin = visible.find("\\begin{document}")
    start = begin if tex and begin >= 0 else 0
    said = {x.start: x for x in assignments(without_comments(text) if tex else "")}
    places = sorted([*displays(visible, start, source), *((x.start, x.end) for x in said.values())])
    for number, (a, b) in enumerate(places):
        section = next((name for at, name in reversed(sections) if at < a), "")
        try:
            piece = text[a:b] if a in said else visible[a:b]
            tokens = expanded(tokens_of(piece, a), source.macros)
        except OverflowError as error:
            line, column = source.place(a)
            source.rows.append(SourceRow([], text[a:b].strip(), line, column, b, number, section, str(error)))
            continue
        found = rows_of(source, tokens, b, number, section)
        for row in found:
            row.program = said.get(a)
        spans, sentence = conditions_before(visible, a)
        for row in found:
            row.sentence = sentence
        for x, y in spans:
            with suppress(OverflowError):
                premise = expanded(tokens_of(visible[x:y], x), source.macros)
                for row in found:
                    row.premises.append(premise)
        source.rows += found
    for a, b in inline(visible, start):
        try:
            source.inline.append(expanded(tokens_of(visible[a:b], a), source.macros))
        except OverflowError:
            continue
        source.spans.append((a, b))
    return source


def without_code(text: str, tex: bool) -> str:
    """The text with what is no mathematics blanked: code, comments, verbatim. Offsets stay."""

    def blank(m: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", m.group(0))

    hidden = r"\\iffalse(?![A-Za-z]).*?(?:\\else(?![A-Za-z])(.*?))?\\fi(?![A-Za-z])"
    if tex:
        text = without_comments(text)
        text = re.sub(
            r"\\begin\{(verbatim|lstlisting|minted|comment|algorithm|algorithmic)\*?\}.*?\\end\{\1\*?\}",
            blank,
            text,
            flags=re.S,
        )
        text = re.sub(hidden, _live, text, flags=re.S)
        text = re.sub(r"\\verb\*?([^\w\s])[^\n]*?\1", blank, text)
        ends = text.find("\\end{document}")
        return text if ends < 0 else text[:ends] + re.sub(r"[^\n]", " ", text[ends:])
    text = re.sub(r"<!--.*?-->", blank, text, flags=re.S)
    text = re.sub(
        r"^([ \t>]*)(`{3,}|~{3,})[ \t]*math[ \t]*\n(.*?)^[ \t>]*\2[ \t]*$", _math_fence, text, flags=re.S | re.M
    )
    text = re.sub(r"^[ \t>]*(`{3,}|~{3,})(?![^\n]*`).*?^[ \t>]*\1[ \t]*$", blank, text, flags=re.S | re.M)
    return re.sub(r"(?<![`$])(`+)(?!`)[^\n]+?(?<!`)\1(?!`)", blank, text)


def without_comments(text: str) -> str:
    return re.sub(r"(?<!\\)%[^\n]*", lambda m: " " * len(m.group(0)), text)


def _math_fence(m: re.Match[str]) -> str:
    """```math blocks as displays of the same length."""
    whole, body = m.group(0), m.group(3)
    start, end = m.start(3) - m.start(), m.end(3) - m.start()
    head = re.sub(r"[^\n]", " ", whole[: start - 1])
    tail = re.sub(r"[^\n]", " ", whole[end:])
    return head[:-2] + "$$" + "\n" + body + "$$" + tail[2:]


def title_of(text: str, path: str) -> str:
    m = re.search(r"\\title\s*(?:\[[^\]]*\])?\{([^{}]*)\}", text) or re.search(r"^#\s+(.+)$", text, re.M)
    return re.sub(r"\s+", " ", m.group(1)).strip() if m else re.split(r"[/\\]", path)[-1].rsplit(".", 1)[0]


_HEADING = re.compile(
    r"^[ \t]*#{1,6}[ \t]+(?P<md>[^\n]+)|\\(?:sub)*(?:section|paragraph|chapter)\*?\{(?P<tex>[^\n]*?)\}(?=\s|\\|$)", re.M
)


def sections_of(text: str) -> Iterator[tuple[int, str]]:
    for m in _HEADING.finditer(text):
        yield m.start(), (m["md"] or m["tex"] or "").strip().rstrip("#").strip()


_OPEN = re.compile(r"\\begin\{(?P<env>" + "|".join(sorted(ROWS)) + r")(?P<star>\*?)\}|(?<!\\)\\\[|(?<!\\)\$\$")


def _live(m: re.Match[str]) -> str:
    """What TeX reads of \\iffalse ... \\else ... \\fi, at its place."""
    return "".join(
        c if c == "\n" or (m.start(1) >= 0 and m.start(1) <= m.start() + k < m.end(1)) else " "
        for k, c in enumerate(m.group(0))
    )


def displays(text: str, start: int, source: Source) -> Iterator[tuple[int, int]]:
    """(start, end) of what each display holds."""
    at = start
    while (m := _OPEN.search(text, at)) is not None:
        a = m.end()
        if m["env"]:
            close = f"\\end{{{m['env']}{m['star']}}}"
            if m["env"].startswith(WITH_COLUMNS):
                a = text.find("}", a) + 1 or a
        else:
            close = "\\]" if m.group(0) == "\\[" else "$$"
        b = text.find(close, a)
        heading = _HEADING.search(text, a)
        if b >= 0 and heading is not None and heading.start() < b and not m["env"]:
            b = -1
        if b < 0:
            source.slip(f"{m.group(0)} opens a display that is never closed", m.start())
            # what can be read of it ends with its paragraph, or before a heading
            stops = [x.start() for x in (re.compile(r"\n[ \t]*\n").search(text, a), heading) if x is not None]
            b = min([*stops, len(text)])
            yield a, b
            at = max(b, a)
            continue
        yield a, b
        at = b + len(close)


_INLINE = re.compile(r"(?<![\\$])\$(?![$\s])([^$\n]{1,400}?)(?<!\\)\$(?!\$)|(?<!\\)\\\((.{1,400}?)\\\)", re.S)


def inline(text: str, start: int) -> Iterator[tuple[int, int]]:
    for m in _INLINE.finditer(text, start):
        k = 1 if m.group(1) is not None else 2
        yield m.start(k), m.end(k)


# --- rows -----------------------------------------------------------------------------------------------------------


def rows_of(source: Source, tokens: list[Token], end: int, display: int, section: str) -> list[SourceRow]:
    """The rows of one display. A row that a line break cuts in two is one row."""
    rows = [aligned(r) for r in _split(opened(tokens, source))]
    joined: list[list[Token]] = []
    for r in rows:
        if not r:
            continue
        if joined and (continues(r) or unfinished(joined[-1])):
            joined[-1] = joined[-1] + without_space(r)
        else:
            joined.append(r)
    out = []
    starts = [r[0].at for r in joined] + [end]
    for r, stop in zip(joined, starts[1:]):
        line, column = source.place(r[0].at)
        text = source.text[r[0].at : max(stop, r[0].at)]
        out.append(SourceRow(r, tidy(text), line, column, max(t.at for t in r) + 1, display, section))
    return out


def tidy(text: str) -> str:
    """A row's text without the line's end and the environments around."""
    text = re.sub(r"\\(?:begin|end)\{(?:" + "|".join(ROWS) + r")\*?\}(?:\{\d+\})?", " ", text)
    text = re.sub(r"(?<!\\)%[^\n]*", " ", text)
    text = re.sub(r"\\\\(\[[^\]]*\])?\s*$", "", text.strip())
    return re.sub(r"\s+", " ", text).strip()


def opened(tokens: list[Token], source: Source) -> list[Token]:
    """The tokens without the environments that only make rows."""
    out: list[Token] = []
    i = 0
    stack: list[tuple[str, Token]] = []
    while i < len(tokens):
        t = tokens[i]
        if t.kind == "command" and t.text in ("begin", "end"):
            content, after = argument_at(tokens, i + 1)
            name = "".join(x.text for x in content).rstrip("*")
            if t.text == "begin":
                stack.append((name, t))
            elif stack and stack[-1][0] == name:
                stack.pop()
            else:
                source.slip(f"\\end{{{name}}} ends nothing", t.at)
                i = after
                continue
            if name in ROWS:
                if t.text == "begin" and [x.text for x in tokens[after : after + 3]] in (["[", c, "]"] for c in "tbc"):
                    after += 3
                if name.startswith(WITH_COLUMNS) and t.text == "begin":
                    _, after = argument_at(tokens, after)
                i = after
                continue
        out.append(t)
        i += 1
    for name, t in stack:
        source.slip(f"\\begin{{{name}}} is never ended", t.at)
        if name not in ROWS:
            out += [
                Token("command", "end", t.at),
                Token("mark", "{", t.at),
                *[Token("letter", c, t.at) for c in name],
                Token("mark", "}", t.at),
            ]
    return out


def _split(tokens: list[Token]) -> list[list[Token]]:
    """Rows at the line ends that stand in no environment; a brace that isn't closed doesn't hold the next rows."""
    found: list[list[Token]] = [[]]
    depth = stacked = 0
    for k, t in enumerate(tokens):
        if t.kind == "command":
            depth += (t.text == "begin") - (t.text == "end")
            if t.text == "substack" and tokens[k + 1 : k + 2] and tokens[k + 1].text == "{":
                stacked = max(stacked, closing(tokens, k + 1)) if closing(tokens, k + 1) < len(tokens) else stacked
        if t.kind == "row" and depth <= 0 and k >= stacked:
            found.append([])
        else:
            found[-1].append(t)
    return found


def aligned(row: list[Token]) -> list[Token]:
    """A row without the marks that align relations; other marks separate columns, as a comma does."""
    out: list[Token] = []
    depth = 0
    for k, t in enumerate(row):
        if t.kind == "command":
            depth += (t.text == "begin") - (t.text == "end")
        if t.kind == "mark" and t.text == "&" and depth == 0:
            after = row[k + 1] if k + 1 < len(row) else None
            joins = (
                after is None
                or after.text in RELATIONS
                or after.text in (":", "+", "-", "not", "&", "stackrel", "overset", "{")
            )
            if out and not joins and out[-1].text not in RELATIONS and out[-1].text not in ("+", "-"):
                out.append(Token("command", "quad", t.at))
            continue
        out.append(t)
    return out


def without_space(row: list[Token]) -> list[Token]:
    """A row without the space before it: \\quad, and {}."""
    rest = list(row)
    while rest[1:] and (rest[0].text in ("quad", "qquad") or [t.text for t in rest[:2]] == ["{", "}"]):
        rest = rest[2 if rest[0].text == "{" else 1 :]
    return rest or row


def continues(row: list[Token]) -> bool:
    """Whether a row goes on with the sum or product of the row before."""
    row = without_space(row)
    first = row[0]
    return (
        first.kind in ("mark", "command")
        and first.text in ("+", "-", "minus", "cdot", "times", "odot", "otimes", "circ", "/")
        and not any(
            t.text in RELATIONS and depth_of(row[:k]) == 0 for k, t in enumerate(row) if t.kind in ("mark", "command")
        )
    )


def unfinished(row: list[Token]) -> bool:
    """Whether a row ends where something must follow."""
    last = next((t for t in reversed(row) if t.text not in ("quad", "qquad")), row[-1])
    return last.kind in ("mark", "command") and last.text in (
        "+",
        "-",
        "minus",
        "cdot",
        "times",
        "odot",
        "otimes",
        "=",
        "triangleq",
    )


KNOWN = ROWS | MATRICES | CASES
