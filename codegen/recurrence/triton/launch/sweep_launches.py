"""Launches of sweeps, over sequences that may be cut in segments, and of what reads checkpointed states."""

from __future__ import annotations

from dataclasses import replace

from ....ir.code import Attribute, Literal, code
from ....ir.expr import (
    Node,
    leaf,
    rename,
)
from ....ir.launch_ir import (
    NONE,
    Alloc,
    Call,
    Code,
    Define,
    If,
    Set,
    Statement,
    any_wanted,
    assign_groups,
    ref,
)
from ....ir.python_code import Fixed, Invoked, Named, beside, either, made_by, said, several
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Plan, Sweep
from ...chunkwise.segment_maps import feeds_back, linear_sweep
from ...normal_form.form import StateForm
from ..kernels.chunk_kernel import Kernel
from ..kernels.fused_backward import FusedBackward
from ..kernels.output_kernels import output_kernel
from ..kernels.read_order import CheckpointReads
from ..kernels.sweep_kernels import sweep_kernel
from ..kernels.tile_values import Fine
from ..placed.derive import placed_if_any
from ..plan_passes.decay_sums import ENDS, STATE_ADJOINT, part_of
from ..plan_passes.hoist import made_in_prologue, uses
from ..print.sizes import padded, size, sizes
from ..warp_roles.derive import schedule_if_any
from .state_adjoint_launches import StateAdjointLaunches

OF_SEGMENTS = Fixed("B") * Fixed("segments")


