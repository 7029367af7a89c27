"""Which sweeps of a backward plan need no sweep of their own: what they make is read off checkpointed states.

A sweep leaves its states as each block of steps finds them. What else is made of these states, outputs, gradients and the sums
for decays, is then made by a kernel that takes all blocks at once, with nothing to carry and nothing to wait for. The forward
pass leaves the recurrence's own states; of the states of gradients the first sweep that is over them does, which makes its own
part on the way. With both states at hand, the decays of a block times <S before it, dS after it> is what it says (see
`decay_gradient_sums.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ....ir.expr import ROW, ZERO, Node, factors_of, leaf, walk
from ...chunkwise.plan import Accumulate, Plan, Stage, Sweep, Unroll
from ...normal_form.form import StateForm
from .hoist import Opened, made_in_prologue, opened
from .value_placement import Fused


@dataclass(frozen=True)
class CheckpointSchedule:
    """`sweeps`: the sweeps that sweep, as far as they do, by stage. `from_checkpoints`: what is read at checkpoints,
    likewise.

    `stored` are the states that sweeps leave at the boundaries, or `given`: those that an earlier pass has left there. `spans`
    are the states, with their gradients, whose decay's gradient is summed there; `whole` those of a decay for each channel of
    which the kernel that reads makes all terms inside blocks.
    """

    sweeps: dict[int, Sweep]
    from_checkpoints: dict[int, Sweep] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    spans: dict[str, tuple[StateForm, StateForm]] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()


def checkpoint_schedule(plan: Plan, fused: Fused, given: Iterable[str]) -> CheckpointSchedule:
    """The roles of a plan's sweeps; `given` are the states that an earlier pass can leave at checkpoints."""
    planned = {k: s for k, s in enumerate(plan.stages) if isinstance(s, Sweep)}
    own = frozenset(given)
    if not own or not any(s.decay_axes for group in plan.form.groups for s in group):
        return CheckpointSchedule(planned)
    spans: dict[str, tuple[StateForm, StateForm]] = {}
    apart: set[str] = set()  # states whose sweeps sum on their way
    for stage in plan.stages:
        if isinstance(stage, Accumulate) and stage.at_boundaries:
            s, g = plan.form.state(stage.state_adjoint.state), plan.form.state(f"d{stage.state_adjoint.state}")
            sides = {x.side for x in planned.values() if any(b.state == s.name for b in x.boundary_sums)}
            if s.name in own and len(sides) == 1:  # so that one kernel makes all of it
                spans[s.name] = s, g
            else:
                apart |= {s.name, g.name}
    sweeps: dict[int, Sweep] = {}
    from_checkpoints: dict[int, Sweep] = {}
    swept_by: dict[str, int] = {}  # the first sweep over each state
    for k, sweep in planned.items():
        here = tuple(b for b in sweep.boundary_sums if b.state in spans)
        kept = tuple(n for n in sweep.finals if n not in spans)
        known = all(n in own or n in swept_by for n in sweep.states)
        alone = sweep.solve or not known or apart & set(sweep.states) or (kept and sweep.states[0] in own)
        alone = alone or any(s.by_products for s in sweep.group)  # weights are those of chunks
        if alone:
            sweeps[k] = replace(
                sweep, finals=kept, boundary_sums=tuple(b for b in sweep.boundary_sums if b not in here)
            )
            for n in sweep.states:
                swept_by.setdefault(n, k)
            if here:
                from_checkpoints[k] = replace(
                    sweep, finals=(), boundary_sums=here, chunk=replace(sweep.chunk, outputs={}, states={})
                )
        else:
            from_checkpoints[k] = replace(sweep, finals=(), boundary_sums=here, chunk=replace(sweep.chunk, states={}))
            for n in kept:
                first = sweeps[swept_by[n]]
                sweeps[swept_by[n]] = replace(first, finals=(*first.finals, n))
    if _waits(sweeps, from_checkpoints, own, fused) or not pays(sweeps, from_checkpoints):
        return CheckpointSchedule(planned)
    read = {n for s in from_checkpoints.values() for n in s.states} | {x.name for pair in spans.values() for x in pair}
    whole = frozenset(n for n, (s, _) in spans.items() if _sums_inside(s, from_checkpoints, sweeps, fused))
    return CheckpointSchedule(sweeps, from_checkpoints, frozenset(read - own), frozenset(read & own), spans, whole)


