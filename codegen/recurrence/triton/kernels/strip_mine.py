"""A sweep's statements, slice by slice along the axes that it has whole: a slice's operands are in registers only while a product
takes them, so that states of 256 channels fit.

Statements are printed as if there were one slice. What depends on the number of a slice, `n_d` for the axis d, goes into a loop
over slices; what another loop uses of it is held in a tuple, as states are. A sum over the axis is printed as one that is added
up: to a name that exists before. What a loop doesn't need stays behind it, and comes before it where it does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from ....ir.expr import plain_name
from ..plan_passes.roles import CannotPrint


@dataclass
class Statement:
    """A statement of a kernel, perhaps with a block of its own; `places` are its names: (line, first column, last, name, and
    whether it is assigned there)."""

    lines: list[str]
    reads: set[str]
    writes: set[str]
    places: list[tuple[int, int, int, str, bool]]

    def conflicts(self, later: Statement) -> bool:
        return bool(self.writes & (later.reads | later.writes) or self.reads & later.writes)

    def text(self, instead: Callable[[str, bool], str]) -> list[str]:
        """The lines with other names: `instead` of each, and where it is assigned."""
        lines = list(self.lines)
        for line, start, stop, name, assigned in sorted(self.places, reverse=True):
            text = lines[line].encode()
            lines[line] = (text[:start] + instead(name, assigned).encode() + text[stop:]).decode()
        return lines


@dataclass
class Loop:
    """Statements that are made for each slice."""

    counter: str
    statements: list[Statement] = field(default_factory=list)
    sums: set[str] = field(default_factory=set)  # what is added up over the slices

    @property
    def reads(self) -> set[str]:
        return set().union(*(s.reads for s in self.statements))

    @property
    def writes(self) -> set[str]:
        return set().union(*(s.writes for s in self.statements))


def statements(lines: Iterable[str]) -> tuple[Statement, ...]:
    """The statements that lines hold."""
    return _statements(tuple(lines))


@lru_cache(maxsize=2**8)
def _statements(lines: tuple[str, ...]) -> tuple[Statement, ...]:
    """The same, read once for those who cut a kernel, and for each time that it is printed."""
    found = []
    for node in ast.parse("\n".join(lines)).body:
        assert node.end_lineno is not None
        first = node.lineno - 1
        reads: set[str] = set()
        writes: set[str] = set()
        places: list[tuple[int, int, int, str, bool]] = []
        waiting: list[ast.AST] = [node]
        while waiting:
            x = waiting.pop()
            if isinstance(x, ast.Name):
                assert x.end_col_offset is not None
                assigned = isinstance(x.ctx, ast.Store)
                places.append((x.lineno - 1 - first, x.col_offset, x.end_col_offset, x.id, assigned))
                (writes if assigned else reads).add(x.id)
                continue
            if isinstance(x, ast.AugAssign) and isinstance(x.target, ast.Name):
                reads.add(x.target.id)
            for name in x._fields:
                part = getattr(x, name)
                if isinstance(part, ast.AST):
                    waiting.append(part)
                elif isinstance(part, list):
                    waiting += [y for y in part if isinstance(y, ast.AST)]
        found.append(Statement(list(lines[first : node.end_lineno]), reads, writes, places))
    return tuple(found)


def needed_for(loop: Iterable[str], names: set[str], yields: str | None = None) -> set[str]:
    """What a loop reads for what it hands on in these names to its next pass, and for the block that begins so, if there is one,
    of all that it does only where YIELD."""
    found = statements(loop)
    blocks = [s for s in found if "YIELD" in s.reads]
    needed = names.union(*(s.reads for s in blocks if s.lines[0] == yields))
    before = set[str]()
    while needed != before:
        before = set(needed)
        for s in found:
            if s.writes & needed and s not in blocks:
                needed |= s.reads
    return needed


def sliced(
    sections: dict[str, list[str]], counters: dict[str, str], states: dict[str, str], fresh: Callable[[str], str]
) -> dict[str, list[str]]:
    """The sections of a kernel, one after the other, with loops over slices. `counters`: how many slices there are, by the name
    of a slice's number; `states`: the name of the number by the names of states.

    Raises:
        CannotPrint: a statement takes slices of two axes.
    """
    if not counters:
        return sections
    along = {**{n: n for n in counters}, **states}  # by what each sliced name is
    whole: set[str] = set()
    items = {name: _in_loops(statements(lines), along, whole) for name, lines in sections.items()}
    loops = [x for section in items.values() for x in section if isinstance(x, Loop)]
    held = set(states)
    for loop in loops:
        for name in loop.writes - loop.sums:
            if any(name in x.reads | x.writes for x in loops if x is not loop):
                held.add(name)
    out: dict[str, list[str]] = {}
    known: set[str] = set()  # tuples that there are so far
    for section, found in items.items():
        out[section] = []
        for x in found:
            out[section] += (
                x.lines if isinstance(x, Statement) else _printed(x, counters[x.counter], held, known, fresh)
            )
    return out


def _in_loops(found: Iterable[Statement], along: dict[str, str], whole: set[str]) -> list[Statement | Loop]:
    out: list[Statement | Loop] = []
    loop: Loop | None = None
    waiting: list[Statement] = []  # what stands behind the loop so far
    for s in found:
        axes = {along[n] for n in s.reads | s.writes if n in along}
        if len(axes) > 1:
            raise CannotPrint(f"slices of two axes: {s.lines[0].strip()}")
        if not axes:
            whole |= s.writes
            (out if loop is None else waiting).append(s)
            continue
        (axis,) = axes
        if loop is not None:
            needed = _needed(waiting, s)
            made = loop.writes
            if (
                loop.counter != axis
                or (s.reads & loop.sums) - s.writes
                or any(q.reads & made or q.writes & (made | loop.reads) for q in needed)
            ):
                out += [loop, *waiting]
                loop, waiting = None, []
            else:
                out += needed
                waiting = [q for q in waiting if q not in needed]
        if loop is None:
            loop = Loop(axis)
        loop.statements.append(s)
        loop.sums |= s.writes & whole
        along |= dict.fromkeys(s.writes - whole, axis)
    return out if loop is None else [*out, loop, *waiting]


def _needed(waiting: list[Statement], s: Statement) -> list[Statement]:
    """Those of the statements which must come before s."""
    needed: list[Statement] = []
    for q in reversed(waiting):
        if any(q.conflicts(x) for x in (s, *needed)):
            needed.insert(0, q)
    return needed


def _printed(loop: Loop, count: str, held: set[str], known: set[str], fresh: Callable[[str], str]) -> list[str]:
    """The loop over slices; `known` are the tuples that there are, which it adds to."""
    made = {n: fresh(f"{n}_slice") for n in sorted((loop.writes - loop.sums) & held, key=plain_name)}
    tuples = {n: fresh(f"{n}_next") if n in known else n for n in made}
    lines: list[str] = []
    assigned: set[str] = set()

    def instead(name: str, store: bool) -> str:
        if name in made and (store or name in assigned or name not in known):
            return made[name]
        return f"{name}[{loop.counter}]" if name in held else name

    for s in loop.statements:
        lines += s.text(instead)
        assigned |= s.writes
    lines += [f"{tuples[n]} = {tuples[n]} + ({x},)" for n, x in made.items()]
    known |= set(made)
    return [
        *(f"{x} = ()" for x in tuples.values()),
        f"for {loop.counter} in tl.static_range({count}):",
        *(f"    {x}" for x in lines),
        *(f"{n} = {x}" for n, x in tuples.items() if n != x),
    ]
