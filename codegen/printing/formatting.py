"""How generated text is laid out: by `ruff format`, and then with several arguments to a line, as a reader lays out a long call.

What a printer has laid out by meaning, such as a tensor with its strides, it ends with AS_LAID; it stays as it is.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chunkform.errors import BuildError

from ..ir.words import Words, listed

LINE = 120  # of code; ruff breaks what is longer
AS_LAID = "  # fmt: skip"  # ruff's mark; it stands in no generated file
LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def formatted(text: str, name: str = "generated.py") -> str:
    """The text of a file of this name, laid out."""
    return filled(_by_ruff(text, name))


def in_lines(groups: Iterable[Iterable[Words]], width: int = LINE - 8) -> list[Words]:
    """Lines of arguments, each with a comma behind it: as many groups to a line as fit, and no group in two lines."""
    lines: list[Words] = []
    free = 0
    for group in groups:
        words = (*listed(group), ",")
        taken = sum(map(len, words))
        if len(words) > 1 and lines and taken < free:
            lines[-1] = (*lines[-1], " ", *words)
            free -= taken + 1
        elif len(words) > 1:
            lines.append(words)
            free = width - taken
    return lines


def _by_ruff(text: str, name: str) -> str:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "format",
        "--isolated",
        f"--line-length={LINE}",
        "--config=format.skip-magic-trailing-comma=true",
        f"--stdin-filename={name}",
        "-",
    ]
    try:
        done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=True)
    except FileNotFoundError as error:
        raise BuildError(f"can't run ruff to format the generated file: {error}") from error
    except subprocess.CalledProcessError as error:
        if "No module named ruff" in error.stderr:
            raise BuildError("ruff, which formats generated files, isn't installed: pip install ruff") from error
        raise BuildError(f"the generated text isn't valid Python: {error.stderr.strip()}") from error
    return done.stdout


# --- several arguments to a line --------------------------------------------------------------------------------------


@dataclass
class _Row:
    """A line of text: how many brackets are open where it begins, at the least within it, and where it ends; its last token."""

    before: int
    least: int
    after: int
    last: str
    noted: bool = False  # it has a comment, or part of a text of several lines

    @property
    def argument(self) -> bool:
        """Is it a whole argument, or some, inside of brackets?"""
        return 0 < self.before == self.least == self.after and self.last == "," and not self.noted


def filled(text: str) -> str:
    """The text with arguments that have a line each put together, as many as fit; marks of what is laid out are taken away."""
    rows, laid = _rows(text)
    out: list[str] = []
    open_list: tuple[int, int] | None = None  # the brackets and the indentation of the arguments that the last line has
    for number, line in enumerate(text.split("\n"), 1):
        row = rows.get(number)
        words = line.strip()
        here = None
        if row is not None and row.argument and number not in laid:
            here = (row.before, len(line) - len(words))
        if here is not None and here == open_list and len(out[-1]) + 1 + len(words) <= LINE:
            out[-1] += f" {words}"
        else:
            out.append(line.removesuffix(AS_LAID) if number in laid else line)
        open_list = here
    return "\n".join(out)


def _rows(text: str) -> tuple[dict[int, _Row], set[int]]:
    """The lines that have code, and the numbers of those that a printer has laid out."""
    rows: dict[int, _Row] = {}
    laid: set[int] = set()
    depth = 0
    for statement in _statements(text):
        for t in statement:
            if t.type == tokenize.COMMENT:
                if t.string == AS_LAID.strip():
                    laid.update(range(statement[0].start[0], t.start[0] + 1))
                if t.start[0] in rows:
                    rows[t.start[0]].noted = True
                continue
            row = rows.setdefault(t.start[0], _Row(depth, depth, depth, ""))
            if t.type == tokenize.OP:
                depth += (t.string in "([{") - (t.string in ")]}")
            row.least, row.after, row.last = min(row.least, depth), depth, t.string
            row.noted = row.noted or t.start[0] != t.end[0]
            if t.end[0] != t.start[0]:
                rows[t.end[0]] = _Row(depth, depth, depth, t.string, noted=True)
    return rows, laid


def _statements(text: str) -> Iterator[list[tokenize.TokenInfo]]:
    """The tokens of each statement, or of the head of one, without those of layout."""
    found: list[tokenize.TokenInfo] = []
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        if t.type not in LAYOUT:
            found.append(t)
        if t.type == tokenize.NEWLINE and found:
            yield found
            found = []
    if found:
        yield found