def by_checkpoints(plan: Plan, whole: frozenset[str]) -> Plan:
    """The plan, with the gradients of decays for each channel made by a kernel of their own, from the states at
    checkpoints: of those that no kernel which reads there makes as a `whole`; and of those whose reads see a write with no decay
    before it, at the step after that, since sums over what reads make don't leave such pairs out."""
    stages: list[Stage] = []
    apart: set[str] = set()
    for stage in plan.stages:
        if isinstance(stage, Accumulate) and stage.by_channel:
            s, g = (plan.form.state(n) for n in (stage.state_adjoint.state, f"d{stage.state_adjoint.state}"))
            if s.name not in whole or _seen_undecayed(s, g):
                apart.add(s.name)
                stage = stage.direct
        stages.append(stage)

    return replace(plan, stages=_without_sums(stages, apart)) if apart else plan


def _without_sums(stages: list[Stage], states: set[str]) -> tuple[Stage, ...]:
    """The stages without what only sums for the decays of these states need: sums at checkpoints, last values, and reads."""
    out: list[Stage] = []
    for stage in stages:
        if isinstance(stage, Sweep):
            finals = tuple(n for n in stage.finals if n not in states)
            stage = replace(
                stage, finals=finals, boundary_sums=tuple(b for b in stage.boundary_sums if b.state not in states)
            )
        out.append(stage)
    while True:
        used = {y.attrs[:2] for stage in out for y in walk(*_loads(stage)) if y.op == "leaf"}
        unused = {
            k: [x for x in s.chunk.outputs if x.attrs[0] == "read" and x.attrs[:2] not in used]
            for k, s in enumerate(out)
            if isinstance(s, Sweep)
        }
        if not any(unused.values()):
            return tuple(_behind_sweeps(out))
        for k, reads in unused.items():
            s = out[k]
            assert isinstance(s, Sweep)
            outputs = {x: n for x, n in s.chunk.outputs.items() if x not in reads}
            out[k] = replace(
                s, reads=tuple(r for r in s.reads if r.leaf not in reads), chunk=replace(s.chunk, outputs=outputs)
            )
        others = [s for s in out if isinstance(s, Sweep)]
        idle = [s for s in others if not s.chunk.outputs and not s.finals and not s.boundary_sums]
        for s in idle:  # another sweep over the same states leaves these at checkpoints
            if sum(x.states == s.states for x in others) > 1:
                out.remove(s)
                break


def _behind_sweeps(stages: list[Stage]) -> list[Stage]:
    """The stages, with what is read at checkpoints behind the first sweep over each of its states, which leaves them there."""
    out = list(stages)
    for u in [x for x in stages if isinstance(x, Unroll)]:
        names = {s.name for s in (*u.forward, *u.backward)}
        sweeps = [(k, set(s.states)) for k, s in enumerate(out) if isinstance(s, Sweep)]
        last = max(
            (min(k for k, own in sweeps if n in own) for n in names if any(n in own for _, own in sweeps)), default=0
        )
        if last > out.index(u):
            out.insert(last + 1, u)
            out.remove(u)
    return out


def _loads(stage: Stage) -> list[Node]:
    """What a stage is made of."""
    match stage:
        case Sweep():
            return [*stage.given.values()]
        case Accumulate():
            direct = [] if stage.by_channel else [*stage.direct.streams.values()]
            return [stage.state_adjoint.late, stage.state_adjoint.early, *direct]
        case Unroll():
            return [*stage.streams.values()]
    return [*stage.values.values()]


def _seen_undecayed(s: StateForm, g: StateForm) -> bool:
    """Does a read see what the step before it wrote, with no decay on the way, nor in what it reads with?"""
    reads = [w for w in g.writes if w.late and s.decay not in (*factors_of(w.left), *factors_of(w.value))]
    return bool(reads) and any(v.late for v in s.writes)


