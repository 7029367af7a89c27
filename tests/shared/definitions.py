"""What a text of Python defines, as words: tests write definitions so, and read generated files."""

import ast
import re
from collections.abc import Iterable, Iterator

from chunkform.codegen.ir.words import (
    Bound,
    Default,
    Defined,
    Definition,
    Definitions,
    Keyword,
    Member,
    Read,
    Said,
    Word,
    Words,
)

TOKEN = re.compile(
    r'(?P<said>r?""".*?"""|r?"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#[^\n]*)'
    r"|(?P<number>\d[\w.]*(?:(?<=[eE])[-+]\d+)?)|(?P<name>[^\W\d]\w*)",
    re.DOTALL,
)
Kinds = dict[tuple[int, int], type[Word]]  # of names, by line and column


def read_definitions(text: str) -> Definitions:
    """The statements at the margin of a text, each with the white space behind it."""
    body = ast.parse(text).body
    ends = [0]
    for line in text.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    begins = [0, *(ends[_first_line(x) - 1] for x in body[1:])]
    return tuple(
        Definition(words_in(text, [(x, is_function)], begin, end), is_function)
        for x, begin, end in zip(body, begins, [*begins[1:], len(text)], strict=True)
        for is_function in (isinstance(x, ast.FunctionDef),)
    )


def _first_line(x: ast.stmt) -> int:
    return min([x.lineno, *(d.lineno for d in (x.decorator_list if isinstance(x, ast.FunctionDef) else ()))])


def words_in(text: str, statements: Iterable[tuple[ast.stmt, bool]], begin: int, end: int) -> Words:
    """The words of a part of a text of Python with these statements; names that they give may be a function's own."""
    starts, lines = _lines(text)
    kinds: dict[int, type[Word]] = {}
    for x, inside in statements:
        kinds |= _places(_kinds(x, inside), starts, lines)
    return tuple(_words(text, begin, end, kinds))


def _lines(text: str) -> tuple[list[int], list[str]]:
    """The lines of a text, and where each begins."""
    lines, starts = text.split("\n"), [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    return starts, lines


def _places(kinds: Kinds, starts: list[int], lines: list[str]) -> dict[int, type[Word]]:
    """Places in a text for lines and columns, which Python counts in bytes."""
    found = {}
    for (row, column), kind in kinds.items():
        line = lines[row - 1]
        found[starts[row - 1] + (column if line.isascii() else len(line.encode()[:column].decode()))] = kind
    return found


def _kinds(top: ast.AST, inside: bool) -> Kinds:
    """What the names of a statement are; those that it gives are its own if they are `inside` of a function."""
    found: Kinds = {}
    for x in ast.walk(top):
        match x:
            case ast.Name():
                given = Bound if inside else Defined
                found[x.lineno, x.col_offset] = Read if isinstance(x.ctx, ast.Load) else given
            case ast.arguments():
                plain = [*x.posonlyargs, *x.args]
                named = [*plain, *x.kwonlyargs, *(y for y in (x.vararg, x.kwarg) if y)]
                found |= {(y.lineno, y.col_offset): Bound for y in named}
                left_out = [y for y, default in zip(x.kwonlyargs, x.kw_defaults, strict=True) if default]
                left_out += plain[len(plain) - len(x.defaults) :]
                found |= {(y.lineno, y.col_offset): Default for y in left_out}
            case ast.keyword(arg=str()):
                found[x.lineno, x.col_offset] = Keyword
    return found


def _words(text: str, begin: int, end: int, kinds: dict[int, type[Word]]) -> Iterator[str]:
    """The words of a part of a text. A function's name stands behind `def`."""
    at, before = begin, ""
    for m in TOKEN.finditer(text, begin, end):
        kind: type[Word] | None = Said if m["said"] else None
        if m["name"]:
            kind = kinds.get(m.start())
            if kind is None and text[m.start() - 1 : m.start()] == ".":
                kind = Member
            elif kind is None and before == "def":
                kind = Bound if text[m.start() - 5 : m.start() - 4] == " " else Defined
            before = m[0]
        if kind is None:
            continue
        if m.start() > at:
            yield text[at : m.start()]
        yield kind(m[0])
        at = m.end()
    if at < end:
        yield text[at:end]
