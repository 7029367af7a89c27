"""The header of a document: a block of TOML, in a comment of it or in a file beside it, that says what its symbols are as far as
the document doesn't. Symbols are written as in the document, in LaTeX.

    steps = "n"                              the letter for the number of steps
    sizes = "d e"                            other sizes

    [symbols]                                what a symbol is: its kind, and its dims
    '\\mathbf q_t' = "input d"
    '\\lambda_t' = "decay"
    '\\mathbf X' = "given d d"

    [define]                                 what a symbol stands for
    '\\mathbf Q' = 'rows_t(\\mathbf q_t)'

    [readings.'\\mathbf S_i']                 what it may stand for; each reading is tried
    "S_i is the state before chunk i" = '\\mathbf s_{(i-1)c}'
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chunkform.errors import LoadError

from .lexer import Token, expanded, tokens_of
from .reader import SourceRow
from .words import FUNCTIONS

MARK = "chunkform"
KINDS = set(
    "input decay parameter constant state output let given positive slow symmetric matrix loss size function label skip "
    "defined".split()
)
KEYS = {
    "title",
    "name",
    "steps",
    "sizes",
    "chunk",
    "chunks",
    "symbols",
    "define",
    "readings",
    "indices",
    "rows",
    "recurrence",
    "part",
    "upper",
    "loss",
    "given",
    "skip",
}


@dataclass
class Header:
    """What a header says. `path` is where it stands; `data` is its TOML."""

    data: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    parts: tuple[tuple[int, Header], ...] = ()  # from which line on which header holds
    sizes: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    upper: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()

    def tokens_for(self, row: SourceRow) -> list[Token]:
        """The row's tokens, or those of how the header says it is meant."""
        said = self.data.get("rows", {}).get(str(row.line))
        return row.tokens if not isinstance(said, str) else expanded(tokens_of(said), {})

    def at(self, line: int) -> Header:
        """The header that holds at a line."""
        return next((h for start, h in reversed(self.parts) if start <= line), self)

    def table(self, name: str) -> dict[str, Any]:
        found = self.data.get(name, {})
        return found if isinstance(found, dict) else {}


def header_path(path: str) -> Path:
    return Path(path).with_suffix(".toml")


def find_header(text: str, path: str) -> Header:
    """The header of a document: in a comment, or in the file of the same name that ends with .toml.

    Raises:
        LoadError: it isn't TOML, or says what a header doesn't say.
    """
    inside = in_comment(text)
    beside = header_path(path)
    if inside is not None:
        return parsed(inside, path)
    if beside.is_file():
        try:
            return parsed(beside.read_text(encoding="utf-8"), str(beside))
        except (OSError, UnicodeDecodeError) as error:
            raise LoadError(f"can't read the header {beside}: {error}") from error
    return Header()


def in_comment(text: str) -> str | None:
    """The TOML of a comment that starts with the word chunkform: <!-- chunkform .. -->, or lines that start with %."""
    m = re.search(rf"<!--\s*{MARK}\s*\n(.*?)-->", text, re.S)
    if m:
        return m.group(1)
    m = re.search(rf"^%+\s*{MARK}\s*(?:header)?\s*\n((?:^%.*\n?)+)", text, re.M)
    return re.sub(r"^%+ ?", "", m.group(1), flags=re.M) if m else None


def parsed(text: str, path: str) -> Header:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LoadError(f"the header of {path} isn't TOML: {error}") from error
    return of_data(data, path)


def of_data(data: dict[str, Any], path: str) -> Header:
    """The header that TOML says."""
    unknown = sorted(set(data) - KEYS)
    if unknown:
        raise LoadError(f"the header of {path} says {unknown[0]!r}, which is none of {', '.join(sorted(KEYS))}")
    for name, said in data.get("symbols", {}).items():
        kind = str(said).split()[0] if str(said).split() else ""
        if kind not in KINDS:
            raise LoadError(
                f"the header of {path} says that {name} is {said!r}: expected one of {', '.join(sorted(KINDS))}, and dims"
            )
    sizes = set(str(data.get("sizes", "")).split()) | {
        str(data.get(k)) for k in ("steps", "chunk", "chunks") if data.get(k)
    }
    functions, labels, names = set(), set(), set()
    for name, said in data.get("symbols", {}).items():
        found = name_of(name)
        if str(said).startswith("function"):
            functions.add(found)
        if str(said).startswith("label"):
            labels.add(found)
        if found:
            names.add(found)
    for table in ("define", "readings"):
        for name in data.get(table, {}):
            stem = name.split("(")[0]
            if "(" in name:
                functions.add(name_of(stem))
            names.add(name_of(stem))
    upper = {name_of(x) for x in str(data.get("upper", "")).split()}
    made = Header(
        data,
        path,
        (),
        frozenset(sizes),
        frozenset(functions - set(FUNCTIONS)),
        frozenset(upper),
        frozenset(names),
        frozenset(labels),
    )
    return with_parts(made, path)


def with_parts(whole: Header, path: str) -> Header:
    """The header with those of its parts, each of which says what the whole says, and more."""
    tables = whole.data.get("part", [])
    if not tables:
        return whole
    common = {k: v for k, v in whole.data.items() if k != "part"}
    parts = []
    for table in tables if isinstance(tables, list) else []:
        if not isinstance(table, dict) or not isinstance(table.get("from"), int):
            raise LoadError(f"the header of {path}: a part says `from`, the line where it starts")
        own = {k: v for k, v in table.items() if k != "from"}
        merged = {k: {**common.get(k, {}), **v} if isinstance(v, dict) else v for k, v in own.items()}
        parts.append((table["from"], of_data({**common, **merged}, path)))
    joined: dict[str, Any] = {
        k: frozenset.union(getattr(whole, k), *(getattr(h, k) for _, h in parts))
        for k in ("sizes", "functions", "upper", "names")
    }
    return replace(whole, parts=tuple(sorted(parts, key=lambda p: p[0])), **joined)


def name_of(tex: str) -> str:
    """The name that a symbol of LaTeX has in formulas, without its indices."""
    from .row import spelled

    tokens = expanded(tokens_of(tex), {})
    cut = next((k for k, t in enumerate(tokens) if t.text in ("_", "^") and k), len(tokens))
    found = spelled(tokens[:cut])
    if found is None and cut == 2 and tokens[0].kind == "letter":
        return tokens[0].text + tokens[1].text
    return found or tex.strip()