def pays(sweeps: dict[int, Sweep], from_checkpoints: dict[int, Sweep]) -> bool:
    """Is reading at checkpoints faster, though the states go through memory? On an H200 that is so where a state has a decay for
    each
    channel, and one kernel reads all that is read with no prologue; or else where writes depend on reads, as sweeps that
    make more of such a state spill registers."""
    read = [opened(s, True) for s in from_checkpoints.values()]
    if any(y.op == "leaf" and y.attrs[0] == "product" for o in read for y in walk(*o.prologue.intra.values())):
        return False  # such a sum has the decays of both axes, of which the kernel has but a tile of one
    alone = len({o.tile for o in read}) == 1 and not any(made_in_prologue(o) for o in read)
    return alone or any(s.solve for s in sweeps.values())


def _waits(sweeps: dict[int, Sweep], from_checkpoints: dict[int, Sweep], own: frozenset[str], fused: Fused) -> bool:
    """Does a sweep load what is only read where it has left its states? Or does a kernel that reads at checkpoints, for one tile
    axis, load what one for another makes later, or what it makes itself of which each of its programs has only a tile?"""
    read = [j for j in from_checkpoints if j not in sweeps]
    late = {j for j in read if from_checkpoints[j].boundary_sums or not own.issuperset(from_checkpoints[j].states)}
    made = {x.leaf.attrs[:2]: j for j in read for x in fused.stores[j]}

    def loaded(nodes: Iterable[Node]) -> set[int]:
        return {made[y.attrs[:2]] for y in walk(*nodes) if y.op == "leaf" and y.attrs[:2] in made}

    loads = {j: loaded([*from_checkpoints[j].given.values(), *(x.node for x in fused.stores[j])]) - {j} for j in read}
    needed = loaded([n for k, s in sweeps.items() for n in (*s.given.values(), *(x.node for x in fused.stores[k]))])
    while more := {i for j in needed for i in loads[j]} - needed:
        needed |= more
    for group in (needed, set(read) - needed):
        read_as = {j: opened(from_checkpoints[j], True) for j in sorted(group)}
        tiles = {j: o.tile for j, o in read_as.items()}
        order = list(dict.fromkeys(tiles.values()))
        for o in read_as.values():
            here = {x for x, i in made.items() if i in group and tiles[i] == o.tile}
            if any(y.attrs[:2] in here for y in _taken_whole(o)):
                return True
        if any(order.index(tiles[i]) > order.index(tile) for j, tile in tiles.items() for i in loads[j] & group):
            return True
    return bool(needed & late)


def _taken_whole(o: Opened) -> Iterator[Node]:
    """What a kernel that reads at checkpoints loads, but for what its programs have in registers: numbers and tiles of steps."""
    made_of = {x.attrs[1]: node for x, node in (o.decays | o.streams).items()}
    intra = (*o.matrices.values(), *o.prologue.scaled.values(), *o.prologue.intra.values())
    found = [y for y in walk(*intra) if y.op == "leaf"]
    reads = (x for s in o.sums for x in s.reads.values())
    for y in walk(*o.outputs.values(), *o.definitions.values(), *reads):
        if y.op == "leaf" and not {*y.axes} <= {ROW, *o.tile}:
            found.append(y)
    yield from found
    streams = (made_of[y.attrs[1]] for y in found if y.attrs[0] == "stream")
    yield from (y for y in walk(*streams, *o.origins.values()) if y.op == "leaf")  # origins are made before the kernel


def _sums_inside(s: StateForm, from_checkpoints: dict[int, Sweep], sweeps: dict[int, Sweep], fused: Fused) -> bool:
    """Are the terms inside blocks, of a decay for each channel, all made by one piece that keeps its axis?"""
    whole = leaf("stored", f"{s.name}.late", s.decay_axes)
    if fused.state_adjoints.get(s.name) != (whole, ZERO):
        return False
    return any(x.leaf == whole for k in from_checkpoints if k not in sweeps for x in fused.stores[k])
