"""The layers of transformers that hold their recurrence in a method, not in a function: lightning attention and the mLSTM.

Each function here takes the place of such a method, with its arguments and results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from chunkform.runtime.nn.rows import (
    GATES,
    WIDEST_GATED,
    bounded_decay,
    gate_first_rms_norm,
    gated_rms_norm,
    in_kernels,
    softplus_decay,
)

from .functions import decaying_attention, mlstm

Map = Callable[[Tensor], Tensor]


class LinearCache(Protocol):
    """A cache that keeps a state for each layer of linear attention."""

    def get_linear_cache(self, layer: int) -> Tensor | None: ...

    def set_linear_cache(self, layer: int, state: Tensor) -> None: ...


class LightningAttention(Protocol):
    """What the library's layer has."""

    layer_idx: int
    num_attention_heads: int
    head_dim: int
    slope_rate: Tensor
    qkv_proj: Map
    act_fn: Map
    norm: Map
    output_gate: Map
    out_proj: Map


class MLSTMConfig(Protocol):
    mode: str
    return_last_states: bool
    eps: float


class MLSTMBackend(Protocol):
    config: MLSTMConfig


def lightning_attention_layer(
    self: LightningAttention,
    hidden_states: Tensor,
    position_embeddings: object = None,
    attention_mask: Tensor | None = None,
    cache: LinearCache | None = None,
    past_key_values: LinearCache | None = None,
    **kwargs: object,
) -> tuple[Tensor, Tensor]:
    """MiniMax's: (output [B, T, width], state [B, H, D, D])."""
    cache = past_key_values if cache is None else cache
    count, width = self.num_attention_heads, self.head_dim
    x = self.act_fn(self.qkv_proj(hidden_states))
    if attention_mask is not None:
        x = (x * attention_mask[:, :, None]).to(x.dtype)
    query, key, value = x.unflatten(-1, (count, 3 * width)).split(width, -1)
    state = None if cache is None else cache.get_linear_cache(self.layer_idx)
    o, state = decaying_attention(query, key, value, -self.slope_rate.flatten(), state, kwargs)
    state = state.to(value.dtype)
    o = self.norm(o.flatten(2))
    o = self.out_proj(torch.sigmoid(self.output_gate(hidden_states)) * o)
    if cache is not None:
        cache.set_linear_cache(self.layer_idx, state)
    return o, state


def mlstm_backend(
    self: MLSTMBackend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    return_last_states: bool | None = None,
    mode: str | None = None,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor] | None]:
    """xLSTM's backend: tensors [B, H, T, ..], and (output, (C, n, m)) where states are wanted, as in generation they are."""
    mode = self.config.mode if mode is None else mode
    if return_last_states is None:
        return_last_states = self.config.return_last_states
    keep = bool(return_last_states) or "inference" in mode
    states = None
    if c_initial is not None and n_initial is not None and m_initial is not None:
        states = c_initial, n_initial, m_initial
    steps_first = [x.transpose(1, 2) for x in (query, key, value, igate, fgate)]
    h, states = mlstm(*steps_first, states, keep, self.config.eps)
    h = h.transpose(1, 2)
    return (h, states) if keep else h


class GatedNorm(Protocol):
    weight: Tensor
    variance_epsilon: float


def gated_norm(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An RMS norm beside a gate, which multiplies its result, or what it is of: one kernel of rows on a GPU."""

    @functools.wraps(forward)
    def on_rows(self: GatedNorm, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        if gate is None or gate.shape != hidden_states.shape:
            return forward(self, hidden_states, gate)
        groups = groups_after_gate(self, hidden_states.shape[-1])
        if groups is not None:
            if in_kernels(hidden_states.unflatten(-1, (groups, -1)), WIDEST_GATED):
                return gate_first_rms_norm(hidden_states, gate, self.weight, self.variance_epsilon, groups)
        elif (activation := getattr(self, "activation", None)) in GATES and in_kernels(hidden_states):
            return gated_rms_norm(hidden_states, gate, self.weight, self.variance_epsilon, activation)
        return forward(self, hidden_states, gate)

    on_rows.__module__ = __name__
    return on_rows


def groups_after_gate(norm: GatedNorm, width: int) -> int | None:
    """In how many groups a norm is taken of what the gate's SiLU has multiplied; None where the gate comes after the norm."""
    size = getattr(norm, "group_size", None)
    if size is not None and not hasattr(norm, "activation"):
        return width // int(size) if width % int(size) == 0 else None
    return int(getattr(norm, "n_groups", 1)) if getattr(norm, "norm_before_gate", None) is False else None


class ForgetGate(Protocol):
    A_log: Tensor
    dt_bias: Tensor
    head_dim: int


def forget_gate(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Log decays of each channel from a projection, with a lower bound or without: one kernel of rows on a GPU."""

    @functools.wraps(forward)
    def on_rows(self: ForgetGate, hidden_states: Tensor) -> Tensor:
        maps = next((m for m in (_maps(self, "f_a_proj", "f_b_proj"), _maps(self, "f_proj")) if m), None)
        known = maps and all(hasattr(self, n) for n in ("A_log", "dt_bias", "head_dim"))
        if not known or not in_kernels(hidden_states[..., :1]):
            return forward(self, hidden_states)
        g = hidden_states
        for each in maps or ():
            g = each(g)
        g = g.unflatten(-1, (-1, self.head_dim))
        A, bias, bound = self.A_log.flatten(), self.dt_bias.view(-1, self.head_dim), lower_bound_of(self)
        return softplus_decay(g, A, bias) if bound is None else bounded_decay(g, A, bias, bound)

    on_rows.__module__ = __name__
    return on_rows


def lower_bound_of(gate: ForgetGate) -> float | None:
    """The lower bound of a gate's log decays, by either of the names that the library has for it."""
    own = getattr(gate, "safe_gate_lower_bound", None)
    if own is None and getattr(gate, "safe_gate", False):
        own = getattr(gate, "lower_bound", None)
    return None if own is None else float(own)


def _maps(gate: ForgetGate, *names: str) -> list[Map]:
    return [getattr(gate, n) for n in names] if all(hasattr(gate, n) for n in names) else []
