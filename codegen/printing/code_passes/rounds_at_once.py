"""Several rounds of a loop as one, so that what they load is under way at once: a pass over a kernel, IR -> IR.

A step that waits for memory takes as long as memory does, however little it computes. What a step loads depends on no state, so
a block of steps begins with all its loads, and the rounds that don't fill a block come after. Where steps compute for as long as
memory takes, each round loads what the same round of the next block takes, as soon as its own is no longer needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ...ir.code import Binary, Call, Code, Group, Literal, Load, Name, loads_in
from ...ir.code_parts import rebuilt, substituted
from ...ir.kernel_ir import (
    Body,
    For,
    If,
    KernelFunction,
    Let,
    Note,
    Statement,
    Store,
    argument_of,
    assigned,
    changed,
    let,
    names_of,
    reads,
    renamed,
    stores,
)


def rounds_at_once(k: KernelFunction) -> KernelFunction:
    """Loops that are to take several rounds at once do."""
    taken = set(names_of(k))
    memory = frozenset(p.name for line in k.parameters for p in line)
    always = frozenset(p.name for line in k.parameters for p in line if not p.optional)
    return replace(
        k, body=changed(k.body, lambda x: _several(x, memory, always, taken) if isinstance(x, For) else (x,))
    )


def _several(x: For, memory: frozenset[str], always: frozenset[str], taken: set[str]) -> Body:
    """A loop over blocks of rounds, and over those that are left."""
    if x.together == 1:
        return (x,)
    (count,) = x.over.arguments if isinstance(x.over, Call) else ()
    block = _fresh(f"{x.name}_block", taken)
    blocks = count // x.together
    rounds = [_Round(x, memory, always, n, taken) for n in range(x.together)]
    left = Call("range", (blocks * x.together, count))
    rest = replace(x, over=left, prefetch=None, together=1, when=None, ahead=False)
    if x.ahead:
        several = (*_with_next_loads(x, rounds, memory, block, blocks, count, taken), rest)
    else:
        starts = [y for n, r in enumerate(rounds) for y in r.start(Name(block) * x.together + n)]
        steps = [y for n, r in enumerate(rounds) for y in (Note(f"round {n + 1} of {x.together}"), *r.rest())]
        loop = For(
            block, Call("range", (blocks,)), (*starts, *steps), note="what all its rounds load is under way at once"
        )
        several = (loop, rest)
    alone = replace(x, together=1, when=None, ahead=False)
    return several if x.when is None else (If(x.when, several, (alone,)),)


def _with_next_loads(
    x: For, rounds: list[_Round], memory: frozenset[str], block: str, blocks: Code, count: Code, taken: set[str]
) -> Body:
    """A loop over blocks, each of whose rounds loads for the next block; the last block loads its own again."""
    first = [y for n, r in enumerate(rounds) for y in r.start(Call("tl.minimum", (Literal(n), count - 1)))]
    following = _fresh(f"{x.name}_following", taken)
    steps: list[Statement] = [let(following, Call("tl.minimum", (Name(block) + 1, blocks - 1)) * x.together)]
    pointers: dict[Let | Store, tuple[Code, Code]] = {}
    steps += rounds[0].later_addresses(Name(following))
    for y, (name, load) in rounds[0].held.items():
        if (by := _moved_by(load.pointer, _slopes(x))) is not None:
            there = _fresh(f"{name.removesuffix('_0')}_there", taken)
            steps.append(let(there, substituted(load.pointer, rounds[0].again)))
            pointers[y] = Name(there), by
    steps += rounds[0].addresses(Name(block) * x.together)
    for store, by in rounds[0].stored():
        here = _fresh(f"{(argument_of(store.pointer, memory) or '').removesuffix('_at')}_here", taken)
        steps.append(let(here, substituted(store.pointer, {a: Name(b) for a, b in rounds[0].names.items()})))
        pointers[store] = Name(here), by
    for n, r in enumerate(rounds):
        steps += (Note(f"round {n + 1} of {x.together}"), *(r.addresses(Name(block) * x.together + n) if n else ()))
        moved = {y: p + n * by if n else p for y, (p, by) in pointers.items()}
        steps += r.rest(Name(following) + n if n else None, moved)
    steps = _without_unread(steps, {name for r in rounds for name in (*r.names.values(), *r.later.values())})
    return (
        *first,
        For(block, Call("range", (blocks,)), tuple(steps), note="each round loads what it takes in the next block"),
    )


def _without_unread(body: list[Statement], names: set[str]) -> list[Statement]:
    """Statements but for those that say where something is which nothing needs any more."""
    read: frozenset[str] = frozenset()
    kept: list[Statement] = []
    for y in reversed(body):
        if isinstance(y, Let) and set(y.names) <= names and not loads_in(y.value) and not read & set(y.names):
            continue
        read |= reads(y)
        kept.append(y)
    return kept[::-1]


def _slopes(x: For) -> dict[str, Code]:
    """By how much what says where a round is goes on from round to round."""
    found: dict[str, Code] = {x.name: Literal(1)}
    for y in _loaded_from(x):
        if (by := _moved_by(y.value, found)) is not None and len(y.names) == 1:
            found[y.names[0]] = by
    return found


def _moved_by(x: Code, slopes: dict[str, Code]) -> Code | None:
    """By how much an expression goes on from round to round, as the names do; None where that isn't one amount."""
    if not x.names & slopes.keys():
        return Literal(0)
    match x:
        case Name(id=name):
            return slopes[name]
        case Group(value=value):
            return _moved_by(value, slopes)
        case Binary(operator="+" | "-", left=left, right=right):
            a, b = _moved_by(left, slopes), _moved_by(right, slopes)
            if a is None or b is None:
                return None
            if b == Literal(0):
                return a
            return a + b if x.operator == "+" and a != Literal(0) else b if x.operator == "+" else _opposite(a, b)
        case Binary(operator="*", left=left, right=right):
            moved, by = (left, right) if left.names & slopes.keys() else (right, left)
            amount = None if by.names & slopes.keys() else _moved_by(moved, slopes)
            return by if amount == Literal(1) else None if amount is None else amount * by
    return None


