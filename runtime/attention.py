"""A generated attention as users call it: checks arguments, makes features, runs a backend, and connects it to autograd.

The generated file brings the mathematics: features and outputs with their adjoints, the energy of a tile with its derivatives.
Here is what all attentions share. A backend computes, for features [B, H, T, width],

    forward(op, features, at)  -> averages [B, H, T, E], lse [B, H, T] and mass [B, H, T] (None where the normaliser has none)
    backward(op, features, at, averages, lse, d averages, D) -> the cotangent of each feature; D [B, H, T] is each row's own part
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError, BackendError, DoubleBackwardError

from .attention_arguments import WIDEST, AttentionArgument, AttentionSignature, Setting, checked
from .attention_maps import Product, added, as_dtype, inner, joined, parted


@dataclass(frozen=True)
class AttentionBackend:
    forward: Callable[..., Any]
    backward: Callable[..., Any]


@dataclass(frozen=True)
class Maps:
    """The generated functions around the kernel."""

    features: Callable[..., dict[str, Tensor]]
    feature_gradients: Callable[..., dict[str, Tensor]]
    outputs: Callable[..., dict[str, Tensor]]
    output_gradients: Callable[..., dict[str, Tensor]]


@dataclass(frozen=True)
class AttentionOp:
    """A generated attention; see the generated function for the public signature."""

    signature: AttentionSignature
    maps: Maps
    energy: Callable[..., Tensor]
    energy_gradients: Callable[..., dict[str, Tensor]]
    backends: dict[str, AttentionBackend]

    def __call__(
        self,
        given: dict[str, Any],
        causal: bool = False,
        output_lse: bool = False,
        backend: str | None = None,
        context_parallel: Any = None,
    ) -> Any:
        """The outputs (one, or a tuple), and after them the log-sum-exp [B, T, H] where asked for."""
        s = self.signature
        if context_parallel is not None:
            if backend is not None:
                raise ArgumentError(f"{s.name}: context_parallel takes no backend")
            from .parallel import ring_attention

            return ring_attention(self, given, context_parallel, causal, output_lse)
        if not isinstance(causal, bool):
            raise ArgumentError(f"{s.name}: causal must be True or False, got {causal!r}")
        if causal and s.nodes is not None:
            raise ArgumentError(f"{s.name}: causal must be False: its queries are a fixed set, without positions")
        if output_lse and s.normaliser != "softmax":
            raise ArgumentError(f"{s.name}: output_lse needs a softmax; its weights have no normaliser")
        tensors, constants, at = checked(s, given, causal)
        name = chosen(self, backend, at, tensors)
        results = _Run.apply(self, (name, backend), at, tuple(tensors), constants, *tensors.values())
        outputs = results[:-1]
        if output_lse:
            return (*outputs, results[-1])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class _Run(torch.autograd.Function):
    """Both passes of an attention. Second derivatives are refused."""

    @staticmethod
    def forward(
        ctx: Any, op: AttentionOp, backend: Any, at: Setting, names: tuple[str, ...], constants: Any, *tensors: Tensor
    ) -> Any:
        given = dict(zip(names, tensors, strict=True))
        features = op.maps.features(given, constants, at)
        backend, asked = backend
        if (
            asked is None
            and backend == "triton"
            and max(x.shape[-1] for x in features.values() if x.ndim == 4) > WIDEST
        ):
            backend = "torch"
        averages, lse, mass = op.backends[backend].forward(op, features, at)
        mass = mass_of(lse, mass, op.signature.mass, at)
        post = averaged(op.signature, averages, mass, at)
        outputs = op.maps.outputs(given, constants, at, post)
        shown = [
            as_output(op.signature, n, outputs[n], per_position, dims, at)
            for n, per_position, dims in op.signature.outputs
        ]
        ctx.op, ctx.backend, ctx.at, ctx.names, ctx.constants = op, backend, at, names, constants
        ctx.feature_names, ctx.has = tuple(features), (lse is not None, mass is not None)
        kept = [*tensors, *features.values(), averages, *(x for x in (lse, mass) if x is not None)]
        ctx.save_for_backward(*kept)
        ctx.set_materialize_grads(False)
        total = None
        if lse is not None:
            total = torch.where(lse == -math.inf, lse, lse + features["row"]) if "row" in features else lse
            total = total if op.signature.nodes else total.transpose(1, 2)
        return (*shown, total)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        op, at, s = ctx.op, ctx.at, ctx.op.signature
        saved = list(ctx.saved_tensors)
        given = dict(zip(ctx.names, saved, strict=False))
        saved = saved[len(ctx.names) :]
        features = dict(zip(ctx.feature_names, saved, strict=False))
        averages, *rest = saved[len(ctx.feature_names) :]
        lse = rest.pop(0) if ctx.has[0] else None
        mass = rest.pop(0) if ctx.has[1] else None
        with torch.no_grad():
            needs = frozenset(n for n, needed in zip(ctx.names, ctx.needs_input_grad[5:], strict=True) if needed)
            found = _gradients(
                op, ctx.backend, at, given, ctx.constants, features, averages, lse, mass, gradients, needs
            )
        out: list[Tensor | None] = []
        for n, needed in zip(ctx.names, ctx.needs_input_grad[5:], strict=True):
            out.append(as_dtype(found[n], given[n].dtype) if needed and n in found else None)
        if torch.is_grad_enabled():  # create_graph=True
            present = [n for n, g in enumerate(out) if g is not None]
            guarded = _NoSecond.apply(s.name, len(present), *(out[n] for n in present), *given.values(), *gradients)
            for n, g in zip(present, guarded, strict=True):
                out[n] = g
        return (None, None, None, None, None, *out)


class _NoSecond(torch.autograd.Function):
    """Passes gradients through, and refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Tensor | None) -> Any:
        ctx.name = name
        return tuple(x.view_as(x) for x in tensors[:count] if x is not None)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise DoubleBackwardError(
            f"{ctx.name} has no second derivatives: its gradients were asked for their own gradient (double backward)"
        )


