"""How generated text is laid out: by `ruff format`, and then with several arguments to a line, as a reader lays out a long call.

What a printer has laid out by meaning, such as a tensor with its strides, it ends with AS_LAID; it stays as it is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from chunkform.errors import BuildError

from ..ir.words import Words, listed

LINE = 120  # of code; ruff breaks what is longer
AS_LAID = "  # fmt: skip"  # ruff's mark; it stands in no generated file


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
    line, depth, begun = 1, 0, 0  # begun: where a statement has, or 0
    row: _Row | None = None
    for t in TOKENS.finditer(text):
        kind, words = t.lastgroup, t[0]
        if kind == "newline":
            line, row = line + 1, None
            begun = begun if depth else 0
        elif kind == "comment":
            if words == AS_LAID.strip():
                laid.update(range(begun or line, line + 1))
            if row is not None:
                row.noted = True
        else:
            begun = begun or line
            if row is None:
                row = rows[line] = _Row(depth, depth, depth, "")
            if kind == "open":
                depth += 1
            elif kind == "close":
                depth -= 1
                row.least = min(row.least, depth)
            row.after, row.last = depth, words[-1]
            if kind == "text" and (more := words.count("\n")):
                row.noted = True
                line += more
                row = rows[line] = _Row(depth, depth, depth, "", noted=True)
    return rows, laid


# What decides where lines may be joined: brackets, texts, comments and ends of lines; all else is words.
TOKENS = re.compile(
    r"""(?P<newline>\n)|(?P<comment>\#[^\n]*)|(?P<open>[(\[{])|(?P<close>[)\]}])
    |(?P<text>\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<words>[^\s#()\[\]{}"']+)""",
    re.VERBOSE | re.DOTALL,
)
