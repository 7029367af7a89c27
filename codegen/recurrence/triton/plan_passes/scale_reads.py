"""Reads of which every use is times the same number of the step: they are made with it.

    alpha_t (S_{t-1} v_t) = (alpha_t S_{t-1}) v_t          beta_t (dS_t u_t) = dS_t (beta_t u_t)

A decay of a step makes the decays of such a read reach up to its own step, as those of other reads do, so that no kernel needs it
on its own, nor sums of decays up to the step before. Any other number becomes part of matrices over the steps of a chunk, which
are then those of the sweep over the other state, transposed: its writes have that number. For states with one decay a step, or
none: of one for each channel, such matrices are made block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....ir.expr import ROW, Node, add, factors_of, leaf, mul, terms_of, walk
from ...chunkwise.plan import Accumulate, Map, Plan, Sweep, Unroll
from .hoist import longer, uses
from .reuse_write_gradients import reused


def simplified(plan: Plan) -> Plan:
    """The plan as kernels sweep it, before sweeps that load too much are cut."""
    return scaled(reused(plan))


def scaled(plan: Plan) -> Plan:
    """The plan, with such numbers in its reads."""
    for k, stage in enumerate(plan.stages):
        if not isinstance(stage, Sweep):
            continue
        for r in stage.reads:
            decay = plan.form.state(r.state).decay
            if r.leaf not in stage.chunk.outputs or (decay is not None and (decay.axes or decay.op != "leaf")):
                continue
            for number in _numbers(plan, r.leaf):
                if number.attrs[0] == "input" or (number is decay and _before(stage.chunk.outputs[r.leaf])):
                    plan = _made_with(plan, k, r.leaf, number) or plan
    return plan


def _numbers(plan: Plan, read: Node) -> list[Node]:
    """Numbers of a step that uses of a read are times."""
    using = [x for x in _values(plan) if uses(x, read)]
    factors = [f for x in using for t in terms_of(x) for f in factors_of(t)]
    return list(dict.fromkeys(f for f in factors if f.op == "leaf" and not f.axes))


def _values(plan: Plan) -> Iterator[Node]:
    for stage in plan.stages:
        if isinstance(stage, Map):
            yield from stage.values.values()
        elif isinstance(stage, Accumulate):
            yield from (stage.state_adjoint.late, stage.state_adjoint.early)


def _before(x: Node) -> bool:
    """Do all decays of a read reach up to the step before its own?"""
    decays = [y for y in walk(x) if y.op in ("decay_in", "decay_out", "decay_mask") and ROW in y.axes]
    return bool(decays) and all(longer(y, ROW) is not None for y in decays)


def _made_with(plan: Plan, k: int, read: Node, number: Node) -> Plan | None:
    """The plan with a read times a number in the place of the read of stage k; None where a use isn't times that."""
    if any(uses(x, read) for x in _given(plan)):
        return None
    stages = list(plan.stages)
    for n, stage in enumerate(stages):
        if isinstance(stage, Map):
            values = {name: _without(x, read, number) for name, x in stage.values.items()}
            if None in values.values():
                return None
            stages[n] = Map({name: x for name, x in values.items() if x is not None})
        if isinstance(stage, Accumulate):
            late, early = (_without(x, read, number) for x in (stage.state_adjoint.late, stage.state_adjoint.early))
            if late is None or early is None:
                return None
            stages[n] = replace(stage, state_adjoint=replace(stage.state_adjoint, late=late, early=early))
    sweep = plan.stages[k]
    assert isinstance(sweep, Sweep)
    chunk = sweep.chunk
    stream = leaf("stream", number.key[:12], (ROW,))
    outputs = chunk.outputs | {read: add(*(mul(stream, x) for x in terms_of(chunk.outputs[read])))}
    stages[k] = replace(sweep, chunk=replace(chunk, streams=chunk.streams | {stream: number}, outputs=outputs))
    return replace(plan, stages=tuple(stages))


def _given(plan: Plan) -> Iterator[Node]:
    """What sweeps are given, and what is summed otherwise."""
    for stage in plan.stages:
        if isinstance(stage, Sweep):
            yield from stage.given.values()
        elif isinstance(stage, Unroll):
            yield from (*stage.streams.values(), *stage.outputs.values(), *stage.definitions.values())
        elif isinstance(stage, Accumulate) and not stage.by_channel:
            yield from (*stage.direct.streams.values(), *stage.direct.outputs.values())


def _without(x: Node, read: Node, number: Node) -> Node | None:
    """x without the number that each use of a read is times; None where one isn't."""
    if not uses(x, read):
        return x
    if x.op == "add":
        terms = [_without(y, read, number) for y in x.args]
        return None if None in terms else add(*terms)
    factors = factors_of(x)
    rest = [f for f in factors if f is not number]
    return mul(*rest) if len(rest) == len(factors) - 1 and _linear(mul(*rest), read) else None


def _linear(x: Node, read: Node) -> bool:
    """Is x a product of a read, or of a sum of such a product, and of what has nothing of it?"""
    using = [f for f in factors_of(x) if uses(f, read)]
    if len(using) != 1:
        return False
    (f,) = using
    return f.op == "leaf" or (f.op == "sum" and _linear(f.args[0], read))
