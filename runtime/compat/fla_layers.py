"""Layers of flash-linear-attention on our ops: the same constructors, parameters by the same names, the same calls.

    from chunkform.runtime.compat.fla_layers import GatedDeltaNet, converted
    layer = GatedDeltaNet(hidden_size=1024, head_dim=128, num_heads=8)
    layer.load_state_dict(theirs.state_dict())
    model = converted(model)  # each layer of theirs that is here, by one of ours with its weights

A call is `layer(hidden_states, attention_mask, past_key_values, use_cache)` and returns (output, None, past_key_values). A
`Cache` holds states as our ops have them, [B, H, K, V]; one token without gradients is the op's decoding step.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chunkform.errors import ArgumentError, nearest

from ..nn.convolution import last_inputs
from ..nn.convolve import convolve, packed_by
from ..nn.rows import gate_first_rms_norm, gated_rms_norm
from .fla import chunk_delta_rule, chunk_gated_delta_rule, chunk_gla, chunk_kda, chunk_simple_gla

Kept = tuple[Tensor | None, tuple[Tensor | None, ...]]  # a layer's state, and the tails of its convolutions
Result = tuple[Tensor, None, "Cache | None"]
Model = TypeVar("Model", bound=nn.Module)
HINTS = {"mode", "fuse_norm", "chunk_size", "backend", "num_hidden_layers"}  # which kernels theirs run, first weights
__path__: list[str] = []  # of a package without modules, so that a misspelt import is told (chunkform/misspelt.py)
__elsewhere__ = {"RWKV7Attention": f"it is in {__package__}.fla_rwkv7"}
GATES = {"swish": "silu", "silu": "silu", "sigmoid": "sigmoid"}


class Cache:
    """What layers remember, by their index: the state and the last inputs of the convolutions."""

    def __init__(self) -> None:
        self.layers: dict[int, Kept] = {}

    def of(self, layer: Layer) -> Kept:
        return self.layers.get(layer.index, (None, (None,) * 3))

    def keep(self, layer: Layer, state: Tensor | None, tails: tuple[Tensor | None, ...]) -> None:
        self.layers[layer.index] = state, tails

    def rows(self, index: Tensor) -> Cache:
        """The cache of some of the sequences, in another order or several times, as a beam search wants it."""
        found = Cache()
        for n, (state, tails) in self.layers.items():
            found.layers[n] = (
                None if state is None else state[index],
                tuple(None if x is None else x[index] for x in tails),
            )
        return found


class Convolution(nn.Conv1d):
    """The short causal convolution with its SiLU; weight [channels, 1, taps], that of the step itself last."""

    def __init__(self, channels: int, taps: int, bias: bool, silu: bool = True) -> None:
        super().__init__(channels, channels, taps, groups=channels, bias=bias)
        self.silu = silu

    def forward(self, x: Tensor, tail: Tensor | None, starts: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        count = x.shape[0] if starts is None else starts.shape[0] - 1
        tail = x.new_zeros(count, self.kernel_size[0] - 1, x.shape[-1]) if tail is None else tail.to(x.dtype)
        packed = None if starts is None else packed_by(starts, x.shape[1])
        y = convolve(x, self.weight.squeeze(1).flip(1).mT, self.bias, self.silu, tail, packed)
        return y, last_inputs(x, tail, starts)


class Norm(nn.Module):
    """An RMS norm of each head with a weight, times a function of a gate where it has one."""

    def __init__(self, width: int, eps: float, activation: str | None = "silu", affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.width, self.eps, self.activation = width, eps, activation

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        if gate is None or self.activation is None:
            y = F.rms_norm(x.to(torch.promote_types(x.dtype, torch.float32)), (self.width,), self.weight, self.eps)
            return y.to(x.dtype)
        weight = torch.ones(self.width, device=x.device) if self.weight is None else self.weight
        return gated_rms_norm(x, gate.view_as(x), weight, self.eps, self.activation)


class Layer(nn.Module):
    """What the layers have in common: padding, packed sequences, caches."""

    theirs: ClassVar[dict[str, str]] = {}  # arguments of the constructor that a layer of theirs has elsewhere
    fixed: ClassVar[dict[str, object]] = {}  # arguments of theirs that have one value here

    def __init__(self, layer_idx: int | None, others: dict[str, object]) -> None:
        super().__init__()
        for n, x in others.items():
            what = type(self).__name__
            if n in self.fixed and x != self.fixed[n]:
                raise ArgumentError(f"{what}: {n} must be {self.fixed[n]!r}, got {x!r}")
            if n not in self.fixed and n not in HINTS:
                known = [*inspect.signature(type(self).__init__).parameters][1:-1]
                raise ArgumentError(
                    f"{what}: {n} isn't supported{nearest(n, known) or '; there are ' + ', '.join(known)}"
                )
        self.layer_idx = layer_idx

    @property
    def index(self) -> int:
        return 0 if self.layer_idx is None else self.layer_idx

    def kept(self, cache: object) -> Kept:
        """What a cache has for this layer."""
        if cache is None:
            return None, (None,) * 3
        if not isinstance(cache, Cache):
            raise ArgumentError(
                f"{type(self).__name__}: past_key_values must be a {Cache.__module__}.Cache, got {type(cache).__name__}"
            )
        return cache.of(self)

    def mixed(self, x: Tensor, kept: Kept, starts: Tensor | None, final: bool) -> tuple[Tensor, Kept]:
        """The layer's function of x [B, T, hidden_size], and what the next call goes on with."""
        raise NotImplementedError

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = False,
        output_attentions: bool | None = False,
        cu_seqlens: Tensor | None = None,
    ) -> Result:
        """`attention_mask` [B, T], 0 where padded, on any side: padded steps are left out, and their output is zero."""
        if past_key_values is None and use_cache:
            past_key_values = Cache()
        kept = self.kept(past_key_values)
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ArgumentError(
                f"{type(self).__name__}: attention_mask must be [B, T], 0 where padded, got {list(attention_mask.shape)}"
            )
        rows, steps = hidden_states.shape[:2]
        if attention_mask is not None and (len(attention_mask) != rows or attention_mask.shape[1] < steps):
            raise ArgumentError(
                f"{type(self).__name__}: attention_mask must be [B, T] = {[rows, steps]}, or longer beside a cache, got "
                f"{list(attention_mask.shape)}"
            )
        mask = None if attention_mask is None else attention_mask[:, -steps:].bool()
        if mask is not None and bool(mask.all()):
            mask = None
        if mask is not None:
            if cu_seqlens is not None:
                raise ArgumentError(f"{type(self).__name__}: give attention_mask or cu_seqlens, not both")
            cu_seqlens = F.pad(mask.sum(1).cumsum(0), (1, 0))
            x = hidden_states[mask].unsqueeze(0)
        else:
            x = hidden_states
        y, (state, tails) = self.mixed(x, kept, cu_seqlens, past_key_values is not None)
        if past_key_values is not None:
            past_key_values.keep(self, state, tails)
        if mask is not None:
            y = torch.zeros_like(hidden_states).masked_scatter(mask.unsqueeze(-1), y.to(hidden_states.dtype))
        return y, None, past_key_values


