"""Both passes of a call of an attention: features, the backend's kernels or torch form, outputs, and their gradients."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from chunkform.errors import ArgumentError, BackendError

from ..launch.replay import replayed
from ..op.arguments import autocast_dtype
from ..op.autograd import no_second
from ..op.forward_mode import no_jvp, refuse_tangents
from .arguments import WIDEST, AttentionArgument, AttentionSignature, Setting
from .deterministic import backward as backward_apart
from .deterministic import forward as forward_apart
from .deterministic import goes_apart
from .feature_maps import added, has_kernels, inner, joined, parted
from .products import Product, as_dtype

REMEMBERED = 256  # kinds of calls whose arguments need no second look


@dataclass(frozen=True)
class AttentionBackend:
    """The two passes; and the first with the outputs, for whoever can make them as it goes along, None where it can't after all:
    forward_and_output(op, given, features, at, keep) -> averages, or None unless `keep`, lse, mass and outputs by name."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    forward_and_output: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Maps:
    """The generated functions around the kernel. `kernel_features` makes features with kernels, where there are any for it."""

    features: Callable[..., dict[str, Tensor]]
    feature_gradients: Callable[..., dict[str, Tensor]]
    outputs: Callable[..., dict[str, Tensor]]
    output_gradients: Callable[..., dict[str, Tensor]]
    kernel_features: Callable[..., dict[str, Tensor]] | None = None


@dataclass(frozen=True)
class Moved:
    """Other maps to and from features, in which the key's matrix is on the query's side: <(K^T Q) x_i, x_j> for <Q x_i, K x_j>.
    Then scores are sums over the dim `to` and not over `own`, and keys are values, which are there anyway."""

    features: Callable[..., dict[str, Tensor]]
    feature_gradients: Callable[..., dict[str, Tensor]]
    own: str
    to: str
    kernel_features: Callable[..., dict[str, Tensor]] | None = None


class Attention(Protocol):
    """A generated attention: what it takes, the functions around its kernels, and what computes it."""

    @property
    def signature(self) -> AttentionSignature: ...
    @property
    def maps(self) -> Maps: ...
    @property
    def energy(self) -> Callable[..., Tensor]: ...
    @property
    def energy_gradients(self) -> Callable[..., dict[str, Tensor]]: ...
    @property
    def backends(self) -> dict[str, AttentionBackend]: ...
    @property
    def known(self) -> dict[Any, Known]: ...
    def maps_at(self, at: Setting) -> Maps | Moved: ...


@dataclass(eq=False)
class Call:
    """What a call says beside its tensors, which are in the order of `names`.

    free: may the torch form do what the kernels can't hold? lse: is the log-sum-exp wanted?
    """

    op: Attention
    backend: str
    at: Setting
    names: tuple[str, ...]
    constants: dict[str, float]
    free: bool = False
    lse: bool = True
    needs_backward: bool = True
    replays: dict[Any, Any] | None = None  # what was seen of calls of this kind (`replay`); None: nothing is replayed
    deterministic: bool = False  # do a sequence's bits depend on nothing else in the call?


@dataclass(frozen=True)
class Kept:
    """What a forward pass keeps, in order: features, averages, and a row's log-sum-exp and mass where it has them."""

    backend: str
    features: tuple[str, ...]
    lse: bool
    mass: bool

    @property
    def count(self) -> int:
        return len(self.features) + 1 + self.lse + self.mass


@dataclass(eq=False)
class Known:
    """A kind of call: what was found out about its arguments. `numbers` are temperatures that weren't given as tensors."""

    call: Call
    casts: tuple[torch.dtype | None, ...]
    numbers: tuple[tuple[int, float], ...]
    temperatures: tuple[str, ...]


def forward_kept(call: Call, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Kept]:
    """Results, followed by what is kept for the backward pass, where there is one."""
    return replayed(call.replays, "forward", tensors, functools.partial(forward_pass, call), owner(call))


def owner(call: Call, *others: object) -> tuple[Hashable, ...]:
    """What passes depend on that launch the same kernels, beside tensors."""
    return id(call.op), call.backend, call.needs_backward, call.at.causal, *others


def forward_pass(call: Call, tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], Kept]:
    """Results, and what is kept, computed in the dtypes in which tensors are given."""
    with no_autocast(call.at.device):
        if goes_apart(call):  # which keeps nothing, in the place of the averages
            nothing = [torch.empty(0, device=call.at.device)] if call.needs_backward else []
            return [*forward_apart(call, tensors, forward_results), *nothing], Kept(call.backend, (), False, False)
        return forward_results(call, tensors)


