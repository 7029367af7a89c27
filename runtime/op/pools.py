"""State pools: a decoding step, or a prefill, that reads and writes rows of one tensor [P, H, ...] for each state, in place.

    o, pool = op.step(pool, q=q, .., state_indices=rows)             # rows [B]: the row of each batch entry; -1 is padding
    o, pool = op(q, .., state_pool=pool, state_indices=rows)         # from what the rows hold, to them; packed sequences too

A padding row's state is neither read nor written, whatever its arguments are, and its output is zero.
Nothing waits for the device. On a GPU a step's kernel goes to the rows by itself: nothing is gathered or scattered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from .arguments import check_dense
from .decode import Given, Step, listed
from .results import Public, Results
from .rows import checked_rows, kept_rows, read_rows, told, write_rows
from .signature import Signature
from .small_states import SmallPool
from .small_step import step_in_kernel


def step_in_pool(op: Step, step: Public, arguments: tuple[object, ...], options: Mapping[str, object]) -> Results:
    """A step's outputs, and the pool, whose rows hold the states after it. Options of `step`, and `state_indices`."""
    name = op.signature.name
    given = dict(options)
    rows = given.pop("state_indices", None)
    if "state_pool" in given:
        raise ArgumentError(f"{name}: the pool is the step's state: step(pool, .., state_indices=rows)")
    keys = ["state", *(a.key for a in op.signature.tensors), *OPTIONS]
    found = dict(zip(keys, arguments, strict=False)) | given
    constants = [a.key for a in op.signature.constants]
    missing = {*keys} - {*OPTIONS} | {a.key for a in op.signature.constants if a.default is None}
    if (
        len(arguments) > len(keys)
        or {*found} - {*keys, *constants}
        or missing - {*found}
        or {*keys[: len(arguments)]} & {*given}
    ):
        return step(*arguments, **given)  # whose error says what doesn't fit
    pool = found["state"]
    if isinstance(pool, SmallPool):
        rows = rows_of_small(name, op.signature, pool, rows)
        into = found.pop("out", None)
        if found.get("state_dtype") is not None:
            raise ArgumentError(f"{name}: a SmallPool has its own dtype: state_dtype must be left out")
        how = found.get("backend"), found.get("deterministic", False)
        made = step_in_kernel(op, pool, values_of(op, found), rows, listed(into), *how)
        if made is not None:
            return op.result(*made, pool)
        states = pool.read(rows)
        *outputs, _ = op(as_given(states), values_of(op, found), True, None, None, *how)
        pool.write(rows, states)
        return op.result(*into_rows(outputs, rows, into), pool)
    pools = pools_of(name, "state", op.signature, pool)
    values = values_of(op, found)
    chosen: Any = [found.get(n, default) for n, default in OPTIONS.items()]
    *outputs, _ = op(pool, values, *chosen, rows=checked_rows(name, "state_indices", rows, pools))  # type: ignore[arg-type]
    return op.result(*outputs, pool)


def values_of(op: Step, found: Mapping[str, object]) -> Given:
    """A step's arguments by declared names."""
    return {a.name: found.get(a.key) for a in op.signature.arguments}  # type: ignore[misc]


OPTIONS = {"inplace": False, "out": None, "state_dtype": None, "backend": None, "deterministic": False}  # in order