class _Projected(Layer):
    """Queries, keys and values by projections and short convolutions; the output normalised in each head and projected."""

    def __init__(
        self,
        layer_idx: int | None,
        others: dict[str, object],
        width: int,
        sizes: tuple[int, int, int],
        taps: int,
        bias: bool,
    ) -> None:
        super().__init__(layer_idx, others)
        self.hidden_size = width
        for name, size in zip("qkv", sizes, strict=True):
            setattr(self, f"{name}_proj", nn.Linear(width, size, bias=False))
            if taps:
                setattr(self, f"{name}_conv1d", Convolution(size, taps, bias))
        self.use_short_conv = bool(taps)
        self.silu = True  # where there is no convolution

    def qkv(
        self, x: Tensor, tails: tuple[Tensor | None, ...], starts: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        made, kept = [], []
        for name, tail in zip("qkv", tails, strict=True):
            y, after = getattr(self, f"{name}_proj")(x), tail
            if self.use_short_conv:
                y, after = getattr(self, f"{name}_conv1d")(y, tail, starts)
            elif self.silu:
                y = F.silu(y)
            made.append(y)
            kept.append(after)
        return made, kept


def heads(x: Tensor, width: int) -> Tensor:
    return x.unflatten(-1, (-1, width))


def whole(what: str, x: float) -> int:
    if not math.isclose(x, round(x), rel_tol=1e-5):
        raise ArgumentError(f"{what} must be a whole number, got {x}")
    return round(x)


def inverse_softplus_steps(count: int) -> Tensor:
    """Offsets whose softplus lies between 0.001 and 0.1, as Mamba-2 has them at first."""
    steps = torch.exp(torch.rand(count) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)).clamp(min=1e-4)
    return steps + torch.log(-torch.expm1(-steps))


