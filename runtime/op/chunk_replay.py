"""`deterministic="chunk"`: decoding with the bits of the form over chunks, so that training and serving agree exactly.

    o, state = op(.., output_final_state=True, deterministic="chunk")     # the pass, with the bits of deterministic=True
    o, state = op.step(state, .., deterministic="chunk")                  # the next step, with the bits of a longer pass

The state is that of the last chunk boundary, with the arguments of the steps since. A step takes the pass over these once more,
and its last output; after INTERVAL steps the boundary moves on. So a step costs what a chunk costs.

On a CPU a recurrent form computes in float64, and torch's functions of numbers, such as a sigmoid of a step's input, round the
last entries of a tensor otherwise than the others: there the two agree to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from ..launch.varlen import INTERVAL
from .decode import Step, listed
from .results import Public, Results, result_type
from .rows import told
from .signature import Signature, States


@dataclass(eq=False, repr=False)
class ChunkState:
    """The states at the last chunk boundary (None: the spec's own), and the arguments of the `filled` steps since, [B, C, H, ..].

    A step writes its arguments there: `clone()` before going on in two ways."""

    boundary: tuple[Tensor, ...] | None
    since: dict[str, Tensor]
    filled: int

    def clone(self) -> ChunkState:
        own = None if self.boundary is None else tuple(x.clone() for x in self.boundary)
        return ChunkState(own, {n: x.clone() for n, x in self.since.items()}, self.filled)

    def __repr__(self) -> str:
        return f"<states at a chunk boundary, and {self.filled} steps since>"


def call_by_chunks(
    signature: Signature, op: Public, arguments: tuple[object, ...], options: Mapping[str, object]
) -> Results:
    """The op with `deterministic=True`, whose final state is a `ChunkState`."""
    name = signature.name
    given = {**options, "deterministic": True}
    final, state = given.pop("output_final_state", False), given.pop("initial_state", None)
    for other in ("cu_seqlens", "context_parallel", "state_dtype"):
        if given.get(other) is not None:
            raise ArgumentError(f'{name}: deterministic="chunk" takes no {other}')
    keys = [a.key for a in signature.tensors]
    tensors = dict(zip(keys, arguments, strict=False)) | {n: given.pop(n) for n in keys if n in given}
    timed = [a.key for a in signature.tensors if a.per_step]
    if len(arguments) > len(keys) or {*keys} - {*tensors} or not all(isinstance(tensors[n], Tensor) for n in timed):
        return op(**tensors, **given)  # whose error says what doesn't fit
    kept = state if isinstance(state, ChunkState) else None
    if kept is not None and kept.filled:
        before = {n: x[:, : kept.filled] for n, x in kept.since.items()}
        tensors |= {n: torch.cat([before[n].to(x.dtype), x], 1) for n, x in tensors.items() if n in before}  # type: ignore
    skip = 0 if kept is None else kept.filled
    boundary: Any = _states(kept.boundary) if kept is not None else state
    steps = tensors[timed[0]].shape[1]  # type: ignore[attr-defined]
    whole = steps // INTERVAL * INTERVAL
    *outputs, last = op(**tensors, initial_state=boundary, output_final_state=True, **given)
    result = signature.result()
    shown = [x[:, skip:] for x in outputs]
    if not final:
        return result(*shown, None)
    if whole < steps and whole:  # what the last boundary holds
        head = {n: x[:, :whole] if n in timed else x for n, x in tensors.items()}  # type: ignore[index]
        *_, last = op(**head, initial_state=boundary, output_final_state=True, **given)
    at_last = tuple(listed(last)) if whole else (None if boundary is None else tuple(listed(boundary)))
    rest = {n: _room(tensors[n][:, whole:]) for n in timed}  # type: ignore[index]
    return result(*shown, ChunkState(at_last, rest, steps - whole))


def step_by_chunks(
    step: Step,
    op: Public,
    public: Public,
    arguments: tuple[object, ...],
    options: Mapping[str, object],
) -> Results:
    """(outputs.., state) of a step: the last of the pass from the boundary."""
    name = step.signature.name
    given = {n: x for n, x in options.items() if n not in ("deterministic", "inplace")}
    for other in ("state_indices", "state_dtype"):
        if given.pop(other, None) is not None:
            raise ArgumentError(f'{name}: deterministic="chunk" takes no {other}')
    out, backend = given.pop("out", None), given.pop("backend", None)
    keys = ["state", *(a.key for a in step.signature.tensors)]
    now: dict[str, Any] = dict(zip(keys, arguments, strict=False)) | given
    timed = [a.key for a in step.signature.tensors if a.per_step]
    if len(arguments) > len(keys) or {*keys} - {*now} or not all(isinstance(now[n], Tensor) for n in timed):
        return public(*arguments, **given)  # whose error says what doesn't fit
    state = now.pop("state")
    if not isinstance(state, ChunkState):
        if state is not None:
            raise ArgumentError(
                f'{name}: state must be what a call with deterministic="chunk" returned, or None, got {told(state)}, '
                "which doesn't say where its chunk began"
            )
        state = ChunkState(None, {}, 0)
    with torch.no_grad():
        if not state.since:
            state.since = {n: _room(now[n][:, None].detach()[:, :0]) for n in timed}
        for n in timed:
            if now[n].shape != state.since[n][:, 0].shape:
                raise ArgumentError(f"{name}: {n} must be {list(state.since[n][:, 0].shape)}, got {list(now[n].shape)}")
            state.since[n][:, state.filled].copy_(now[n])
        filled = state.filled + 1
        since = {n: x[:, :filled] for n, x in state.since.items()}
        first = _states(state.boundary)
        *outputs, last = op(
            **{**now, **since}, initial_state=first, output_final_state=True, backend=backend, deterministic=True
        )
        state.filled = filled
        if filled == INTERVAL:
            state.boundary, state.filled = tuple(listed(last)), 0
        shown = [x[:, -1] for x in outputs]
        if out is not None:
            shown = [into.copy_(x) for into, x in zip(listed(out), shown, strict=True)]
    return result_type(name, (*(n for n, _ in step.signature.outputs), "state"))(*shown, state)


def _room(x: Tensor) -> Tensor:
    """The first steps of a chunk, with room for all."""
    room = x.new_zeros((x.shape[0], INTERVAL, *x.shape[2:]))
    room[:, : x.shape[1]] = x
    return room


def _states(x: tuple[Tensor, ...] | None) -> States:
    return x[0] if x is not None and len(x) == 1 else x
