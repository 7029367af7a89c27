"""How a layer calls its op: a recurrence hands on its state, an attention the keys that it has seen.

Both look the same to the layer: `signature` says what to make of x, `outputs` what comes back, `keys` which inputs to
divide by their length; a call takes and returns what generation goes on with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from chunkform.errors import ArgumentError

from ..attention.arguments import AttentionSignature
from ..op.arguments import no_autocast
from ..op.op import Argument, Signature
from ..op.signature import States

Maps = Mapping[str, Callable[[Tensor], Tensor]]


def call_of(op: Callable[..., Any]) -> RecurrentCall | AttentionCall:
    """The call of an op, by the signature of the module that it was generated in."""
    found = getattr(sys.modules.get(getattr(op, "__module__", "")), "SIGNATURE", None)
    if isinstance(found, Signature) and not found.states:
        raise ArgumentError(
            f"Mixer: {found.name} is a row map, which mixes nothing over time: give a recurrence or an attention"
        )
    if isinstance(found, Signature):
        return RecurrentCall(op, found)
    if isinstance(found, AttentionSignature):
        return AttentionCall(op, found)
    raise ArgumentError(
        "Mixer: op must be a name of the catalogue, an op of chunkform.generated or chunkform.compile, or a Recurrence; "
        f"got {op!r}"
    )


class RecurrentCall:
    """A recurrence, or a program of them."""

    activation = packs = True

    def __init__(self, op: Callable[..., Any], signature: Signature) -> None:
        self.op, self.signature = op, signature
        self.maps: Maps = {}
        self.outputs = tuple((n, d) for n, d in signature.outputs if n not in signature.hidden)
        self.keys = key_arguments(signature)
        self.per_step = {a.key for a in signature.arguments if a.per_step}

    def __call__(
        self, given: dict[str, Tensor], state: States, cu_seqlens: Tensor | None, keep: bool, options: dict[str, bool]
    ) -> tuple[list[Tensor], States]:
        """(outputs, the state after the last step where `keep`)."""
        if cu_seqlens is not None:
            options = options | {"cu_seqlens": cu_seqlens}
        if state is not None:
            options = options | {"initial_state": state}
        *outputs, after = self.op(**given, **options, output_final_state=keep)
        return outputs, after

    def step(self, given: dict[str, Tensor], state: States, options: dict[str, bool]) -> tuple[list[Tensor], States]:
        """One step, T = 1: under `torch.no_grad()` the op's own decoding step, one launch."""
        decode = getattr(self.op, "step", None)
        if decode is None or torch.is_grad_enabled():
            return self(given, state, None, True, options)
        now = {n: x.squeeze(1) if n in self.per_step else x for n, x in given.items()}
        with no_autocast(next(iter(now.values())).device):  # it computes in the dtypes given
            *outputs, after = decode(state, **now, **options)
        return [o.unsqueeze(1) for o in outputs], after


class AttentionCall:
    """A causal attention of a sequence to itself. What generation goes on with is what keys are made of, of all steps so far."""

    activation = packs = False

    def __init__(self, op: Callable[..., Any], s: AttentionSignature) -> None:
        if s.nodes is not None or not all(per_position for _, per_position, _ in s.outputs):
            raise ArgumentError(f"Mixer: {s.name} gives no output at each position, as a layer needs it")
        self.op, self.attention = op, s
        kinds = {"query": "input", "key": "input", "stream": "input", "constant": "constant"}
        taken = [a for a in s.arguments if a.kind != "temperature" or a.default is None]
        self.signature = Signature(
            s.name,
            tuple(Argument(a.name, kinds.get(a.kind, "parameter"), a.dims, a.default) for a in taken),
            (),
            tuple((n, dims) for n, _, dims in s.outputs),
        )
        self.maps: Maps = {a.name: F.softplus for a in taken if a.kind == "temperature"}
        self.outputs, self.keys = self.signature.outputs, ()
        # Where a quantity is both query and key, positions belong together: all of them are computed again at each step.
        both = {"key", "stream", "query"} if s.aligned else {"key"}
        self.seen = [a.name for a in s.arguments if a.kind in both]

    def __call__(
        self,
        given: dict[str, Tensor],
        state: States,
        cu_seqlens: Tensor | None,
        keep: bool,
        options: Mapping[str, object],
    ) -> tuple[list[Tensor], States]:
        """(outputs of the new steps, what the next call needs of these and earlier ones)."""
        if cu_seqlens is not None:
            raise ArgumentError(f"Mixer: {self.signature.name} takes no packed sequences (cu_seqlens)")
        steps = given[self.seen[0]].shape[1]
        if state is not None:
            state = (state,) if isinstance(state, Tensor) else state
            given = given | {n: torch.cat([x, given[n].to(x.dtype)], 1) for n, x in zip(self.seen, state, strict=True)}
        with no_autocast(given[self.seen[0]].device):
            found = self.op(**given, **options, causal=True)
        outputs = [o[:, o.shape[1] - steps :] for o in (found if isinstance(found, tuple) else (found,))]
        return outputs, tuple(given[n] for n in self.seen) if keep else None

    def step(self, given: dict[str, Tensor], state: States, options: dict[str, bool]) -> tuple[list[Tensor], States]:
        return self(given, state, None, True, options)


def key_arguments(signature: Signature) -> tuple[Argument, ...]:
    """The inputs that are keys: over a dim that no output has, or all where every dim is an output's and a state is a matrix."""
    shown = {d for _, dims in signature.outputs for d in dims}
    vectors = [a for a in signature.arguments if a.kind == "input" and a.dims]
    keys = tuple(a for a in vectors if not set(a.dims) <= shown)
    square = any(len(dims) > 1 for _, dims in signature.states)
    return keys or (tuple(vectors) if square else ())
