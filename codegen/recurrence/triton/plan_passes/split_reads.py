"""Sweeps that load too much to prefetch it, cut in one for each read that they make."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ....ir.expr import Node, walk
from ...chunkwise.plan import BoundarySums, Plan, Stage, Sweep
from .roles import is_state


def cut(plan: Plan, heavy: Collection[int]) -> Plan:
    """The plan, with these sweeps cut: each part carries the states, and makes one read and the sums that are over it."""
    stages: list[Stage] = []
    for k, stage in enumerate(plan.stages):
        stages += _parts(stage) if isinstance(stage, Sweep) and k in heavy else [stage]
    return replace(plan, stages=tuple(stages))


def _parts(sweep: Sweep) -> list[Stage]:
    parts: list[Stage] = []
    left = sweep.boundary_sums
    for n, (x, node) in enumerate(sweep.chunk.outputs.items()):
        last = n == len(sweep.chunk.outputs) - 1
        here = [_over(boundary, node) if not last else boundary for boundary in left]
        left = tuple(_without(boundary, made) for boundary, made in zip(left, here, strict=True))
        parts.append(
            replace(
                sweep,
                reads=tuple(r for r in sweep.reads if r.leaf == x),
                finals=sweep.finals if n == 0 else (),
                chunk=replace(sweep.chunk, outputs={x: node}),
                boundary_sums=tuple(boundary for boundary in here if boundary.reads or boundary.own),
            )
        )
    return parts


def _over(boundary: BoundarySums, read: Node) -> BoundarySums:
    """What a boundary sums of the products with states that this read is made of; of totals over a chunk nothing, as they are one
    sum."""
    if boundary.totals:
        return replace(boundary, reads={}, own=())
    return replace(
        boundary, reads={n: x for n, x in boundary.reads.items() if products_of(x) <= products_of(read)}, own=()
    )


def _without(boundary: BoundarySums, made: BoundarySums) -> BoundarySums:
    return replace(boundary, reads={n: x for n, x in boundary.reads.items() if n not in made.reads})


def products_of(x: Node) -> set[Node]:
    """The products with states that a node is made of."""
    return {y for y in walk(x) if y.op == "sum" and any(map(is_state, walk(y)))}