class DeltaNet(_Projected):
    """The delta rule (arXiv 2406.06484): keys of length one; beta is a sigmoid."""

    fixed: ClassVar[dict[str, object]] = {"d_model": None}

    def __init__(
        self,
        hidden_size: int = 1024,
        expand_k: float = 1.0,
        expand_v: float = 1.0,
        num_heads: int = 4,
        use_beta: bool = True,
        use_gate: bool = False,
        use_short_conv: bool = True,
        conv_size: int = 4,
        conv_bias: bool = False,
        allow_neg_eigval: bool = False,
        layer_idx: int | None = None,
        norm_eps: float = 1e-5,
        qk_activation: str = "silu",
        qk_norm: str = "l2",
        **others: object,
    ) -> None:
        keys, values = (whole("hidden_size * expand", hidden_size * x) for x in (expand_k, expand_v))
        super().__init__(
            layer_idx, others, hidden_size, (keys, keys, values), conv_size if use_short_conv else 0, conv_bias
        )
        if (qk_activation, qk_norm) != ("silu", "l2"):
            raise ArgumentError(f"DeltaNet: keys have a SiLU and length one, got {qk_activation!r} and {qk_norm!r}")
        self.num_heads, self.head_k_dim, self.head_v_dim = num_heads, keys // num_heads, values // num_heads
        self.allow_neg_eigval = allow_neg_eigval
        self.b_proj = nn.Linear(hidden_size, num_heads, bias=False) if use_beta else None
        self.g_proj = nn.Linear(hidden_size, values, bias=False) if use_gate else None
        self.o_norm = Norm(self.head_v_dim, norm_eps, "silu" if use_gate else None)
        self.o_proj = nn.Linear(values, hidden_size, bias=False)

    def mixed(self, x: Tensor, kept: Kept, starts: Tensor | None, final: bool) -> tuple[Tensor, Kept]:
        (q, k, v), tails = self.qkv(x, kept[1], starts)
        q, k, v = heads(q, self.head_k_dim), heads(k, self.head_k_dim), heads(v, self.head_v_dim)
        beta = torch.ones_like(q[..., 0]) if self.b_proj is None else self.b_proj(x).sigmoid()
        beta = 2 * beta if self.allow_neg_eigval else beta
        o, state = chunk_delta_rule(
            q, k, v, beta, None, kept[0], final, use_qk_l2norm_in_kernel=True, cu_seqlens=starts
        )
        o = self.o_norm(o, None if self.g_proj is None else self.g_proj(x))
        return self.o_proj(o.flatten(2)), (state, tuple(tails))


