"""Both passes of a call through its backend, which need not know of head groups, precisions and recomputation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..launch.fixed_split import split_by_length
from ..launch.replay import Replays
from ..launch.varlen import Packed
from .arguments import no_autocast
from .call import Call, result_types
from .deterministic import OneByOne
from .fits import fitted, made_at, mark, unmarked
from .signature import OVERWRITE, Signature

Tensors = dict[str, Tensor]
Maybe = dict[str, Tensor | None]

SMALL = 1 << 24  # bytes that "auto" keeps beyond what the arguments have
LARGE, WIDE = 1 << 22, 16  # bytes, and channels of a head, from which on a kernel adds up the gradients of shared heads


def _forward_options(call: Call, again: bool = False) -> dict[str, Any]:
    """`options`, and what is wanted of the forward pass; `again` is that within the backward pass."""
    options, features, wants = call.options, call.backend.features, call.wants
    if "inference" in features:
        needs: bool | str = again or (wants.needs_backward and wants.recompute != "always")
        options["needs_backward"] = "announced" if needs and wants.announced and not again else needs
    if "finals" in features:
        options["finals"] = wants.finals and not again
    return options


def run_forward(call: Call, given: Tensors, states: Maybe) -> tuple[Tensors, Maybe, Tensors]:
    """(outputs, final states, what the backward pass uses), by name. Final states that nobody wants may be None."""
    return fitted(call.over(given), given, "forward", lambda call, level: _forward(call, level, given, states))


def _forward(call: Call, level: int, given: Tensors, states: Maybe) -> tuple[Tensors, Maybe, Tensors]:
    """A forward pass at one level (`fits.py`)."""
    own, first = arguments_of(call, given), _states(call, states)
    passes: Any = OneByOne(call.signature, call.backend) if call.one_by_one else call.backend
    with no_autocast(device_of(given)), split_by_length(call.deterministic):
        outputs, finals, saved = passes.forward(own, first, call.constants, **_forward_options(call))
    if own is not given:
        kind, wide = result_types(call.signature, given)
        outputs = {n: _cast(x, kind) for n, x in outputs.items()}
        finals = {n: _cast(x, wide) for n, x in finals.items()}
    return outputs, finals, mark(saved, level)


def run_backward(
    call: Call,
    given: Tensors,
    states: Maybe,
    saved: Tensors | None,
    cotangents: Maybe,
    final_cotangents: Maybe,
    needs: frozenset[str],
) -> tuple[Tensors, Tensors]:
    """(gradients, gradients of the initial states) by name, each shaped and typed like what it belongs to.

    Where `saved` is None, the forward pass is computed again.
    """
    made = 0 if saved is None else made_at(saved)

    def run(call: Call, level: int) -> tuple[Tensors, Tensors]:
        kept = saved if made == level else None
        if kept is not saved and call.replays is not None:
            call.replays.clear()  # so that forward passes are recorded at this level
        return _backward(call, given, states, kept, cotangents, final_cotangents, needs)

    return fitted(call.over(given), given, "backward", run)


def _backward(
    call: Call,
    given: Tensors,
    states: Maybe,
    saved: Tensors | None,
    cotangents: Maybe,
    final_cotangents: Maybe,
    needs: frozenset[str],
) -> tuple[Tensors, Tensors]:
    """A backward pass at one level (`fits.py`)."""
    own, first = arguments_of(call, given), _states(call, states)
    if call.computed is not None:
        cotangents = {n: _cast(g, call.computed) for n, g in cotangents.items()}
        final_cotangents = _states(call, final_cotangents)
    with no_autocast(device_of(given)), split_by_length(call.deterministic):
        if call.one_by_one:
            options = _forward_options(call, again=True)
            options.pop("packed", None)
            gradients, initial = OneByOne(call.signature, call.backend).backward(
                own, first, call.constants, cotangents, final_cotangents, needs, call.packed, options
            )
            return _results(call, given, gradients, initial, needs)
        if saved is None:
            saved = _saved(replace(call, exchange=None), own, first)
        gradients, initial = call.backend.backward(
            own, first, call.constants, unmarked(saved), cotangents, final_cotangents, needs, **call.options
        )
        return _results(call, given, gradients, initial, needs)


def saved_again(call: Call, given: Tensors, states: Maybe) -> Tensors:
    """What the forward pass saves, computed once more for one backward pass."""

    def run(call: Call, level: int) -> Tensors:
        own, first = arguments_of(call, given), _states(call, states)
        with no_autocast(device_of(given)), split_by_length(call.deterministic):
            return mark(_saved(call, own, first), level)

    return fitted(call.over(given), given, "backward", run)


def _saved(call: Call, given: Tensors, states: Maybe) -> Tensors:
    saved = call.backend.forward(given, states, call.constants, **_forward_options(call, again=True))[2]
    return {**saved, OVERWRITE: None}


def _results(
    call: Call, given: Tensors, gradients: Tensors, initial: Tensors, needs: frozenset[str]
) -> tuple[Tensors, Tensors]:
    """A backend's gradients, with the heads and the dtypes of what they belong to."""
    summed = {}
    for a in call.signature.tensors:
        if a.name in needs and a.name in gradients:
            x = given[a.name]
            summed[a.name] = _summed(gradients[a.name], a.head_axis, x.shape[a.head_axis], x.dtype)
    wide = result_types(call.signature, given)[1]
    return summed, {n: _cast(g, wide) for n, g in initial.items() if n in needs}


