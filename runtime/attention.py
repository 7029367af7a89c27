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
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError, BackendError, DoubleBackwardError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WIDEST = 256  # channels of a feature, or of an average, that the kernels hold


@dataclass(frozen=True)
class AttentionArgument:
    """One argument. kind: query | key | stream | fixed | parameter | temperature | constant; `default` may depend on sizes."""

    name: str
    kind: str
    dims: tuple[str, ...] = ()
    default: Any = None

    @property
    def layout(self) -> tuple[str, ...]:
        lead = {"query": ("B", "T", "H"), "stream": ("B", "T", "H"), "key": ("B", "S", "H"), "constant": ()}
        return (*lead.get(self.kind, ("H",)), *self.dims)

    @property
    def per_position(self) -> bool:
        return self.kind in ("query", "key", "stream")


@dataclass(frozen=True)
class AttentionSignature:
    """What an attention is given and yields: of an output, whether it belongs to positions, and its dims.

    `values` are the averaged features, as (name, dims): the averages come in one tensor, one after the other.
    """

    name: str
    arguments: tuple[AttentionArgument, ...]
    outputs: tuple[tuple[str, bool, tuple[str, ...]], ...]
    values: tuple[tuple[str, tuple[str, ...]], ...]
    normaliser: str
    nodes: str | None = None  # the dim that counts fixed queries
    gradient_of: dict[str, str] = field(default_factory=dict)  # variable of a map -> argument
    scalars: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # numbers a head of the kernel -> what they are made of
    mass: bool = False  # do the outputs read the sum of a row's weights?

    @property
    def aligned(self) -> bool:
        """Is there a stream, so that queries and keys are the same positions?"""
        return any(a.kind == "stream" for a in self.arguments)


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
class Setting:
    """Sizes and dtypes of a call: `dtype` is float32 or wider, `low` the dtype of what products on tensor cores take."""

    batch: int
    queries: int
    keys: int
    heads: int
    sizes: dict[str, int]
    dtype: torch.dtype
    low: torch.dtype
    device: torch.device
    causal: bool

    def rows(self, x: Tensor, spread: bool = False, finite: bool = False) -> Tensor:
        """[B, T, Hx, ..] as [B, Hx, T, ..]; with `spread` each head that the op has. `finite` puts 0 for infinities."""
        x = x.transpose(1, 2)
        if spread and x.shape[1] != self.heads:
            x = x.repeat_interleave(self.heads // x.shape[1], 1)
        return torch.where(x.isinf(), 0, x) if finite else x

    def position(self, name: str) -> Tensor:
        """The positions of queries (i) or keys (j). The last query stands where the last key does."""
        count = self.queries if name == "i" else self.keys
        first = self.keys - self.queries if name == "i" else 0
        return torch.arange(first, first + count, device=self.device, dtype=self.dtype)

    def frequencies(self, size: int, base: float) -> Tensor:
        half = torch.arange(size // 2, device=self.device, dtype=self.dtype)
        return torch.cat((half, half)).mul_(-2 * math.log(base) / size).exp_()

    def number(self, x: Any) -> Tensor:
        return x.to(self.dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=self.dtype, device=self.device)

    def per_head(self, x: Any) -> Tensor:
        """A number a head, [H]."""
        return self.number(x).expand(self.heads).contiguous()

    def per_position(self, x: Any, count: int) -> Tensor:
        """A number a position, [B, H, T]; its heads may be fewer."""
        x = self.number(x)
        heads = x.shape[-2] if x.ndim >= 2 else self.heads
        return x.expand(self.batch, heads, count)

    def wide(self, x: Tensor) -> Tensor:
        """A feature [B, H, T, width], where it may lack B."""
        return x if x.ndim == 4 else x.expand(self.batch, *(x.shape if x.ndim == 3 else (self.heads, *x.shape)))


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
            out.append(found[n].to(given[n].dtype) if needed and n in found else None)
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
    if "row" in features:
        d_row = torch.zeros_like(features["row"], dtype=at.dtype)
        if dlse is not None:
            d_row = torch.where(lse == -math.inf, 0, dlse.to(at.dtype))
        inner["row"] = d_row
    total: dict[str, list[Tensor]] = {}
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


def as_given(terms: list[Tensor], x: Tensor, a: AttentionArgument) -> Tensor:
    """The sum of the terms of a gradient [B, H, T, ..], in the layout of its argument, with the heads of a group summed."""
    if not a.per_position:
        return added(terms).expand(x.shape)
    if x.is_cuda and x.ndim == 4 and len(terms) > 1 and all(g.shape == x.transpose(1, 2).shape for g in terms):
        from .attention_triton import one_pass

        return one_pass([(None, g) for g in terms], x)
    g = added(terms)
    groups = g.shape[1] // x.shape[2]
    if groups > 1:
        g = g.unflatten(1, (x.shape[2], groups)).sum(2, dtype=torch.promote_types(g.dtype, torch.float32))
    return g.transpose(1, 2).expand(x.shape)


def added(terms: list[Tensor]) -> Tensor:
    """The sum, in float32 or wider."""
    if len(terms) == 1:
        return terms[0]
    dtype = torch.promote_types(torch.float32, max((x.dtype for x in terms), key=lambda d: d.itemsize))
    total = terms[0].to(dtype)
    for x in terms[1:]:
        total = total + x
    return total


# --- averages and outputs -----------------------------------------------------------------------------------------------


def joined(parts: list[Tensor], own: list[int]) -> Tensor:
    """Features one after the other; each has `own` axes of its own, which are flattened."""
    flat = [x.unsqueeze(-1) if n == 0 else x.flatten(-n) if n > 1 else x for x, n in zip(parts, own, strict=True)]
    if len(flat) == 1:
        return flat[0]
    rows = max(x.shape[-2] for x in flat)
    heads = max((x.shape[-3] for x in flat if x.ndim > 2), default=1)
    lead = max((x.shape[:-3] for x in flat), key=len)
    spread = [x.repeat_interleave(heads // x.shape[-3], -3) if x.ndim > 2 and x.shape[-3] != heads else x for x in flat]
    return torch.cat([x.expand(*lead, heads, rows, x.shape[-1]) for x in spread], -1)


def parted(x: Tensor, widths: list[tuple[int, ...]]) -> list[Tensor]:
    """The reverse of `joined`: parts with these axes of their own."""
    sizes = [math.prod(w) for w in widths]
    return [p.unflatten(-1, w) if w else p.squeeze(-1) for p, w in zip(x.split(sizes, -1), widths, strict=True)]


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
        g = averages.new_zeros(shape) if g is None else g.to(averages.dtype).expand(shape)
        filled.append(g)
    return joined(filled, [len(dims) for _, dims in s.values])


def output_shape(s: AttentionSignature, per_position: bool, dims: tuple[str, ...], at: Setting) -> tuple[int, ...]:
    own = tuple(at.sizes[d] for d in dims)
    return (at.batch, at.queries, at.heads, *own) if per_position else (at.batch, at.heads, *own)


def as_output(
    s: AttentionSignature, name: str, x: Any, per_position: bool, dims: tuple[str, ...], at: Setting
) -> Tensor:
    shape = output_shape(s, per_position, dims, at)
    x = torch.as_tensor(x, device=at.device)
    x = x.transpose(1, 2) if per_position else x
    return x.expand(shape).to(at.low)


# --- products, as generated maps use them -------------------------------------------------------------------------------


def contract(letters: str, a: Tensor, b: Tensor, low: torch.dtype, over_batch: bool = False) -> Tensor:
    """An einsum of matrices with leading axes: [B, H, ..], or [H, ..] of parameters. `over_batch` sums over B."""
    inputs, out = letters.split("->")
    left, right = inputs.split(",")
    a, b = a.to(low), b.to(low)
    if over_batch and a.ndim == b.ndim == 4 and left[0] == right[0] and out in (left[1] + right[1], right[1] + left[1]):
        # an einsum would copy both: it sums over T before B
        a, b = (x.transpose(0, 1).flatten(1, 2) for x in (a, b))
        return a.mT @ b if out == left[1] + right[1] else b.mT @ a
    lead = ["yz"[2 - min(x.ndim - len(own), 2) :] for x, own in ((a, left), (b, right))]
    both = "yz" if "yz" in lead else max(lead, key=len)
    if over_batch:
        both = both.replace("y", "")
    return torch.einsum(f"{lead[0]}{left},{lead[1]}{right}->{both}{out}", a, b)


def over_batch(x: Tensor, own: int) -> Tensor:
    """A gradient of a parameter with `own` axes, [H, ..], from [B, H, ..]."""
    return x.sum(0) if x.ndim == own + 2 else x


def combine(low: torch.dtype, *terms: tuple[Tensor | None, Tensor]) -> Tensor:
    """The sum of terms in `low`: x [B, H, T, X], or a vector [H, X], times a number of each position [B, H, T], or None for 1."""
    wide = next(x for _, x in terms if x.ndim == 4)
    if wide.is_cuda and low != torch.float64:
        from .attention_triton import one_pass

        B, H, T, X = wide.shape
        return one_pass(list(terms), wide.new_empty((), dtype=low).expand(B, T, H, X)).transpose(1, 2)
    dtype = torch.promote_types(torch.float32, low)
    total: Any = 0
    for c, x in terms:
        x = x.to(dtype) if x.ndim == 4 else x.to(dtype)[..., None, :]
        total = total + (x if c is None else c.to(dtype)[..., None] * x)
    return total.to(low)


def half_turn(x: Tensor, axis: int) -> Tensor:
    """(-second half, first half) along an axis."""
    first, second = x.chunk(2, axis)
    return torch.cat((-second, first), axis)


def inner(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the last axis of a times b, in `dtype`."""
    if a.is_cuda and a.ndim == b.ndim == 4 and dtype == torch.float32:
        from .attention_triton import row_products

        return row_products(a, b)
    return (a.to(dtype) * b.to(dtype)).sum(-1)


# --- arguments ----------------------------------------------------------------------------------------------------------


def checked(
    s: AttentionSignature, given: dict[str, Any], causal: bool
) -> tuple[dict[str, Tensor], dict[str, float], Setting]:
    """Tensors of fitting shapes, dtypes and devices, inputs in one common dtype; the constants; and the setting."""
    tensors: dict[str, Tensor] = {}
    constants: dict[str, float] = {}
    sizes: dict[str, tuple[int, str]] = {}
    heads: dict[str, int] = {}
    later = []
    for a in s.arguments:
        value, what = given[a.name], f"{s.name}: {a.name}"
        if a.kind == "constant":
            constants[a.name] = _constant(what, a.default if value is None else value)
            continue
        if a.kind == "temperature" and not isinstance(value, Tensor):
            later.append((a, value))
            continue
        _check_tensor(s, a, value, sizes, heads)
        tensors[a.name] = value
    if not any(a.per_position for a in s.arguments if a.name in tensors):
        raise ArgumentError(f"{s.name}: no sequence was given")
    first = next(iter(tensors))
    for n, x in tensors.items():
        if x.device != tensors[first].device:
            raise ArgumentError(f"{s.name}: {n} is on {x.device}, but {first} is on {tensors[first].device}")
    H = max(heads.values())
    for n, count in heads.items():
        grouped = next(a for a in s.arguments if a.name == n).per_position
        if (grouped and H % count) or (not grouped and count != H):
            allowed = "must divide the largest" if grouped else "must be all of them"
            raise ArgumentError(
                f"{s.name}: {n} has H = {count} heads, and there are {H}: its number of heads {allowed}"
            )
    plain = {d: n for d, (n, _) in sizes.items()}
    inputs = [tensors[a.name].dtype for a in s.arguments if a.per_position]
    low = inputs[0]
    for dtype in inputs[1:]:
        low = torch.promote_types(low, dtype)
    if any(x.dtype == torch.float64 for x in tensors.values()):
        low = torch.float64
    dtype = torch.float64 if low == torch.float64 else torch.float32
    device = tensors[first].device
    for a, value in later:
        tensors[a.name] = torch.full((H,), _temperature(s, a, value, plain), dtype=dtype, device=device)
    made = {}
    for a in s.arguments:  # in the order of declaration
        if a.name in tensors:
            made[a.name] = tensors[a.name].to(low if a.per_position else dtype)
    S = plain.get("S", plain.get("T", 0))
    T = plain[s.nodes] if s.nodes is not None else plain["T"]
    batch = plain["B"]
    return made, constants, Setting(batch, T, S, H, plain, dtype, low, device, causal)


def _check_tensor(
    s: AttentionSignature, a: AttentionArgument, value: Any, sizes: dict[str, tuple[int, str]], heads: dict[str, int]
) -> None:
    what = f"{s.name}: {a.name}"
    layout = tuple("T" if d == "S" and s.aligned else d for d in a.layout)
    shape = f"[{', '.join(layout)}]"
    if not isinstance(value, Tensor):
        raise ArgumentError(f"{what} must be a tensor {shape}, got {type(value).__name__}")
    if value.dtype not in FLOATS:
        raise ArgumentError(
            f"{what} must be float32, bfloat16, float16 or float64, got {str(value.dtype).removeprefix('torch.')}"
        )
    if value.dim() != len(layout):
        raise ArgumentError(f"{what} must have {len(layout)} axes {shape}, got the shape {list(value.shape)}")
    for dim, n in zip(layout, value.shape, strict=True):
        if dim == "H":
            heads[a.name] = n
            if n == 0:
                raise ArgumentError(f"{what} has no heads; {a.name} must be {shape}, got {list(value.shape)}")
            continue
        known = sizes.setdefault(dim, (n, a.name))
        if known[0] != n:
            raise ArgumentError(
                f"{what} has {dim} = {n}, but {known[1]} has {dim} = {known[0]}; {a.name} must be {shape}, "
                f"got {list(value.shape)}"
            )
        if n == 0 and dim not in ("B", "T", "S"):
            raise ArgumentError(f"{what} has {dim} = 0; widths must be at least 1")
    if a.kind == "temperature":
        _check_positive(s, a.name, value)


def _check_positive(s: AttentionSignature, name: str, value: Tensor) -> None:
    """beta > 0. A tensor is looked at once for each version of it, since a GPU has to be waited for."""
    if getattr(value, "_chunkform_positive", None) == value._version or not value.numel():
        return
    if value.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    if not bool((value.detach() > 0).all()):
        raise ArgumentError(
            f"{s.name}: {name} must be above 0 in every head, got {value.detach().flatten().tolist()[:8]}"
        )
    value._chunkform_positive = value._version


def _temperature(s: AttentionSignature, a: AttentionArgument, value: Any, sizes: dict[str, int]) -> float:
    if value is None and a.default is not None:
        return float(a.default(sizes) if callable(a.default) else a.default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ArgumentError(f"{s.name}: {a.name} must be a tensor [H] or a number, got {value!r}")
    if value <= 0:
        raise ArgumentError(f"{s.name}: {a.name} must be above 0, got {value!r}")
    return float(value)


def _constant(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ArgumentError(f"{what} must be a finite number, got {value!r}")
    return float(value)


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
