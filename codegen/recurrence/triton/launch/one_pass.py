"""What is known of one of the two passes before its kernels are launched."""

from __future__ import annotations

from dataclasses import replace

from ...chunkwise.compiled import Compiled
from ...chunkwise.plan import Plan, Unroll
from ..kernels.coupling_weights import (
    with_transitions,
)
from ..kernels.tile_values import Fine
from ..plan_passes.checkpoint_schedule import CheckpointSchedule, checkpoint_schedule
from ..plan_passes.hoist import Opened, opened
from ..plan_passes.value_placement import Fused, fuse
from ..print.names import Names


class OnePass:
    """A plan as kernels sweep it: what each sweep reads, makes and stores, and by what names."""

    def __init__(
        self, c: Compiled, plan: Plan, backward: bool, fine: Fine | None = None, later: OnePass | None = None
    ) -> None:
        """`later` is the backward pass, where this is the forward pass."""
        plan, self.transitions = with_transitions(plan)
        self.c, self.plan, self.backward, self.fine = c, plan, backward, fine
        self.unrolls = [x for x in plan.stages if isinstance(x, Unroll)]
        self.stem = self.kind  # of names of kernels
        self.names = Names(c)
        saved = () if backward else tuple(plan.form.write_leaves())
        self.fused: Fused = fuse(plan, saved)
        states = {s.name for s in c.step.states}
        schedule = checkpoint_schedule(plan, self.fused, states if backward else ())
        if later is not None:
            schedule = replace(schedule, stored=later.schedule.given)
        self.schedule: CheckpointSchedule = replace(
            schedule, stored=schedule.stored | (self._unrolled_from() - schedule.given)
        )
        # chunks' matrices serve several sweeps, and the sums as well, where sweeps make sums; and what was cut had several
        sweeps = self.schedule.sweeps.values()
        prologue = any(b.own for s in sweeps for b in s.boundary_sums) or len(
            {(s.states, s.side) for s in sweeps}
        ) < len(sweeps)
        self.opened: dict[int, Opened] = {k: opened(s, prologue) for k, s in self.schedule.sweeps.items()}
        self.from_checkpoints: dict[int, Opened] = {
            k: opened(s, True) for k, s in self.schedule.from_checkpoints.items()
        }

    @property
    def kind(self) -> str:
        return "backward" if self.backward else "forward"

    def _everything(self) -> set[str]:
        variables = {v.name for v in self.c.step.variables if v.kind != "constant"}
        return variables | {s.name for s in self.c.step.states}

    def _unrolled_from(self) -> frozenset[str]:
        """The states that products of states and gradients at each step are made from, as blocks of steps find them."""
        return frozenset(s.name for x in self.unrolls for s in (*x.forward, *x.backward))