def _summed(x: Tensor, axis: int, heads: int, dtype: torch.dtype) -> Tensor:
    """The sums over the heads of each group, in one pass over memory where x is large and has vectors for each head."""
    vectors = x.ndim > axis + 1 and x.shape[-1] >= WIDE
    if vectors and x.is_cuda and x.nbytes >= LARGE and x.shape[axis] != heads and x.is_contiguous():
        from ..chunk_kernels.reductions import head_sums

        return head_sums(x, axis, heads, dtype)
    return _cast(reduced(x, axis, heads), dtype)


def forward_pass(call: Call, tensors: Sequence[Tensor | None]) -> tuple[list[Tensor], Tensors]:
    """(outputs and final states in order, what the backward pass uses), from the arguments and states in order."""
    outputs, finals, saved = run_forward(call, *_named(call.signature, tensors))
    return [*(outputs[n] for n, _ in call.signature.outputs), *(finals[n] for n, _ in call.signature.states)], saved


def backward_pass(
    call: Call,
    tensors: Sequence[Tensor | None],
    saved: Tensors | None,
    cotangents: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of arguments and states in order, None where not `wanted`; see `run_backward`."""
    s = call.signature
    incoming = {n: g for (n, _), g in zip(s.outputs, cotangents, strict=False)}
    finals = {n: g for (n, _), g in zip(s.states, cotangents[len(s.outputs) :], strict=True)}
    needs = frozenset(n for n, w in zip(s.names, wanted, strict=True) if w)
    with torch.no_grad():
        gradients, initial = run_backward(call, *_named(s, tensors), saved, incoming, finals, needs)
    found = gradients | initial
    return [found.get(n) if w else None for n, w in zip(s.names, wanted, strict=True)]


@dataclass(slots=True, eq=False)
class Passes:
    """A call of a recurrence, or of a program, as `TwoPasses` has it. Its tensors are arguments and states; its results are
    outputs, and final states where they are wanted."""

    call: Call
    name: str = field(init=False)
    head_axes: tuple[int, ...] = field(init=False)
    result_head_axes: tuple[int, ...] = field(init=False)
    outputs: int = field(init=False)
    starts: Tensor | None = field(init=False)
    overwrites: bool = field(init=False)
    needs_backward: bool = field(init=False)

    def __post_init__(self) -> None:
        call, s = self.call, self.call.signature
        self.name, self.head_axes, self.outputs = s.name, s.head_axes, len(s.outputs)
        self.result_head_axes = s.result_head_axes if call.wants.finals else s.result_head_axes[: self.outputs]
        self.starts = None if call.packed is None else call.packed.starts
        self.overwrites = "overwrites" in call.backend.features
        self.needs_backward = call.wants.needs_backward

    @property
    def replays(self) -> Replays | None:
        return self.call.replays

    @property
    def owner(self) -> tuple[Hashable, ...]:
        return id(self.call.backend), self.call.packed is None, self.call.deterministic

    def forward(self, tensors: Sequence[Tensor | None], keep: bool = True) -> tuple[list[Tensor], Tensors | None]:
        call = self.call if keep else _recomputing(self.call, "always")
        results, saved = forward_pass(call, tensors)
        kept = keep and self.needs_backward and keeps(call, tensors, saved)
        return results[: len(self.result_head_axes)], saved if kept else None

    def backward(
        self,
        tensors: Sequence[Tensor | None],
        saved: Tensors | None,
        cotangents: Sequence[Tensor | None],
        wanted: Sequence[bool],
    ) -> list[Tensor | None]:
        if saved is not None and self.call.wants.announced:
            saved = _Kept(saved, self.call, tensors)
        if not self.call.wants.finals:
            cotangents = (*cotangents, *[None] * len(self.call.signature.states))
        return backward_pass(self.call, tensors, saved, cotangents, wanted)

    def batched(self, size: int) -> Passes:
        call = replace(self.call, heads=self.call.heads * max(size, 1), replays=None)
        return Passes(_recomputing(call, "always"))

    def starting(self, starts: Tensor) -> Passes:
        packed = self.call.packed
        assert packed is not None
        return Passes(replace(self.call, packed=Packed(starts, packed.count, packed.longest)))


def _recomputing(call: Call, recompute: str, **wanted: bool) -> Call:
    return replace(call, wants=replace(call.wants, recompute=recompute, **wanted))


def _named(signature: Signature, tensors: Sequence[Tensor | None]) -> tuple[Tensors, Maybe]:
    """Arguments and states in order, by name."""
    given: Any = {a.name: x for a, x in zip(signature.tensors, tensors, strict=False)}
    return given, {n: x for (n, _), x in zip(signature.states, tensors[len(given) :], strict=True)}


def keeps(call: Call, tensors: Sequence[Tensor | None], saved: Tensors) -> bool:
    """Does this call keep `saved` for its backward pass? "auto" keeps up to the size of the arguments, and a little more."""
    if call.wants.recompute != "auto":
        return call.wants.recompute == "never"
    size = sum(x.nbytes for x in saved.values() if x is not None)
    return size <= SMALL + sum(x.nbytes for x in tensors if x is not None)


def arguments_of(call: Call, given: Tensors) -> Tensors:
    """Arguments as the backend takes them: with H heads where it knows no groups, cast where the op casts."""
    features = call.backend.features
    repeat = "groups" not in features and any(
        given[a.name].shape[a.head_axis] != call.heads for a in call.signature.tensors
    )
    if not repeat and call.computed is None:
        return given
    out = {}
    for a in call.signature.tensors:
        x = given[a.name]
        if repeat and x.shape[a.head_axis] != call.heads:
            x = repeated(x, a.head_axis, call.heads)
            if "mixed" in features:  # so that the gradients of a group are summed before they are rounded
                x = x.to(torch.promote_types(x.dtype, torch.float32))
        if call.computed is not None:  # decays and parameters have at least float32
            x = x.to(call.computed if a.kind == "input" else torch.promote_types(call.computed, torch.float32))
        out[a.name] = x
    return out


def _states(call: Call, states: Maybe) -> Maybe:
    if call.computed is None:
        return states
    wide = torch.promote_types(call.computed, torch.float32)
    return {n: _cast(x, wide) for n, x in states.items()}


def _cast(x: Tensor, kind: torch.dtype) -> Tensor:
    return x if x is None or x.dtype == kind else x.to(kind)


def repeated(x: Tensor, axis: int, heads: int) -> Tensor:
    """x with `heads` heads: head h is head h // (heads / own) of x."""
    return x if x.shape[axis] == heads else x.repeat_interleave(heads // x.shape[axis], axis)


def reduced(x: Tensor, axis: int, heads: int) -> Tensor:
    """The sums over the heads of each group, in float32 at least."""
    if x.shape[axis] == heads:
        return x
    return x.unflatten(axis, (heads, -1)).sum(axis + 1, dtype=torch.promote_types(x.dtype, torch.float32))


def device_of(given: Tensors) -> torch.device:
    return next(iter(given.values())).device


class _Kept(dict):
    """What was kept of what the forward pass saved; the rest is computed again when it is asked for."""

    def __init__(self, kept: Mapping[str, Tensor], call: Call, tensors: Sequence[Tensor | None]) -> None:
        super().__init__(kept)
        self.call, self.tensors = call, tensors

    def __missing__(self, name: str) -> Tensor:
        call = _recomputing(self.call, "never", needs_backward=True)
        saved = forward_pass(call, self.tensors)[1]
        self.update({n: x for n, x in saved.items() if n not in self})
        return saved[name]
