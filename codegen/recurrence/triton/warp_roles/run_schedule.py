"""The interpreter of schedules: runs the roles of programs over exact numbers, in an order that chance decides, step by step.
Programs that take as many chunks take each step together.

The copy engine and tensor cores work beside the roles: what they were told to do is done at some later time. On the way these
are refused, with a `GateError`:

- a read of a ring's stage that isn't behind its `ready`, or after the role has said that it is done with it;
- a fill of a stage that isn't behind its `empty`; a stage that is called ready, or empty, before all of it is;
- a buffer that is overwritten while a product or the copy engine reads it, or read by them without a fence right behind what
  was stored there: each warp must have passed one before any warp waits for all others, whatever makes it wait;
- a product that is used before it was waited for;
- roles that wait for each other.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from chunkform.errors import GateError

from ....exact.entries import Fractions, Residues
from ....exact.meanings import NeedsOrder
from ....exact.rationals import is_in_field
from ....exact.run_kernel import Argument, Exact, Pointer, Value, some_programs
from ....ir.code import Code, Name, call, names_in
from ....ir.kernel_ir import Body, Let
from ....ir.warp_schedule import (
    Arrive,
    Await,
    Barriers,
    Drain,
    Fence,
    Fetch,
    Held,
    Invert,
    Leave,
    Make,
    Pass,
    Plain,
    Product,
    Put,
    Ring,
    Role,
    Schedule,
    Send,
    Settle,
    Shared,
    Step,
    Tile,
    WhereGiven,
)
from ..gates.kernel_gate import runtime_function

Launch: TypeAlias = Any  # of run_kernel.py, whose statements are run here
Names: TypeAlias = dict[str, Value]


def run_schedule(
    s: Schedule,
    programs: int,
    arguments: Mapping[str, Argument],
    stages: int,
    order: random.Random,
    some: Iterable[int] | None = None,
) -> None:
    """A launch of so many programs, or of `some` of these, each with rings of so many stages."""
    numbers = np.arange(programs) if some is None else np.array(list(some), dtype=np.int64)
    kinds: tuple[type[Residues] | type[Fractions], ...] = (Residues,) if is_in_field() else (Residues, Fractions)
    for n, kind in enumerate(kinds):
        try:
            launch = some_programs(s.name, numbers, programs, kind(), runtime_function)
            given = {n: launch.given(x) for n, x in arguments.items()} | {"STAGES": stages}
            counts = np.broadcast_to(_setup(s, launch, given)["count"], numbers.shape)
            for count in np.unique(counts):
                launch.active = numbers[counts == count]
                _Running(s, launch, given, stages, order).run()
            for memory in launch.traffic.memories.values():
                memory.commit()
            return
        except NeedsOrder:
            if n + 1 == len(kinds):
                raise


def _setup(s: Schedule, launch: Launch, given: Names) -> Names:
    """What programs are given, and what they make of that before all roles."""
    names = dict(given)
    for x in s.setup:
        assert isinstance(x, Let)
        names[x.names[0]] = launch.value(x.value, names)
    return names


@dataclass
class _Barrier:
    """As the hardware has it: `rounds` are the times that it was complete."""

    count: int
    pending: int = 0
    copies: int = 0  # that are under way
    rounds: int = 0

    def passed(self, phase: int) -> bool:
        return self.rounds & 1 != phase


@dataclass
class _Stage:
    """A stage of a ring: what is in it, by its chunks, and the how manieth that is."""

    content: dict[int, np.ndarray] = field(default_factory=dict)
    chunk: int = -1
    fenced: bool = True  # has the role that filled it passed a fence since?


@dataclass
class _Memory:
    """A buffer: what is in it, how often it was filled, and whether a fence came right behind that."""

    content: np.ndarray | None = None
    filled: int = 0
    fenced: bool = False


@dataclass
class _Warps:
    """A role on its way: by the chunks of a stage, if it takes them together, what its names are; and which of them it is at."""

    role: Role
    by_chunk: list[dict[str, Value]]
    at: int = 0
    chunk: int = -1  # the how manieth stage it is at, which is one chunk or several
    ready: dict[str, bool] = field(default_factory=dict)  # in this chunk: has it waited for these barriers,
    done: dict[str, bool] = field(default_factory=dict)  # and has it said that it is done?
    empty: dict[str, bool] = field(default_factory=dict)
    products: dict[str, tuple[Product, dict[str, int]]] = field(default_factory=dict)  # under way, with what they read
    order: list[str] = field(default_factory=list)
    loaded: bool = False  # tiles that the copy engine fills, since the last fence
    stored: set[str] = field(default_factory=set)  # buffers that its last steps have filled
    sent: list[str] = field(default_factory=list)  # buffers that the copy engine may still read, in order

    @property
    def names(self) -> dict[str, Value]:
        return self.by_chunk[self.at if self.role.together else 0]


class _Running:
    """The active programs of a launch, which take as many chunks."""

    def __init__(self, s: Schedule, launch: Launch, given: Names, stages: int, order: random.Random) -> None:
        self.s, self.order, self.program, self.entries = s, order, launch, launch.entries
        self.given = _setup(s, launch, given)
        self.stages_of = {b.name: b.stages or stages for b in s.barriers}
        self.slots = {r.name: [_Stage() for _ in range(self.stages_of[s.barriers_of(r.name).name])] for r in s.rings}
        self.buffers = {b.name: _Memory() for b in s.buffers}
        count = self.stages_of
        self.ready = {b.name: [_Barrier(b.arrivals, b.arrivals) for _ in range(count[b.name])] for b in s.barriers}
        self.empty = {b.name: [_Barrier(b.readers, b.readers) for _ in range(count[b.name])] for b in s.barriers}
        self.copies: list[tuple[Ring, int, dict[int, np.ndarray], str]] = []  # that the copy engine was told to make

    @property
    def several(self) -> int:
        """The chunks of a stage."""
        return self.program.whole(self.given["TOGETHER"]) if self.s.several else 1

    def _readers(self, b: Barriers) -> set[str]:
        return {
            r.name
            for r in self.s.roles
            if any(isinstance(x, Await) and x.ready and x.barriers == b.name for x in r.each)
        }

    def fault(self, what: str) -> GateError:
        return GateError(f"{self.s.name}: {what}")

    # --- all roles

    def run(self) -> None:
        self.warps = {r.name: _Warps(r, [dict(self.given) for _ in range(self.several)]) for r in self.s.roles}
        going = {n: self.go(w) for n, w in self.warps.items()}
        waiting: dict[str, Await | None] = {n: next(x) for n, x in going.items()}
        while going:
            able = [n for n, x in waiting.items() if n in going and (x is None or self.may(self.warps[n], x))]
            if not able and not self.copies:
                what = ", ".join(f"{n} for {x.barriers}" for n, x in waiting.items() if n in going and x is not None)
                raise self.fault(f"roles wait for each other: {what}")
            n = self.order.randrange(len(able) + len(self.copies))
            if n >= len(able):
                self.copied(n - len(able))
                continue
            name = able[n]
            try:
                waiting[name] = next(going[name])
            except StopIteration:
                del going[name]

    def may(self, w: _Warps, x: Await) -> bool:
        stages = self.stages_of[x.barriers]
        stage, phase = w.chunk % stages, w.chunk // stages & 1
        barrier = (self.ready if x.ready else self.empty)[x.barriers][stage]
        return barrier.passed(phase if x.ready else phase ^ 1)

    def go(self, w: _Warps) -> Iterator[Await | None]:
        """What a role does, step by step; it yields what it waits for next."""
        for _ in self.chunks_of(w):
            self.indices(w)
        for x in w.role.before:
            yield None
            self.step(w, x)
        for n in range(-(-self.whole(w, "count") // self.several)):
            w.chunk = n
            w.ready, w.done, w.empty = {}, {}, {}
            for first in [0] if w.role.together else range(self.several):
                w.at = first
                for at in self.chunks_of(w):
                    w.names["n"] = n * self.several + at
                    self.let(self.s.scalars, w.names)
                    self.indices(w)
                for x in self.wanted(w.role.each):
                    if not self.of_another(w, x):
                        yield x if isinstance(x, Await) else None
                        self.step(w, x)
        for x in w.role.after:
            yield None
            self.step(w, x)
        if w.products:
            raise self.fault(f"the {w.role.name} ends before {', '.join(w.products)}")
        if w.sent:
            raise self.fault(f"the {w.role.name} ends while the copy engine reads its buffers")
        yield None

    def chunks_of(self, w: _Warps) -> Iterator[int]:
        """The chunks that a role takes at once, one after the other: of each, it makes the same."""
        before = w.at
        for at in range(self.several) if w.role.together else [before]:
            w.at = at
            yield at
        w.at = before

    def of_another(self, w: _Warps, x: Step) -> bool:
        """Is a step done for a stage as a whole, at another of its chunks? A role that takes these one after the other waits for
        a stage at the first, and is done with it at the last."""
        if w.role.together:
            return False
        return (isinstance(x, Await) and w.at > 0) or (isinstance(x, Arrive) and w.at < self.several - 1)

    def wanted(self, steps: tuple[Step, ...]) -> Iterator[Step]:
        """Those that this launch has."""
        for x in steps:
            if not isinstance(x, WhereGiven):
                yield x
            elif self.given[x.argument] is not None:
                yield from self.wanted(x.steps)

    def there(self, buffer: str) -> bool:
        """Does this launch have it?"""
        b = self.s.buffer(buffer)
        return b is not None and not (b.maybe and self.given[b.target] is None)

    def let(self, body: Body, names: dict[str, Value]) -> None:
        for x in body:
            assert isinstance(x, Let)
            names[x.names[0]] = self.program.value(x.value, names)

    def indices(self, w: _Warps) -> None:
        names = w.names
        for x in self.s.indices:
            assert isinstance(x, Let)
            if all(n in names or n.startswith("tl.") for n in names_in(x.value)):
                names[x.names[0]] = self.program.value(x.value, names)

    # --- barriers and the copy engine

    def arrive(self, barrier: _Barrier) -> bool:
        """Is it complete by this?"""
        if barrier.pending <= 0:
            raise self.fault("a barrier takes fewer arrivals than there are")
        barrier.pending -= 1
        return self.complete(barrier)

    def complete(self, barrier: _Barrier) -> bool:
        if barrier.pending > 0 or barrier.copies > 0:
            return False
        barrier.pending = barrier.count
        barrier.rounds += 1
        return True

    def became_ready(self, b: str, stage: int) -> None:
        """Every ring must have been filled."""
        chunk = (self.ready[b][stage].rounds - 1) * self.stages_of[b] + stage
        for n in self.s.barriers_by_name[b].rings:
            if self.slots[n][stage].chunk != chunk:
                raise self.fault(f"{b} is called ready before {n} is filled")

    def became_empty(self, b: str, stage: int) -> None:
        chunk = (self.empty[b][stage].rounds - 1) * self.stages_of[b] + stage
        for n in self._readers(self.s.barriers_by_name[b]):
            w = self.warps[n]
            if w.chunk < chunk or (w.chunk == chunk and not w.done.get(b)):
                raise self.fault(f"{b} is called empty while the {n} needs it")

    def copied(self, n: int) -> None:
        """The copy engine has made one of the copies."""
        ring, chunk, content, b = self.copies.pop(n)
        self.fill(ring.name, chunk, content)
        stage = chunk % self.stages_of[b]
        barrier = self.ready[b][stage]
        barrier.copies -= 1
        if self.complete(barrier):
            self.became_ready(b, stage)

    def fill(self, name: str, chunk: int, content: dict[int, np.ndarray]) -> None:
        slot = self.slots[name][chunk % len(self.slots[name])]
        slot.content, slot.chunk = content, chunk

    def moved(self, w: _Warps, t: Tile) -> tuple[Pointer, np.ndarray]:
        """Where the copy engine finds a tile's entries, and which of them there are."""
        names, value = w.names, self.program.value
        rows = each(value(t.first, names)) + np.arange(self.whole(w, t.rows))[None, :, None]
        columns = each(value(t.offset, names)) + np.arange(self.whole(w, t.block))[None, None, :]
        there = (rows < each(value(t.stop, names))) & (columns < self.whole(w, t.width))
        base = value(t.base, names)
        if not isinstance(base, Pointer):
            raise self.fault(f"a tile at {t.base.text}, which points nowhere")
        places = each(base.places) + rows * each(value(t.stride, names)) + columns
        return Pointer(base.memory, places), there

    def whole(self, w: _Warps, name: str) -> int:
        return self.program.whole(self.program.value(Name(name), w.names))

    # --- steps

    def step(self, w: _Warps, x: Step) -> None:
        if not isinstance(x, Put | Fence):
            w.stored.clear()
        match x:
            case Await() | Arrive():
                self.barrier(w, x)
            case Fetch(barriers=b, rings=rings):
                self.fetch(w, b, rings)
            case Make(name=name, value=value):
                self.reading(w, value)
                for _ in self.chunks_of(w):
                    w.names[name] = self.program.value(value, self.names(w, value))
            case Invert(name=name, value=value):
                for _ in self.chunks_of(w):
                    names = {"of": self.used(w, value), **{n: self.given[n] for n in ("C", "LEVELS", "DT")}}
                    w.names[name] = self.program.value(INVERSE, names)
            case Put(place=place, value=value, turned=turned):
                self.put(w, place, {at: self.number(w, value) for at in self.chunks_of(w)}, turned)
            case Fence():
                self.fence(w)
            case Product():
                self.begin(w, x)
            case Settle(name=name, outstanding=n):
                self.settle(w, name, n)
            case _:
                self.at_the_end(w, x)

    def barrier(self, w: _Warps, x: Await | Arrive) -> None:
        b = x.barriers
        match x:
            case Await(ready=ready):
                (w.ready if ready else w.empty)[b] = True
            case Arrive(ready=True):
                unfenced = [n for n in self.s.barriers_by_name[b].rings if not self.slot(w, n).fenced]
                if unfenced:
                    raise self.fault(
                        f"no fence is between {', '.join(unfenced)} and products of other roles, which read it"
                    )
                stage = w.chunk % self.stages_of[b]
                if self.arrive(self.ready[b][stage]):
                    self.became_ready(b, stage)
            case Arrive():
                self.done(w, b, w.chunk % self.stages_of[b])

    def fence(self, w: _Warps) -> None:
        w.loaded = False
        for name in w.stored:
            self.buffers[name].fenced = True
        for x in w.role.each:
            if isinstance(x, Put) and x.place in self.slots:
                self.slot(w, x.place).fenced = True

    def at_the_end(self, w: _Warps, x: Step) -> None:
        """A step that hands on what a chunk leaves."""
        match x:
            case Drain(under_way=names):
                w.sent = w.sent[max(0, len(w.sent) - sum(map(self.there, names))) :]
            case Send():
                self.send(w, x)
            case Leave(call=call):
                self.reading(w, call)
                for _ in self.chunks_of(w):
                    self.program.value(call, self.of_chunks(w, self.names(w, call)))
            case Pass(name=name, value=value):
                w.names[name] = self.used(w, value)
            case Plain(body=body):
                self.program.body(body, w.names)

    def of_chunks(self, w: _Warps, names: dict[str, Value]) -> dict[str, Value]:
        """Tiles of a role that takes the chunks of a stage together, as those of one chunk."""
        if not w.role.together:
            return names
        return {
            n: Exact(x.entries[:, None]) if n in w.role.made_in_blocks and isinstance(x, Exact) else x
            for n, x in names.items()
        }

    def done(self, w: _Warps, b: str, stage: int) -> None:
        if not w.ready.get(b):
            raise self.fault(f"the {w.role.name} is done with {b} before it is ready")
        if w.loaded:
            raise self.fault(f"no fence is between what the {w.role.name} loads and the copy engine's next copy")
        rings = self.s.barriers_by_name[b].rings
        for p, reads in w.products.values():
            if set(reads) & set(rings):
                raise self.fault(f"the {w.role.name} is done with {b} while {p.name} reads it")
        w.done[b] = True
        if self.arrive(self.empty[b][stage]):
            self.became_empty(b, stage)

    def fetch(self, w: _Warps, b: str, rings: tuple[str, ...]) -> None:
        self.may_fill(w, b)
        stage = w.chunk % self.stages_of[b]
        barrier = self.ready[b][stage]
        for n in rings:
            r = self.s.rings_by_name[n]
            assert r.tile is not None
            zero, found = Exact(self.entries.of(0)), {}
            for at in self.chunks_of(w):
                found[at] = self.program.load(*self.moved(w, r.tile), zero, r.name).entries
            self.copies.append((r, w.chunk, found, b))
            barrier.copies += 1
        if self.arrive(barrier):
            self.became_ready(b, stage)

    def may_fill(self, w: _Warps, b: str) -> None:
        if not w.empty.get(b):
            raise self.fault(f"the {w.role.name} fills {b} before it is empty")

    def put(self, w: _Warps, place: str, values: dict[int, np.ndarray], turned: bool) -> None:
        if (r := self.s.ring(place)) is not None:
            self.may_fill(w, self.s.barriers_of(place).name)
            self.fill(r.name, w.chunk, values)
            self.slot(w, place).fenced = not r.operand
            return
        if len(values) > 1:
            raise self.fault(f"{place} holds one chunk, and the {w.role.name} has several")
        (value,) = values.values()
        memory = self.buffers[place]
        if any(place in other.sent for other in self.warps.values()):
            raise self.fault(f"{place} is overwritten while the copy engine reads it")
        for other in self.warps.values():
            for p, reads in other.products.values():
                if place in reads:
                    raise self.fault(f"{place} is overwritten while {p.name} reads it")
        memory.content, memory.fenced = across(value) if turned else value, False
        w.stored.add(place)
        memory.filled += 1

    def begin(self, w: _Warps, x: Product) -> None:
        reads = {}
        for y in (x.left, x.right):
            if isinstance(y, Shared):
                if y.place in self.buffers:
                    if not self.buffers[y.place].fenced:
                        raise self.fault(f"no fence is between {y.place} and {x.name}, which reads it")
                    reads[y.place] = self.buffers[y.place].filled
                else:
                    self.may_read(w, y.place)
                    reads[y.place] = w.chunk
            else:
                self.used(w, y.name)
        if x.onto is not None and w.order[-1:] != [x.onto]:  # tensor cores add to what they are at
            self.used(w, x.onto)
        w.products[x.name] = x, reads
        w.order.append(x.name)

    def settle(self, w: _Warps, name: str, outstanding: int) -> None:
        """Products are made when they are waited for, of what lies in their operands then."""
        if name not in w.order or len(w.order) - w.order.index(name) - 1 < outstanding:
            raise self.fault(f"{name} isn't complete when {outstanding} products are under way")
        done, w.order = w.order[: len(w.order) - outstanding], w.order[len(w.order) - outstanding :]
        for n in done:
            x, reads = w.products.pop(n)
            for place, count in reads.items():
                now = self.buffers[place].filled if place in self.buffers else self.slot(w, place).chunk
                if now != count:
                    raise self.fault(f"{place} has changed while {n} reads it")
            for _ in self.chunks_of(w):
                left = self.number(w, x.left.name) if isinstance(x.left, Held) else self.operand(w, x.left)
                made = self.entries.dot(left, self.operand(w, x.right))
                if x.onto is not None:
                    made = self.entries.binary("+", made, self.number(w, x.onto))
                w.names[n] = Exact(made)

    def operand(self, w: _Warps, x: Shared) -> np.ndarray:
        content = self.buffers[x.place].content if x.place in self.buffers else self.slot(w, x.place).content.get(w.at)
        if content is None:
            raise self.fault(f"nothing was put into {x.place}")
        return across(content) if x.turned else content

    def slot(self, w: _Warps, ring: str) -> _Stage:
        return self.slots[ring][w.chunk % len(self.slots[ring])]

    def send(self, w: _Warps, x: Send) -> None:
        name = x.buffer
        buffer, memory = self.s.buffer(name), self.buffers[name]
        assert buffer is not None
        tile = x.tile or buffer.tile
        assert tile is not None
        if not memory.fenced or memory.content is None:
            raise self.fault(f"no fence is between {name} and the copy engine, which reads it")
        w.sent.append(name)
        pointer, there = self.moved(w, tile)
        self.program.store(pointer, Exact(memory.content), there, name)

    # --- names

    def may_read(self, w: _Warps, ring: str) -> None:
        b = self.s.barriers_of(ring).name
        if not w.ready.get(b):
            raise self.fault(f"the {w.role.name} reads {ring} before it is ready")
        if w.done.get(b):
            raise self.fault(f"the {w.role.name} reads {ring} after it has said that it is done")

    def reading(self, w: _Warps, x: Code) -> None:
        for n in names_in(x):
            if n not in w.role.made and (r := self.s.ring(n)) is not None:
                self.may_read(w, n)
                w.loaded |= r.tile is not None

    def names(self, w: _Warps, x: Code) -> dict[str, Value]:
        """What an expression reads, as it is now."""
        there, found = w.names, {}
        for n in names_in(x):
            if n in w.products:
                raise self.fault(f"{n} is used before it is waited for")
            if n in there:
                found[n] = there[n]
            r = self.s.ring(n)
            if r is not None and n not in w.role.made:
                content = self.slot(w, n).content.get(w.at)
                if content is None:
                    raise self.fault(f"nothing was put into {n}")
                found[n] = Exact(across(content) if r.turned else content)
        return found

    def used(self, w: _Warps, name: str) -> Value:
        if name in w.products:
            raise self.fault(f"{name} is used before it is waited for")
        return self.program.value(Name(name), w.names)

    def number(self, w: _Warps, name: str) -> np.ndarray:
        found = self.used(w, name)
        if not isinstance(found, Exact):
            raise self.fault(f"{name} is no number")
        return found.entries


INVERSE = call("inverse", "of", "C", "LEVELS", "DT")


def each(x: Value) -> np.ndarray:
    """An integer of each program, or of all, over the axes of a tile."""
    return np.reshape(x, (-1, 1, 1))


def across(x: np.ndarray) -> np.ndarray:
    """The transpose of a tile; the first axis is of programs."""
    return x.swapaxes(-1, -2)
