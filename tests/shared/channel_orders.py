"""The definition in float32, step by step, with its channels in several orders.

A sum over channels rounds as its order is. Where a problem is ill-conditioned (a division by `q.k`, say), that makes one run's
error a matter of luck: of twenty orders the luckiest is ten times as near as the unluckiest. What an error may be is taken from
the largest of several, each of which is a step-by-step run on the same inputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.oracle import oracle
from chunkform.codegen.recurrence.samples import Sample

ORDERS = 16

Quantities = dict[str, Tensor]


def in_several_orders(c: Compiled, s: Sample, dtype: torch.dtype = torch.float32) -> list[Quantities]:
    """Every quantity of step-by-step runs, the first of which has the channels as they are."""
    return [in_order(c, s, n, dtype) for n in range(ORDERS)]


def in_order(c: Compiled, s: Sample, seed: int, dtype: torch.dtype) -> Quantities:
    """Every quantity, with channels as they were, of a run over channels in another order."""
    axes = axes_of_all(c)
    sizes = {dim: x.shape[place] for n, x in _given(s).items() for place, dim in _places(axes[n])}
    random = torch.Generator().manual_seed(seed)
    orders = {
        dim: torch.randperm(size, generator=random) if seed else torch.arange(size)
        for dim, size in sorted(sizes.items())
    }

    def moved(given: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        return {n: None if x is None else _taken(x, axes[prefix + n], orders) for n, x in given.items()}

    other = replace(
        s,
        given=moved(s.given, "d"),
        states=moved(s.states, "final "),
        cotangents=moved(s.cotangents),
        final_cotangents=moved(s.final_cotangents, "final "),
    )
    outputs, finals, gradients, initial = oracle(
        c, other.given, other.states, other.constants, other.cotangents, other.final_cotangents, dtype
    )
    found = {**outputs, **{f"final {n}": x for n, x in finals.items()}}
    found |= {f"d{n}": x for n, x in gradients.items()} | {f"d initial {n}": x for n, x in initial.items()}
    back = {dim: order.argsort() for dim, order in orders.items()}
    return {n: _taken(x, axes[n], back) for n, x in found.items()}


def axes_of_all(c: Compiled) -> dict[str, tuple[str, ...]]:
    """The axes of each quantity: an output, `dq`, `final S`, `d initial S`."""
    step = c.step
    found = dict(step.output_axes) | {f"d{v.name}": v.axes for v in step.variables}
    return found | {f"{what} {x.name}": x.axes for what in ("final", "d initial") for x in step.states}


def _given(s: Sample) -> Quantities:
    states = {f"final {n}": x for n, x in s.states.items() if x is not None}
    return {f"d{n}": x for n, x in s.given.items()} | states


def _places(axes: tuple[str, ...]) -> list[tuple[int, str]]:
    """Where each axis is, counted from the last, and its dim: a second axis of one dim is primed."""
    return [(place - len(axes), axis.rstrip("'")) for place, axis in enumerate(axes)]


def _taken(x: Tensor, axes: tuple[str, ...], orders: dict[str, Tensor]) -> Tensor:
    for place, dim in _places(axes):
        x = x.index_select(place, orders[dim].to(x.device))
    return x
