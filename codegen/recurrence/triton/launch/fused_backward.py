"""The function that launches a backward pass by the fused backward, `triton_backward_whole`: `triton_backward` hands over to it
where the
forward pass has left the checkpointed states for it."""

from __future__ import annotations

from dataclasses import replace

from ....ir.code import Code, Literal, plus
from ....ir.expr import Node, dim_of, leaf, walk
from ....ir.launch_ir import NONE, Alloc, Call, Define, Function, If, Set, ref, takes
from ....ir.python_code import Fixed, Named, a_list, beside, choice, isin, made_by, several
from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Accumulate, Plan
from ..kernels.arguments import Role
from ..kernels.chunk_kernel import Kernel
from ..kernels.fused_backward import FusedBackward, ends_of, fused_backward_kernel, spans_of
from ..kernels.sweep_kernels import sweep_kernel
from ..plan_passes.decay_sums import OWN, SPANS, decay_sum, part_of
from ..plan_passes.hoist import SIDES, made_here, opened
from ..plan_passes.value_placement import Store
from ..print.axis_names import size_name
from ..print.sizes import padded
from ..warp_roles.whole import fused_schedule_if_any
from .launch_plan import Host


class FusedBackwardHost(Host):
    """Prints that function, and its kernels."""

    def __init__(self, c: Compiled, plan: Plan, cuts: bool, exchanges: bool, t: FusedBackward, stem: str) -> None:
        super().__init__(c, plan, True, cuts, exchanges, whole=t, stem=stem)
        self.t, self.again, self.stem = t, set(), "backward_whole"
        self.opened = dict(t.opened)

    @property
    def _takes_blocks(self) -> bool:
        return True

    def function_ir(self) -> Function:
        t, k = self.t, self.t.first
        self._open()
        state = self.names(leaf("state", t.state.name))
        self.body.append(Set((f"{state}_checkpoints",), Fixed("saved")[f"{t.state.name} checkpoints"]))
        at_once = t.state.name in self.fused.at_once
        kernel, in_place = fused_backward_kernel(
            "backward_whole", t, self.fused.stores, self._inside(), at_once, self.names
        )
        kernel = replace(kernel, roles=fused_schedule_if_any(kernel))
        self._inputs(kernel, "block_")
        loaded = [n for n, _ in kernel.loads]
        for a in kernel.arguments:
            if a.name in loaded and a.source is not None:
                name = self.names(a.source)
                self.body.append(Set((name,), made_by("aligned", ref(name))))
        self._entering_segments(k)
        for j, o in t.opened.items():
            prologue = {x: n for x, n in o.matrices.items() if not made_here(n, replace(o, tile=()))}
            prologue = {x: n for x, n in prologue.items() if f"{self.names(x)}_blocks" not in self.of_prologue}
            self.of_prologue |= {f"{self.names(x)}_blocks": self._everything() for x in prologue}
            self._launch_prologue_by_intervals(o, prologue, self._everything(), f"backward_whole_prologue_{j + 1}")
        self._allocate(kernel, in_place)
        self.body += self.launches.launch(kernel, block="block_")
        self.kernels.append(kernel)
        self._gradients()
        head = takes(
            "given",
            "states",
            "constants",
            "saved",
            "cotangents",
            "final_cotangents",
            "needs",
            packed=None,
            **self._exchange(),
        )
        return self._function(f"{self.function}_backward_whole", head, "Gradients, by the fused backward pass.")

    def _inside(self) -> set[Node]:
        """What sweeps store for each other alone: that stays in registers."""
        used = [*self.fused.values.values(), *(x for pair in self.fused.state_adjoints.values() for x in pair)]
        named = {y.attrs[:2] for y in walk(*used) if y.op == "leaf"}
        stores = [s for k in self.t.sweeps for s in self.fused.stores[k] if s.kind != "sums"]
        return {s.leaf for s in stores if s.leaf.attrs[:2] not in named}

    def _entering_segments(self, k: int) -> None:
        """The gradients that enter each segment of the sequences, where these are cut."""
        sweep = ends_of(self.t.sweeps[k])
        if not self.cuts:
            return
        before, self.opened = self.opened, {k: opened(sweep, True)}
        sweep_of_ends = sweep_kernel("backward_whole_ends", sweep, self.opened[k], [], self.names, ends=True)
        ready = set(self.ready)
        with self._apart() as inner:
            self._launch_prologue(self.opened[k], self._everything(), "backward_whole_prologue_ends", k)
            self._inputs(sweep_of_ends)
        self.body += [If(self._in_segments, tuple(inner))] if inner else []
        self.kernels.append(sweep_of_ends)
        begin, finish = self._entering(k, sweep, sweep_of_ends)
        self.body += [*begin, *finish]
        self.ready, self.opened = ready, before

    def _allocate(self, kernel: Kernel, in_place: bool) -> None:
        inside, add = self._inside(), self.body.append
        state, columns = self.names(leaf("state", self.t.state.name)), size_name(dim_of(self.t.columns))
        checkpoints = ref(f"{state}_checkpoints")
        add(
            Set(
                ("places_of_checkpoints",),
                choice(made_by("in_place", checkpoints, "blocks"), isin("OVERWRITE", "saved"), a_list()),
            )
        )
        for s in (s for k in self.t.sweeps for s in self.fused.stores[k] if s.leaf not in inside):
            room = self._allocated(0, s)
            fits = s.kind != "sums" and [size_name(dim_of(a)) for a in s.leaf.axes] == [columns]
            if fits and isinstance(room, Alloc) and room.dtype == "some.dtype":
                room = replace(room, instead=ref("places_of_checkpoints"))
            add(room)
        self._allocate_sums(kernel, in_place)
        name = self.names(leaf("state", self.t.gradient.name))
        wanted = self._wants_last(self.t.gradient, False)
        add(self._new_state(f"{name}_last", self.t.gradient, Fixed("layout.sequences"), wanted))

    def _allocate_sums(self, kernel: Kernel, in_place: bool) -> None:
        """Room for what blocks add to a decay's gradient: in parts, or in one number for each step, which lies where the decays'
        sums lay, if it may be `in_place`."""
        stored = {s.leaf for k in self.t.sweeps for s in self.fused.stores[k]}
        made_of = [a.source for a in kernel.arguments if a.layout == "sums" and a.source is not None]
        named = {part_of(x): x for x in made_of if x not in stored}
        if not named:
            return
        sides: dict[tuple[str, ...], set[str]] = {}  # of what pairs inside blocks are summed to
        for sums in (x for o in self.t.opened.values() for x in o.sums):
            for slot, side in ((n, side) for _, *slots in sums.own for n, side in zip(slots, SIDES, strict=True)):
                sides.setdefault((OWN, slot), set()).add(side)
        self.body.append(Define(("warps",), made_by("warps_of", several(*map(padded, kernel.axes)))))
        decays = [a.name for a in kernel.arguments if a.role is Role.SUMS] if in_place else []
        apart = made_by("apart", "warps")
        for part, x in named.items():
            name, parts = (
                self.names(x),
                [made_by(f"{side}_partial_sums", "warps") for side in SIDES if side in sides.get(part, ())],
            )
            shape = beside("B", "H", plus(*parts) if parts else 1, "T")
            if part == (SPANS,):
                room: Alloc | Set = Alloc(
                    name, beside("B", "H", "blocks.chunks", choice("warps", made_by("apart", "warps"), 1))
                )
            elif len(part) > 1:
                room = Alloc(name, shape, when=apart)
            elif decays:
                room = Set((name,), choice(None, made_by("apart", "warps"), ref(f"block_{decays.pop()}")))
            else:
                room = Alloc(name, shape, unless=apart)
            self.body.append(room)

    def _sums_of(self, k: int) -> Code:
        return Literal(1)

    def _replaced(self, k: int, s: Store) -> Node | None:
        return None

    def _state_adjoint(self, stage: Accumulate) -> None:
        state = stage.state_adjoint.state
        name = f"{self.names(leaf('state', state))}_state_adjoint"
        found: dict[str, Node] = {}
        for o in self.t.opened.values():
            for sums in o.sums:
                found |= {f"{sums.kind}_{slot}": decay_sum(state, sums.kind, slot) for slot in sums.reads}
                found |= {f"own_{slot}": decay_sum(state, OWN, slot) for slot in sums.slots}
        spans = ref(self.names(spans_of(state)))
        arguments = [beside(spans, "blocks"), *(Named(slot, ref(self.names(x))) for slot, x in found.items())]
        arguments += [Named("at_once", Literal(True))] if state in self.fused.at_once else []
        kinds = {"late"} if state in self.fused.at_once else {slot.split("_")[1] for slot in found}
        sides = [ref(self.names(decay_sum(state, x))) if x in kinds else NONE for x in ("late", "early")]
        by_parts = Call((name,), "block_state_adjoint", tuple(arguments), lines=True)
        by_step = Call((name,), "step_state_adjoint", (spans, Fixed("blocks"), *sides))
        self.body.append(If(made_by("apart", "warps"), (by_parts,), (by_step,)))