def no_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Inside, products are computed in the dtype of their operands. (Arguments were cast when the op was called.)"""
    if autocast_dtype(device.type) is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def forward_results(call: Call, tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], Kept]:
    op, at, s = call.op, call.at, call.op.signature
    given: Any = dict(zip(call.names, tensors, strict=True))
    features, backend = features_of(call, given)
    found = None
    if (both := op.backends[backend].forward_and_output) is not None:
        found = both(op, given, features, at, call.needs_backward)
    if found is not None:
        averages, lse, mass, outputs = found
    else:
        averages, lse, mass = op.backends[backend].forward(op, features, at)
        mass = mass_of(lse, mass, s.mass, at)
        outputs = op.maps.outputs(given, call.constants, at, averaged(s, averages, mass, at))
    shown: list[Any] = [as_output(s, n, outputs[n], per_position, dims, at) for n, per_position, dims in s.outputs]
    if call.lse and lse is not None:
        total = torch.where(lse == -math.inf, lse, lse + at.spread(features["row"])) if "row" in features else lse
        shown.append(total if s.nodes else total.transpose(1, 2))
    kept = Kept(backend, tuple(features), lse is not None, mass is not None)
    if call.needs_backward:
        shown += [*features.values(), averages, *(x for x in (lse, mass) if x is not None)]
    return shown, kept


def features_of(call: Call, given: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """What the kernel takes, and the backend that can hold it: the torch form where there is nothing to launch a kernel over."""
    maps, backend = call.op.maps_at(call.at), call.backend
    if backend == "triton" and 0 in (call.at.batch, call.at.queries, call.at.keys):
        backend, call.replays = "torch", None
    make = maps.kernel_features if backend == "triton" else None
    features = (make or maps.features)(given, call.constants, call.at)
    if call.free and backend == "triton" and max(x.shape[-1] for x in features.values() if x.ndim == 4) > WIDEST:
        backend, call.replays = "torch", None
    return features, backend


class Run(torch.autograd.Function):
    """Both passes of an attention. Second derivatives are refused."""

    @staticmethod
    def forward(ctx: FunctionCtx, call: Call, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        results, kept = forward_kept(call, tensors)
        count = len(results) - (kept.count if call.needs_backward else 0)
        ctx.call, ctx.kept = call, kept
        ctx.save_for_backward(*tensors, *results[count:])
        ctx.set_materialize_grads(False)
        # Views of what was made here couldn't be changed in place. What is saved can't, and a version that they share tells.
        return tuple(x.detach() for x in results[:count])

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        call, wanted = ctx.call, tuple(ctx.needs_input_grad[1:])
        tensors = (*ctx.saved_tensors, *cotangents)
        refuse_tangents(call.op.signature.name, tensors)
        key = (ctx.kept, wanted, _laid_out(tensors))
        with torch.no_grad():
            run = functools.partial(backward_pass, call, ctx.kept, wanted)
            found, _ = replayed(call.replays, key, tensors, run, owner(call, ctx.kept, wanted))
        if torch.is_grad_enabled():  # create_graph=True
            present = [k for k, g in enumerate(found) if g is not None]
            given = tensors[: len(call.names)]
            name = call.op.signature.name
            guarded = _NoSecond.apply(name, len(present), *(found[k] for k in present), *given, *cotangents)
            for k, g in zip(present, guarded, strict=True):
                found[k] = g
        return None, *found

    @staticmethod
    def jvp(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_jvp(ctx.call.op.signature.name)


def backward_pass(
    call: Call, kept: Kept, wanted: tuple[bool, ...], flat: Sequence[Tensor | None]
) -> tuple[list[Tensor | None], None]:
    """The gradients of arguments, None where not `wanted`, from arguments, what was kept, and cotangents."""
    rest: Any = list(flat)
    given, rest = dict(zip(call.names, rest, strict=False)), rest[len(call.names) :]
    features, rest = dict(zip(kept.features, rest, strict=False)), rest[len(kept.features) :]
    averages = rest.pop(0)
    lse = rest.pop(0) if kept.lse else None
    mass = rest.pop(0) if kept.mass else None
    needs = frozenset(n for n, w in zip(call.names, wanted, strict=True) if w)
    if goes_apart(call):
        with no_autocast(call.at.device):
            return backward_apart(call, wanted, list(given.values()), rest, forward_results, gradients_of), None
    with no_autocast(call.at.device):
        found = gradients_of(call, kept.backend, given, features, averages, lse, mass, rest, needs)
    return [as_dtype(found[n], x.dtype) if n in needs and n in found else None for n, x in given.items()], None


def _laid_out(tensors: Sequence[Tensor | None]) -> tuple[Hashable, ...]:
    """`layouts`, where nobody asks for gradients: views that were kept may need them or not."""
    return tuple(
        [None if x is None else (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15, type(x)) for x in tensors]
    )


class _NoSecond(torch.autograd.Function):
    """Passes gradients through, and refuses to be differentiated."""

    @staticmethod
    def forward(ctx: FunctionCtx, name: str, count: int, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.name = name
        return tuple(x.view_as(x) for x in tensors[:count] if x is not None)

    @staticmethod
    def backward(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_second(ctx.name)


def gradients_of(
    call: Call,
    backend: str,
    given: dict[str, Tensor],
    features: dict[str, Tensor],
    averages: Tensor,
    lse: Tensor | None,
    mass: Tensor | None,
    incoming: Sequence[Tensor | None],
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """The gradient of each argument, in the layout in which it was given."""
    op, at, constants = call.op, call.at, call.constants
    s = op.signature
    dlse = incoming[len(s.outputs)] if len(incoming) > len(s.outputs) else None
    cotangents = {}
    for (name, per_position, dims), g in zip(s.outputs, incoming, strict=False):
        shape = output_shape(s, per_position, dims, at)
        g = torch.zeros(shape, dtype=at.low, device=at.device) if g is None else g
        cotangents[name] = g.transpose(1, 2) if per_position else g
    post = averaged(s, averages, mass, at)
    found = op.maps.output_gradients(given, constants, at, post, cotangents, needs)
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
            d_row = dlse.to(at.dtype).masked_fill(lse == -math.inf, 0)
        inner["row"] = d_row
    total: dict[str, list[Any]] = {}
    for more in (found, op.maps_at(at).feature_gradients(given, constants, at, inner, features, needs)):
        for variable, g in more.items():
            total.setdefault(s.gradient_of[variable], []).extend(g if isinstance(g, list) else [g])
    return {n: as_given(g, given[n], next(a for a in s.arguments if a.name == n)) for n, g in total.items()}


def row_parts(
    op: Attention,
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
            D = D - dlse.to(at.dtype).masked_fill(lse == -math.inf, 0)
        return D
    if d_mass is None:
        return torch.zeros(averages.shape[:3], dtype=at.dtype, device=at.device)
    return -d_mass.expand(averages.shape[:3]).to(at.dtype)


def as_given(terms: list[Tensor], x: Tensor, a: AttentionArgument) -> Tensor:
    """The sum of the terms of a gradient [B, H, T, ..], in the layout of its argument, with the heads of a group summed."""
    if not a.per_position:
        return added(terms).expand(x.shape)
    if has_kernels(x) and x.dtype != torch.float64 and x.ndim == 4 and len(terms) > 1:
        from .launch import sum_of_terms

        found = sum_of_terms(terms, x)
        if found is not None:
            return found
    g = added([of_groups(t.tensor() if isinstance(t, Product) else t, x.shape[2]) for t in terms])
    return g.transpose(1, 2).expand(x.shape)


def of_groups(g: Tensor, heads: int) -> Tensor:
    """A gradient [B, H, T, ..] with the heads of each group summed. What is averaged may have fewer than what is scored."""
    if g.shape[1] == heads:
        return g
    return g.unflatten(1, (heads, -1)).sum(2, dtype=torch.promote_types(g.dtype, torch.float32))


def averaged(s: AttentionSignature, averages: Tensor, mass: Tensor | None, at: Setting) -> dict[str, Tensor]:
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
    s: AttentionSignature, name: str, x: Tensor, per_position: bool, dims: tuple[str, ...], at: Setting
) -> Tensor:
    x = x if isinstance(x, Tensor) else torch.as_tensor(x, device=at.device)
    own = tuple(at.sizes[d] for d in dims)
    shape = (at.batch, at.heads, at.queries, *own) if per_position else (at.batch, at.heads, *own)
    x = x if x.shape == shape else x.expand(shape)
    return as_dtype(x.transpose(1, 2) if per_position else x, at.low)


def chosen(op: Attention, asked: str | None, at: Setting, tensors: dict[str, Tensor]) -> str:
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
