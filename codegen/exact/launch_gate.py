"""What must hold of a function that launches kernels, found on its IR.

- What a statement reads was assigned before, wherever it is read: for all results that the reader is for, and under no condition
  that the reader isn't under.
- What a launch loads, or a function takes, has been filled: room that was allocated holds nothing until a launch stores there,
  or two do where each has some of the chunks.
- No two programs of a launch store to one place: places differ wherever programs do.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from chunkform.errors import GateError

from ..ir.code import Code
from ..ir.launch_ir import (
    Alloc,
    Body,
    Call,
    Define,
    Do,
    Entries,
    For,
    Free,
    Function,
    If,
    Launch,
    Local,
    Set,
    Statement,
    Table,
    Wanted,
    expressions,
    statements,
)
from ..ir.python_code import Entry

Under = frozenset[tuple[str, bool]]  # conditions, and whether each holds
SMALL_RANGE = "the decays of a chunk have a small range"


@dataclass(frozen=True)
class Where:
    """Where a statement stands: under which conditions, and for which results."""

    under: Under
    wanted: frozenset[str]

    def covers(self, other: Where) -> bool:
        """Has this run wherever the other one runs?"""
        return self.under <= other.under and self.wanted >= other.wanted

    def inside(self, other: Where) -> Where:
        """Where both run."""
        return Where(self.under | other.under, self.wanted & other.wanted)


@dataclass
class _Known:
    """Where names were assigned, and filled, so far; `views` are names of parts of others."""

    assigned: dict[str, list[Where]] = field(default_factory=dict)
    filled: dict[str, list[Where]] = field(default_factory=dict)
    room: set[str] = field(default_factory=set)
    views: dict[str, frozenset[str]] = field(default_factory=dict)
    filled_tables: set[str] = field(default_factory=set)  # dictionaries that came with entries

    def is_there(self, name: str, reader: Where) -> bool:
        """Is a name assigned wherever the reader runs? An entry is there as well where its dictionary came with some."""
        own = _there(self.assigned.get(name, []), reader)
        if own or not isinstance(name, Entry):
            return own
        return name.table in self.filled_tables and _there(self.assigned.get(name.table, []), reader)

    def assign(self, name: str, where: Where) -> None:
        self.assigned.setdefault(name, []).append(where)

    def rooms(self, name: str) -> list[str]:
        """The rooms that are read where a name is: a dictionary's are those of its entries, a part's that of which it is one."""
        names = {name, *self.views.get(name, ())}
        return [r for r in sorted(self.room) if r in names or (isinstance(r, Entry) and r.table in names)]

    def keyed(self, x: Entries) -> dict[Entry, list[Where]]:
        """The entries that a loop over a dictionary sets in another one, and where those that it goes over are assigned."""
        entries = [n for n in self.assigned if isinstance(n, Entry) and n.table == x.names_of]
        return {Entry(x.table, n.key): self.assigned[n] for n in entries}

    def is_filled(self, room: str, reader: Where) -> bool:
        whole = self.filled.get(room.table, []) if isinstance(room, Entry) else []
        return _there([*self.filled.get(room, []), *whole], reader)

    def make_room(self, name: str, where: Where) -> None:
        """From here on, a name is that of room which holds nothing."""
        self.assign(name, where)
        self.room.add(name)
        self.filled[name] = [x for x in self.filled.get(name, []) if not where.covers(x)]

    def fill(self, names: frozenset[str], where: Where) -> None:
        for n in names.union(*(self.views.get(n, frozenset()) for n in names)):
            if isinstance(n, Entries):
                for one, places in self.keyed(n).items():
                    self.assigned.setdefault(one, []).extend(map(where.inside, places))
                    self.filled.setdefault(one, []).extend(map(where.inside, places))
            else:
                self.filled.setdefault(n, []).append(where)


def gate_launches(f: Function) -> None:
    """Raises GateError, which says what is wrong."""
    known, always = _Known(), Where(frozenset(), f.results)
    for n in f.parameters:
        known.assign(n, always)
    known.filled_tables |= f.parameters
    _check(f.name, f.body, always, known)


def gate_kept_launches(before: Function, after: Function) -> None:
    """A pass over a function puts launches under conditions, and lets go of tensors: each launch is as it was, in order.

    Raises GateError, which says which isn't.
    """
    there, here = ([x for x in statements(f.body) if isinstance(x, Launch)] for f in (before, after))
    for a, b in zip_longest(there, here):
        if a != b:
            what = a.kernel if a is not None else b.kernel
            raise GateError(f"{after.name}: the launch of {what} isn't what it was before passes over the function")


def _check(name: str, body: Body, where: Where, known: _Known) -> None:
    for x in body:
        for n, reader in _uses(x, where):
            if not known.is_there(n, reader):
                raise GateError(f"{name}: {n} is read by {_what(x)}, and isn't assigned before wherever that runs")
        for n, reader in _loads(x, where):
            if any(not known.is_filled(r, reader) for r in known.rooms(n)):
                raise GateError(f"{name}: {n} is read by {_what(x)}, and no launch has stored it wherever that runs")
        if isinstance(x, Launch):
            _check_programs(name, x)
        if isinstance(x, Launch | Do):
            known.fill(x.stores, _of_chunks(x, where))
        _assign(x, where, known)
        match x:
            case If(condition, inside, otherwise, _, wanted):
                results = where.wanted if wanted is None else where.wanted & wanted
                for holds, part in ((True, inside), (False, otherwise)):
                    under = where.under if wanted is not None else where.under | {(condition.text, holds)}
                    _check(name, part, Where(under, results if holds else where.wanted), known)
            case Wanted(wanted, inside):
                _check(name, inside, Where(where.under, where.wanted & wanted), known)
            case Local(function):
                own = deepcopy(known)
                for n in function.parameters:
                    own.assign(n, where)
                _check(function.name, function.body, where, own)
            case For(_, over, inside, tensors):
                outside = known.views
                known.views = outside | dict.fromkeys(tensors, over.names)
                _check(name, inside, where, known)
                known.views = outside


def _of_chunks(x: Statement, where: Where) -> Where:
    """Where a launch stores for all chunks: under a condition of its own where another one stores for the rest of them."""
    if not isinstance(x, Launch) or x.small_range is None:
        return where
    return replace(where, under=where.under | {(SMALL_RANGE, x.small_range)})


def _there(found: list[Where], reader: Where) -> bool:
    """Is a name assigned, or filled, wherever the reader runs? One place is before it, or both branches of a condition are."""
    if any(x.covers(reader) for x in found):
        return True
    split = {(text, holds) for x in found for text, holds in x.under - reader.under}
    for text, holds in split:
        if (text, not holds) in split and holds:
            both = (Where(reader.under | {(text, way)}, reader.wanted) for way in (True, False))
            if all(any(x.covers(y) for x in found) for y in both):
                return True
    return False


def _assign(x: Statement, where: Where, known: _Known) -> None:
    match x:
        case Alloc(name=n):
            known.make_room(n, where)
        case Set(names):
            for n in names:
                if x.in_place:
                    known.make_room(n, where)
                else:
                    known.assign(n, where)
                    known.room.discard(n)
                    (known.filled_tables.discard if x.empty else known.filled_tables.add)(n)
        case Call(names=names) | Define(names=names) | For(names=names):
            for n in names:
                known.assign(n, where)
                known.room.discard(n)
                known.filled_tables.add(n)
        case Table(name, entries):
            known.assign(name, where)
            known.filled_tables.discard(name)
            for y in entries:
                own = Entry(name, y.name if isinstance(y, Alloc) else y.names[0])
                (known.make_room if isinstance(y, Alloc) else known.assign)(own, where)
        case Do(stores=stores):
            known.filled_tables |= {n for n in stores if not isinstance(n, Entry | Entries)}
        case Local(function):
            known.assign(function.name, where)
        case Free(names):
            for n in names:
                known.assigned.pop(n, None)


def _uses(x: Statement, where: Where) -> list[tuple[str, Where]]:
    """The names that a statement reads, and for which results."""
    if not isinstance(x, Launch):
        return [(n, where) for n in sorted(_names(expressions(x)))]
    others = [x.grid, *x.places, *(w for _, w in (*x.words, *x.more))]
    return [(n, where) for n in sorted(_names(others))] + [
        (n, where if a.wanted is None else replace(where, wanted=where.wanted & a.wanted))
        for a in x.arguments
        for n in sorted(a.value.names)
    ]


def _loads(x: Statement, where: Where) -> list[tuple[str, Where]]:
    """The names whose tensors must be filled for a statement."""
    match x:
        case Launch():
            return [use for use in _uses(x, where) if use[0] in x.loads - x.stores]
        case Do(_, stores) if stores:
            return [use for use in _uses(x, where) if use[0] not in stores]
        case For(tensors=tensors) if not tensors:  # else a part is loaded where the body reads it
            return _uses(x, where)
        case If() | For() | Set(in_place=True) | Alloc() | Define():
            return []
    return _uses(x, where)


def _names(found: Iterable[Code]) -> frozenset[str]:
    return frozenset[str]().union(*(e.names for e in found))


def _check_programs(name: str, x: Launch) -> None:
    for a in x.arguments:
        if a.stores and a.value.names and not x.programs <= a.over:
            same = ", ".join(sorted(x.programs - a.over))
            raise GateError(
                f"{name}: programs of {x.kernel} that differ in {same} store to one place of {a.value.text}"
            )


def _what(x: Statement) -> str:
    match x:
        case Launch():
            return f"the launch of {x.kernel}"
        case Call(function=function):
            return f"{function}(..)"
        case Set(names, _) | Define(names, _):
            return f"the statement that sets {', '.join(names)}"
        case Alloc(name=name):
            return f"the room for {name}"
    return f"`{expressions(x)[0].text}`"
