"""What the catalogue holds, without compiling it: read from the texts of generated files, in milliseconds."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from chunkform.errors import LoadError, nearest

GENERATED = Path(__file__).resolve().parents[2] / "generated"
SHELVES = (GENERATED, GENERATED / "published")
FAMILIES = ("chunk-parallel", "strata", "scan", "segment-parallel", "sequential", "attention", "program")
NARROW = 100  # columns that a table of ops wants
_PRINTED = {"pairwise": "attention"}  # where a generated file has another word
_DOCSTRING = re.compile(r'^    r?"""', re.MULTILINE)
_FAMILY = re.compile(r"^family: ([\w-]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Listed:
    """An op of the catalogue. `arguments`: what a call must be given, by their names."""

    name: str
    family: str
    arguments: tuple[str, ...]
    doc: str

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.arguments)}): {self.doc}"

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return {n: list(x) if isinstance(x, tuple) else x for n, x in asdict(self).items()}


def names() -> list[str]:
    """The names of the catalogue's ops, of both shelves."""
    return sorted(_files())


def _files() -> dict[str, Path]:
    return {p.stem: p for shelf in SHELVES for p in shelf.glob("*.py") if p.stem[0] != "_"}


@functools.cache
def listed() -> tuple[Listed, ...]:
    """Every op of the catalogue, by name."""
    return tuple(_read(path) for _, path in sorted(_files().items()))


def catalogue(*words: str, family: str | None = None) -> list[Listed]:
    """The ops of the catalogue: those of a family whose name or description has every word, or all.

    Args:
        words: such as "delta".
        family: chunk-parallel, strata, scan, segment-parallel, sequential, attention or program.
    """
    if family not in (None, *FAMILIES):
        raise LoadError(f"family is one of {', '.join(FAMILIES)}, got {family!r}{nearest(str(family), FAMILIES)}")
    return matching(listed(), words, family)


def matching(ops: Iterable[Listed], words: Iterable[str] = (), family: str | None = None) -> list[Listed]:
    """Those of a family whose name, family or description has every word."""
    wanted = [w.lower() for w in words]
    return [
        x
        for x in ops
        if family in (None, x.family) and all(w in f"{x.name} {x.family} {x.doc}".lower() for w in wanted)
    ]


def instead(words: Iterable[str]) -> str:
    """What to say where no op has these words: the nearest that there are."""
    known = [*names(), *FAMILIES, *(part for n in names() for part in n.split("_") if len(part) > 2)]
    for word in words:
        if not matching(listed(), [word]) and (near := nearest(word, known)):
            return near
    return ": chunkform list has them all"


def show(ops: Iterable[Listed], console: Console) -> None:
    """Print a table, or, where it would cut names short, a few lines for each op."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for column in ("name", "family", "takes", ""):
        table.add_column(column, no_wrap=column in ("name", "family"))
    for x in ops:
        if console.width >= NARROW:
            table.add_row(x.name, x.family, ", ".join(x.arguments), escape(x.doc))
            continue
        console.print(f"[bold]{x.name}[/]  {x.family}", soft_wrap=True)
        for line in (", ".join(x.arguments), x.doc):
            console.print(Padding(escape(line), (0, 0, 0, 4)))
    if table.row_count:
        console.print(table)


def _read(path: Path) -> Listed:
    text = path.read_text(encoding="utf-8")
    head = text.split('"""', 2)[1]
    family = _FAMILY.search(head)
    assert family is not None, f"{path} has no family"
    name = path.stem
    start = text.index(f"\ndef {name}(") + 1
    stop = _DOCSTRING.search(text, start)
    assert stop is not None, f"{path} has an op without a docstring"
    function = ast.parse(f"{text[start : stop.start()]}    ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    given = function.args.args
    needed = given[: len(given) - len(function.args.defaults)]
    doc = head.splitlines()[0].removeprefix(f"{name}: ").strip()
    return Listed(name, _PRINTED.get(family[1], family[1]), tuple(a.arg for a in needed), doc)
