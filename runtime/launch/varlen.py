"""Packed sequences: several sequences one after the other in one batch entry, told apart by `cu_seqlens`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from chunkform.errors import ArgumentError

Tensors = dict[str, Tensor]
INTERVAL = 64  # steps of a checkpoint interval: between two of them kernels leave the states


def interval_count(steps: Any, sequences: Any = None) -> Any:
    """How many checkpoint intervals there is a place for; of `sequences` packed ones each begins one."""
    return -(-steps // INTERVAL) if sequences is None else steps // INTERVAL + sequences


@dataclass(frozen=True, eq=False)
class Packed:
    """Sequence n is steps starts[n] up to starts[n + 1]; some may be empty.

    starts: int64 [N + 1], on the device of the inputs. count: N. longest: an upper bound of the lengths, known on the host.
    """

    starts: Tensor
    count: int
    longest: int

    @cached_property
    def boundaries(self) -> tuple[int, ...]:
        """`starts` on the host: on a GPU this waits for the device, unless all sequences are empty."""
        return tuple(self.starts.tolist()) if self.longest else (0,) * (self.count + 1)

    @property
    def batches(self) -> list[list[int]]:
        """Sequences that are equally long, and so can run as one batch."""
        return _batches(self.boundaries)


@functools.lru_cache(64)
def _batches(boundaries: tuple[int, ...]) -> list[list[int]]:
    by_length: dict[int, list[int]] = {}
    for n, (start, end) in enumerate(pairwise(boundaries)):
        by_length.setdefault(end - start, []).append(n)
    return list(by_length.values())


def check_starts(name: str, starts: object, batch: object, device: torch.device) -> None:
    """Refuse what can't be the `cu_seqlens` of inputs [batch, T, ...] on `device`, whatever its values are.

    Raises:
        ArgumentError: it isn't an int32 or int64 tensor [N + 1] on `device`, or B isn't 1.
    """
    what = f"{name}: cu_seqlens"
    if not isinstance(starts, Tensor):
        raise ArgumentError(f"{what} must be an int32 or int64 tensor [N + 1], got {type(starts).__name__}")
    if starts.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"{what} must be int32 or int64, got {str(starts.dtype).removeprefix('torch.')}")
    if starts.layout != torch.strided or starts.is_nested:
        got = "a nested one" if starts.is_nested else f"the layout {starts.layout}"
        raise ArgumentError(f"{what} must be a dense tensor, got {got}")
    if _is_batched(starts):
        raise batched_starts(name)
    if starts.dim() != 1 or starts.shape[0] < 2:
        raise ArgumentError(f"{what} must be [N + 1] for N >= 1 sequences, got the shape {list(starts.shape)}")
    if starts.device != device:
        raise ArgumentError(f"{what} is on {starts.device}, but the inputs are on {device}")
    if batch != 1:
        raise ArgumentError(
            f"{what}: packed sequences lie in one batch entry, [1, T, ...], but the inputs have B = {batch}"
        )


def batched_starts(name: str) -> ArgumentError:
    return ArgumentError(f"{name}: cu_seqlens must be the same for all calls of a batch, and vmap was given several")


def _is_batched(x: Tensor) -> bool:
    if torch.compiler.is_compiling():  # the rule for vmap says so
        return False
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            return True
        x = torch._C._functorch.get_unwrapped(x)
    return False


def packed_of(name: str, starts: Tensor, steps: int) -> Packed:
    """The sequences of [1, steps, ...] that `starts`, which passed `check_starts`, tells apart.

    On a CPU its values are read in each call, as what shares its memory, such as numpy, may have changed them. On another device
    an assertion there looks at them, so that nothing waits for it, and what was made of a tensor is remembered while it lives
    and isn't written to by torch: most layers of a model share one. The backward pass has the values of the forward pass.

    Raises:
        ArgumentError: on a CPU, the values don't rise from 0 to T.
    """
    about = _about(starts, steps)
    found = None if about is None else _known.get(starts)
    if found is not None and found[0] == about:
        return found[1]
    check_values(f"{name}: cu_seqlens", starts, steps)
    packed = Packed(starts.to(torch.int64, copy=True), starts.shape[0] - 1, steps)
    if about is not None:
        _known[starts] = (about, packed)
    return packed


def _about(starts: Tensor, steps: int) -> tuple[Any, ...] | None:
    """What has to be the same for a tensor to need no second look; None where each call has to look.

    A CUDA graph has to hold the look itself, since the tensor may have other values when the graph runs.
    """
    if starts.is_inference() or starts.device.type == "cpu":
        return None
    stream = 0
    if starts.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return None
        stream = torch.cuda.current_stream(starts.device).cuda_stream
    return starts._version, starts.data_ptr(), starts.shape, starts.stride(), steps, stream


_known: Any = WeakTensorKeyDictionary()


def check_values(what: str, starts: Tensor, steps: int) -> None:
    """Refuse starts that don't rise from 0 to `steps`."""
    if starts.device.type != "cpu":
        rising = (starts[1:] >= starts[:-1]).all() & (starts[0] == 0) & (starts[-1] == steps)
        torch._assert_async(rising, f"{what} must rise from 0 to T = {steps}")
        return
    values = starts.tolist()
    if values[0] != 0 or values[-1] != steps:
        raise ArgumentError(f"{what} must start with 0 and end with T = {steps}, got {values[0]} and {values[-1]}")
    for n, (a, b) in enumerate(pairwise(values)):
        if b < a:
            raise ArgumentError(f"{what} must not fall, got {a} and then {b} at sequence {n}")


