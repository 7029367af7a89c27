"""Who needs what: for which gradients each stage of a backward plan runs, and what it stores.

A stage runs for what it yields itself, and wherever a later kernel runs that loads what it stores: a sweep, the kernel in its
prologue, or one that reads checkpointed states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ....ir.code import Code
from ....ir.expr import ZERO, Node, leaf_names, walk
from ....ir.launch_ir import any_wanted
from ....ir.python_code import made_by
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Plan, Sweep, Unroll
from ...step.adjoint import gradient_name
from ...stepwise.initial import initial_adjoints
from ..kernels.chunk_kernel import Alone
from ..plan_passes.checkpoint_schedule import CheckpointSchedule
from ..plan_passes.hoist import Opened, uses
from ..plan_passes.value_placement import Fused, Store


@dataclass(frozen=True)
class Wants:
    """The gradients that stages of a plan run for. `opened` and `from_checkpoints` are its sweeps by stage, and what reads
    checkpointed states."""

    c: Compiled
    plan: Plan
    fused: Fused
    schedule: CheckpointSchedule
    opened: dict[int, Opened]
    from_checkpoints: dict[int, Opened]

    @property
    def _unrolls(self) -> list[Unroll]:
        return [x for x in self.plan.stages if isinstance(x, Unroll)]

    def wanted_by(self, k: int) -> set[str]:
        """The variables and states whose gradients need stage k."""
        return set(self._needs[k])

    @cached_property
    def _needs(self) -> dict[int, set[str]]:
        """By stage, the variables and states whose gradients need what it yields, or what a later sweep yields that loads it,
        wherever that runs."""
        stages = {k: s for k, s in enumerate(self.plan.stages) if isinstance(s, Sweep)}
        own = {k: self._wanted_alone(k, s) for k, s in stages.items()}
        loaded_by = {k: {j for s in self.fused.stores[k] for j in self._loading(k, s)} for k in stages}
        ahead = {k: {j for s in self.fused.stores[k] for j in self._loading_ahead(k, s)} for k in stages}
        summed = {k: [x for s in self.fused.stores[k] for x in self._summing_ahead(k, s)] for k in stages}
        found: dict[int, set[str]] = {k: set() for k in stages}
        while True:
            runs = self._runs_for(found)
            prologues = {j: runs[j].union(*(found[i] for _, i in made)) for j, made in self._prologues.items()}
            more = {k: own[k].union(*(runs[j] for j in loaded_by[k])) for k in stages}
            more = {k: x.union(*(prologues[j] for j in ahead[k])) for k, x in more.items()}
            more = {k: x.union(*(prologues[j] | self.paired(s) for j, s in summed[k])) for k, x in more.items()}
            if more == found:
                return found
            found = more

    @cached_property
    def _prologues(self) -> dict[int, dict[tuple[Node, int], Node]]:
        """By sweep, the matrices that its prologue kernel makes, of this sweep and of later ones: what they are, by their leaf
        and each sweep that has it, as several may."""
        found: dict[int, dict[tuple[Node, int], Node]] = {}
        claimed = set[tuple[str, str]]()
        for k, o in self.opened.items():
            made = {(x, k): n for x, n in o.matrices.items() if x.attrs[:2] not in claimed}
            if made or o.prologue.scaled or o.prologue.intra or o.prologue.own:
                some = replace(o, streams={**o.streams}, decays={**o.decays})
                for j, later in ((j, x) for j, x in self.opened.items() if j > k):
                    early = self.matrices_early(some, later, k)
                    made |= {(x, j): n for x, n in early.items() if x.attrs[:2] not in claimed}
            claimed |= {x.attrs[:2] for x, _ in made}
            found[k] = made
        return found

    def _loading_ahead(self, k: int, s: Store) -> list[int]:
        """The later sweeps whose prologue kernels load what stage k stores."""
        found = []
        for j, made in self._prologues.items():
            nodes = [y for (_, i), n in made.items() for y in (n, *_made_of(self.opened[i], n))]
            if j > k and any(uses(y, s.leaf) for y in nodes):
                found.append(j)
        return found

    def _summing_ahead(self, k: int, s: Store) -> list[tuple[int, str]]:
        """The later sweeps whose prologue kernels sum pairs of what stage k stores for the gradient of a decay, and of which
        state."""
        return [
            (j, own.state)
            for j, o in self.opened.items()
            if j > k
            for own in o.prologue.own
            if any(uses(y, s.leaf) for n, *_ in own.terms for y in (n, *_made_of(o, n)))
        ]

    def _runs_for(self, wanted: Mapping[int, set[str]]) -> dict[int, set[str]]:
        """By stage, the gradients that it runs for, where stages are wanted so: the first sweep over states makes what enters
        segments for all of them, and one that leaves states at checkpoints does that for what reads these."""
        runs, entered, left = {k: set(x) for k, x in wanted.items()}, set[str](), set[str]()
        for k, sweep in self.schedule.sweeps.items():
            states = set(sweep.states)
            first = not states <= entered and sweep.direction < 0
            checkpoints = bool(states & self.schedule.stored) and not states <= left
            if first or checkpoints:
                runs[k] = runs[k].union(*(wanted[j] for j in self.sweeps_over(states)))
            if checkpoints:
                runs[k] = runs[k].union(*(wanted[j] for j in self.from_checkpoints))
            entered |= states if first else set()
            left |= states if checkpoints else set()
        for together in self._read_together:
            for k in together:
                runs[k] = runs[k].union(*(wanted[j] for j in together))
        return runs

    @cached_property
    def _read_together(self) -> list[list[int]]:
        """The stages that read checkpointed states, those together that one kernel is for: the same sweep needs them, if any
        does, and they have the same tile axis."""
        groups: list[list[int]] = []
        waiting = list(self.from_checkpoints)
        for k in self.schedule.sweeps:
            groups.append(self.read_by(k, waiting))
            waiting = [j for j in waiting if j not in groups[-1]]
        found: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for n, stages in enumerate([*groups, waiting]):
            for k in stages:
                found.setdefault((n, self.from_checkpoints[k].tile), []).append(k)
        return list(found.values())

    def sweeps_over(self, states: set[str]) -> list[int]:
        """The stages that sweep over any of these states."""
        return [j for j, x in enumerate(self.plan.stages) if isinstance(x, Sweep) and set(x.states) & states]

    def _wanted_alone(self, k: int, stage: Sweep) -> set[str]:
        """The variables and states whose gradients need what stage k yields, but for what later sweeps make of it."""
        wanted: set[str] = set()
        for name in stage.finals:
            if any(name == s.name for s in self.c.step.states):
                wanted |= self.paired(name)
            else:
                wanted |= {name[1:]} | self.initial_wants(name[1:])
        for boundary in stage.boundary_sums:
            wanted |= self.paired(boundary.state)
        for x in (x for x in self._unrolls if set(stage.states) & {s.name for s in (*x.forward, *x.backward)}):
            wanted = wanted.union(*(self.paired(y.attrs[1]) for y in x.outputs))
        return wanted.union(*(self._store_wanted_alone(s) for s in self.fused.stores[k]))

    def of_read(self, k: int, read: Alone) -> Code:
        """When somebody uses what a sweep stores for one of its reads."""
        stores = [self._store_wants(k, s) for s in self.fused.stores[k] if s.leaf in read.stores]
        wanted = set().union(*stores, *map(self.paired, read.states))
        return made_by("bool", any_wanted(wanted))

    def _store_wants(self, k: int, s: Store) -> set[str]:
        """The variables and states whose gradients need what stage k stores."""
        runs = self._runs_for(self._needs)
        return self._store_wanted_alone(s).union(*(runs[j] for j in self._loading(k, s)))

    def _loading(self, k: int, s: Store) -> list[int]:
        """The later sweeps that load what stage k stores."""
        if s.kind not in ("kept", "part", "final"):
            return []
        found = []
        for j, stage in enumerate(self.plan.stages):
            if j > k and isinstance(stage, Sweep):
                nodes = [*stage.given.values(), *(x.node for x in self.fused.stores[j])]
                if any(uses(n, s.leaf) for n in nodes):
                    found.append(j)
        return found

    def _store_wanted_alone(self, s: Store) -> set[str]:
        """The variables and states whose gradients need what is stored, but for what later sweeps make of it."""
        wanted = set().union(*map(self._root_wants, (s.root, *s.shared)))
        if s.kind not in ("kept", "part", "final"):
            return wanted
        for unroll in self._unrolls:
            if any(uses(n, s.leaf) for n in unroll.streams.values()):
                wanted = wanted.union(*(self.paired(y.attrs[1]) for y in unroll.outputs))
        for name, node in self.fused.values.items():
            if uses(node, s.leaf):
                wanted |= self._root_wants(name)
        for state, pair in self.fused.state_adjoints.items():
            if any(uses(n, s.leaf) for n in pair):
                wanted |= self.paired(state)
        return wanted

    def paired(self, state: str) -> set[str]:
        """The variables whose gradients use the state-adjoint product of a state."""
        return {
            v.name
            for v in self.c.step.variables
            if v.kind != "constant"
            and ("state-adjoint product", state) in leaf_names(self.fused.values.get(gradient_name(v), ZERO))
        }

    def _root_wants(self, root: str) -> set[str]:
        if "." in root:
            return self.paired(root.split(".")[0])
        return {v.name for v in self.c.step.variables if gradient_name(v) == root}

    def initial_wants(self, state: str) -> set[str]:
        """Parameters that the initial value of a state is made of."""
        programs = initial_adjoints(self.c)
        return {v.name for v in programs[state].variables if v.kind != "constant"} if state in programs else set()

    def read_by(self, k: int, waiting: list[int]) -> list[int]:
        """Of the pieces that are waiting, those that make what sweep k loads, and what these load."""
        nodes = [*self.schedule.sweeps[k].given.values(), *(s.node for s in self.fused.stores[k])]
        found: list[int] = []
        while nodes:
            makers = [j for j in waiting if any(uses(n, s.leaf) for n in nodes for s in self.stores_at(j))]
            more = [j for j in makers if j not in found]
            found += more
            nodes = [s.node for j in more for s in self.stores_at(j)]
        return sorted(found)

    def stores_at(self, k: int) -> list[Store]:
        """What the piece of a stage stores: nothing where a sweep does."""
        return [] if k in self.schedule.sweeps else self.fused.stores[k]

    def matrices_early(self, o: Opened, later: Opened, k: int) -> dict[Node, Node]:
        """The matrices of a later sweep that the prologue kernel of sweep k, which is for `o`, can make: its axes and streams are
        added to those of `o`."""
        if not plain(o, later):
            return {}
        found = {x: n for x, n in later.matrices.items() if self.known(n, later, k)}
        for node in found.values():
            streams_into(o, later, [node])
        return found

    def known(self, node: Node, o: Opened, k: int) -> bool:
        """Is all that a matrix of `o` is made of there before sweep k?"""
        leaves = [y for y in walk(node) if y.op == "leaf"]
        if any(y.attrs[0] in ("inner", "product") for y in leaves) or node.op == "inverse":
            return False
        made = [y for z in (node, *streams_of(o, [node]).values()) for y in walk(z) if y.op == "leaf"]
        late = {"prologue": k, "stored": k}
        return all(self.fused.made.get(y.attrs[:2], late.get(y.attrs[0], -1)) < k for y in made)


def plain(o: Opened, later: Opened) -> bool:
    """May the kernel that makes matrices of one make those of the other?"""
    return not (
        o.rename or later.rename or any((x.scaled or x.intra or x.products) for x in (o.prologue, later.prologue))
    )


def streams_of(o: Opened, nodes: list[Node]) -> dict[Node, Node]:
    """The streams that nodes are made of, over rows or columns."""
    named = stream_names(nodes)
    return {y: n for y, n in o.streams.items() if y.attrs[1] in named}


def _made_of(o: Opened, node: Node) -> list[Node]:
    """What the streams that a node is made of are made of in turn, also where that is done before the prologue."""
    return [o.origins.get(y, n) for y, n in streams_of(o, [node]).items()]


def stream_names(nodes: list[Node]) -> set[str]:
    return {name for x in nodes for kind, name in leaf_names(x) if kind == "stream"}


def streams_into(o: Opened, later: Opened, nodes: list[Node]) -> None:
    """Let a kernel that is for `o` make nodes of another sweep."""
    named = stream_names(nodes)
    o.streams.update(streams_of(later, nodes))
    o.decays.update({y: n for y, n in later.decays.items() if y.attrs[1] in named})
    missing = [a for a in (*later.full, *later.tile) if a not in (*o.full, *o.tile)]
    o.full = (*o.full, *missing)
