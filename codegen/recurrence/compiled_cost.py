"""What a compiled recurrence costs: its plans as kernels sweep them, scans, substeps, strata and steps; and its launches.

The counting is `chunkwise/cost.py`, below all passes. What kernels make of a plan is asked here, above them.
"""

from __future__ import annotations

from ..ir.launch_ir import Call, Launch, statements
from .chunkwise.compiled import Compiled
from .chunkwise.cost import WIDE, Cost, Placed, Sizes, flops_of, plan_cost
from .chunkwise.plan import Plan
from .over_chunks import why_stepwise
from .triton import CheckpointSchedule, fused_backward_of, in_substeps, kernel_plan, scanned, schedule_of, triton_form
from .triton.plan_passes.scale_reads import simplified
from .triton.plan_passes.value_placement import fuse

STARTS = frozenset(
    "cumulate cumulate_beside suffix_sum block_state_adjoint".split()
)  # functions that start a kernel each


def forward_cost(c: Compiled, sizes: Sizes, over_chunks: bool | None = None) -> Cost:
    """The cost of the forward plan; of a sequential one, of its single pass. `over_chunks`: do its kernels go over chunks? None:
    as those do that are printed for it alone."""
    results = [sizes.of(axes) * sizes.element for axes in c.step.output_axes.values()]
    lower_bound = _arguments(c, sizes) + sum(results)
    if c.strata:
        return _of_all([forward_cost(p.compiled, sizes, _in_strata(p.compiled)) for p in c.strata], lower_bound)
    if c.forward is None or scanned(c):
        nodes = [*c.step.updates.values(), *c.step.outputs.values()]
        alone = {*c.step.outputs.values()} <= {*c.step.updates.values()}  # outputs are states as they are
        kept = 0.0 if alone else _kept(c, sizes)
        return Cost(lower_bound - sum(results) + kept, sum(results) + kept, flops_of(nodes, sizes), lower_bound)
    part, count = in_substeps(c)
    over_chunks = why_stepwise(c) is None if over_chunks is None else over_chunks
    if count > 1:
        read = _arguments(c, sizes) + sum(results)
        return _around(part, count, forward_cost(part, sizes, over_chunks), sizes, read, sum(results), lower_bound)
    return plan_cost(_placed(c, c.forward, over_chunks), sizes, lower_bound)


def backward_cost(c: Compiled, sizes: Sizes, over_chunks: bool | None = None) -> Cost:
    """The cost of the backward plan; of a sequential one, of a second pass forwards and one backwards."""
    cotangents = sum(sizes.of(axes) * sizes.element for axes in c.step.output_axes.values())
    given = _arguments(c, sizes)
    lower_bound = 2 * given + cotangents
    if c.strata:
        return _of_all([backward_cost(p.compiled, sizes, _in_strata(p.compiled)) for p in c.strata], lower_bound)
    if c.backward is None or scanned(c):
        a = c.adjoint.program
        nodes = [*c.step.updates.values(), *a.updates.values(), *a.outputs.values()]
        kept = 2 * _kept(c, sizes)
        return Cost((3 if kept else 2) * given + cotangents + kept, given + kept, flops_of(nodes, sizes), lower_bound)
    part, count = in_substeps(c)
    over_chunks = why_stepwise(c) is None if over_chunks is None else over_chunks
    if count > 1:
        read = 2 * given + cotangents + count * _arguments(part, sizes)  # gradients of streams
        return _around(
            part, count, backward_cost(part, sizes, over_chunks), sizes, read, given + count * cotangents, lower_bound
        )
    return plan_cost(_placed(c, c.backward, over_chunks), sizes, lower_bound)


def _in_strata(c: Compiled) -> bool:
    """Do the kernels of a stratum go over chunks, as they stand in the file of them all?"""
    return why_stepwise(c, False) is None


def _of_all(parts: list[Cost], lower_bound: float) -> Cost:
    """The cost of strata, one after the other."""
    read, written, flops = (sum(getattr(x, name) for x in parts) for name in ("read", "written", "flops"))
    return Cost(read, written, flops, lower_bound)


def _kept(c: Compiled, sizes: Sizes) -> float:
    """The bytes of a step's states, where scans leave them in memory."""
    return WIDE * sum(sizes.of(s.axes) for s in c.step.states) if scanned(c) else 0.0


def _around(
    part: Compiled, count: int, one: Cost, sizes: Sizes, read: float, written: float, lower_bound: float
) -> Cost:
    """The cost of a step of so many substeps, of that of one and of what is read and written for them, beside their streams."""
    written += count * (one.written + _arguments(part, sizes))
    return Cost(read + count * one.read, written, count * one.flops, lower_bound)


def launches(c: Compiled) -> tuple[int, int]:
    """Triton kernels that a forward and a backward call start, without torch's own for what is left over. In recurrent form there
    is one for each."""
    if c.strata:
        each = [launches(p.compiled) for p in c.strata]
        return sum(x for x, _ in each), sum(x for _, x in each)
    if not scanned(c) and (c.forward is None or why_stepwise(c) is not None):
        return 1, 1
    return _launches_of(c)


def _launches_of(c: Compiled) -> tuple[int, int]:
    functions = triton_form(c).functions
    counts = []
    for name in ("forward", "backward_whole" if "triton_backward_whole" in functions else "backward"):
        used = [f"triton_{name}", f"substep_{name}", *(["substep_streams"] if "substep_streams" in functions else [])]
        found = [x for n in used if n in functions for x in statements(functions[n].body)]
        counts.append(sum(isinstance(x, Launch) or (isinstance(x, Call) and x.function in STARTS) for x in found))
    return counts[0], counts[1]


def _placed(c: Compiled, plan: Plan, over_chunks: bool) -> Placed:
    """One of the two plans as kernels sweep it."""
    forward = plan is c.forward
    alone = fused_backward_of(c) if over_chunks and not forward else None
    if not forward and over_chunks:
        plan = kernel_plan(c, plan)
    if alone is not None:
        assert c.backward is not None
        plan = simplified(c.backward)
    fused = fuse(plan, tuple(plan.form.write_leaves()) if forward else ())
    at = schedule_of(c) if over_chunks else CheckpointSchedule({})  # nothing, where kernels run in recurrent form
    return Placed(
        plan,
        fused.stores,
        fused.values,
        fused.state_adjoints,
        left=at.given if forward else at.stored,
        loaded=frozenset() if forward else at.given | at.stored,
        whole=at.whole,
        alone=None if alone is None else alone.state.name,
        wide=frozenset(f"dlog_{v.name}" for v in c.step.variables if v.is_decay),
    )


def _arguments(c: Compiled, sizes: Sizes) -> float:
    return sum(sizes.of(v.axes) * (WIDE if v.is_decay else sizes.element) for v in c.step.variables if v.per_step)
