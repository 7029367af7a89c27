"""Rows of pools: read, written, and told apart from padding. A row below 0 is padding; nothing waits for the device.

On a GPU a kernel does each (`row_kernels.py`); else torch does, in more steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from . import debugging, row_kernels


def checked_rows(name: str, key: str, rows: object, pools: Sequence[Tensor], shape: str = "[B]") -> Tensor:
    """Rows as an op is given them: of an integer dtype, where the pools are; and in debug mode each once."""
    dims = shape.count(",") + 1
    if not isinstance(rows, Tensor) or rows.dim() != dims or rows.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"{name}: {key} must be a tensor {shape} of int32 or int64, got {told(rows)}")
    if len({x.shape[0] for x in pools}) > 1 or any(x.device != rows.device for x in pools):
        raise ArgumentError(
            f"{name}: pools must have as many rows as each other, and be where {key} is ({rows.device}), got "
            + ", ".join(f"{list(x.shape)} on {x.device}" for x in pools)
        )
    looking = debugging.switched_on and debugging.can_look()
    if looking or (rows.device.type == "cpu" and not torch.compiler.is_compiling()):  # nobody waits for a CPU
        look_at_rows(f"{name}: {key}", rows.flatten().tolist(), pools[0].shape[0], once=looking)
    return rows.contiguous()


def look_at_rows(what: str, rows: Sequence[int], count: int, once: bool) -> None:
    """Rows that there are; in debug mode each once."""
    first: dict[int, int] = {}
    for place, row in enumerate(rows):
        if not -1 <= row < count:
            raise ArgumentError(f"{what} must be rows of the pool, 0 to {count - 1}, or -1; got {row} at {place}")
        if once and row >= 0 and first.setdefault(row, place) != place:
            raise ArgumentError(f"{what} has the row {row} twice, at {first[row]} and at {place}")


def read_rows(pool: Tensor, rows: Tensor) -> Tensor:
    """[B, ...], zero for padding."""
    if pool.shape[0] == 0:
        return pool.new_zeros(rows.shape[0], *pool.shape[1:])
    made = row_kernels.read(pool, None, rows, pool.dtype)
    if made is not None:
        return made
    found = pool.index_select(0, rows.clamp(min=0))
    return torch.where(column(rows >= 0, found), found, torch.zeros((), dtype=pool.dtype, device=pool.device))


def write_rows(pools: Sequence[Tensor], states: Sequence[Tensor], rows: Tensor) -> None:
    """Put states into their rows. Where a row is padding, an entry that isn't is written once more in its place, so that the
    number of writes follows from the shape alone; where all are, row 0 is written what it holds."""
    if rows.shape[0] == 0:
        return
    others = [
        (pool, state)
        for pool, state in zip(pools, states, strict=True)
        if pool.shape[0] > 0 and not row_kernels.write(pool, None, state, rows, False)
    ]
    if not others:
        return
    real = rows >= 0
    some = real.to(torch.uint8).argmax()
    source = torch.where(real, torch.arange(rows.shape[0], device=rows.device), some)
    target = rows.index_select(0, source).clamp(min=0).long()
    for pool, state in others:
        new = state.to(pool.dtype).index_select(0, source)
        pool.index_copy_(0, target, torch.where(real.any(), new, pool[:1]))


def kept_rows(x: Tensor, real: Tensor, out: Tensor | None) -> Tensor:
    """Outputs of real rows: into `out`, whose other rows stay, or beside zeros."""
    real = column(real, x)
    if out is None:
        return torch.where(real, x, torch.zeros((), dtype=x.dtype, device=x.device))
    return out.copy_(torch.where(real, x, out))


def column(mask: Tensor, x: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (x.dim() - 1))


def told(x: object) -> str:
    return f"{list(x.shape)} in {x.dtype}" if isinstance(x, Tensor) else repr(x)[:60]
