"""A sweep's statements, slice by slice along the axes that it has whole: a slice's operands are in registers only while a product
takes them, so that states of 256 channels fit.

A kernel is made as if there were one slice. What depends on the number of a slice, `n_d` for the axis d, goes into a loop
over slices; what another loop uses of it is held in a tuple, as states are. A sum over the axis is made as one that is added
up: to a name that exists before. What a loop doesn't need stays behind it, and comes before it where it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ...ir.code import Code, Item, Items, Name, call
from ...ir.expr import plain_name
from ...ir.kernel_ir import (
    Body,
    For,
    KernelFunction,
    Slices,
    Statement,
    assigned,
    let,
    names_of,
    reads,
    renamed,
)
from ..cannot_print import CannotPrint

NONE = Items(())


@dataclass(frozen=True)
class Step:
    """A statement of a kernel, perhaps with others inside it, and the names that it reads and assigns."""

    statement: Statement
    reads: frozenset[str]
    writes: frozenset[str]

    def conflicts(self, later: Step) -> bool:
        return bool(self.writes & (later.reads | later.writes) or self.reads & later.writes)


@dataclass
class Loop:
    """Statements that are made for each slice."""

    counter: str
    steps: list[Step] = field(default_factory=list)
    sums: set[str] = field(default_factory=set)  # what is added up over the slices

    @property
    def reads(self) -> frozenset[str]:
        return frozenset[str]().union(*(s.reads for s in self.steps))

    @property
    def writes(self) -> frozenset[str]:
        return frozenset[str]().union(*(s.writes for s in self.steps))


def in_slices(k: KernelFunction) -> KernelFunction:
    """A kernel with loops over the slices of its axes.

    Raises:
        CannotPrint: a statement takes slices of two axes.
    """
    if not k.slices:
        return k
    taken = set(map(plain_name, names_of(k)))

    def fresh(wish: str) -> str:
        stem = plain_name(wish)
        name, n = stem, 1
        while name in taken:
            n += 1
            name = f"{stem}{n}"
        taken.add(name)
        return wish if n == 1 else f"{wish}{n}"

    (at,) = (n for n, x in enumerate(k.body) if isinstance(x, For))  # the loop over chunks
    chunks = k.body[at]
    assert isinstance(chunks, For)
    before, loop, after = sliced((k.body[:at], chunks.body, k.body[at + 1 :]), k.slices, fresh)
    return replace(k, body=(*before, replace(chunks, body=loop), *after), slices=())


def sliced(sections: tuple[Body, ...], slices: tuple[Slices, ...], fresh: Callable[[str], str]) -> list[Body]:
    """The sections of a kernel, one after the other, with loops over slices."""
    along = {x.counter: x.counter for x in slices} | {n: x.counter for x in slices for n in x.carried}
    counts = {x.counter: x.count for x in slices}
    whole: set[str] = set()
    items = [_in_loops([Step(x, reads(x), assigned(x)) for x in body], along, whole) for body in sections]
    loops = [x for section in items for x in section if isinstance(x, Loop)]
    held = {n for x in slices for n in x.carried}
    for loop in loops:
        for name in loop.writes - loop.sums:
            if any(name in x.reads | x.writes for x in loops if x is not loop):
                held.add(name)
    known: set[str] = set()  # tuples that there are so far

    def made(x: Step | Loop) -> Body:
        return (x.statement,) if isinstance(x, Step) else _over(x, counts[x.counter], held, known, fresh)

    return [tuple(y for x in section for y in made(x)) for section in items]


def _in_loops(found: Iterable[Step], along: dict[str, str], whole: set[str]) -> list[Step | Loop]:
    out: list[Step | Loop] = []
    loop: Loop | None = None
    waiting: list[Step] = []  # what stands behind the loop so far
    for s in found:
        axes = {along[n] for n in s.reads | s.writes if n in along}
        if len(axes) > 1:
            raise CannotPrint(
                f"slices of two axes: {', '.join(sorted(axes))} in what makes {', '.join(sorted(s.writes))}"
            )
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
        loop.steps.append(s)
        loop.sums |= s.writes & whole
        along |= dict.fromkeys(s.writes - whole, axis)
    return out if loop is None else [*out, loop, *waiting]


def _needed(waiting: list[Step], s: Step) -> list[Step]:
    """Those of the statements which must come before s."""
    needed: list[Step] = []
    for q in reversed(waiting):
        if any(q.conflicts(x) for x in (s, *needed)):
            needed.insert(0, q)
    return needed


def _over(loop: Loop, count: Code, held: set[str], known: set[str], fresh: Callable[[str], str]) -> Body:
    """The loop over slices; `known` are the tuples that there are, which it adds to."""
    made = {n: fresh(f"{n}_slice") for n in sorted((loop.writes - loop.sums) & held, key=plain_name)}
    tuples = {n: fresh(f"{n}_next") if n in known else n for n in made}
    inside: list[Statement] = []
    done: set[str] = set()

    def read(name: str) -> Code:
        if name in made and (name in done or name not in known):
            return Name(made[name])
        return Item(Name(name), Name(loop.counter)) if name in held else Name(name)

    for s in loop.steps:
        inside.append(renamed(s.statement, read, lambda name: made.get(name, name)))
        done |= s.writes
    inside += [let(tuples[n], Name(tuples[n]) + Items((Name(x),))) for n, x in made.items()]
    known |= set(made)
    return (
        *(let(x, NONE) for x in tuples.values()),
        For(loop.counter, call("tl.static_range", count), tuple(inside)),
        *(let(n, x) for n, x in tuples.items() if n != x),
    )