class GatedDeltaNet(_Projected):
    """The gated delta rule (arXiv 2412.06464); its decay is that of Mamba-2."""

    theirs: ClassVar[dict[str, str]] = {"output_gate_activation": "o_norm.activation"}

    def __init__(
        self,
        hidden_size: int = 2048,
        expand_v: float = 2.0,
        head_dim: int = 256,
        num_heads: int = 6,
        num_v_heads: int | None = None,
        use_gate: bool = True,
        use_short_conv: bool = True,
        allow_neg_eigval: bool = False,
        conv_size: int = 4,
        conv_bias: bool = False,
        layer_idx: int | None = None,
        norm_eps: float = 1e-5,
        output_gate_activation: str = "swish",
        **others: object,
    ) -> None:
        self_heads = num_heads if num_v_heads is None else num_v_heads
        head_v_dim = whole("head_dim * expand_v", head_dim * expand_v)
        sizes = num_heads * head_dim, num_heads * head_dim, self_heads * head_v_dim
        super().__init__(layer_idx, others, hidden_size, sizes, conv_size if use_short_conv else 0, conv_bias)
        self.num_heads, self.num_v_heads, self.head_k_dim, self.head_v_dim = num_heads, self_heads, head_dim, head_v_dim
        self.allow_neg_eigval = allow_neg_eigval
        self.a_proj = nn.Linear(hidden_size, self_heads, bias=False)
        self.b_proj = nn.Linear(hidden_size, self_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(self_heads).uniform_(1e-4, 16).log())
        self.dt_bias = nn.Parameter(inverse_softplus_steps(self_heads))
        self.g_proj = nn.Linear(hidden_size, sizes[2], bias=False) if use_gate else None
        self.o_norm = Norm(head_v_dim, norm_eps, _gate(output_gate_activation) if use_gate else None)
        self.o_proj = nn.Linear(sizes[2], hidden_size, bias=False)

    def mixed(self, x: Tensor, kept: Kept, starts: Tensor | None, final: bool) -> tuple[Tensor, Kept]:
        (q, k, v), tails = self.qkv(x, kept[1], starts)
        o, state = chunk_gated_delta_rule(
            heads(q, self.head_k_dim),
            heads(k, self.head_k_dim),
            heads(v, self.head_v_dim),
            self.a_proj(x),
            self.b_proj(x),
            None,
            kept[0],
            final,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            allow_neg_eigval=self.allow_neg_eigval,
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            cu_seqlens=starts,
        )
        o = self.o_norm(o, None if self.g_proj is None else self.g_proj(x))
        return self.o_proj(o.flatten(2)), (state, tuple(tails))


