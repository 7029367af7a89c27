"""Pass 5, plan: which sweeps compute what, in an order in which each finds what it needs.

A plan is a list of stages over whole sequences:

    Sweep       walks the sequence in chunks, once, with the states of one group; yields solved writes, reads, last states
    Accumulate  a decay's gradient from the reads (see `Pairing`)
    Map         quantities of each step alone, such as outputs made of reads

Reads that contract a state's rows and those that contract its columns go to different sweeps: either kind then needs only a
tile of the state, and no sweep has to keep a whole one.
"""

from __future__ import annotations

from dataclasses import dataclass

from .chunk import ChunkProgram, chunk_program
from .ir import Node, walk
from .normal_form import NormalForm, Pairing, Read, StateForm


@dataclass(frozen=True)
class Sweep:
    """One walk over the sequence. `side` is the axis that its reads contract; `finals` the states whose last value it keeps."""

    group: tuple[StateForm, ...]
    solve: bool
    side: str
    reads: tuple[Read, ...]
    finals: tuple[str, ...]
    chunk: ChunkProgram

    @property
    def direction(self) -> int:
        return self.group[0].direction

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.group)


@dataclass(frozen=True)
class Accumulate:
    """The pairing of one state's decay, summed from the end of the sequence."""

    pairing: Pairing


@dataclass(frozen=True)
class Map:
    """Quantities of each step alone, by name."""

    values: dict[str, Node]


Stage = Sweep | Accumulate | Map


@dataclass(frozen=True)
class Plan:
    """The stages, and the form that they compute. `saved` are leaves that come from the forward plan."""

    form: NormalForm
    stages: tuple[Stage, ...]
    saved: tuple[Node, ...]

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        return tuple(s for s in self.stages if isinstance(s, Sweep))


def plan(form: NormalForm, finals: tuple[str, ...], saved: tuple[Node, ...] = ()) -> Plan:
    """Sweeps for all values of `form`, and the last value of the states in `finals`."""
    solved = form.write_leaves()
    pairings = {p.leaf: p for p in form.pairings}
    needed = _needed(form, saved)
    known: set[Node] = set(saved)
    pending_finals = list(finals)
    stages: list[Stage] = []

    def ready(*nodes: Node) -> bool:
        return all(
            x in known for node in nodes for x in walk(node) if x in form.reads or x in solved or x in pairings
        )

    def sweepable(s: StateForm, solving: bool) -> bool:
        return all(ready(w.left) and (ready(w.value) or solving) for w in s.writes) and (
            s.decay is None or ready(s.decay)
        )

    todo = {x for x in needed if x not in known}
    patient = True  # a sweep waits until it can make all its reads, as long as something else can be done
    while todo or pending_finals:
        before = len(todo) + len(pending_finals)
        for group in form.groups:
            names = [s.name for s in group]
            unknown = [w.leaf for s in group for w in s.writes if w.leaf is not None and w.leaf not in known]
            solve = bool(unknown)
            wants = [x for x in todo if x in form.reads and form.reads[x].state in names]
            if solve and not (set(unknown) & todo) and not wants and not set(pending_finals) & set(names):
                continue
            if not all(sweepable(s, solve) for s in group):
                continue
            if solve and not _solvable(form, group, known, solved):
                continue
            batch = [form.reads[x] for x in wants if ready(form.reads[x].vector)]
            for side in ("row", "col"):
                reads = tuple(sorted((r for r in batch if r.side == side), key=lambda r: r.leaf.attrs[1]))
                last = tuple(n for n in names if n in pending_finals)
                solving = solve and side == "row"
                waiting = sum(form.reads[x].side == side for x in wants) > len(reads)
                if not solving and ((patient and waiting) or (not reads and (wants or not last or side == "row"))):
                    continue
                chunk = chunk_program(group, reads, solving, form.reads)
                stages.append(Sweep(group, solving, side, reads, last, chunk))
                pending_finals = [n for n in pending_finals if n not in last]
                known |= {r.leaf for r in reads}
                if solving:
                    known |= set(unknown)
        for p in form.pairings:
            if p.leaf in todo and ready(p.late, p.early):
                stages.append(Accumulate(p))
                known.add(p.leaf)
        todo -= known
        progress = len(todo) + len(pending_finals) < before
        if not progress and not patient:
            raise AssertionError(f"no order for {sorted(str(x) for x in todo)}")
        patient = progress
    stages.append(Map(form.values))
    return Plan(form, tuple(stages), saved)


def _solvable(form: NormalForm, group: tuple[StateForm, ...], known: set[Node], solved: dict) -> bool:
    """Is everything that the solve needs, beyond its own reads, known?"""
    names = {s.name for s in group}
    for s in group:
        for w in s.writes:
            if w.leaf is None:
                continue
            for x in walk(w.right):
                if x in form.reads and form.reads[x].state in names:
                    if not all(y in known for y in walk(form.reads[x].vector) if y in form.reads or y in solved):
                        return False
                elif (x in form.reads or x in solved) and x not in known:
                    return False
    return True


def _needed(form: NormalForm, saved: tuple[Node, ...]) -> set[Node]:
    """Reads, solved writes and pairings that the values need, directly or not."""
    solved = form.write_leaves()
    pairings = {p.leaf: p for p in form.pairings}
    seen: set[Node] = set()
    stack: list[Node] = list(form.values.values())
    while stack:
        for x in walk(stack.pop()):
            if x in seen or not (x in form.reads or x in solved or x in pairings):
                continue
            seen.add(x)
            if x in saved:
                continue
            if x in pairings:
                stack += [pairings[x].late, pairings[x].early]
                continue
            states = [form.state(form.reads[x].state)] if x in form.reads else []
            if x in form.reads:
                stack.append(form.reads[x].vector)
            else:
                states = [s for g in form.groups if solved[x][0] in g for s in g]
                stack += [y for y in _outside(form, solved[x][1].right, {s.name for s in states})]
            for s in states:
                stack += [w.left for w in s.writes] + [w.value for w in s.writes]
                if s.decay is not None:
                    stack.append(s.decay)
    return seen


def _outside(form: NormalForm, right: Node, own: set[str]) -> list[Node]:
    """What a solved write needs, but for the reads that the solve itself makes."""
    out: list[Node] = []
    for x in walk(right):
        if x in form.reads and form.reads[x].state in own:
            out.append(form.reads[x].vector)
        elif x.op == "leaf":
            out.append(x)
    return out
