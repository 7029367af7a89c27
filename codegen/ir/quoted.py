"""Words of Python that the compiler's own source quotes: templates of expressions and statements, with holes for what is data.

This is the one place that reads Python, and it reads no code that the compiler has made: that is data until it is printed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from string import Formatter

from .words import Bound, Default, Defined, Keyword, Member, Read, Said, Word, Words

TOKEN = re.compile(
    r'(?P<said>r?""".*?"""|r?"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#[^\n]*)'
    r"|(?P<number>\d[\w.]*(?:(?<=[eE])[-+]\d+)?)|(?P<name>[^\W\d]\w*)",
    re.DOTALL,
)
# how arguments, a statement, more arguments, items of a dictionary and a slice become Python
FORMS = ("_(", ")"), ("", ""), ("_(_", ")"), ("{", "}"), ("_[", "]")
HOLE = "\u2135"  # where a part stands: a letter that no name has
Kinds = dict[tuple[int, int], type[Word]]  # of names, by line and column


@lru_cache(1 << 16)
def quoted(template: str) -> Words:
    """The words of an expression, of arguments of a call, of a statement, of more arguments, with a comma before, of items of
    a dictionary, or of a slice; those that have a HOLE are to be filled."""
    for before, after in FORMS:
        text = f"{before}{template}{after}"
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        return words_in(text, [(x, True) for x in tree.body], len(before), len(text) - len(after))
    raise ValueError(f"expected an expression or a statement of Python, got {template!r}")


@cache
def parameters(head: str) -> Words:
    """The words of a function's parameters, in parentheses."""
    words = quoted(f"def _{head}: ...\n")
    at = next(n for n, x in enumerate(words) if isinstance(x, Defined))
    *inside, last = words[at + 1 :]
    return (*inside, last.removesuffix(": ...\n"))


def filled(template: str, parts: Sequence[Words | str]) -> Words:
    """The words of a template that has {} wherever one of these parts stands: words, or a name, or part of one."""
    text, order = _with_holes(template)
    left = (parts[n] for n in order)
    found: list[str] = []
    for word in quoted(text):
        *holes, last = word.split(HOLE)
        if word == HOLE:
            part = next(left)
            found += part if isinstance(part, tuple) else quoted(part) if type(word) is Read else (type(word)(part),)
        elif holes:
            text = "".join(f"{x}{_text(next(left))}" for x in holes) + last
            if not isinstance(word, Said) and not text.isidentifier():
                raise ValueError(f"expected a name where {template!r} has one, got {text!r}")
            found.append(type(word)(text))
        else:
            found.append(word)
    return tuple(found)


@cache
def _with_holes(template: str) -> tuple[str, tuple[int, ...]]:
    """A template with a HOLE for each part, and which part that is."""
    pieces: list[str] = []
    order: list[int] = []
    for literal, name, *_ in Formatter().parse(template):
        pieces.append(literal)
        if name is not None:
            order.append(int(name) if name else len(order))
            pieces.append(HOLE)
    return "".join(pieces), tuple(order)


def words_in(text: str, statements: Iterable[tuple[ast.stmt, bool]], begin: int, end: int) -> Words:
    """The words of a part of a text of Python with these statements; names that they give may be a function's own."""
    starts, lines = _lines(text)
    kinds: dict[int, type[Word]] = {}
    for x, inside in statements:
        kinds |= _places(_kinds(x, inside), starts, lines)
    return tuple(_words(text, begin, end, kinds))


def _text(part: Words | str) -> str:
    return "".join(part) if isinstance(part, tuple) else part


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
