"""Both passes of a call through its backend, which need not know of head groups and precisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .packed import Packed
from .signature import Backend, Signature

Tensors = dict[str, Tensor]
Maybe = dict[str, Tensor | None]


@dataclass(frozen=True, eq=False)
class Call:
    """What a call says beside its tensors. heads: H, the largest head count among the arguments."""

    signature: Signature
    backend: Backend
    constants: dict[str, float]
    heads: int
    packed: Packed | None = None
    precision: str = "default"
    recompute: str = "auto"

    @property
    def options(self) -> dict[str, Any]:
        """What the backend's passes take beside tensors."""
        out: dict[str, Any] = {}
        if self.packed is not None:
            out["packed"] = self.packed
        if "precision" in self.backend.features:
            out["precision"] = self.precision
        return out

    @property
    def widens(self) -> bool:
        """Does the op itself widen the numbers to float64?"""
        return self.precision == "high" and "precision" not in self.backend.features


def run_forward(call: Call, given: Tensors, states: Maybe) -> tuple[Tensors, Tensors, Tensors]:
    """(outputs, finals, what the backward pass uses)."""
    outputs, finals, saved = call.backend.forward(
        _arguments(call, given), _states(call, states), call.constants, **call.options
    )
    if call.widens:
        kind, wide = _types(call, given)
        outputs = {n: x.to(kind) for n, x in outputs.items()}
        finals = {n: x.to(wide) for n, x in finals.items()}
    return outputs, finals, saved


def run_backward(
    call: Call,
    given: Tensors,
    states: Maybe,
    saved: Tensors,
    cotangents: Maybe,
    final_cotangents: Maybe,
    needs: frozenset[str],
) -> tuple[Tensors, Tensors]:
    """(gradients, gradients of the initial states), each shaped and typed like what it belongs to."""
    arguments = _arguments(call, given)
    gradients, initial = call.backend.backward(
        arguments, _states(call, states), call.constants, saved, cotangents, final_cotangents, needs, **call.options
    )
    axis = {a.name: 2 if a.per_step else 0 for a in call.signature.arguments}
    gradients = {
        n: _reduced(g, axis[n], given[n].shape[axis[n]]).to(given[n].dtype) for n, g in gradients.items() if n in needs
    }
    wide = _types(call, given)[1]
    return gradients, {n: g.to(wide) for n, g in initial.items() if n in needs}


def _arguments(call: Call, given: Tensors) -> Tensors:
    """Arguments as the backend takes them: with H heads where it knows no groups, in float64 where the op widens."""
    out = {}
    for a in call.signature.arguments:
        if a.name not in given:
            continue
        x = given[a.name]
        if "groups" not in call.backend.features:
            x = repeated(x, 2 if a.per_step else 0, call.heads)
        out[a.name] = x.to(torch.float64) if call.widens else x
    return out


def _states(call: Call, states: Maybe) -> Maybe:
    if not call.widens:
        return states
    return {n: None if x is None else x.to(torch.float64) for n, x in states.items()}


def _types(call: Call, given: Tensors) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes of outputs, and of states."""
    first = next((a.name for a in call.signature.arguments if a.kind == "input"), next(iter(given)))
    kind = given[first].dtype
    return kind, torch.float64 if kind == torch.float64 else torch.float32


def repeated(x: Tensor, axis: int, heads: int) -> Tensor:
    """x with `heads` heads: head h is head h // (heads / own) of x."""
    return x if x.shape[axis] == heads else x.repeat_interleave(heads // x.shape[axis], axis)


def _reduced(x: Tensor, axis: int, heads: int) -> Tensor:
    """The sums over the heads of each group, in float32 at least."""
    if x.shape[axis] == heads:
        return x
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    return x.unflatten(axis, (heads, -1)).sum(axis + 1, dtype=wide)
