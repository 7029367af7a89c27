"""The passes over a backward plan before its sweeps become kernels, in order: they follow those of `pipeline.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ...ir.data_text import Writer
from ...printing.code_passes import tell_made
from ..chunkwise.compiled import Compiled, once
from ..chunkwise.plan import Plan
from ..chunkwise.segment_maps import why_one_sweep
from .launch.launch_plan import Host
from .plan_passes.checkpoint_schedule import by_checkpoints, checkpoint_schedule
from .plan_passes.reuse_write_gradients import reused
from .plan_passes.scale_reads import scaled, simplified
from .plan_passes.split_reads import cut
from .plan_passes.value_placement import fuse


@dataclass(frozen=True)
class PlanPass:
    """One pass: a function Plan -> Plan, of a recurrence's, and what it makes."""

    name: str
    what: str
    run: Callable[[Compiled, Plan], Plan]


def _by_checkpoints(c: Compiled, plan: Plan) -> Plan:
    first = simplified(plan)
    return by_checkpoints(plan, checkpoint_schedule(first, fuse(first), [s.name for s in c.step.states]).whole)


def _cut(c: Compiled, plan: Plan) -> Plan:
    """Which sweeps load too much their kernels say."""
    heavy = Host(c, plan, True, cuttable(c)).heavy_sweeps()
    return cut(plan, heavy) if heavy else plan


PLAN_PASSES: tuple[PlanPass, ...] = (
    PlanPass(
        "by_checkpoints", "gradients of decays for each channel, made from states at checkpoints", _by_checkpoints
    ),
    PlanPass(
        "reused", "gradients in the place of the solved writes that they are made of", lambda _, plan: reused(plan)
    ),
    PlanPass(
        "scaled", "reads that are made with the numbers of the step that they are times", lambda _, plan: scaled(plan)
    ),
    PlanPass("cut", "a sweep for each read where one would load too much", _cut),
)


@once
def kernel_plan(c: Compiled, plan: Plan) -> Plan:
    """A backward plan as kernels sweep it."""
    for p in PLAN_PASSES:
        begun = time.perf_counter()
        plan = p.run(c, plan)
        seconds = time.perf_counter() - begun
        tell_made(p, c.name, lambda p=p, made=plan: Writer().text(p.name, "plan", made), seconds)  # type: ignore[misc]
    return plan


def cuttable(c: Compiled) -> bool:
    """Do kernels find what enters a segment of a sequence? For one state whose writes depend on reads of it, or none do."""
    return why_uncut(c) is None


@once
def why_uncut(c: Compiled) -> str | None:
    """Why they take a sequence from end to end; None where they find it."""
    assert c.forward is not None and c.backward is not None
    return why_one_sweep((c.forward, c.backward))
