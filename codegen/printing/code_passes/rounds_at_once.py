"""Several rounds of a loop as one, so that what they load is under way at once: a pass over a kernel, IR -> IR.

A step that waits for memory takes as long as memory does, however little it computes. What a step loads depends on no state, so
a block of steps begins with all its loads, and the rounds that don't fill a block come after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...ir.code import Call, Code, Load, Name, loads_in
from ...ir.code_parts import rebuilt, substituted
from ...ir.kernel_ir import (
    Body,
    For,
    If,
    KernelFunction,
    Let,
    Note,
    Statement,
    argument_of,
    assigned,
    changed,
    let,
    names_of,
    renamed,
    stores,
)


def rounds_at_once(k: KernelFunction) -> KernelFunction:
    """Loops that are to take several rounds at once do."""
    taken = set(names_of(k))
    memory = frozenset(p.name for line in k.parameters for p in line)
    return replace(k, body=changed(k.body, lambda x: _several(x, memory, taken) if isinstance(x, For) else (x,)))


def _several(x: For, memory: frozenset[str], taken: set[str]) -> Body:
    """A loop over blocks of rounds, and over those that are left."""
    if x.together == 1:
        return (x,)
    (count,) = x.over.arguments if isinstance(x.over, Call) else ()
    block = _fresh(f"{x.name}_block", taken)
    blocks = count // x.together
    rounds = [_Round(x, memory, n, taken) for n in range(x.together)]
    starts = [y for n, r in enumerate(rounds) for y in r.start(Name(block) * x.together + n)]
    steps = [y for n, r in enumerate(rounds) for y in (Note(f"round {n + 1} of {x.together}"), *r.rest())]
    left = Call("range", (blocks * x.together, count))
    several: Body = (
        For(block, Call("range", (blocks,)), (*starts, *steps), note="what all its rounds load is under way at once"),
        replace(x, over=left, prefetch=None, together=1, when=None),
    )
    alone = replace(x, together=1, when=None)
    return several if x.when is None else (If(x.when, several, (alone,)),)


class _Round:
    """A round of a block: what says where it is has names of its own, and so has what it loads."""

    def __init__(self, x: For, memory: frozenset[str], n: int, taken: set[str]) -> None:
        written = {argument_of(y.pointer, memory) for y in stores(x.body)}
        where = tuple(_loaded_from(x))
        own = {x.name}.union(*map(assigned, where))
        inside = frozenset[str]().union(*map(assigned, x.body)) - own
        self.loop, self.where = x, where
        self.names = {name: _fresh(f"{name}_{n}", taken) for name in sorted(own)}
        self.held: dict[Let, tuple[str, Load]] = {}
        for y in x.body:
            if not isinstance(y, Let) or len(found := loads_in(y.value)) != 1:
                continue
            if argument_of(found[0].pointer, memory) not in written and not found[0].names & inside:
                self.held[y] = _fresh(f"{y.names[0]}_{n}", taken), found[0]

    def start(self, at: Code) -> Iterator[Statement]:
        """Where the round is, and what it loads."""
        yield let(self.names[self.loop.name], at)
        for y in self.where:
            yield renamed(y, self._name, lambda name: self.names.get(name, name))
        for name, load in self.held.values():
            yield let(name, substituted(load, {a: Name(b) for a, b in self.names.items()}))

    def rest(self) -> Iterator[Statement]:
        """What is done with it."""
        for y in self.loop.body:
            if y in self.where:
                continue
            if isinstance(y, Let) and y in self.held:
                y = replace(y, value=_held(y.value, Name(self.held[y][0])), prefetch="")
            yield renamed(y, self._name, lambda name: name)

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
