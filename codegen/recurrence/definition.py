"""What the definition makes of any call: arguments with fewer heads, packed sequences, gradients or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .oracle import oracle

if TYPE_CHECKING:
    from .samples import Sample

Oracle = Callable[..., tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]]
Quantities = dict[str, Tensor]


def defined(
    c: Any,
    s: Sample,
    lengths: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float64,
    of: Oracle = oracle,
    gradients: bool = True,
    **options: Any,
) -> Quantities:
    """Outputs, `final S`, `dq` by declared names, and `d initial S`: step by step, one packed sequence after the other, with
    each head's own copy of what serves several, whose gradients are summed."""
    axis = {v.name: 2 if v.per_step else 0 for v in c.step.variables}
    heads = max([x.shape[axis[n]] for n, x in s.given.items()])
    whole = {n: x.repeat_interleave(heads // x.shape[axis[n]], axis[n]) for n, x in s.given.items()}
    incoming = (s.cotangents, s.final_cotangents) if gradients else (None, None)
    if lengths is None:
        parts: tuple[Quantities, ...] = of(c, whole, s.states, s.constants, *incoming, dtype, **options)
    else:
        parts = _one_by_one(c, s, whole, axis, lengths, gradients, dtype, of, options)
    outputs, finals, found, initial = parts
    few = {n: s.given[n].shape[axis[n]] for n in found}
    found = {n: x.unflatten(axis[n], (few[n], heads // few[n])).sum(axis[n] + 1) for n, x in found.items()}
    return {
        **outputs,
        **{f"final {n}": x for n, x in finals.items()},
        **{f"d{n}": x for n, x in found.items()},
        **{f"d initial {n}": x for n, x in initial.items()},
    }


def _one_by_one(
    c: object,
    s: Sample,
    whole: dict[str, Tensor],
    axis: dict[str, int],
    lengths: tuple[int, ...],
    gradients: bool,
    dtype: torch.dtype,
    of: Oracle,
    options: Mapping[str, object],
) -> tuple[Quantities, Quantities, Quantities, Quantities]:
    parts: list[tuple[Quantities, ...]] = []
    at = 0
    for row, length in enumerate(lengths):
        here, at = slice(at, at + length), at + length
        own = {n: x[:, here] if axis[n] == 2 else x for n, x in whole.items()}
        incoming = {n: None if x is None else x[:, here] for n, x in s.cotangents.items()}
        states, last = (
            {n: None if x is None else x[row : row + 1] for n, x in given.items()}
            for given in (s.states, s.final_cotangents)
        )
        given = (incoming, last) if gradients else (None, None)
        parts.append(of(c, own, states, s.constants, *given, dtype, **options))
    outputs, finals, found, initial = ({n: [part[i][n] for part in parts] for n in parts[0][i]} for i in range(4))
    return (
        {n: torch.cat(x, 1) for n, x in outputs.items()},
        {n: torch.cat(x) for n, x in finals.items()},
        {n: torch.cat(x, 1) if axis[n] == 2 else torch.stack(x).sum(0) for n, x in found.items()},
        {n: torch.cat(x) for n, x in initial.items()},
    )
