"""State pools: a decoding step, or a prefill, that reads and writes rows of one tensor [P, H, ...] for each state, in place.

    o, pool = op.step(pool, q=q, .., state_indices=rows)             # rows [B]: the row of each batch entry; -1 is padding
    o, pool = op(q, .., state_pool=pool, state_indices=rows)         # from what the rows hold, to them; packed sequences too

A padding row's state is neither read nor written, whatever its arguments are, and its output is zero.
Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from . import debugging
from .signature import Signature


def step_in_pool(
    signature: Signature, step: Callable[..., Any], arguments: tuple[object, ...], options: Mapping[str, object]
) -> Any:
    """A step's outputs, and the pool, whose rows hold the states after it. Options of `step`, and `state_indices`."""
    name = f"{signature.name}.step"
    given = dict(options)
    rows = given.pop("state_indices", None)
    if "state_pool" in given:
        raise ArgumentError(f"{name}: the pool is the step's state: step(pool, .., state_indices=rows)")
    pool = arguments[0] if arguments else given.pop("state", None)
    given.pop("inplace", None)  # what it would do is done in any case
    out = given.pop("out", None)
    pools = _checked(name, "state", signature, pool, rows)
    states = [_read(x, rows) for x in pools]
    *outputs, after = step(_as_given(states), *arguments[1:], inplace=True, **given)
    _write(pools, _listed(after), rows)
    outputs = [_kept(x, rows, before) for x, before in zip(outputs, _outputs(name, out, len(outputs)), strict=True)]
    return (*outputs, pool)


def call_in_pool(
    signature: Signature, op: Callable[..., Any], arguments: tuple[object, ...], options: Mapping[str, object]
) -> Any:
    """An op's outputs, and the pool, whose rows hold the last states. Options of the op, `state_pool` and `state_indices`."""
    name = signature.name
    given = dict(options)
    rows, pool = given.pop("state_indices", None), given.pop("state_pool", None)
    if rows is None or pool is None:
        raise ArgumentError(f"{name}: state_pool and state_indices are given together")
    for other in ("initial_state", "context_parallel"):
        if given.get(other) is not None:
            raise ArgumentError(f"{name}: state_pool takes the place of initial_state, and has no {other}")
    given.pop("output_final_state", None)
    pools = _checked(name, "state_pool", signature, pool, rows)
    tensors = [x for x in (*arguments, *given.values()) if isinstance(x, Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, *pools)):
        raise ArgumentError(f"{name}: a pool is written in place and has no gradient: call under torch.no_grad()")
    states = [_read(x, rows) for x in pools]
    *outputs, last = op(*arguments, initial_state=_as_given(states), output_final_state=True, **given)
    _write(pools, _listed(last), rows)
    if given.get("cu_seqlens") is None:
        outputs = [_kept(x, rows, None) for x in outputs]
    return (*outputs, pool)


def _checked(name: str, argument: str, signature: Signature, pool: object, rows: object) -> list[Tensor]:
    """The pools, one for each state."""
    pools = _listed(pool)
    if len(pools) != len(signature.states) or not all(isinstance(x, Tensor) and x.dim() > 1 for x in pools):
        layouts = ", ".join(f"{n} [P, {', '.join(('H', *dims))}]" for n, dims in signature.states)
        raise ArgumentError(
            f"{name}: with state_indices, {argument} must be a pool of rows: {layouts}; got {_told(pool)}"
        )
    if not isinstance(rows, Tensor) or rows.dim() != 1 or rows.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"{name}: state_indices must be a tensor [B] of int32 or int64, got {_told(rows)}")
    if len({x.shape[0] for x in pools}) > 1 or any(x.device != rows.device for x in pools):
        raise ArgumentError(
            f"{name}: pools must have as many rows as each other, and be where state_indices is ({rows.device}), got "
            + ", ".join(f"{list(x.shape)} on {x.device}" for x in pools)
        )
    looking = debugging._on and debugging.can_look()
    if looking or (rows.device.type == "cpu" and not torch.compiler.is_compiling()):  # nobody waits for a CPU
        _look(name, rows.tolist(), pools[0].shape[0], once=looking)
    return pools


def _look(name: str, rows: Sequence[int], count: int, once: bool) -> None:
    """Rows that there are; in debug mode each once."""
    first: dict[int, int] = {}
    for place, row in enumerate(rows):
        if not -1 <= row < count:
            raise ArgumentError(
                f"{name}: state_indices must be rows of the pool, 0 to {count - 1}, or -1; got {row} at {place}"
            )
        if once and row >= 0 and first.setdefault(row, place) != place:
            raise ArgumentError(f"{name}: state_indices has the row {row} twice, at {first[row]} and at {place}")


def _read(pool: Tensor, rows: Tensor) -> Tensor:
    """[B, ...], zero for padding."""
    if pool.shape[0] == 0:
        return pool.new_zeros(rows.shape[0], *pool.shape[1:])
    found = pool.index_select(0, rows.clamp(min=0))
    return torch.where(_column(rows >= 0, found), found, torch.zeros((), dtype=pool.dtype, device=pool.device))


def _write(pools: Sequence[Tensor], states: Sequence[Tensor], rows: Tensor) -> None:
    """Put states into their rows. Where a row is padding, an entry that isn't is written once more in its place, so that the
    number of writes follows from the shape alone; where all are, row 0 is written what it holds."""
    if rows.shape[0] == 0:
        return
    real = rows >= 0
    some = real.to(torch.uint8).argmax()
    source = torch.where(real, torch.arange(rows.shape[0], device=rows.device), some)
    target = rows.index_select(0, source).clamp(min=0).long()
    for pool, state in zip(pools, states, strict=True):
        if pool.shape[0] == 0:
            continue
        new = state.to(pool.dtype).index_select(0, source)
        pool.index_copy_(0, target, torch.where(real.any(), new, pool.index_select(0, target)))


def _kept(x: Tensor, rows: Tensor, out: Tensor | None) -> Tensor:
    """Outputs of real rows: into `out`, whose other rows stay, or beside zeros."""
    real = _column(rows >= 0, x)
    if out is None:
        return torch.where(real, x, torch.zeros((), dtype=x.dtype, device=x.device))
    return out.copy_(torch.where(real, x, out))


def _column(mask: Tensor, x: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (x.dim() - 1))


def _outputs(name: str, out: object, count: int) -> list[Tensor | None]:
    if out is None:
        return [None] * count
    found = _listed(out)
    if len(found) != count:
        raise ArgumentError(f"{name}: out must hold {count} tensors, got {len(found)}")
    return [*found]


def _as_given(states: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return states[0] if len(states) == 1 else tuple(states)


def _listed(x: object) -> list[Tensor]:
    return [] if x is None else list(x) if isinstance(x, tuple | list) else [x]  # type: ignore[list-item]


def _told(x: object) -> str:
    return f"{list(x.shape)} in {x.dtype}" if isinstance(x, Tensor) else repr(x)[:60]