def _opposite(a: Code, b: Code) -> Code:
    if isinstance(a, Literal) and isinstance(b, Literal) and isinstance(a.value, int) and isinstance(b.value, int):
        return Literal(a.value - b.value)
    return a - b


class _Round:
    """A round of a block: what says where it is has names of its own, and so has what it loads."""

    def __init__(self, x: For, memory: frozenset[str], always: frozenset[str], n: int, taken: set[str]) -> None:
        self.always = always
        written = {argument_of(y.pointer, memory) for y in stores(x.body)}
        where = tuple(_loaded_from(x))
        own = {x.name}.union(*map(assigned, where))
        inside = frozenset[str]().union(*map(assigned, x.body)) - own
        self.loop, self.where = x, where
        self.names = {name: _fresh(f"{name}_{n}", taken) for name in sorted(own)}
        self.later = {name: _fresh(f"{name}_{n}_following", taken) for name in sorted(own)} if x.ahead else self.names
        self.again = {name: Name(later) for name, later in self.later.items()}
        self.held: dict[Let, tuple[str, Load]] = {}
        for y in x.body:
            if not isinstance(y, Let) or len(found := loads_in(y.value)) != 1:
                continue
            if argument_of(found[0].pointer, memory) not in written and not found[0].names & inside:
                self.held[y] = _fresh(f"{y.names[0]}_{n}", taken), found[0]

    def start(self, at: Code) -> Iterator[Statement]:
        """Where the round is, and what it loads."""
        yield from self.addresses(at)
        for name, load in self.held.values():
            yield let(name, substituted(load, {a: Name(b) for a, b in self.names.items()}))

    def addresses(self, at: Code) -> Iterator[Statement]:
        """Where the round is."""
        yield let(self.names[self.loop.name], at)
        for y in self.where:
            yield renamed(y, self._name, lambda name: self.names.get(name, name))

    def later_addresses(self, following: Code) -> Iterator[Statement]:
        """Where the same round of the next block is."""
        yield let(self.later[self.loop.name], following)
        for y in self.where:
            yield renamed(y, lambda name: self.again.get(name, Name(name)), lambda name: self.later.get(name, name))

    def rest(
        self, following: Code | None = None, there: Mapping[Let | Store, Code] | None = None
    ) -> Iterator[Statement]:
        """What is done with it. What is held is loaded again once nothing needs it here: from `there`, or from where the round is
        that is `following`."""
        pointers = there or {}
        if following is not None and self.held.keys() - pointers.keys():
            yield from self.later_addresses(following)
        for y in self.loop.body:
            if y in self.where:
                continue
            held = self.held.get(y) if isinstance(y, Let) else None
            if isinstance(y, Let) and held is not None:
                load = held[1]
                again = replace(load, pointer=pointers[y]) if y in pointers else substituted(load, self.again)
                yield renamed(
                    replace(y, value=_held(y.value, Name(held[0])), prefetch=""), self._name, lambda name: name
                )
                if there is not None:
                    yield let(held[0], again)
            elif isinstance(y, Store) and y in pointers:
                yield renamed(replace(y, pointer=pointers[y]), self._name, lambda name: name)
            else:
                yield renamed(y, self._name, lambda name: name)

    def stored(self) -> Iterator[tuple[Store, Code]]:
        """What stores to places that go on by one amount from round to round, and by which."""
        slopes = _slopes(self.loop)
        inside = frozenset[str]().union(*map(assigned, self.loop.body)) - slopes.keys()
        for y in self.loop.body:
            own = isinstance(y, Store) and not y.pointer.names & inside and argument_of(y.pointer, self.always)
            if isinstance(y, Store) and own and (by := _moved_by(y.pointer, slopes)) is not None:
                yield y, by

    def _name(self, name: str) -> Code:
        return Name(self.names.get(name, name))


def _loaded_from(x: For) -> Iterable[Let]:
    """The statements at the beginning of a loop that say where a round is: of its number and of what is known before the loop."""
    carried = frozenset[str]().union(*map(assigned, x.body))
    for y in x.body:
        if not isinstance(y, Let) or y.sign != "=" or loads_in(y.value) or y.value.names & carried:
            return
        carried -= assigned(y)
        yield y


def _held(x: Code, name: Name) -> Code:
    """An expression with what is held in the place of what it loads."""
    return name if isinstance(x, Load) else rebuilt(x, lambda y: _held(y, name))


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