def call_in_pool(
    signature: Signature, op: Public, arguments: tuple[object, ...], options: Mapping[str, object]
) -> Results:
    """An op's outputs, and the pool, whose rows hold the last states. Options of the op, `state_pool` and `state_indices`."""
    name = signature.name
    given = dict(options)
    indices, pool = given.pop("state_indices", None), given.pop("state_pool", None)
    if indices is None or pool is None:
        raise ArgumentError(f"{name}: state_pool and state_indices are given together")
    for other in ("initial_state", "context_parallel"):
        if given.get(other) is not None:
            raise ArgumentError(f"{name}: state_pool takes the place of initial_state, and has no {other}")
    given.pop("output_final_state", None)
    if isinstance(pool, SmallPool):
        pools, rows = [], rows_of_small(name, signature, pool, indices)
    else:
        pools = pools_of(name, "state_pool", signature, pool)
        rows = checked_rows(name, "state_indices", indices, pools)
    tensors = [x for x in (*arguments, *given.values()) if isinstance(x, Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, *pools)):
        raise ArgumentError(f"{name}: a pool is written in place and has no gradient: call under torch.no_grad()")
    states = pool.read(rows) if isinstance(pool, SmallPool) else [read_rows(x, rows) for x in pools]
    _check_count(name, signature, rows, arguments, given)
    try:
        *outputs, last = op(*arguments, initial_state=as_given(states), output_final_state=True, **given)
    except ArgumentError as error:  # the op knows them as its initial states
        raise ArgumentError(str(error).replace("initial_state", "rows of state_pool")) from None
    after = list(last) if isinstance(last, tuple) else [last]
    if isinstance(pool, SmallPool):
        pool.write(rows, after)
    else:
        write_rows(pools, after, rows)
    starts = given.get("cu_seqlens")
    return (*(kept_steps(x, rows, starts if isinstance(starts, Tensor) else None) for x in outputs), pool)


def _check_count(
    name: str, signature: Signature, rows: Tensor, arguments: tuple[object, ...], given: Mapping[str, object]
) -> None:
    """A row for each sequence; what else doesn't fit is said by the op."""
    starts, leading = given.get("cu_seqlens"), signature.tensors[0]
    some = given.get(leading.key, arguments[0] if arguments else None)
    found = ("N", starts.shape[0] - 1) if isinstance(starts, Tensor) and starts.dim() == 1 else None
    if starts is None and leading.per_step and isinstance(some, Tensor) and some.dim() > 1:
        found = ("B", some.shape[0])
    if found is not None and found[1] >= 0 and rows.shape[0] != found[1]:
        raise ArgumentError(f"{name}: state_indices must be [{found[0]}] = [{found[1]}], got {list(rows.shape)}")


def kept_steps(x: Tensor, rows: Tensor, starts: Tensor | None) -> Tensor:
    """Outputs [B, T, ..], or [1, T, ..] of packed sequences, zero where a sequence's row is padding."""
    if starts is None:
        return kept_rows(x, rows >= 0, None)
    return kept_rows(x[0], steps_of_rows(rows >= 0, starts, x.shape[1]), None).unsqueeze(0)


def steps_of_rows(real: Tensor, starts: Tensor, steps: int) -> Tensor:
    """Of each packed step, whether its sequence's row is real; real is [N], starts [N + 1]."""
    if real.shape[0] == 0:
        return torch.zeros(steps, dtype=torch.bool, device=real.device)
    time = torch.arange(steps, device=real.device, dtype=starts.dtype)
    which = torch.searchsorted(starts[1:].to(real.device).contiguous(), time, right=True)
    return real.index_select(0, which.clamp(max=real.shape[0] - 1))


def pools_of(name: str, argument: str, signature: Signature, pool: object) -> list[Tensor]:
    """The pools, one for each state."""
    pools = [] if pool is None else list(pool) if isinstance(pool, tuple | list) else [pool]
    if len(pools) != len(signature.states) or not all(isinstance(x, Tensor) and x.dim() > 1 for x in pools):
        layouts = ", ".join(f"{n} [P, {', '.join(('H', *dims))}]" for n, dims in signature.states)
        raise ArgumentError(
            f"{name}: with state_indices, {argument} must be a pool of rows: {layouts}; got {told(pool)}"
        )
    for x in pools:
        check_dense(f"{name}: {argument}", x)
    return pools


def rows_of_small(name: str, signature: Signature, pool: SmallPool, rows: object) -> Tensor:
    if len(pool.states) != len(signature.states):
        raise ArgumentError(f"{name}: the pool is of an op with {len(pool.states)} states, not {len(signature.states)}")
    return checked_rows(name, "state_indices", rows, [s.numbers for s in pool.states])


def into_rows(outputs: list[Tensor], rows: Tensor, out: object) -> list[Tensor]:
    """Outputs of real rows, where they are wanted."""
    wanted = [None] * len(outputs) if out is None else list(out) if isinstance(out, tuple | list) else [out]
    return [kept_rows(x, rows >= 0, into) for x, into in zip(outputs, wanted, strict=True)]  # type: ignore[arg-type]


def as_given(states: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return states[0] if len(states) == 1 else tuple(states)
