"""Reads of a state before a step's decay, of which every use is times that decay: they are made with it.

    alpha_t (S_{t-1} v_t) = (alpha_t S_{t-1}) v_t

So the decays of such a read reach up to its own step, as those of other reads do, and no kernel needs the decay of a step on its
own, nor sums of decays up to the step before. For one decay a step: of one for each channel kernels have the sums anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ir import ROW, Node, add, factors_of, leaf, mul, terms_of, walk
from ..stages import Accumulate, Map, Plan, Sweep
from .opened import longer
from .reused import reused


def simplified(plan: Plan) -> Plan:
    """The plan as kernels walk it, before walks that load too much are cut."""
    return decayed(reused(plan))


def decayed(plan: Plan) -> Plan:
    """The plan, with the decay in such reads."""
    for k, stage in enumerate(plan.stages):
        if not isinstance(stage, Sweep):
            continue
        for r in stage.reads:
            decay = plan.form.state(r.state).decay
            if decay is None or decay.axes or decay.op != "leaf" or r.leaf not in stage.chunk.outputs:
                continue
            if _before(stage.chunk.outputs[r.leaf]) and (found := _made_with(plan, k, r.leaf, decay)) is not None:
                plan = found
    return plan


def _before(x: Node) -> bool:
    """Do all decays of a read reach up to the step before its own?"""
    decays = [y for y in walk(x) if y.op in ("decay_in", "decay_out", "decay_mask") and ROW in y.axes]
    return bool(decays) and all(longer(y, ROW) is not None for y in decays)


def _made_with(plan: Plan, k: int, read: Node, decay: Node) -> Plan | None:
    """The plan with a read times the decay in the place of the read of stage k; None where a use isn't times the decay."""
    if any(_uses(x, read) for x in _given(plan)):
        return None
    stages = list(plan.stages)
    for n, stage in enumerate(stages):
        if isinstance(stage, Map):
            values = {name: _without(x, read, decay) for name, x in stage.values.items()}
            if None in values.values():
                return None
            stages[n] = Map({name: x for name, x in values.items() if x is not None})
        if isinstance(stage, Accumulate):
            late, early = (_without(x, read, decay) for x in (stage.pairing.late, stage.pairing.early))
            if late is None or early is None:
                return None
            stages[n] = replace(stage, pairing=replace(stage.pairing, late=late, early=early))
    sweep = plan.stages[k]
    assert isinstance(sweep, Sweep)
    chunk = sweep.chunk
    stream = leaf("stream", decay.key[:12], (ROW,))
    outputs = chunk.outputs | {read: add(*(mul(stream, x) for x in terms_of(chunk.outputs[read])))}
    stages[k] = replace(sweep, chunk=replace(chunk, streams=chunk.streams | {stream: decay}, outputs=outputs))
    return replace(plan, stages=tuple(stages))


def _given(plan: Plan) -> Iterator[Node]:
    """What sweeps are given, and what is summed otherwise."""
    for stage in plan.stages:
        if isinstance(stage, Sweep):
            yield from stage.given.values()
        elif isinstance(stage, Accumulate) and stage.direct is not None:
            yield from (*stage.direct.streams.values(), *stage.direct.outputs.values())


def _uses(x: Node, read: Node) -> bool:
    return any(y.op == "leaf" and y.attrs[:2] == read.attrs[:2] for y in walk(x))


def _without(x: Node, read: Node, decay: Node) -> Node | None:
    """x without the decay that each use of a read is times; None where one isn't."""
    if not _uses(x, read):
        return x
    if x.op == "add":
        terms = [_without(y, read, decay) for y in x.args]
        return None if None in terms else add(*terms)
    factors = factors_of(x)
    rest = [f for f in factors if f is not decay]
    return mul(*rest) if len(rest) == len(factors) - 1 and _linear(mul(*rest), read) else None


def _linear(x: Node, read: Node) -> bool:
    """Is x a product of a read, or of a sum of such a product, and of what has nothing of it?"""
    using = [f for f in factors_of(x) if _uses(f, read)]
    if len(using) != 1:
        return False
    (f,) = using
    return f.op == "leaf" or (f.op == "sum" and _linear(f.args[0], read))
