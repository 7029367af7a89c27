"""Launches of prologue kernels, and what sweeps are given: streams, sums of decays, transitions, room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ....ir.code import Attribute, Literal, Starred
from ....ir.expr import (
    COL,
    ROW,
    Node,
    dim_of,
    factors_of,
    is_of_steps,
    leaf,
    terms_of,
    walk,
)
from ....ir.launch_ir import (
    Alloc,
    Call,
    Code,
    If,
    Launch,
    Passed,
    Set,
    Statement,
    Wanted,
    ref,
    stored,
)
from ....ir.python_code import Fixed, Named, beside, isin, made_by, method, said, several
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Plan, Sweep
from ...chunkwise.segment_maps import feeds_back
from ...normal_form.form import StateForm
from ...normal_form.log_decay import log_of
from ..kernels.arguments import Argument, Role
from ..kernels.chunk_kernel import Kernel
from ..kernels.coupling_weights import (
    TransitionKernel,
    Transitions,
    transition_kernel,
)
from ..kernels.fused_backward import FusedBackward
from ..kernels.per_step import Result, printable
from ..kernels.prologue_kernels import intra_chunk_kernel
from ..kernels.tile_values import Fine
from ..plan_passes.decay_sums import OWN, decay_sum
from ..plan_passes.hoist import Opened, owned, uses
from ..plan_passes.roles import PER_STEP
from ..plan_passes.value_placement import Store
from ..print.sizes import size, sizes
from .launches import Launches
from .one_pass import OnePass
from .pass_values import PassValues
from .wants import Wants, plain, streams_into, streams_of


class PrologueLaunches(PassValues):
    """Launches what comes before a sweep."""

    def __init__(
        self,
        c: Compiled,
        plan: Plan,
        backward: bool,
        fine: Fine | None = None,
        later: OnePass | None = None,
        whole: FusedBackward | None = None,
        stem: str = "triton",
    ) -> None:
        super().__init__(c, plan, backward, fine, later, whole, stem)
        self.origins: dict[Node, Node] = {}  # what streams of unrolled stages are that are made in the prologue
        self.wants = Wants(c, self.plan, self.fused, self.schedule, self.opened, self.from_checkpoints)
        self._share_sums()
        of_span = self.unrolls and not self.from_checkpoints
        self.block = Fixed("config.span" if of_span else "INTERVAL")  # steps of a block
        self.launches = Launches(self.names, self.block, None if whole is None else whole.rows)
        self.spare: set[Node] = set()  # what only a backward pass uses
        # numbers of each step that this pass lays out by heads, and keeps for the other; and those that it has from the other
        self.by_head: dict[str, None] = {}
        self.kept_by_head: dict[str, None] = {}
        self.ready: set[str] = set()
        self.of_prologue: dict[str, set[str]] = {}  # what a prologue kernel made, and for which gradients

    def _log(self, x: Node) -> Code:
        if x.op == "leaf" and x.attrs[0] == "decay":
            return ref(self.names(x))
        axes, node = x.axes, self._multiplied({x: log_of(x)})[x]
        if printable(node, axes):
            name = self.names(leaf("prologue", f"log {x.key}", axes))
            self.body += self._per_step([Result(name, node, axes, "torch.float32")])
            return ref(name)
        results = self.torch_text({"x": node}, {"x": axes})
        shape = several("B", "T", "H", *sizes(axes))
        return made_by("spread", results["x"], shape, "some")

    def _inputs(self, kernel: Kernel, block: str = "", makes: frozenset[str] = frozenset()) -> None:
        """What is made in the prologue of a kernel, but for sums of decays that it makes; `block` begins the names of one decay a
        step over blocks."""
        loaded = [a.source for a in kernel.arguments if a.source is not None]
        self._streams(loaded)
        wanted = [w for w in self.transitions if any(uses(x, y) for x in w.made for y in loaded)]
        self.transitions = [w for w in self.transitions if w not in wanted]
        self._launch_transitions(wanted)
        for a in sorted(kernel.arguments, key=lambda a: a.role is not Role.SUMS):
            x = a.source
            assert x is not None
            which = "" if a.axes else block  # kernels make sums over blocks of those over chunks, for each channel
            if a.role is Role.SUMS and f"{which}{a.name}" not in self.ready:
                self.ready.add(f"{which}{a.name}")
                self._cumulate(a, which, kernel, makes)
            if a.role is Role.BY_HEAD and a.name not in self.ready:
                self.ready.add(a.name)
                self._laid_out([a.name], [a.name], "by_head", (ref(self.names(x)), Fixed("H")))

    def _streams(self, sources: list[Node]) -> None:
        """The streams of prologues among what a kernel loads, where what they are made of is made."""
        groups: dict[tuple[int, ...], dict[Node, Node]] = {}
        for x in dict.fromkeys(sources):
            if x.op == "leaf" and x.attrs[0] == "prologue" and self.names(x) not in self.ready:
                self.ready.add(self.names(x))
                node = self._streams_in_prologue(x)
                leaves = [y.attrs[:2] for y in walk(node) if y.op == "leaf"]
                where = sorted({self.fused.made[y] for y in leaves if y in self.fused.made})
                groups.setdefault(tuple(where), {})[x] = node
        for stages, made in groups.items():
            with self._apart() as found:
                made = self._multiplied(made)
                narrow = self.fine is None and all(len(s.axes) > 1 for s in self.c.step.states)  # operands of products
                dtypes: dict[Node, str | Code] = {
                    x: made_by("row_dtype", "some") if x.axes and narrow else "torch.float32" for x in made
                }
                per_step = [Result(self.names(x), n, x.attrs[2], dtypes[x]) for x, n in made.items()]
                per_step = [r for r in per_step if printable(r.node, r.order)]
                self.body += self._per_step(per_step) if per_step else []
                for x, node in made.items():
                    if all(r.node is not node for r in per_step):
                        results = self.torch_text({"x": node}, {"x": x.attrs[2]})
                        shape = beside("B", "T", "H", *sizes(x.attrs[2]))
                        value = method(results["x"], "expand", shape)
                        self.body.append(Call((self.names(x),), "steps", (value,)))
            for k in stages:
                found = [
                    Wanted(frozenset(self.wants.wanted_by(k) if self.backward else self._everything()), tuple(found))
                ]
            self.body += found

    def _launch_transitions(self, transitions: list[Transitions], block: str = "") -> None:
        """Weights between states, those of one matrix of each step by one kernel; over blocks, their names are what `block`
        begins."""
        layout, chunk = ("blocks", self.block) if block else ("layout", Fixed("config.chunk"))
        for w in transitions:
            number = sum(isinstance(x, TransitionKernel) for x in self.kernels) + 1
            kernel = transition_kernel(f"{self.kind}_transitions_{number}", w, self.names)
            self.kernels.append(kernel)
            made = {x: self._number_of_steps(x) for x in dict.fromkeys(w.entries[p] for p in kernel.given)}
            given = [made[w.entries[p]] for p in kernel.given]
            arguments = [Passed(beside(x, Starred(made_by("strides", x, "H")))) for x in given]
            for x in w.made:
                shape, name = [Fixed("T")], f"{block}{self.names(x)}"
                if len(x.axes) > 1:
                    shape = [Fixed(f"{layout}.chunks"), chunk, chunk]
                    name = f"{self.names(x)}{'_blocks' * bool(block)}"
                arguments.append(stored(ref(name)))
                self.body.append(Alloc(name, beside("B", "H", *shape)))
            places = (Starred(Attribute(Fixed(layout), "at_once")), Attribute(Fixed(layout), "programs"))
            words = (("C", chunk), ("num_warps", Literal(1)))
            self.body.append(Launch(kernel.name, Attribute(Fixed(layout), "programs"), tuple(arguments), places, words))

    def _cumulate(self, a: Argument, which: str, kernel: Kernel, makes: frozenset[str]) -> None:
        """Sums of a decay; of one decay a step by the launch that lays out another number of each step, if one is waiting."""
        assert a.source is not None
        with self._apart() as prologue:
            log, base = self._log(a.source), f"{which}{a.base}"
        names, where = [f"{base}_{x}" for x in ("sums", "rests", "extents")], "blocks" if which else "layout"
        waiting = [y for y in kernel.arguments if y.role is Role.BY_HEAD and y.name not in self.ready]
        places = (Fixed(where), Fixed("config.exact"))
        if a.axes:
            made = (Named("made", Literal(True)),) if base in makes else ()
            self.body += [*prologue, Call(tuple(names), "cumulate", (log, *places, *made))]
        elif not waiting:
            self._laid_out(names, names[:1], "cumulate", (log, *places), prologue)
        else:
            other = waiting[0].source
            assert other is not None
            self.ready.add(waiting[0].name)
            arguments = (log, ref(self.names(other)), *places)
            beside = waiting[0].name
            self._laid_out([*names, beside], [names[0], beside], "cumulate_beside", arguments, prologue)

    def _laid_out(
        self,
        names: list[str],
        kept: list[str],
        function: str,
        arguments: tuple[Code, ...],
        prologue: Sequence[Statement] = (),
    ) -> None:
        """Numbers of each step by heads, and what comes with them, with statements `prologue`: a backward pass has those that the
        forward pass has made and `kept`, unless rests belong to them."""
        made: tuple[Statement, ...] = (*prologue, Call(tuple(names), function, arguments))
        if not self.backward:
            self.by_head |= dict.fromkeys(kept)
        if not self.kept_by_head.keys() >= set(kept):
            self.body += made
            return
        values = beside(*(Fixed("saved")[n] if n in kept else None for n in names))
        self.body.append(If(isin(said(kept[0]), "saved"), (Set(tuple(names), values),), made))

    def _streams_in_prologue(self, x: Node) -> Node:
        if x in self.origins:
            return self.origins[x]
        for o in (*self.opened.values(), *self.from_checkpoints.values()):
            for stream, node in o.streams.items():
                if node is x:
                    return o.origins[stream]
        raise AssertionError(x)

    def _launch_prologue(
        self, o: Opened, wanted: set[str], name: str, k: int, making: frozenset[str] = frozenset()
    ) -> None:
        """The prologue kernel of sweep k, for what no kernel has made for these gradients yet; and, as it is at it, matrices of
        later sweeps."""
        made = o.prologue
        prologue = [
            x
            for x in (*made.matrices, *made.scaled, *made.intra)
            if not wanted <= self.of_prologue.get(self.names(x), set())
        ]
        sums = [x for x in made.own if not wanted <= self.of_prologue.get(f"{x.state} {x.place}", set())]
        if not prologue and not sums:
            return
        here = replace(
            made,
            own=sums,
            matrices={x: n for x, n in made.matrices.items() if x in prologue},
            scaled={x: n for x, n in made.scaled.items() if x in prologue},
            intra={x: n for x, n in made.intra.items() if x in prologue},
        )
        some = replace(o, prologue=here)
        for j, later in ((j, x) for j, x in self.opened.items() if j > k):
            for x, node in self.wants.matrices_early(some, later, k).items():
                if self.names(x) not in self.of_prologue:
                    some.prologue.matrices[x] = node
                    prologue.append(x)
                    wanted = wanted | (self.wants.wanted_by(j) if self.backward else wanted)
        for own in sums:
            wanted = wanted | self.wants.paired(own.state)
            if own.source is not None:
                streams_into(some, own.source, [n for n, _, _ in own.terms])
        for own in sums:
            self.of_prologue[f"{own.state} {own.place}"] = wanted
        kernel = intra_chunk_kernel(name, some, self.names, self.fine, making)
        self._inputs(kernel, makes=making)
        room: list[Statement] = []
        for own in (x for x in sums if x.place == 0):
            for slot, x in own.prologue.items():
                room.append(Alloc(self.names(x), beside("B", "H", own.counts[slot], "T")))
        for x in dict.fromkeys(prologue):
            self.of_prologue[self.names(x)] = wanted
            axes = [a for a in x.axes if not is_of_steps(a)]
            shape = beside("B", "H", "layout.chunks", "config.chunk", "config.chunk")
            if axes:
                shape = beside("B", "H", "T", size(axes[0]))
            wide = x.attrs[0] == "intra" or x.attrs[1] in o.wide | self._into_numbers or self.fine is not None
            room.append(Alloc(self.names(x), shape, "torch.float32" if wide else None))
        self._under(wanted, room + self.launches.launch(kernel))
        self.kernels.append(kernel)

    def _launch_prologue_by_intervals(
        self,
        o: Opened,
        prologue: Mapping[Node, Node],
        wanted: set[str],
        name: str,
        precise: frozenset[Node] = frozenset(),
    ) -> None:
        """The prologue kernel of one that takes blocks, for what that one doesn't make itself; `precise` ones are float32."""
        if not prologue:
            return
        matrices = {x: n for x, n in o.matrices.items() if x in prologue}
        some = replace(o, prologue=replace(o.prologue, matrices=matrices, intra={}, own=[]))
        kernel = intra_chunk_kernel(name, some, self.names, self.fine)
        self._inputs(kernel, "block_")
        made: list[Statement] = []
        for x in some.of_prologue:
            own = [a for a in x.axes if not is_of_steps(a)]
            rest: list[str | Code] = ["T", size(own[0])] if own else ["blocks.chunks", self.block, self.block]
            dtype = "torch.float32" if self.fine is not None or x in precise else None
            made.append(Alloc(f"{self.names(x)}_blocks", beside("B", "H", *rest), dtype))
        self._under(wanted, made + self.launches.launch(kernel, block="block_"))
        self.kernels.append(kernel)

    @cached_property
    def _multiplied_out(self) -> frozenset[Node]:
        """Reads of which numbers of each step are made that something is divided by or multiplied with, as <do, y> is: they stay
        float32 where they lie, since terms of gradients cancel that have such a number and that have not."""
        made = [
            x
            for o in self.opened.values()
            for x in (*o.streams.values(), *o.origins.values(), *o.prologue.definitions.values())
        ]
        sums = {y for x in made for y in walk(x) if y.op == "sum" and not set(y.axes) - {ROW, COL}}
        return frozenset(y for x in sums for y in walk(x) if y.op == "leaf" and y.attrs[0] == "read")

    @cached_property
    def _into_numbers(self) -> frozenset[str]:
        """Matrices over steps of which a sweep makes numbers of each step, as no product on tensor cores does: they are float32,
        for a normaliser that is small beside its terms has the rounding of these, and so has all that is divided by it."""
        found = set()
        for o in self.opened.values():
            for x in {y for z in (*o.definitions.values(), *o.outputs.values(), *o.states.values()) for y in walk(z)}:
                if x.op == "sum" and len(x.axes) == 1:
                    matrices = [f for f in factors_of(x.args[0]) if f.op == "leaf" and f.attrs[0] == "matrix"]
                    others = [f for f in factors_of(x.args[0]) if f not in matrices]
                    if all(not set(f.axes) - {ROW, COL} for f in others):
                        found |= {f.attrs[1] for f in matrices}
        return frozenset(found)

    def _share_sums(self) -> None:
        """Hand pairs inside chunks, which are summed for the gradient of a decay, to the prologue kernel of a sweep, up to their
        own,
        that loads all that they are made of, or all but one; so that no kernel is there for them alone."""
        if not self.backward:
            return
        sweeps = {k: o for k, o in self.opened.items() if self.wants.wanted_by(k)}
        loads: dict[int, set[tuple[str, str]]] = {}
        claimed: set[Node] = set()
        for k, o in sweeps.items():
            some = replace(o, streams={**o.streams}, decays={**o.decays})
            made = {x: (n, o) for x, n in o.matrices.items() if x not in claimed}
            for j, later in sweeps.items():
                if j > k:
                    made |= {
                        x: (n, later) for x, n in self.wants.matrices_early(some, later, k).items() if x not in claimed
                    }
            claimed |= set(made)
            if made:
                loads[k] = set().union(*(_wide_leaves(n, source) for n, source in made.values()))
        for k, o in sweeps.items():
            for own in list(o.prologue.own):
                parts: dict[int, list[tuple[Node, str, str]]] = {}
                for term in own.terms:
                    needs = _wide_leaves(term[0], o)
                    more = {
                        j: len(needs - loads[j])
                        for j in loads
                        if j <= k and plain(sweeps[j], o) and self.wants.known(term[0], o, j)
                    }
                    best = min(more, key=lambda j: more[j], default=k)
                    parts.setdefault(best if more.get(best, 2) < 2 else k, []).append(term)
                if set(parts) != {k}:
                    o.prologue.own.remove(own)
                    order = sorted(parts)
                    for j, share in zip(order, owned(own.prologue, [parts[j] for j in order]), strict=True):
                        share.source = None if j == k else o
                        sweeps[j].prologue.own.append(share)

    def _makes(self, sweep: Sweep, o: Opened, kernel: Kernel) -> frozenset[str]:
        """The decays whose sums the prologue kernel of a sweep makes: where nothing else needs more than those of whole chunks,
        and one product in that kernel needs them all, so that it has the registers."""
        alone = (
            len(self.schedule.sweeps) == 1 and not self.from_checkpoints and not feeds_back(sweep.group, sweep.solve)
        )
        if self.backward or not alone or len(o.prologue.products) != 1 or o.prologue.intra:
            return frozenset()
        decays = [x for x in o.decays.values() if x.op == "leaf" and x.attrs[0] == "decay" and x.axes]
        return frozenset(self.names(x) for x in decays) - kernel.inside

    def _allocated(self, k: int, s: Store) -> Alloc | Set:
        x = s.leaf
        shape = beside("B", "T", "H", *sizes(x.axes))
        if s.kind == "sums":
            shape = self._numbers(self._sums_of(k))
        before = self._replaced(k, s)
        if before is not None:
            return Set((self.names(x),), ref(self.names(before)), in_place=True)
        return Alloc(self.names(x), shape, self._dtype(s), Fixed("needs_backward") if x in self.spare else None)

    def _dtype(self, s: Store) -> str:
        """Of what is stored. A gradient's terms so far are float32, unless they may be made of writes that are solved for, which
        are rounded as well; so are reads that are one number a step: values are divided by them, and terms of gradients with
        them cancel."""
        if s.kind == "part" and not (self.backward and self.plan.form.write_leaves()):
            return "torch.float32"
        number = s.kind == "kept" and s.leaf.attrs[0] == "read" and (not s.leaf.axes or s.leaf in self._multiplied_out)
        wide = s.kind == "sums" or number or (s.kind in ("final", "part") and self._wide(s.root))
        return "torch.float32" if wide else "some.dtype"

    def _stores_wide(self, kernel: Kernel) -> bool:
        """Does a kernel store tiles in float32?"""
        stored = {a.source for a in kernel.arguments if a.layout == "out" and a.axes}
        return any(
            s.leaf in stored and self._dtype(s) == "torch.float32" for x in self.fused.stores.values() for s in x
        )

    def _replaced(self, k: int, s: Store) -> Node | None:
        """The terms so far that a store adds to, where nothing else uses them: each entry is made of the one that it replaces."""
        parts = {x.leaf.attrs[1]: x for n in range(k) for x in self.fused.stores.get(n, ()) if x.kind == "part"}
        used = [
            parts[y.attrs[1]]
            for y in terms_of(s.node)
            if y.op == "leaf" and y.attrs[0] == "stored" and y.attrs[1] in parts
        ]
        if s.kind not in ("final", "part") or len(used) != 1 or self._dtype(used[0]) != self._dtype(s):
            return None
        before = used[0].leaf
        if [*map(dim_of, before.axes)] != [*map(dim_of, s.leaf.axes)]:
            return None
        if k not in self.schedule.sweeps:
            return None  # a kernel may have made it that stores nothing of it
        others = [x.node for j, stores in self.fused.stores.items() for x in stores if (j, x) != (k, s)]
        others += [*self.fused.values.values(), *(x for pair in self.fused.state_adjoints.values() for x in pair)]
        others += [x for stage in self.plan.sweeps for x in stage.given.values()]
        if any(y.op == "leaf" and y.attrs[:2] == before.attrs[:2] for y in walk(*others)):
            return None
        return before

    def _numbers(self, count: Code) -> Code:
        """The shape of so many numbers of each step."""
        return beside("B", "H", count, "T")

    def _sums_of(self, k: int) -> Code:
        """How many sums over its tile axis a sweep leaves of each step: one for each tile, and of a sweep for each warp."""
        if k not in self.opened:
            return self.launches.tile_count(self.from_checkpoints[k], reads=True)
        tiles = self.launches.tile_count(self.opened[k])
        return tiles * Fixed("config.warps") if len(self.opened[k].tile) == 1 else tiles

    def _boundary_sums(self, o: Opened) -> list[Node]:
        """What the sweep of a sweep sums for gradients of decays."""
        found = [decay_sum(s.state, s.kind, slot) for s in o.sums if not s.totals for slot in s.reads]
        found += [decay_sum(s.state, OWN, slot) for s in o.sums if not s.prologue for slot in s.slots]
        axes = {s.state: self.plan.form.state(s.state).decay_axes for s in o.sums}
        return [*found, *(decay_sum(s.state, s.kind, axes=axes[s.state]) for s in o.sums if s.totals)]

    def _new_state(self, name: str, s: StateForm, count: Code, when: Code | None = None) -> Alloc:
        return Alloc(name, beside(count, "H", *sizes(s.axes)), when=when)

    def _only_in(self, store: Store, stages: list[int]) -> bool:
        """Does nothing load what is stored, but the kernel that makes it for these stages?"""
        if store.kind == "sums":
            return False
        nodes = [*self.fused.values.values()]
        nodes += [x for n, pair in self.fused.state_adjoints.items() if n not in self.schedule.whole for x in pair]
        for k, stage in enumerate(self.plan.stages):
            if isinstance(stage, Sweep) and (k not in stages or k in self.schedule.sweeps):
                nodes += [*stage.given.values(), *(s.node for s in self.fused.stores[k])]
        return not any(uses(n, store.leaf) for n in nodes)


def _wide_leaves(node: Node, o: Opened) -> set[tuple[str, str]]:
    """What a kernel loads a tile of for a matrix."""
    nodes = walk(node, *streams_of(o, [node]).values())
    return {
        y.attrs[:2]
        for y in nodes
        if y.op == "leaf" and y.attrs[0] in PER_STEP and any(not is_of_steps(a) for a in y.axes)
    }