class SweepLaunches(StateAdjointLaunches):
    """Launches sweeps."""

    def __init__(
        self,
        c: Compiled,
        plan: Plan,
        backward: bool,
        cuts: bool,
        exchanges: bool = True,
        fine: Fine | None = None,
        later: SweepLaunches | None = None,
        whole: FusedBackward | None = None,
        stem: str = "triton",
    ) -> None:
        """`later` is the host of the backward pass, where this one is of the forward pass."""
        super().__init__(c, plan, backward, fine, later, whole, stem)
        states = {s.name for s in c.step.states}
        self.again = {n for s in self.schedule.sweeps.values() for n in s.states} & states if backward else set()
        self.kept_starts = later.again if later is not None else self.again
        self.turned: set[str] = set()
        if cuts:
            assert c.forward is not None
            self.turned = _turned_maps(c.forward, self.plan if backward or later is None else later.plan)
        if not backward:
            self.spare = self._kept_alone()
        self.waiting = list(self.from_checkpoints)
        self.cuts = cuts  # may sequences be cut in segments, which programs of their own sweep over?
        self.exchanges = cuts and exchanges  # may other segments be elsewhere?
        self.held: list[tuple[set[str], list[Statement], tuple[str, ...]]] = []
        self.checkpointed: set[str] = set()  # states that were left at checkpoints
        for v in (*c.step.variables, *c.adjoint.program.variables):
            if v.kind != "trajectory":
                self.names(v.leaf)
        for s in (*c.step.states, *c.adjoint.program.states):
            self.names(leaf("state", s.name))

    def heavy_sweeps(self) -> set[int]:
        """The sweeps that load too much to make several reads at once, as their kernels say."""
        several = [
            k for k, sweep in self.schedule.sweeps.items() if len(self.opened[k].outputs) > 1 and not sweep.solve
        ]
        return {k for k in several if self.wants.wanted_by(k) and self._sweep_kernel(k, "alone").heavy}

    def _sweeps(self) -> None:
        for k, sweep in self.schedule.sweeps.items():
            self._read(self.wants.read_by(k, self.waiting))
            self._sweep(k, sweep)
            self._state_adjoints_at_ends()
        self._launch_held()
        self._state_adjoints_at_ends()
        self._read(self.waiting)

    def _sweep(self, k: int, sweep: Sweep) -> None:
        """A sweep, with what must be done in the prologue of it: what needs no state, and the states that enter segments of the
        sequence."""
        o = self.opened[k]
        stores = self.fused.stores[k]
        number = sum(x.sweeps and "ends" not in x.name for x in self.kernels) + 1
        wanted = self.wants.wanted_by(k) if self.backward else self._everything()
        first = not set(sweep.states) <= self.entered and not (self.backward and sweep.direction > 0)
        group = wanted
        stored = self.schedule.stored if self.whole is None or self.backward else {self.whole.state.name}
        checkpoints = bool(set(sweep.states) & stored) and not set(sweep.states) <= self.checkpointed
        if (first or checkpoints) and self.backward:
            group = set().union(*(self.wants.wanted_by(j) for j in self.wants.sweeps_over(set(sweep.states))))
            if checkpoints:
                wanted = group = group.union(*(self.wants.wanted_by(j) for j in self.from_checkpoints))
        if not group:
            return  # what it yields is made by other sweeps, with their stores or sums
        kernel = self._sweep_kernel(k, f"{self.kind}_sweep_{number}", first, checkpoints)
        if not self.backward and self.fine is None:
            kernel = replace(kernel, roles=schedule_if_any(kernel))
        making = self._makes(sweep, o, kernel)
        self._launch_prologue(o, group, f"{self.kind}_prologue_{number}", k, making)
        self._inputs(kernel)
        self.kernels.append(kernel)
        if first:
            self.entered |= set(sweep.states)
            begin, finish = self._entering(k, sweep, kernel)
            self._under(group, begin)
            self._launch_held()
            self._under(group, finish)
        made: list[Statement] = [self._allocated(k, s) for s in stores]
        if checkpoints:
            self.checkpointed |= set(sweep.states)
            made += [self._room_at_checkpoints(s) for s in sweep.group]
        for x in self._boundary_sums(o):
            shape = beside("B", "H", "layout.chunks", size(x.axes[0])) if x.axes else self._numbers(self._sums_of(k))
            made.append(Alloc(self.names(x), shape))
        for s in sweep.group:
            if s.name in sweep.finals:
                name = self.names(leaf("state", s.name))
                each = self._to_ends(sweep)
                count = Fixed("layout.sequences") * Fixed("segments") if each else Fixed("layout.sequences")
                made.append(self._new_state(f"{name}_last", s, count, self._wants_last(s, each)))
        reads = [self.wants.of_read(k, alone) for alone in kernel.apart] if self.backward else []
        made += self.launches.launch(kernel, wide=self._stores_wide(kernel), wanted=reads)
        if self.cuts and self.backward and sweep.direction > 0 and self._can_wait(k):
            self.held.append((wanted, made, sweep.finals))
        else:
            self._under(wanted, made)
            self.left.update(sweep.finals)

    def _sweep_kernel(self, k: int, name: str, first: bool = False, checkpoints: bool = False) -> Kernel:
        """The kernel of sweep k: `first` of those over its states, and with `checkpoints` of these."""
        sweep, ends = self.schedule.sweeps[k], first and self.cuts
        return sweep_kernel(
            name,
            sweep,
            self.opened[k],
            self.fused.stores[k],
            self.names,
            ends=ends,
            linear=ends and self._makes_matrix(sweep),
            each=self._to_ends(sweep),
            fine=self.fine,
            checkpoints=checkpoints,
            rows=None if self.whole is None else self.whole.rows,
            spare=self.spare,
        )

    def _to_ends(self, sweep: Sweep) -> bool:
        """Does a sweep yield the states at the ends of all segments? State-adjoint products start from these."""
        return self.backward and sweep.direction > 0

    def _room_at_checkpoints(self, s: StateForm) -> Alloc:
        """Room for a state as blocks of steps find it."""
        shape = beside("B", "H", "blocks.chunks", *sizes(s.axes))
        when = None if self.backward else Fixed("needs_backward")
        if self.whole is not None:
            rows = Fixed("blocks.chunks") * padded(self.whole.rows)
            shape, when = beside("B", rows, "H", size(self.whole.columns)), Fixed("jointly")
        dtype = "some.dtype" if self.fine is None else "torch.float32"
        return Alloc(f"{self.names(leaf('state', s.name))}_checkpoints", shape, dtype, when)

    def _wants_last(self, s: StateForm, each: bool) -> Code:
        """When somebody uses the last value of a state: of the recurrence's own states, in a backward pass, that is what pairs
        it with its gradient there, if there is one."""
        if not self.backward:
            return Fixed("finals")
        if each:
            gradient = self.names(leaf("state", f"d{s.name}"))
            given = ref(f"{gradient}_first").given
            return either(given, self._in_segments) if self.cuts else given
        return any_wanted({s.name[1:]} | self.wants.initial_wants(s.name[1:]))

    def _read(self, stages: list[int]) -> None:
        """Kernels that read checkpointed states: for these stages, one for those of the same tile axis."""
        if not stages:
            return
        self._launch_held()
        self.waiting = [k for k in self.waiting if k not in stages]
        tiles = list(dict.fromkeys(self.from_checkpoints[k].tile for k in stages))
        for tile in tiles:
            same = [k for k in stages if self.from_checkpoints[k].tile == tile]
            wanted = set().union(*(self.wants.wanted_by(k) for k in same))
            if not wanted:
                continue
            number = sum(isinstance(x, Kernel) and x.reads for x in self.kernels) + 1
            inside = {s.leaf for k in same for s in self.wants.stores_at(k) if self._only_in(s, same)}
            from_checkpoints = [
                CheckpointReads(
                    self.schedule.from_checkpoints[k].group, self.from_checkpoints[k], self.wants.stores_at(k)
                )
                for k in same
            ]
            kernel = output_kernel(
                f"{self.kind}_read_{number}",
                from_checkpoints,
                inside,
                self.schedule.spans,
                self.schedule.whole,
                self.names,
                self.fine,
            )
            if self.fine is None:
                kernel = replace(kernel, placed=placed_if_any(kernel))
            for k in same:
                o, name = self.from_checkpoints[k], f"{self.kind}_prologue_read_{k + 1}"
                self._launch_prologue_by_intervals(o, made_in_prologue(o), wanted, name)
            self._inputs(kernel, "block_")
            self.kernels.append(kernel)
            made: list[Statement] = [
                self._allocated(k, s) for k in same for s in self.wants.stores_at(k) if s.leaf not in inside
            ]
            # a kernel for rows that are of a large decay range loads the sums once more
            free = set() if self.waiting or tile != tiles[-1] or kernel.slow_path else set(kernel.replaces)
            made += self._room_for_products(kernel, same[0], free)
            self._under(wanted, made + self.launches.launch(kernel, block="block_"))

    def _room_for_products(self, kernel: Kernel, k: int, free: set[str]) -> list[Statement]:
        """Room for what a kernel that reads checkpointed states, that of stage k and others, adds to products of states and
        gradients: in the place of decays' sums, of those in `free`, which nothing loads afterwards."""
        found: list[Statement] = []
        for a in kernel.arguments:
            x = a.source
            if x is None or x.op != "leaf" or x.attrs[0] not in ("sums", "stored"):
                continue
            own = sizes(x.axes)
            if part_of(x) == (ENDS,):
                found.append(Alloc(self.names(x), beside("B", "H", "blocks.chunks", *own)))
            elif part_of(x) == (STATE_ADJOINT,):
                if (decay := self._decay_of(x, k)) in free:
                    free.remove(decay)
                    found.append(Set((self.names(x),), ref(f"{decay}_sums"), in_place=True))
                    continue
                tiles = self.launches.tile_count(self.from_checkpoints[k], reads=True)
                shape = beside("B", "T", "H", own[0]) if own else self._numbers(tiles)
                found.append(Alloc(self.names(x), shape))
        return found

    def _kept_alone(self) -> set[Node]:
        """The reads and writes that this pass stores and doesn't use itself."""
        nodes = [*self.fused.values.values(), *(x for pair in self.fused.state_adjoints.values() for x in pair)]
        nodes += [x for sweep in self.plan.sweeps for x in sweep.given.values()]
        found: set[Node] = set()
        for stores in self.fused.stores.values():
            for s in (s for s in stores if s.kind == "kept"):
                others = [x.node for y in self.fused.stores.values() for x in y if x is not s]
                if not any(uses(n, s.leaf) for n in (*nodes, *others)):
                    found.add(s.leaf)
        return found

    def _can_wait(self, k: int) -> bool:
        """May a sweep over states come after gradients of states were sent for, from other segments of the sequence?"""
        later = [(j, x) for j, x in enumerate(self.plan.stages) if j > k and isinstance(x, Sweep)]
        if not any(x.direction < 0 and not set(x.states) <= self.entered for _, x in later):
            return False
        nodes = [n for j, x in later for n in (*x.given.values(), *(s.node for s in self.fused.stores[j]))]
        return not any(uses(n, s.leaf) for n in nodes for s in self.fused.stores[k])

    def _launch_held(self) -> None:
        """Sweeps that were put off until what comes from other segments is on its way."""
        for wanted, made, finals in self.held:
            self._under(wanted, made)
            self.left.update(finals)
        self.held = []

    def _makes_matrix(self, sweep: Sweep) -> bool:
        """Does a sweep make the matrix of each segment's map? Not where another pass's serves, transposed."""
        turned = self.backward and sweep.group[0].name[1:] in self.turned
        return _matrix_map(sweep, self.plan) is not None and not turned

    def _entering(self, k: int, sweep: Sweep, kernel: Kernel) -> tuple[list[Statement], list[Statement]]:
        """What enters each segment of the sequences, from maps of the segments; nothing to do where there is one.

        In two halves: between them other segments of the sequence, where they are elsewhere, hand on what enters this one.
        """
        if not self.cuts:
            return [], []
        linear = _matrix_map(sweep, self.plan)
        begin: list[Statement] = [
            self._new_state(f"{self.names(leaf('state', s.name))}_ends", s, OF_SEGMENTS) for s in sweep.group
        ]
        if linear is not None:
            (s,) = linear.group
            where = f"{self.names(leaf('state', s.name))}_linear"
            made = kernel.inner is not None  # or else the forward pass has made it
            turned = Set((where,), Attribute(Fixed("saved")[f"{s.name[1:]} linear"], "mT"))
            begin.append(self._new_state(where, s, OF_SEGMENTS) if made else turned)
        begin += self.launches.launch(kernel, ends=True)
        if linear is not None and kernel.tails:
            (s,) = linear.group
            name = self.names(leaf("state", s.name))
            given = (Fixed("tails"), ref(f"{name}_ends"), ref(f"{name}_linear"), code(s.axes.index(s.row)))
            begin += [Call((), "join_tails", given), Define(("tails",), NONE)]
        finish: list[Statement] = []
        for s in sweep.group:
            starts, coming = self._chained(k, s, linear)
            if self.exchanges:
                name = self.names(leaf("state", s.name))
                sent = Set((f"{name}_coming",), coming)
                elsewhere = "other segments of the sequence are elsewhere"
                begin.append(If(Fixed("exchange").given, (sent,), comment=elsewhere))
                came = assign_groups([(f"{name}_first", f"{name}_starts")], Invoked(ref(f"{name}_coming")))
                finish.append(If(Fixed("exchange").given, (came,), (starts,)))
            else:
                finish.append(starts)
        cut = self._in_segments
        return [If(cut, tuple(begin))], [If(cut, tuple(finish))]

    def _chained(self, k: int, s: StateForm, linear: Sweep | None) -> tuple[Call, Code]:
        """How the values of a state that enter each segment are made of what segments make of it; and what is sent to other
        segments of the sequence, if these are elsewhere."""
        name, way = self.names(leaf("state", s.name)), Literal(s.direction > 0)
        given = (ref(f"{name}_first"), ref(f"{name}_ends"))
        places = (Fixed("layout"), Fixed("segments"), way)
        function, kept = "chained", list[Code]()
        rest: tuple[Code, ...] = places
        if linear is not None:
            axis, matrix = s.axes.index(s.row), ref(f"{name}_linear")
            function, rest = "chained_matrix", (matrix, *places, Named("along", Literal(axis)))
            kept = [Named("linear", matrix), Named("axis", Literal(axis))]
        elif s.decay is not None:
            along = next((s.axes.index(a) for a in s.decay.axes), None) if len(s.decays) == 1 else None
            in_order = sorted(s.decays, key=lambda d: [s.axes.index(a) for a in d.axes])
            names = (self.names(rename(d, self.opened[k].rename)) for d in in_order)
            each = [several(ref(f"{n}_sums"), ref(f"{n}_rests")) for n in names]
            sums = each[0] if len(each) == 1 else several(*each)
            kept = [Named("decay", sums), Named("axis", Literal(along or 0)), Named("exact", Fixed("config.exact"))]
            rest = (*places, sums, code(along), Fixed("config.exact"))
        own = s.name[1:] if self.backward else s.name
        passed = made_by("map_of_all", said(own), *given, *places, *kept)
        coming = made_by("exchange.begin", several(passed))
        return Call((f"{name}_starts",), function, (*given, *rest)), coming

    @property
    def _in_segments(self) -> Code:
        """Are the sequences cut?"""
        cut = Fixed("segments") > 1
        return either(cut, Fixed("exchange").given) if self.exchanges else cut


def _matrix_map(sweep: Sweep, plan: Plan) -> Sweep | None:
    """The sweep over the matrix of a segment's map, where writes depend on reads; there may be none for such a sweep."""
    return linear_sweep(sweep.group, plan.form.reads) if feeds_back(sweep.group, sweep.solve) else None


def _turned_maps(forward: Plan, backward: Plan) -> set[str]:
    """The states with a matrix in the map of a segment, which is, turned, in the map of their gradient: so the gates have
    proved."""
    rows: dict[str, str | None] = {}
    for plan in (forward, backward):
        alone = [s for s in plan.sweeps if len(s.group) == 1 and _matrix_map(s, plan) is not None]
        rows |= {s.group[0].name: s.group[0].row for s in alone}
    return {n for n in rows if rows.get(f"d{n}", "") == rows[n]}