def _gradients(
    op: AttentionOp,
    backend: str,
    at: Setting,
    given: dict[str, Tensor],
    constants: dict[str, float],
    features: dict[str, Tensor],
    averages: Tensor,
    lse: Tensor | None,
    mass: Tensor | None,
    incoming: tuple[Tensor | None, ...],
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """The gradient of each argument, in the layout in which it was given."""
    s = op.signature
    *outer, dlse = incoming
    cotangents = {}
    for (name, per_position, dims), g in zip(s.outputs, outer, strict=True):
        shape = output_shape(s, per_position, dims, at)
        g = torch.zeros(shape, dtype=at.low, device=at.device) if g is None else g
        cotangents[name] = g.transpose(1, 2) if per_position else g
    post = averaged(s, averages, mass, at)
    found = op.maps.output_gradients(given, constants, at, post, cotangents)
    parts = [found.pop(n, None) for n, _ in s.values]
    d_averages = joined_gradients(parts, averages, s, at)
    d_mass = found.pop("mass", None)
    if dlse is not None:
        dlse = dlse if s.nodes else dlse.transpose(1, 2)
    D = row_parts(op, averages, d_averages, dlse, d_mass, lse, at)
    of_scalars = frozenset(n for n, reads in s.scalars.items() if needs & set(reads))
    inner = op.backends[backend].backward(op, features, at, averages, lse, d_averages, D, of_scalars)
    del parts, d_averages, D  # so that what follows finds memory
    if "row" in features:
        d_row = torch.zeros_like(features["row"], dtype=at.dtype)
        if dlse is not None:
            d_row = torch.where(lse == -math.inf, 0, dlse.to(at.dtype))
        inner["row"] = d_row
    total: dict[str, list[Any]] = {}
    for more in (found, op.maps.feature_gradients(given, constants, at, inner)):
        for variable, g in more.items():
            total.setdefault(s.gradient_of[variable], []).extend(g if isinstance(g, list) else [g])
    return {n: as_given(g, given[n], next(a for a in s.arguments if a.name == n)) for n, g in total.items()}


def row_parts(
    op: AttentionOp,
    averages: Tensor,
    d_averages: Tensor,
    dlse: Tensor | None,
    d_mass: Tensor | None,
    lse: Tensor | None,
    at: Setting,
) -> Tensor:
    """What each row contributes to the gradient of its energies on its own, [B, H, T]."""
    if op.signature.normaliser == "softmax":
        D = inner(averages, d_averages, at.dtype)
        if dlse is not None:
            D = D - torch.where(lse == -math.inf, 0, dlse.to(at.dtype))
        return D
    if d_mass is None:
        return torch.zeros(averages.shape[:3], dtype=at.dtype, device=at.device)
    return -d_mass.expand(averages.shape[:3]).to(at.dtype)


def as_given(terms: list[Any], x: Tensor, a: AttentionArgument) -> Tensor:
    """The sum of the terms of a gradient [B, H, T, ..], in the layout of its argument, with the heads of a group summed."""
    if not a.per_position:
        return added(terms).expand(x.shape)
    if x.is_cuda and x.ndim == 4 and len(terms) > 1:
        from .attention_triton import sum_of_terms

        found = sum_of_terms(terms, x)
        if found is not None:
            return found
    g = added([t.tensor() if isinstance(t, Product) else t for t in terms])
    groups = g.shape[1] // x.shape[2]
    if groups > 1:
        g = g.unflatten(1, (x.shape[2], groups)).sum(2, dtype=torch.promote_types(g.dtype, torch.float32))
    return g.transpose(1, 2).expand(x.shape)


# --- averages and outputs -----------------------------------------------------------------------------------------------


def averaged(s: AttentionSignature, averages: Tensor, mass: Tensor | None, at: Setting) -> dict[str, Any]:
    widths = [tuple(at.sizes[d] for d in dims) for _, dims in s.values]
    found: dict[str, Any] = dict(zip((n for n, _ in s.values), parted(averages, widths), strict=True))
    found["mass"] = mass
    return found


def mass_of(lse: Tensor | None, mass: Tensor | None, wanted: bool, at: Setting) -> Tensor | None:
    """The sum of a row's weights: of a softmax 1, and 0 where a row sees nothing."""
    if lse is None or not wanted:
        return mass
    return (lse > -math.inf).to(at.dtype)


def joined_gradients(parts: list[Tensor | None], averages: Tensor, s: AttentionSignature, at: Setting) -> Tensor:
    filled = []
    for (_, dims), g in zip(s.values, parts, strict=True):
        shape = (*averages.shape[:3], *(at.sizes[d] for d in dims))
        g = averages.new_zeros(shape) if g is None else as_dtype(g, averages.dtype).expand(shape)
        filled.append(g)
    return joined(filled, [len(dims) for _, dims in s.values])


def output_shape(s: AttentionSignature, per_position: bool, dims: tuple[str, ...], at: Setting) -> tuple[int, ...]:
    own = tuple(at.sizes[d] for d in dims)
    return (at.batch, at.queries, at.heads, *own) if per_position else (at.batch, at.heads, *own)


def as_output(
    s: AttentionSignature, name: str, x: Any, per_position: bool, dims: tuple[str, ...], at: Setting
) -> Tensor:
    shape = output_shape(s, per_position, dims, at)
    x = x if isinstance(x, Tensor) else torch.as_tensor(x, device=at.device)
    x = x.transpose(1, 2) if per_position else x
    return as_dtype(x if x.shape == shape else x.expand(shape), at.low)


def chosen(op: AttentionOp, asked: str | None, at: Setting, tensors: dict[str, Tensor]) -> str:
    """The backend of a call."""
    name, on_gpu = op.signature.name, at.device.type == "cuda"
    if asked is None:
        return "triton" if on_gpu and "triton" in op.backends and at.low != torch.float64 else "torch"
    if asked not in ("torch", "triton"):
        raise ArgumentError(f"{name}: backend must be 'torch', 'triton' or None, got {asked!r}")
    if asked not in op.backends:
        raise BackendError(f"{name}: the {asked} backend isn't available here: is triton installed?")
    if asked == "triton":
        if not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
            raise BackendError(
                f"{name}: the triton backend needs CUDA tensors, got {at.device} (or TRITON_INTERPRET=1, to interpret it)"
            )
        if at.low == torch.float64:
            raise BackendError(f"{name}: the triton backend computes in float32; float64 needs backend='torch'")
    return asked
