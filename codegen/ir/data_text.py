"""What a pass made, as text for people: dataclasses field by field, expressions in matrix notation.

Names that the compiler made of a hash are numbered in the order in which they come up: x1, x2, ..
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from .evaluate import CHUNK_OPERATIONS
from .expr import COL, ROW, Node, leaf, replace, walk
from .notation import plain

_HASHED = re.compile(r"\b[0-9a-f]{10,}\b")
_PLACE = re.compile(r"place(\d+)x")
LEFT_OUT = ("origins", "known")  # where terms were written, and what was found out since
LINE = 110


class Writer:
    """Writes what passes made, in order: an expression that was numbered once keeps its number, and a value that an earlier pass
    made is not written again. `show` writes an expression, where it isn't to be written as here."""

    def __init__(self, show: Callable[[Node], str] | None = None) -> None:
        self.before: dict[int, tuple[str, Any]] = {}
        self.show = show or _Expressions().text

    def text(self, where: str, name: str, value: object) -> str:
        """`value` under its name; it was made by the pass `where`."""
        lines = list(self.lines(name, value))
        if value is not None:
            self.before.setdefault(id(value), (where, value))  # which keeps the value, and so its id
        return "\n".join(lines) + "\n"

    def lines(self, name: str, value: Any, depth: int = 0) -> Iterator[str]:
        pad = "    " * depth
        short = self.short(value)
        if short is not None:
            yield f"{pad}{name}{' = ' if isinstance(value, Node) else ': '}{short}"
        elif isinstance(value, Mapping):
            yield f"{pad}{name}:"
            for key, x in value.items():
                yield from self.lines(self.key(key), x, depth + 1)
        elif dataclasses.is_dataclass(value):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(value).__name__).lower()
            inner = [line for n, x in _fields_of(value) for line in self.lines(n, x, depth + 1)]
            flat = f"{pad}{name}: {words}, {'; '.join(map(str.strip, inner))}"
            if len(flat) <= LINE and not any(line.endswith(":") or line.startswith(f"{pad}        ") for line in inner):
                yield flat
                return
            yield f"{pad}{name}:" if words == name else f"{pad}{name}: {words}"
            yield from inner
        else:
            yield f"{pad}{name}:"
            for n, x in enumerate(value, 1):
                yield from self.lines(str(n), x, depth + 1)

    def key(self, x: object) -> str:
        return self.node(x) if isinstance(x, Node) else str(x)

    def short(self, x: object) -> str | None:
        """x in one line, where it goes into one."""
        if id(x) in self.before:
            return f"as after {self.before[id(x)][0]}"
        if isinstance(x, Node):
            return self.node(x)
        if x is None or isinstance(x, bool):
            return {None: "none", True: "yes", False: "no"}[x]
        if isinstance(x, str | int | float | Fraction):
            return str(x)
        if isinstance(x, frozenset | set):
            return ", ".join(sorted(self.key(y) for y in x)) or "none"
        if isinstance(x, tuple | list):
            parts = [self.short(y) for y in x]
            simple = all(p is not None and not isinstance(y, Node) for p, y in zip(parts, x, strict=True))
            return (", ".join(p for p in parts if p is not None) or "none") if simple else None
        if isinstance(x, Mapping):
            return None if x else "none"
        if dataclasses.is_dataclass(x):
            own = {f.name for f in dataclasses.fields(x)} >= {"spec", "gates"}
            return "compiled by passes of its own" if own else None
        return str(getattr(x, "name", None) or x)

    def node(self, x: Node) -> str:
        axes = f"   over {', '.join(_axis(a) for a in x.axes)}" if x.axes and x.op != "leaf" else ""
        return self.show(x) + axes


class _Expressions:
    """Expressions in matrix notation, with short names in the place of hashes."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.places: list[str] = []

    def text(self, x: Node) -> str:
        table: dict[Node, Node] = {}
        for y in walk(x):
            if y.op in CHUNK_OPERATIONS and y.op != "inverse":
                given = ", ".join([*map(self.text, y.args), *map(str, y.attrs)])
                table[y] = self.place(f"{y.op}({given})", "chunk", y.axes)
            elif y.op == "leaf":
                kind, name, axes = y.attrs
                kind = "chunk" if ROW in axes or COL in axes else kind
                hashed = _HASHED.search(name)
                if hashed:
                    table[y] = self.place(_HASHED.sub(lambda m: self.number(m[0]), name), kind, axes)
                elif kind != y.attrs[0]:
                    table[y] = leaf(kind, name, axes)
        return self.placed(plain(replace(x, table)))

    def number(self, name: str) -> str:
        return f"x{self.numbers.setdefault(name, len(self.numbers) + 1)}"

    def place(self, text: str, kind: str, axes: tuple[str, ...]) -> Node:
        """A leaf that is printed as any text."""
        if text not in self.places:
            self.places.append(text)
        return leaf(kind, f"place{self.places.index(text)}x", axes)

    def placed(self, text: str) -> str:
        while _PLACE.search(text):
            text = _PLACE.sub(lambda m: self.places[int(m[1])], text)
        return text


def _fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that say something."""
    for f in dataclasses.fields(value):
        x = getattr(value, f.name)
        if f.name not in LEFT_OUT and f.repr and x is not None and x != () and x != {}:
            yield f.name, x


def _axis(axis: str) -> str:
    return {ROW: "steps", COL: "steps'"}.get(axis, axis.lstrip("%0"))
