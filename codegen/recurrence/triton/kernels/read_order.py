"""In what order an output kernel makes what it reads of states, and what it adds up of these on its way.

A tile of a read takes 32 registers a thread. A kernel with few reads makes all of them, and then what it stores. One with more
adds each read at once to the sums that it is a term of, and stores what has all its terms: registers hold sums, and not reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ....ir.expr import ROW, Node, add, factors_of, leaf, mul, rename, split_constant, terms_of, walk
from ....ir.expr import replace as node_replace
from ...normal_form.form import StateForm
from ..plan_passes.hoist import Opened
from ..plan_passes.roles import at_row
from ..plan_passes.value_placement import Store
from .places import same_size

SUM = "sum so far"  # leaves that stand for what a kernel has added up
WHOLE = "whole read"  # leaves that stand for a read with each step's own write, in a sum of reads without

# Reads that a kernel has registers for beside the sums that they go to.
AT_ONCE = 2


@dataclass(frozen=True)
class CheckpointReads:
    """What is made of the checkpointed states, of one sweep: its outputs, stores and sums."""

    group: tuple[StateForm, ...]
    opened: Opened
    stores: list[Store]


@dataclass
class ReadSum:
    """A sum of reads, each times what a step has: the `terms` that wait for their reads, and the `total` of those that don't.
    `inner`: by a factor, the sum of what that is multiplied by in the terms that have it in common."""

    terms: list[Node]
    inner: dict[Node, ReadSum] = field(default_factory=dict)
    total: Node | None = None

    @classmethod
    def of(cls, terms: list[Node]) -> ReadSum:
        """Terms with a common factor are added up before they are multiplied by it."""
        counts = Counter(
            f for x in terms for f in factors_of(x) if ROW in f.axes and len(f.axes) > 1 and not is_read(f)
        )
        common = next((f for f, n in counts.most_common(1) if n > 1), None)
        if common is None:
            return cls(terms)
        within = [x for x in terms if common in factors_of(x)]
        return cls([x for x in terms if x not in within], {common: cls.of([_without(x, common) for x in within])})

    @property
    def waiting(self) -> list[Node]:
        """The terms that aren't added yet."""
        return [*self.terms, *(x for one in self.inner.values() for x in one.waiting)]

    @property
    def complete(self) -> bool:
        return not self.terms and not self.inner

    def add(self, made: Callable[[Node], Node | None], keep: Callable[[Node], Node]) -> None:
        """Add the terms that are `made`, as they are there; `keep` a sum that isn't complete, and take what stands for it."""
        found = {x: y for x in self.terms if (y := made(x)) is not None}
        self.terms = [x for x in self.terms if x not in found]
        added = [*found.values()]
        for factor, one in list(self.inner.items()):
            one.add(made, keep)
            if one.complete and one.total is not None:
                added.append(mul(factor, one.total))
                del self.inner[factor]
        if added:
            self.total = add(*([] if self.total is None else [self.total]), *added)
            if not self.complete:
                self.total = keep(self.total)


@dataclass
class Asked:
    """A store of a kernel with many reads, and the sum that it waits for."""

    store: Store
    opened: Opened
    sum: ReadSum
    stored: bool = False


def is_read(x: Node) -> bool:
    """Is it a read, with each step's own write or without, or a sum of these?"""
    return x.op == "leaf" and x.attrs[0] in ("read", WHOLE, "apart", SUM)


def late_node(x: Node, state: StateForm, o: Opened) -> Node:
    """Terms of a state-adjoint product over channels, as the kernel calls their axes. What is written before the decay has one
    between it and all that reads it, its own step's reads too: of such a term no pair is left out."""
    writes = [w.left if state.decay_axes == (state.row,) else w.value for w in state.writes if not w.late]
    decayed = [_of_channels(mul(*state.decays, w), state, o) for w in writes]

    def marked(y: Node, times: frozenset[Node] = frozenset()) -> Node:
        """`times`: what a sum is multiplied by."""
        if y.op == "add":
            return add(*(marked(z, times) for z in terms_of(y)))
        number, rest = split_constant(y)
        factors = factors_of(rest)
        times |= {f for f in factors if f.op != "add"}
        if any(z <= times for z in decayed):
            return node_replace(
                y, {z: leaf(WHOLE, *z.attrs[1:]) for z in walk(y) if z.op == "leaf" and z.attrs[0] == "read"}
            )
        return mul(number, *(marked(f, times) if f.op == "add" else f for f in factors))

    return marked(step_node(x, o)) if decayed else step_node(x, o)


def _of_channels(x: Node, state: StateForm, o: Opened) -> set[Node]:
    """The factors that have the axis of a state's decay."""
    return {step_node(f, o) for f in factors_of(split_constant(x)[1]) if {*state.decay_axes} & {*f.axes}}


def step_node(x: Node, o: Opened) -> Node:
    """What a store has, as the kernel calls its axes."""
    return at_row(rename(x, o.rename))


def in_registers(x: Node, o: Opened) -> Node:
    """What is stored, as the kernel has it in registers."""
    kind, what, *_ = x.attrs
    return leaf(kind, what, (ROW, *(next(t for t in o.tile if same_size(a, t)) for a in x.axes)))


def asked_for(sweeps: list[CheckpointReads], inside: set[Node], late: Mapping[str, StateForm]) -> list[Asked]:
    """The stores of all sweeps, the terms that one leaves to another in this among its own; decays' gradients, which take from
    what the others add up, come last. `late`: the states of these, by what is stored."""
    parts: dict[Node, Node] = {}
    found = []
    for x in sweeps:
        for s in x.stores:
            state, o = late.get(s.root), x.opened
            own = step_node(s.node, o) if state is None else late_node(s.node, state, o)
            node = node_replace(own, parts)
            if s.kind == "part" and s.leaf in inside:
                parts[in_registers(s.leaf, x.opened)] = node
            else:
                found.append(Asked(s, x.opened, ReadSum.of([*terms_of(node)])))
    return sorted(found, key=lambda a: a.store.root in late)


def one_by_one(sweeps: list[CheckpointReads]) -> bool:
    """Are there more reads than a kernel makes at once?"""
    return sum(len(x.opened.outputs) for x in sweeps) > AT_ONCE


def in_order(
    sweeps: list[CheckpointReads], asked: list[Asked], late: Mapping[str, StateForm]
) -> list[tuple[CheckpointReads, list[Node]]]:
    """The reads in the order in which they are made: first those that are added to others, the cheapest of them first, so that
    the sum is in registers while few are needed; each alone, or all of a sweep where there are few."""
    if not one_by_one(sweeps):
        return [(x, [*x.opened.outputs]) for x in sweeps]

    def rank(read: tuple[CheckpointReads, Node]) -> tuple[int, int]:
        sweep, x = read
        sums = [a.sum.waiting for a in asked if a.store.root not in late]
        among = max(
            (len(s) for s in sums if any(x.attrs[1] == y.attrs[1] for z in s for y in walk(z) if is_read(y))), default=0
        )
        made = node_replace(sweep.opened.outputs[x], {y: n for y, n in sweep.opened.prologue.intra.items()})
        return -among, len(terms_of(made))

    reads = sorted(((x, y) for x in sweeps for y in x.opened.outputs), key=rank)
    return [*((x, [y]) for x, y in reads), *((x, []) for x in sweeps if not x.opened.outputs)]


def _without(x: Node, factor: Node) -> Node:
    number, rest = split_constant(x)
    return mul(number, *(f for f in factors_of(rest) if f is not factor))
