"""An attention inside a program of ops: both passes over the tensors of a step's query and the keys up to that step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..op.two_passes import Saved
from . import torch_form
from .arguments import AttentionSignature, setting_of, temperature
from .op import AttentionOp
from .passes import AttentionBackend, Call, Maps, Moved
from .products import as_dtype


def attention_of(
    signature: AttentionSignature,
    maps: Maps,
    energy: Callable[..., Tensor],
    energy_gradients: Callable[..., dict[str, Tensor]],
    triton_forward: Callable[..., object],
    triton_backward: Callable[..., object],
    forward_and_output: Callable[..., object] | None,
    moved: Moved | None,
) -> AttentionOp:
    """The attention that an op's own file has, without a name in torch's library."""
    backends = {
        "torch": AttentionBackend(torch_form.forward, torch_form.backward),
        "triton": AttentionBackend(triton_forward, triton_backward, forward_and_output),
    }
    return AttentionOp(signature, maps, energy, energy_gradients, backends, moved)


def attended(
    op: AttentionOp, backend: str, given: Mapping[str, Tensor | float]
) -> tuple[dict[str, Tensor], dict[str, Tensor], Saved]:
    """(outputs, no states, what the backward pass uses), with each step's query over the keys up to it."""
    call, tensors = _call(op, backend, given)
    results, saved = call.forward([*tensors.values()])
    return dict(zip((n for n, *_ in op.signature.outputs), results, strict=False)), {}, saved or {}


def attended_backward(
    op: AttentionOp,
    backend: str,
    given: Mapping[str, Tensor | float],
    saved: Saved,
    cotangents: Mapping[str, Tensor | None],
    needs: frozenset[str],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(gradients of what was given, of no states)."""
    call, tensors = _call(op, backend, given)
    incoming = [cotangents.get(n) for n, *_ in op.signature.outputs]
    incoming = [x if x is None else as_dtype(x, call.at.low) for x in incoming]
    found = call.backward([*tensors.values()], saved, incoming, [n in needs for n in tensors])
    return {n: x for n, x in zip(tensors, found, strict=True) if x is not None}, {}


def _call(op: AttentionOp, backend: str, given: Mapping[str, Tensor | float]) -> tuple[Call, dict[str, Tensor]]:
    """A call's tensors: vectors in one dtype, numbers a step in float32 at least, as terms of energies are summed."""
    s = op.signature
    vectors = [x.dtype for a in s.arguments if a.per_step and a.dims and isinstance(x := given[a.name], Tensor)]
    low = functools.reduce(torch.promote_types, vectors or [torch.float32])
    wide = torch.promote_types(low, torch.float32)
    tensors: dict[str, Tensor] = {}
    constants: dict[str, float] = {}
    later = []
    for a in s.arguments:
        x = given.get(a.name)
        if a.kind == "constant":
            constants[a.name] = float(a.default if x is None or isinstance(x, Tensor) else x)
        elif isinstance(x, Tensor):
            tensors[a.name] = as_dtype(x, low if a.per_step and a.dims else wide)
        else:
            later.append((a, x))
    at = setting_of(s, tensors, causal=True)
    some = next(iter(tensors.values()))
    for a, x in later:
        tensors[a.name] = torch.full((at.heads,), temperature(s, a, x, at.sizes), dtype=wide, device=some.device)
    tensors = {a.name: tensors[a.name] for a in s.arguments if a.name in tensors}
    return Call(op, backend, at, tuple(tensors), constants, free=True, lse=False), tensors
