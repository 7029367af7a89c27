"""Both passes of a call of an attention: features, the backend's kernels or torch form, outputs, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from ..launch.replay import Replays
from ..op.arguments import no_autocast
from ..op.fits import fitted
from ..op.passes import reduced, repeated
from ..op.signature import Argument
from ..op.torch_library import Option
from ..op.two_passes import Flat, Saved
from .arguments import WIDEST, AttentionSignature, Setting, check_positive
from .deterministic import backward as backward_apart
from .deterministic import forward as forward_apart
from .deterministic import goes_apart
from .feature_maps import added, has_kernels, inner, joined, parted
from .products import Product, as_dtype

R = TypeVar("R")


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
    """What a call says beside its tensors, which are in the order of `names`; and its passes, as `TwoPasses` has them.

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
    replays: Replays | None = None  # what was seen of calls of this kind (`replay`); None: nothing is replayed
    deterministic: bool = False  # do a sequence's bits depend on nothing else in the call?

    starts: ClassVar[Tensor | None] = None
    overwrites: ClassVar[bool] = False

    @property
    def signature(self) -> AttentionSignature:
        return self.op.signature

    @property
    def kernels(self) -> AttentionBackend:
        return self.op.backends[self.backend]

    @property
    def has_form(self) -> bool:
        """Is there a torch form?"""
        return "torch" in self.op.backends

    def in_torch(self) -> Call:
        """The call as the torch form computes it."""
        return replace(self, backend="torch", replays=None) if self.has_form else self

    def dtype(self, given: Mapping[str, Tensor]) -> torch.dtype:
        """What its kernels compute in."""
        return self.at.low

    @property
    def name(self) -> str:
        return self.op.signature.name

    @property
    def head_axes(self) -> tuple[int, ...]:
        return self.op.signature.head_axes

    @property
    def result_head_axes(self) -> tuple[int, ...]:
        """Of outputs, and of the log-sum-exp where it is wanted."""
        s = self.op.signature
        return s.result_head_axes if self.lse else s.result_head_axes[: len(s.outputs)]

    @property
    def outputs(self) -> int:
        return len(self.op.signature.outputs)

    @property
    def owner(self) -> tuple[Hashable, ...]:
        return id(self.op), self.backend, self.at.causal

    def forward(self, tensors: Flat, keep: bool = True) -> tuple[list[Tensor], Saved | None]:
        return forward_pass(self if keep else replace(self, needs_backward=False, replays=None), tensors)

    def backward(
        self, tensors: Flat, saved: Saved | None, cotangents: Flat, wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        return backward_pass(self, tensors, saved, cotangents, wanted)

    def batched(self, size: int) -> Call:
        return replace(self, at=replace(self.at, heads=self.at.heads * max(size, 1)), replays=None)

    def starting(self, starts: Tensor) -> Call:
        return self


@dataclass(eq=False)
class Known:
    """A kind of call: what was found out about its arguments. casts: the dtypes that some are cast to, by
    place. numbers: temperatures that weren't given as tensors, by place."""

    call: Call
    casts: dict[int, torch.dtype]
    numbers: dict[int, float]

    @property
    def constants(self) -> dict[str, float]:
        return self.call.constants

    def prepared(self, tensors: Flat) -> Flat:
        s, at = self.call.op.signature, self.call.at
        if not self.casts and not s.temperatures:
            return tensors
        found: list[Any] = [*tensors]
        for n, kind in self.casts.items():
            found[n] = found[n].to(kind)
        for n in s.temperatures:
            if n in self.numbers:
                found[n] = torch.full((at.heads,), self.numbers[n], dtype=at.dtype, device=at.device)
            else:
                check_positive(s, s.names[n], found[n])
        return found

    def passes(self, tensors: Flat, starts: Tensor | None) -> Call:
        return self.call

    def in_library(self, tensors: Flat) -> Sequence[Option]:
        c = self.call
        return c.at.causal, c.backend, c.free, c.deterministic, c.needs_backward


ELSEWHERE = "in torch"  # is among what is kept, where it is the torch form's
RING = "ring"  # the backend of a sequence in segments, on several ranks
FEATURE = "feature "


def forward_pass(call: Call, tensors: Flat) -> tuple[list[Tensor], Saved | None]:
    """Results, and what is kept, computed in the dtypes in which tensors are given.

    Kept are features, averages [B, T, H, E], and a row's log-sum-exp and mass where it has them.
    """

    def run(call: Call, level: int) -> tuple[list[Tensor], Saved | None]:
        with no_autocast(call.at.device):
            if goes_apart(call):  # which keeps nothing
                return forward_apart(call, tensors, forward_results), None
            return forward_results(call, tensors)

    return at_a_level(call, tensors, "forward", run)


def at_a_level(call: Call, tensors: Flat, which: str, run: Callable[[Call, int], R]) -> R:
    """run(call, level) where tiles fit a GPU's shared memory (`fits.py`). What ranks exchange on their way isn't begun anew."""
    if call.backend == RING:
        return run(call, 0)
    given: Any = dict(zip(call.names, tensors, strict=True))
    return fitted(call, given, which, run)


def forward_results(call: Call, tensors: Flat) -> tuple[list[Tensor], Saved | None]:
    op, at, s = call.op, call.at, call.op.signature
    given = spread(call, dict(zip(call.names, tensors, strict=True)))
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
        shown.append(total.view_as(total) if s.nodes else total.transpose(1, 2))
    if not call.needs_backward:
        return shown, None
    saved: Saved = {FEATURE + n: x for n, x in features.items()} | {"averages": averages.transpose(1, 2)}
    saved |= {n: x for n, x in (("lse", lse), ("mass", mass)) if x is not None}
    if backend == "torch":
        saved[ELSEWHERE] = None
    return shown, saved


def spread(call: Call, given: dict[str, Any]) -> dict[str, Any]:
    """Parameters with each head that the op has; what belongs to positions as it is."""
    heads = call.at.heads
    fewer = [n for n in call.op.signature.parameters if given[n].shape[0] != heads]
    return given | {n: repeated(given[n], 0, heads) for n in fewer} if fewer else given


def features_of(call: Call, given: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """What the kernel takes, and the backend that can hold it: the torch form where there is nothing to launch a kernel over."""
    maps, backend = call.op.maps_at(call.at), call.backend
    if backend == "triton" and 0 in (call.at.batch, call.at.queries, call.at.keys, call.at.heads):
        backend, call.replays = "torch", None
    make = maps.kernel_features if backend == "triton" else None
    features = (make or maps.features)(given, call.constants, call.at)
    if call.free and backend == "triton" and max(x.shape[-1] for x in features.values() if x.ndim == 4) > WIDEST:
        backend, call.replays = "torch", None
    return features, backend


def backward_pass(
    call: Call, tensors: Flat, saved: Saved | None, cotangents: Flat, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of arguments, None where not `wanted`. Features that aren't among what was saved are made again."""
    given: Any = dict(zip(call.names, tensors, strict=True))
    needs = frozenset(n for n, w in zip(call.names, wanted, strict=True) if w)

    def run(call: Call, level: int) -> list[Tensor | None]:
        kept = saved
        with no_autocast(call.at.device):
            if goes_apart(call):
                return backward_apart(call, needs, tensors, cotangents, forward_results, gradients_of)
            if kept is None:
                kept = forward_results(replace(call, needs_backward=True), tensors)[1]
                assert kept is not None
            found = gradients_of(call, given, kept, cotangents, needs)
        return [as_dtype(found[n], x.dtype) if n in needs and n in found else None for n, x in given.items()]

    return at_a_level(call, tensors, "backward", run)


def gradients_of(
    call: Call, given: dict[str, Tensor], saved: Saved, incoming: Flat, needs: frozenset[str]
) -> dict[str, Tensor]:
    """The gradient of each argument, in the layout in which it was given."""
    op, at, constants = call.op, call.at, call.constants
    s, own, given = op.signature, given, spread(call, given)
    kept: Any = saved
    averages, lse, mass = kept["averages"].transpose(1, 2), kept.get("lse"), kept.get("mass")
    features = {n.removeprefix(FEATURE): x for n, x in kept.items() if n.startswith(FEATURE)}
    backend = "torch" if ELSEWHERE in kept else call.backend
    if not features:
        features, backend = features_of(call, given)
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
    return {n: as_given(g, own[n], at, next(a for a in s.arguments if a.name == n)) for n, g in total.items()}


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


def as_given(terms: list[Tensor], x: Tensor, at: Setting, a: Argument) -> Tensor:
    """The sum of the terms of a gradient [B, H, T, ..], in the layout of its argument, with the heads of a group summed."""
    if not a.per_step:
        return reduced(added(terms).expand(at.heads, *x.shape[1:]), 0, x.shape[0])
    if has_kernels(x) and x.dtype != torch.float64 and x.ndim == 4 and len(terms) > 1:
        from .launch import sum_of_terms

        found = sum_of_terms(terms, x)
        if found is not None:
            return found
    g = added([reduced(t.tensor() if isinstance(t, Product) else t, 1, x.shape[2]) for t in terms])
    return g.transpose(1, 2).expand(x.shape)


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