# --- for backends that take one length at a time --------------------------------------------------------------------


def forward_by_length(
    forward: Callable[..., Any],
    per_step: list[str],
    given: Tensors,
    states: dict[str, Tensor | None],
    constants: dict[str, float],
    packed: Packed,
) -> tuple[Tensors, Tensors, Tensors]:
    """`forward` of packed sequences, a batch for each length. `per_step` names the arguments that run over steps."""
    outputs: Tensors = {}
    finals: Tensors = {}
    kept: Tensors = {}
    for i, batch in enumerate(packed.batches):
        own = _arguments(given, per_step, packed, batch)
        some, last, saved = forward(own, _rows(states, batch), constants)
        for name, x in some.items():
            if name not in outputs:
                outputs[name] = x.new_empty((1, packed.boundaries[-1], *x.shape[2:]))
            _put(outputs[name], x, packed, batch)
        for name, x in last.items():
            if name not in finals:
                finals[name] = x.new_empty((packed.count, *x.shape[1:]))
            finals[name][batch] = x
        kept |= {f"{i} {name}": x for name, x in saved.items()}
    return outputs, finals, kept


def backward_by_length(
    backward: Callable[..., Any],
    per_step: list[str],
    given: Tensors,
    states: dict[str, Tensor | None],
    constants: dict[str, float],
    saved: Tensors,
    cotangents: dict[str, Tensor | None],
    final_cotangents: dict[str, Tensor | None],
    needs: frozenset[str],
    packed: Packed,
) -> tuple[Tensors, Tensors]:
    """`backward` of packed sequences, a batch for each length; parameters get the sum."""
    gradients: Tensors = {}
    initial: Tensors = {}
    for i, batch in enumerate(packed.batches):
        own = _arguments(given, per_step, packed, batch)
        kept = {n.removeprefix(f"{i} "): x for n, x in saved.items() if n.startswith(f"{i} ")}
        incoming = {n: None if x is None else _take(x, packed, batch) for n, x in cotangents.items()}
        some, first = backward(
            own, _rows(states, batch), constants, kept, incoming, _rows(final_cotangents, batch), needs
        )
        for name, x in some.items():
            if name not in per_step:
                gradients[name] = gradients[name] + x if name in gradients else x
                continue
            if name not in gradients:
                gradients[name] = x.new_empty((1, packed.boundaries[-1], *x.shape[2:]))
            _put(gradients[name], x, packed, batch)
        for name, x in first.items():
            if name not in initial:
                initial[name] = x.new_empty((packed.count, *x.shape[1:]))
            initial[name][batch] = x
    return gradients, initial


def _arguments(given: Tensors, per_step: list[str], packed: Packed, batch: list[int]) -> Tensors:
    return {n: _take(x, packed, batch) if n in per_step else x for n, x in given.items()}


def _take(x: Tensor, packed: Packed, batch: list[int]) -> Tensor:
    """[1, T, ...] -> [n, L, ...]; a view where it is one sequence."""
    parts = [x[:, packed.boundaries[n] : packed.boundaries[n + 1]] for n in batch]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _put(out: Tensor, x: Tensor, packed: Packed, batch: list[int]) -> None:
    for row, n in enumerate(batch):
        out[0, packed.boundaries[n] : packed.boundaries[n + 1]] = x[row]


def _rows(states: dict[str, Tensor | None], batch: list[int]) -> dict[str, Tensor | None]:
    return {n: None if x is None else x[batch] for n, x in states.items()}