class KimiDeltaAttention(_Projected):
    """Kimi delta attention (arXiv 2510.26692): a decay of each channel, of a projection of low rank."""

    def __init__(
        self,
        hidden_size: int = 2048,
        expand_v: float = 1.0,
        head_dim: int = 128,
        num_heads: int = 16,
        num_v_heads: int | None = None,
        use_short_conv: bool = True,
        allow_neg_eigval: bool = False,
        safe_gate: bool = False,
        lower_bound: float | None = None,
        conv_size: int = 4,
        conv_bias: bool = False,
        layer_idx: int | None = None,
        norm_eps: float = 1e-5,
        **others: object,
    ) -> None:
        of_values = num_heads if num_v_heads is None else num_v_heads
        head_v_dim = whole("head_dim * expand_v", head_dim * expand_v)
        sizes = num_heads * head_dim, num_heads * head_dim, of_values * head_v_dim
        super().__init__(layer_idx, others, hidden_size, sizes, conv_size if use_short_conv else 0, conv_bias)
        self.num_v_heads, self.head_k_dim, self.head_v_dim = of_values, head_dim, head_v_dim
        self.allow_neg_eigval, self.lower_bound = allow_neg_eigval, lower_bound
        self.f_proj = nn.Sequential(
            nn.Linear(hidden_size, head_v_dim, bias=False), nn.Linear(head_v_dim, of_values * head_dim, bias=False)
        )
        self.b_proj = nn.Linear(hidden_size, of_values, bias=False)
        rates = torch.zeros(of_values) if safe_gate else torch.empty(of_values).uniform_(1, 16).log()
        self.A_log = nn.Parameter(rates)
        self.dt_bias = nn.Parameter(inverse_softplus_steps(of_values * head_dim))
        self.g_proj = nn.Sequential(
            nn.Linear(hidden_size, head_v_dim, bias=False), nn.Linear(head_v_dim, sizes[2], bias=True)
        )
        self.o_norm = Norm(head_v_dim, norm_eps, "sigmoid")
        self.o_proj = nn.Linear(sizes[2], hidden_size, bias=False)

    def mixed(self, x: Tensor, kept: Kept, starts: Tensor | None, final: bool) -> tuple[Tensor, Kept]:
        (q, k, v), tails = self.qkv(x, kept[1], starts)
        o, state = chunk_kda(
            heads(q, self.head_k_dim),
            heads(k, self.head_k_dim),
            heads(v, self.head_v_dim),
            heads(self.f_proj(x), self.head_k_dim),
            self.b_proj(x),
            None,
            kept[0],
            final,
            True,
            True,
            True,
            self.allow_neg_eigval,
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            lower_bound=self.lower_bound,
            cu_seqlens=starts,
        )
        return self.o_proj(self.o_norm(o, self.g_proj(x)).flatten(2)), (state, tuple(tails))


class GatedLinearAttention(_Projected):
    """Gated linear attention (arXiv 2312.06635): the decay of a channel is a root of a sigmoid."""

    theirs: ClassVar[dict[str, str]] = {
        "norm_eps": "g_norm_swish_gate.eps",
        "gate_low_rank_dim": "gk_proj.0.out_features",
    }
    fixed: ClassVar[dict[str, object]] = {"feature_map": None, "gate_fn": "swish", "elementwise_affine": True}

    def __init__(
        self,
        hidden_size: int = 1024,
        expand_k: float = 0.5,
        expand_v: float = 1.0,
        num_heads: int = 4,
        num_kv_heads: int | None = None,
        use_short_conv: bool = False,
        conv_size: int = 4,
        conv_bias: bool = False,
        use_output_gate: bool = True,
        norm_eps: float = 1e-5,
        gate_logit_normalizer: int = 16,
        gate_low_rank_dim: int = 16,
        clamp_min: float | None = None,
        layer_idx: int | None = None,
        **others: object,
    ) -> None:
        of_keys = num_heads if num_kv_heads is None else num_kv_heads
        keys, values = (whole("hidden_size * expand", hidden_size * x) for x in (expand_k, expand_v))
        sizes = keys, keys * of_keys // num_heads, values * of_keys // num_heads
        super().__init__(layer_idx, others, hidden_size, sizes, conv_size if use_short_conv else 0, conv_bias)
        self.silu = use_short_conv
        self.num_heads, self.num_kv_heads = num_heads, of_keys
        self.head_k_dim, self.head_v_dim = keys // num_heads, values // num_heads
        self.gate_logit_normalizer, self.clamp_min = gate_logit_normalizer, clamp_min
        self.gk_proj = nn.Sequential(
            nn.Linear(hidden_size, gate_low_rank_dim, bias=False), nn.Linear(gate_low_rank_dim, sizes[1], bias=True)
        )
        self.g_proj = nn.Linear(hidden_size, values, bias=False) if use_output_gate else None
        norm = Norm(self.head_v_dim, norm_eps, "silu" if use_output_gate else None)
        self.norm_name = "g_norm_swish_gate" if use_output_gate else "g_norm"
        setattr(self, self.norm_name, norm)
        self.o_proj = nn.Linear(values, hidden_size, bias=False)

    def mixed(self, x: Tensor, kept: Kept, starts: Tensor | None, final: bool) -> tuple[Tensor, Kept]:
        (q, k, v), tails = self.qkv(x, kept[1], starts)
        gk = self.gk_proj(x)
        gk = F.logsigmoid(gk.to(torch.promote_types(gk.dtype, torch.float32))) / self.gate_logit_normalizer
        gk = gk if self.clamp_min is None else gk.clamp(min=self.clamp_min)
        q, k, v, gk = (
            heads(y, n)
            for y, n in ((q, self.head_k_dim), (k, self.head_k_dim), (v, self.head_v_dim), (gk, self.head_k_dim))
        )
        o, state = chunk_gla(q, k, v, gk, None, kept[0], final, cu_seqlens=starts)
        o = getattr(self, self.norm_name)(o, None if self.g_proj is None else self.g_proj(x))
        return self.o_proj(o.flatten(2)), (state, tuple(tails))


