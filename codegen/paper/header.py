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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chunkform.errors import LoadError, nearest

from .lexer import Token, expanded, tokens_of
from .reader import SourceRow
from .words import FUNCTIONS

MARK = "chunkform"
KINDS = set(
    "input decay parameter constant state output let given positive slow symmetric matrix loss size function label skip "
    "defined".split()
)
KEYS: dict[str, type] = {  # what a header says, and whether it is text, a list or a table
    **dict.fromkeys("title name steps sizes chunk chunks upper".split(), str),
    **dict.fromkeys("symbols define readings indices rows remarks".split(), dict),
    **dict.fromkeys("recurrence part".split(), list),
}
SHAPES: dict[type, str] = {  # how each of these is written
    str: '`{} = "..."`',
    dict: "a table: `[{}]`, and a line for each",
    list: "`{} = [..]`",
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

    def remark(self, line: int) -> str:
        """What the header says of a row that isn't judged, by its line; nothing where it says nothing."""
        for name, said in self.table("remarks").items():
            first, _, last = name.partition("-")
            if int(first) <= line <= int(last or first):
                return str(said)
        return ""

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
        LoadError: it isn't TOML, or says what a header doesn't say, or stands in two places.
    """
    inside = in_comment(text)
    beside = header_path(path)
    for other in (beside.with_suffix(".yaml"), beside.with_suffix(".yml")):
        if other.is_file() and inside is None and not beside.is_file():
            raise LoadError(
                f"{other} isn't read: a header is TOML, and stands in {beside.name} or in a comment of {path}"
            )
    if inside is not None:
        if beside.is_file():
            raise LoadError(f"{path} has a header in a comment, and another in {beside}: keep one of them")
        said, line = inside
        return parsed(said, path, line)
    if beside.is_file():
        try:
            return parsed(beside.read_text(encoding="utf-8"), str(beside))
        except (OSError, UnicodeDecodeError) as error:
            raise LoadError(f"can't read the header {beside}: {error}") from error
    return Header()


def in_comment(text: str) -> tuple[str, int] | None:
    """The TOML of a comment that starts with the word chunkform, <!-- chunkform .. --> or lines that start with %, and the line
    before it."""
    m = re.search(rf"<!--\s*{MARK}[ \t]*\n(.*?)-->", text, re.S)
    if m:
        return m.group(1), text.count("\n", 0, m.start(1))
    m = re.search(rf"^%+[ \t]*{MARK}[ \t]*(?:header)?[ \t]*\n((?:^%.*\n?)+)", text, re.M)
    return (re.sub(r"^%+ ?", "", m.group(1), flags=re.M), text.count("\n", 0, m.start(1))) if m else None


def parsed(text: str, path: str, before: int = 0) -> Header:
    """The header that TOML says, which starts behind so many lines of its file."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LoadError(f"the header of {path} isn't TOML: {place_of(str(error), text, before)}") from error
    return of_data(data, path)


def place_of(said: str, text: str, before: int) -> str:
    """What is wrong with TOML, with the line in its file, as it stands there."""
    m = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", said)
    lines = text.splitlines()
    number = int(m.group(1)) if m and m.group(1) else len(lines)
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    told = f"line {before + number}, `{line}`: {said[: m.start()] if m else said}"
    if re.match(r"[^\s=\[\]]+\s*:(?!=)", line) or line.startswith("- "):
        told += """; it looks like YAML, and TOML has `name = "value"`"""
    elif "\\" in line and '"' in line:
        told += "; LaTeX stands in single quotes, as in '\\lambda_t' = \"decay\""
    return told


def of_data(data: dict[str, Any], path: str) -> Header:
    """The header that TOML says."""
    refuse_what_is_unknown(data, path)
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
            stem = name.split("(")[0] if is_call(name) else name
            if is_call(name):
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


def refuse_what_is_unknown(data: Mapping[str, object], path: str) -> None:
    """Say what of a header isn't as headers are.

    Raises:
        LoadError: a key, a kind, or what stands behind one isn't known.
    """
    for key, said in data.items():
        if key not in KEYS:
            near = nearest(key, KEYS)
            raise LoadError(f"the header of {path} says {key!r}, which is none of {', '.join(sorted(KEYS))}{near}")
        if not isinstance(said, KEYS[key]):
            raise LoadError(f"the header of {path}: {key} is {SHAPES[KEYS[key]].format(key)}, got {said!r}")
        if isinstance(said, dict):
            for name, value in said.items():
                check = {"symbols": no_symbol, "readings": no_readings}.get(key, no_text)
                wrong = check(key, name, value)
                if wrong:
                    raise LoadError(f"the header of {path}, [{key}]: {wrong}")
        elif key == "recurrence" and isinstance(said, list) and not all(isinstance(x, str) for x in said):
            raise LoadError(f"the header of {path}: recurrence is a list of equations in quotes, got {said!r}")


def no_symbol(table: str, name: str, said: object) -> str:
    """What is wrong with what a header says that a symbol is."""
    kind, *dims = str(said).split() or [""]
    if kind not in KINDS:
        return f"{name} is {said!r}: expected one of {', '.join(sorted(KINDS))}, and dims{nearest(kind, KINDS)}"
    if len(dims) > 2 or not all(d == "1" or d.isidentifier() for d in dims):
        return f'{name} is {said!r}: expected a kind and at most two dims, as "input d"'
    return ""


def no_readings(table: str, name: str, said: object) -> str:
    if isinstance(said, dict) and all(isinstance(x, str) for x in said.values()):
        return ""
    return f"the readings of {name} are a table of their own, [readings.'{name}'], with a line for each: \"what is meant\" = '..'"


def no_text(table: str, name: str, said: object) -> str:
    """What is wrong with a line of a table of texts."""
    if not isinstance(said, str):
        return f"{name} is text in quotes, got {said!r}"
    if table == "indices" and ".." not in said:
        return f'{name} is a range such as "1..n", got {said!r}'
    if table == "rows" and not name.isdigit():
        return f"expected the number of a line, got {name!r}"
    if table == "remarks" and not re.fullmatch(r"\d+(-\d+)?", name):
        return f'expected the number of a line, or a range such as "85-93", got {name!r}'
    return ""


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


def is_call(tex: str) -> bool:
    """Whether a symbol of the header is applied to something, as f(x) is, and o_t^{(i)} isn't."""
    return "(" in re.sub(r"[_^]\s*(\{[^{}]*\}|.)", "", tex)


def name_of(tex: str) -> str:
    """The name that a symbol of LaTeX has in formulas, without its indices."""
    from .row import spelled

    tokens = expanded(tokens_of(tex), {})
    cut = next((k for k, t in enumerate(tokens) if t.text in ("_", "^") and k), len(tokens))
    found = spelled(tokens[:cut])
    if found is None and cut == 2 and tokens[0].kind == "letter":
        return tokens[0].text + tokens[1].text
    return found or tex.strip()