class GatedNorm(nn.Module):
    """The norm of what a gate has multiplied, in groups; or of each group, before the gate."""

    def __init__(self, width: int, eps: float, groups: int, before: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.groups, self.before = eps, groups, before

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        if not self.before:
            return gate_first_rms_norm(x, gate, self.weight, self.eps, self.groups)
        wide = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (self.groups, -1))
        normal = F.rms_norm(wide, (wide.shape[-1],), eps=self.eps).flatten(-2)
        return (normal * self.weight * F.silu(gate.to(wide.dtype))).to(x.dtype)


class Mamba2(Layer):
    """Mamba-2 (arXiv 2405.21060), whose groups share B and C: neighbouring heads, as in the kernels of mamba_ssm."""

    theirs: ClassVar[dict[str, str]] = {"state_size": "ssm_state_size", "conv_kernel": "conv_kernel_size"}
    fixed: ClassVar[dict[str, object]] = {"hidden_act": "silu"}

    def __init__(
        self,
        num_heads: int | None = None,
        head_dim: int = 64,
        hidden_size: int = 2048,
        state_size: int = 128,
        expand: int = 2,
        n_groups: int = 1,
        conv_kernel: int = 4,
        use_conv_bias: bool = True,
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_limit: tuple[float, float] = (0.0, math.inf),
        use_bias: bool = False,
        norm_eps: float = 1e-5,
        layer_idx: int | None = None,
        **others: object,
    ) -> None:
        super().__init__(layer_idx, others)
        inner = expand * hidden_size
        if inner % head_dim or num_heads not in (None, 0, inner // head_dim) or (inner // head_dim) % n_groups:
            raise ArgumentError(
                f"Mamba2: expand * hidden_size = {inner} must be num_heads * head_dim, with heads in n_groups; got "
                f"{num_heads}, {head_dim}, {n_groups}"
            )
        self.head_dim, self.num_heads = head_dim, inner // head_dim
        self.states, self.groups, self.dt_limit = state_size, n_groups, dt_limit
        channels = inner + 2 * n_groups * state_size
        self.in_proj = nn.Linear(hidden_size, inner + channels + self.num_heads, bias=use_bias)
        self.conv1d = Convolution(channels, conv_kernel, use_conv_bias)
        self.dt_bias = nn.Parameter(inverse_softplus_steps(self.num_heads))
        self.A_log = nn.Parameter(torch.empty(self.num_heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(inner if D_has_hdim else self.num_heads))
        self.norm = GatedNorm(inner, norm_eps, n_groups, norm_before_gate) if rmsnorm else None
        self.out_proj = nn.Linear(inner, hidden_size, bias=use_bias)

    def mixed(self, x: Tensor, kept: Kept, starts: Tensor | None, final: bool) -> tuple[Tensor, Kept]:
        inner, of_group = self.out_proj.in_features, self.groups * self.states
        gate, y, dt = self.in_proj(x).split([inner, self.conv1d.in_channels, self.num_heads], -1)
        y, tail = self.conv1d(y, kept[1][0], starts)
        y, B, C = y.split([inner, of_group, of_group], -1)
        y, B, C = heads(y, self.head_dim), heads(B, self.states), heads(C, self.states)
        wide = torch.promote_types(x.dtype, torch.float32)
        dt = F.softplus(dt.to(wide) + self.dt_bias).clamp(*self.dt_limit)
        decay = -dt * self.A_log.to(wide).exp()
        o, state = chunk_simple_gla(
            C, B, (dt.unsqueeze(-1) * y).to(y.dtype), decay, None, 1.0, kept[0], final, cu_seqlens=starts
        )
        o = (o + self.D.to(o.dtype).view(self.num_heads, -1) * y).flatten(2)
        o = o * F.silu(gate) if self.norm is None else self.norm(o, gate)
        return self.out_proj(o), (state, (tail, None, None))


def _gate(activation: str) -> str:
    if activation not in GATES:
        raise ArgumentError(f"output_gate_activation must be one of {', '.join(GATES)}, got {activation!r}")
    return GATES[activation]


# --- from layers of theirs --------------------------------------------------------------------------------------------

LAYERS: dict[str, type[Layer]] = {
    x.__name__: x for x in (DeltaNet, GatedDeltaNet, KimiDeltaAttention, GatedLinearAttention, Mamba2)
}


def layer_of(name: str) -> type[Layer] | None:
    """The layer of ours for a class of theirs."""
    if name == "RWKV7Attention":
        return importlib.import_module(".fla_rwkv7", __package__).RWKV7Attention  # type: ignore[no-any-return]
    return LAYERS.get(name)


def from_layer(theirs: nn.Module) -> Layer:
    """Ours for a layer of flash-linear-attention, by the name of its class: with its sizes, its weights and its mode.

    Raises:
        chunkform.errors.ArgumentError: a layer that isn't here, or whose parameters have other names or shapes.
    """
    made = layer_of(type(theirs).__name__)
    if made is None:
        raise ArgumentError(
            f"there is no layer {type(theirs).__name__} here; there are {', '.join((*LAYERS, 'RWKV7Attention'))}"
        )
    given: dict[str, object] = {}
    for name in inspect.signature(made.__init__).parameters:
        path = made.theirs.get(name, name)
        found: object = theirs
        for part in path.split("."):
            found = getattr(found, part, None)
        if name != "self" and found is not None:
            given[name] = found
    if getattr(theirs, "feature_map_fn", None) is not None:
        raise ArgumentError(f"{made.__name__}: feature maps of queries and keys aren't supported")
    ours = made(**given)
    weights = dict(theirs.named_parameters())
    for n, own in ours.named_parameters():
        p = weights.pop(n, None)
        if p is None and n.endswith("norm.weight"):  # theirs may have a norm without weights
            own.data = torch.ones_like(own, device=next(theirs.parameters()).device)
            continue
        if p is None or own.shape != p.shape:
            there = "is missing there" if p is None else f"is {list(p.shape)} there"
            raise ArgumentError(f"{made.__name__}: {n} {list(own.shape)} {there}")
        own.data = p.detach().clone()
        own.requires_grad_(p.requires_grad)
    for n, module in ours.named_modules():
        if n and hasattr(module, "eps"):
            module.eps = theirs.get_submodule(n).eps
    if weights:
        raise ArgumentError(f"{made.__name__}: {', '.join(weights)} of theirs have no counterpart here")
    return ours.train(theirs.training)


def converted(model: Model, which: Callable[[nn.Module], bool] = lambda _: True) -> Model:
    """The model, with each layer of theirs that is here replaced by ours; `which` may leave some as they are."""
    for name, child in list(model.named_children()):
        known = layer_of(type(child).__name__) is not None and not isinstance(child, Layer)
        setattr(model, name, from_layer(child) if known and which(child) else converted(child, which))
    return model
